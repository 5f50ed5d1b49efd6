"""Plain functions as metrics: from Python, by --plugin, and where they fail."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from helpers import as_table, write_parquet
from plugin_packages import run
from qaeval import QAEvalError, Scorer, metric
from qaeval_core.errors import ConfigError, RowFailedError
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.plugins import Package

ROWS = [
    {"candidate": "in Oslo", "references": ["Oslo in 1987", "Bergen"]},
    {"candidate": "Bergen", "references": []},
    {"candidate": None, "references": ["x"]},
]
MODULE = '''
"""Own metrics."""
from qaeval import metric


def coverage(candidate: str, references: list[str]) -> float | None:
    """Share of the first reference's words that the candidate has.

    More of it.
    """
    words = _words(references[0]) if references else []
    return sum(word in _words(candidate) for word in words) / len(words) if words else None


@metric(name="surplus", higher_is_better=False, low=0)
def more(candidate, references=None, question=""):
    return float(max(len(candidate) - len(question), 0))


def explode(candidate):
    return 1 / (len(candidate) - 7)


def helper(text):
    return text


def _words(text):
    return text.split()
'''


def coverage(candidate: str, references: list[str]) -> float | None:
    """Share of the first reference's words that the candidate has."""
    words = references[0].split() if references else []
    return sum(word in candidate.split() for word in words) / len(words) if words else None


def test_a_function_scores_rows_beside_other_metrics() -> None:
    table = as_table(Scorer([coverage, "f1"]).score(ROWS))
    assert table["coverage"].to_pylist() == [pytest.approx(2 / 3), None, None]
    assert table["coverage_reason"].to_pylist() == [None, "no_score", None]
    assert table["quarantine_reason"].to_pylist() == [None, None, "null_candidate"]
    assert table["f1"].to_pylist()[0] == pytest.approx(0.8)


def test_an_instance_may_be_named_and_a_metric_object_has_settings() -> None:
    from qaeval_core.metrics.f1 import F1

    table = as_table(
        Scorer(
            {"mine": {"metric": coverage}, "f1": {"metric": F1(), "tokenizer": "whitespace"}}
        ).score(ROWS[:1])
    )
    assert table["mine"].to_pylist() == [pytest.approx(2 / 3)]
    with pytest.raises(ConfigError, match="metrics.f1.tokenizer.*QA0202"):
        Scorer({"f1": {"metric": F1(), "tokenizer": "none"}})


def test_docstring_roles_direction_and_range_are_the_functions() -> None:
    @metric(higher_is_better=False, low=0, high=9, version="3")
    def cost(question: str, context: str, answer: str = "") -> float:
        """What it costs.

        In cents.
        """
        return 1.0

    own = FunctionMetric(cost)
    assert (own.title, own.roles, own.optional_roles) == (
        "What it costs", ("question", "context"), ("answer",)
    )  # fmt: skip
    assert (own.low, own.high, own.higher_is_better) == (0, 9, False)
    assert own.definition == "What it costs.\n\nIn cents."
    assert own.identity["function_version"] == "3"
    assert cost("q", "c") == 1.0


def _returning(value: object) -> Callable[..., object]:
    @metric(low=0, high=1, version="1")
    def score(candidate: str) -> object:
        if isinstance(value, Exception):
            raise value
        return value

    return score


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0.5", "QA0213"),
        ([0.5], "QA0213"),
        (1.5, "1.5.*0.*1.*QA0213"),
        (math.inf, "0.*1.*QA0213"),
        (ZeroDivisionError("by nothing"), "ZeroDivisionError.*QA0213"),
    ],
)
def test_what_is_no_score_ends_it_by_function_and_row(value: object, why: str) -> None:
    with pytest.raises(RowFailedError, match=why) as raised:
        as_table(Scorer([_returning(value)]).score([{"candidate": None}, {"candidate": "a"}]))
    assert str(raised.value).startswith("function score of module ")
    assert str(raised.value).endswith(", on row 1 [QA0213]")


@pytest.mark.parametrize("value", [None, math.nan])
def test_none_and_nan_are_undefined(value: float | None) -> None:
    table = as_table(Scorer([_returning(value)]).score([{"candidate": "a"}]))
    assert table["score"].to_pylist() == [None]
    assert table["score_reason"].to_pylist() == ["no_score"]


async def _later(candidate: str) -> float:
    return 1.0


def _nothing() -> float:
    return 1.0


def _many(*candidates: str) -> float:
    return 1.0


def _weighed(candidate: str, weight: float) -> float:
    return weight


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda candidate: 1.0, "QA0212"),
        (len, "builtin_function_or_method.*QA0212"),
        (_later, "QA0212"),
        (_nothing, "QA0212"),
        (_many, "QA0212"),
        (_weighed, "'weight'.*QA0212"),
    ],
)
def test_what_is_no_metric_says_why(function: Callable[..., object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Scorer([function])


def test_a_closure_and_a_function_without_source_need_a_version() -> None:
    """Their numbers depend on what no hash of a source holds."""
    weight = 2.0

    def weighed(candidate: str) -> float:
        return weight * len(candidate)

    with pytest.raises(ConfigError, match="QA0212"):
        Scorer([weighed])
    spaces: dict[str, Callable[..., float]] = {}
    exec("def made(candidate):\n    return 1.0", spaces)
    with pytest.raises(ConfigError, match="QA0212"):
        Scorer([spaces["made"]])
    for function in (weighed, spaces["made"]):
        metric(version="1")(function)
        assert as_table(Scorer([function]).score([{"candidate": "a"}])).num_rows == 1


def test_names_are_taken_once() -> None:
    def f1(candidate: str) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="f1.*QA0208"):
        Scorer([f1])
    with pytest.raises(ConfigError, match="coverage.*QA0208"):
        Scorer([coverage, coverage])
    assert issubclass(ConfigError, QAEvalError)


def test_the_signature_is_of_name_version_and_source() -> None:
    def line(source: str, version: str = "1") -> str:
        own = FunctionMetric(coverage, package=Package("mine", version), source=source)
        return str(sorted(own.identity.items()))

    assert line("a") == line("a")
    assert len({line("a"), line("b"), line("a", "2")}) == 3


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a module of metrics, and rows."""
    (tmp_path / "own_metrics.py").write_text(MODULE)
    rows = [
        {"id": f"q{i}", "candidate": "a b" + "c" * i, "references": ["a b", "x"] if i else []}
        for i in range(8)
    ]
    write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist(rows))
    return tmp_path


def cli(project: Path, *words: str, expect: int = 0) -> str:
    return run("-m", "qaeval.cli", *words, cwd=project, expect=expect)


SCORE = ("score", "rows.parquet", "--out", "out", "--local", "--plugin", "own_metrics")


@pytest.mark.slow
def test_a_module_of_the_command_line_scores_and_is_listed(project: Path) -> None:
    cli(project, *SCORE, "--metrics", "coverage,surplus,f1")
    scores = pl.read_parquet(project / "out" / "scores" / "rows.parquet")
    assert scores["coverage"].to_list() == [None, 0.5, *[0.5] * 6]
    assert scores["surplus"].to_list() == [float(3 + i) for i in range(8)]
    about = json.loads((project / "out" / "run.json").read_text())
    assert about["packages"] == {
        "coverage": "module own_metrics", "surplus": "module own_metrics"
    }  # fmt: skip
    shown = cli(project, "metrics", "--plugin", "own_metrics")
    assert "Share of the first reference's words" in shown
    shown = cli(project, "metrics", "surplus", "--plugin", "own_metrics")
    assert "lower is better" in shown and "references           list of texts" in shown
    again = cli(project, *SCORE, "--metrics", "coverage,surplus,f1")
    assert "nothing to do: " in again
    shown = cli(project, "explain", "out", "--id", "q3", "--plugin", "own_metrics")
    assert "coverage" in shown


def test_an_error_of_a_function_names_file_and_row(project: Path) -> None:
    said = cli(project, *SCORE, "--metrics", "explode", expect=1)
    assert "function explode of module own_metrics failed: ZeroDivisionError" in said
    assert "on row rows.parquet:4" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_changed_module_scores_anew(project: Path) -> None:
    cli(project, *SCORE, "--metrics", "coverage")
    changed = MODULE.replace("return text.split()", "return text.split()[:1]")
    (project / "own_metrics.py").write_text(changed)
    said = cli(project, *SCORE, "--metrics", "coverage")
    assert "earlier function results are ignored" in said
    scores = pl.read_parquet(project / "out" / "scores" / "rows.parquet")
    assert scores["coverage"].to_list()[1] == 1.0 / 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--plugin", "nowhere"), "--plugin nowhere cannot be imported: ModuleNotFoundError"),
        (("--plugin", "own_metrics.py"), "QA0211"),
        (("--plugin", "json"), "--plugin json has no metric"),
        (
            ("--plugin", "own_metrics", "--metrics", "helper"),
            "helper of module own_metrics is no metric: helper has the parameter 'text'",
        ),
        (("--plugin", "own_metrics", "--metrics", "coverag"), "did you mean 'coverage'"),
        (("--metrics", "coverage"), "unknown metric 'coverage'"),
    ],
)
def test_wrong_words_are_told(project: Path, words: tuple[str, ...], why: str) -> None:
    said = cli(project, "score", "rows.parquet", "--out", "out", *words, expect=2)
    assert why in said


@pytest.mark.slow
def test_a_name_of_another_module_or_of_ours_is_told(project: Path) -> None:
    """Whoever names a module would be given something else."""
    (project / "again.py").write_text("def coverage(candidate):\n    return 1.0\n")
    words = ("score", "rows.parquet", "--out", "o", "--plugin", "own_metrics", "--plugin", "again")
    said = cli(project, *words, expect=2)
    assert "module own_metrics and module again both add coverage" in said
    (project / "again.py").write_text("def f1(candidate):\n    return 1.0\n")
    assert "module again: f1 is the name of one of qaeval's own" in cli(project, *words, expect=2)


def test_a_class_that_takes_arguments_is_told(project: Path) -> None:
    (project / "again.py").write_text(
        "from qaeval_core.metrics.bleu import Bleu\nclass Mine(Bleu):\n    pass\n"
    )
    said = cli(project, "score", "rows.parquet", "--out", "o", "--plugin", "again", expect=2)
    assert "--plugin again: TypeError: Bleu.__init__() missing 1 required" in said


@pytest.mark.slow
def test_a_settings_file_names_no_module(project: Path) -> None:
    (project / "run.yaml").write_text("plugin: own_metrics\nmetrics: {coverage: {}}\n")
    said = cli(project, "score", "rows.parquet", "--out", "o", "--config", "run.yaml", expect=2)
    assert "unknown metric 'coverage'" in said
    (project / "run.yaml").write_text("plugins: [own_metrics]\nmetrics: {f1: {}}\n")
    said = cli(project, "score", "rows.parquet", "--out", "o", "--config", "run.yaml", expect=2)
    assert "unknown key 'plugins'" in said


@pytest.mark.slow
def test_an_out_with_a_metric_that_is_gone_is_still_of_use(project: Path) -> None:
    """Everything but scoring goes by what the score files say of their columns."""
    cli(project, *SCORE, "--metrics", "coverage,f1")
    cli(project, "filter", "out", "--to", "kept", "--rank-by", "coverage", "--share", "0.5",
        "--rules", "none", "--local")  # fmt: skip
    cli(project, "report", "out")
    cli(project, "audit", "out", "--history", "h", "--to", "a", "--pin", "--cluster", "id")
    assert "coverage" in cli(project, "correlate", "out", "--human", "f1", "--metrics", "coverage")
    shown = cli(project, "explain", "out", "--id", "q3")
    assert "coverage is not recomputed: its metric is not installed here" in shown
    assert "f1" in shown
    said = cli(project, "explain", "out", "--id", "q3", "--instance", "coverage", expect=2)
    assert (
        "the metric coverage is of module own_metrics, which is not installed here [QA0205]" in said
    )
    for words in ((), ("--metrics", "coverage")):
        said = cli(project, "score", "rows.parquet", "--out", "out", *words, expect=2)
        assert "coverage of module own_metrics, which is not installed here" in said


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_modules_go_to_workers(project: Path) -> None:
    """Nodes need not have what the command line names."""
    words = [word for word in SCORE if word != "--local"]
    cli(project, *words, "--ray", "--metrics", "coverage,f1")
    scores = pl.read_parquet(project / "out" / "scores" / "rows.parquet")
    assert scores["coverage"].to_list() == [None, 0.5, *[0.5] * 6]


@pytest.mark.long
@pytest.mark.ray
def test_a_function_that_fails_on_a_worker_names_its_row(project: Path) -> None:
    words = [word for word in SCORE if word != "--local"]
    said = cli(project, *words, "--ray", "--metrics", "explode", expect=1)
    assert "on row rows.parquet:4" in said
