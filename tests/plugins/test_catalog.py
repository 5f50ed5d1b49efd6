"""Entry points: read lazily, ours first, and errors that name packages."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from doc_blocks import DOCS, blocks
from plugin_packages import python, write_package
from qaeval_core.plugins import GROUPS

METRICS = "qaeval.metrics"
PACKAGE = Path(__file__).parents[1] / "plugin_package" / "pyproject.toml"
LENGTH = """
def length(candidate):
    'Signs of the candidate.'
    return float(len(candidate))
"""
SCORE = (
    "from qaeval import Scorer\n"
    "rows = Scorer(['{name}']).score([{{'candidate': 'four', 'references': ['five']}}])\n"
    "print([row['{name}'] for row in rows])"
)


def test_a_function_of_a_package_is_a_metric(tmp_path: Path) -> None:
    write_package(tmp_path, "of-length", "1.5", {METRICS: {"length": "signs:length"}}, signs=LENGTH)
    assert python(SCORE.format(name="length"), tmp_path) == "[4.0]\n"
    shown = python(
        "from qaeval_core.scoring.describe_metrics import metric_lines\n"
        "print('\\n'.join(metric_lines('length')))",
        tmp_path,
    )
    assert "length: Signs of the candidate\n" in shown
    assert "a function of of-length 1.5" in shown
    assert "package:of-length 1.5" in shown.partition("Signature")[2]


def test_two_packages_of_one_name_are_named(tmp_path: Path) -> None:
    """Whichever came first on a path would have scored."""
    one = write_package(tmp_path / "a", "one", "1", {METRICS: {"length": "signs:length"}}, signs="")
    two = write_package(tmp_path / "b", "two", "2", {METRICS: {"length": "signs:length"}})
    said = python(SCORE.format(name="length"), one, two)
    assert said.startswith("ConfigError two packages add length of qaeval.metrics, ")
    assert "one 1" in said and "two 2" in said
    # Who does not ask for it is not stopped by it.
    assert python(SCORE.format(name="f1"), one, two) == "[0.0]\n"


def test_a_name_of_our_own_wins(tmp_path: Path) -> None:
    bad = "raise SystemExit('it was imported')"
    write_package(tmp_path, "other-f1", "1", {METRICS: {"f1": "bad:f1"}}, bad=bad)
    assert python(SCORE.format(name="f1"), tmp_path) == "[0.0]\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nowhere_to_be_found", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("length = 5", "a plain function is needed, not of type int"),
        ("length = dict", "it is of type type, and must be a Metric [QA0211]"),
        ("def length(candidate, weight): ...", "has the parameter 'weight', which is no role"),
        ("from qaeval_core.metrics.f1 import F1 as length", "its own name is 'f1'"),
    ],
)
def test_what_is_no_metric_is_refused_by_package_and_reason(
    tmp_path: Path, source: str, why: str
) -> None:
    write_package(tmp_path, "broken", "0.1", {METRICS: {"length": "signs:length"}}, signs=source)
    said = python(SCORE.format(name="length"), tmp_path)
    assert said.startswith("ConfigError length of broken 0.1 (signs:length)")
    assert why in said


def test_nothing_of_a_package_is_imported_before_it_is_used(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        "loud",
        "1",
        {METRICS: {"loud": "loud:score"}},
        loud="print('imported')\n" + LENGTH,
    )
    said = python(
        SCORE.format(name="f1") + "\nfrom qaeval_core.metrics.catalog import METRICS\n"
        "print('loud' in METRICS, list(METRICS)[-1])",
        tmp_path,
    )
    assert said == "[0.0]\nTrue loud\n"


def test_stores_chat_apis_families_graphs_and_statistics_are_found(tmp_path: Path) -> None:
    """Each group, from a package whose entries are made of our own parts."""
    source = (
        "from qaeval_core.llm.chat_api import ChatApi\n"
        "from qaeval_core.audit.settings import AuditStatistic\n"
        "from qaeval_core.models.record import GraphFacts\n"
        "from qaeval_core.storage.open_uri import StoreKind\n"
        "from qaeval_core.families.function_family import FunctionFamily\n"
        "class Mine(FunctionFamily):\n    name = 'mine'\n"
        "api = ChatApi('/x', lambda *_: {}, lambda a: a)\n"
        "statistic = AuditStatistic(measure=lambda a, b: (0.0, 1.0), tolerance=0.5)\n"
        "graph = GraphFacts(1, 'own_role', ())\n"
        "store = StoreKind(lambda bucket, query: None)\n"
    )
    entries = {
        "qaeval.chat": "api",
        "qaeval.audit_statistics": "statistic",
        "qaeval.graphs": "graph",
        "qaeval.stores": "store",
        "qaeval.families": "Mine",
    }
    write_package(
        tmp_path,
        "all-kinds",
        "1",
        {group: {"mine": f"kinds:{name}"} for group, name in entries.items()},
        kinds=source,
    )
    said = python(
        "from qaeval_core.llm.chat_api import CHAT_APIS\n"
        "from qaeval_core.audit.settings import STATISTICS, AuditSettings\n"
        "from qaeval_core.models.record import GRAPHS\n"
        "from qaeval_core.storage.open_uri import STORES\n"
        "from qaeval_core.families.catalog import FAMILIES\n"
        "from qaeval_core.configure import make_config\n"
        "for catalog in (CHAT_APIS, STATISTICS, GRAPHS, STORES, FAMILIES):\n"
        "    print(type(catalog['mine']).__name__, catalog.package_of('mine'))\n"
        "print(AuditSettings(columns={'f1': {'mine': 2}}).tolerance('f1', 'mine'))\n"
        "given = {'models': {'own_role': {'precision': 'fp16'}}}\n"
        "print(make_config(given).models.of('own_role'))\n"
        "make_config({'models': {'own_rule': {}}})",
        tmp_path,
    ).splitlines()
    assert [line.split()[0] for line in said[:5]] == [
        "ChatApi", "AuditStatistic", "GraphFacts", "StoreKind", "Mine",
    ]  # fmt: skip
    assert all(line.endswith(" all-kinds 1") for line in said[:5])
    assert said[5] == "2"
    assert "precision='fp16'" in said[6]
    assert said[7] == "ConfigError unknown key 'models.own_rule'; did you mean 'own_role'? [QA0203]"


def test_the_page_and_the_package_of_the_tests_have_all_groups() -> None:
    """What the page shows of a package is what an installed one has."""
    ((_, shown),) = blocks(DOCS / "extending.md", "toml")
    written = [tomllib.loads(shown), tomllib.loads(PACKAGE.read_text(encoding="utf-8"))]
    found = [own["project"]["entry-points"] for own in written]
    assert all(own.keys() == set(GROUPS) for own in found)
    for group, entries in found[0].items():
        assert entries.keys() & found[1][group].keys() or group == "qaeval.families"
        assert all(value.count(":") == 1 for value in entries.values())
