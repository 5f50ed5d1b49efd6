"""The README and the pages of docs: their code blocks run, their links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers import REPOSITORY, qaeval
from llm_server import LlmServer

README, DOCS = REPOSITORY / "README.md", REPOSITORY / "docs"
# In this order, in one folder: what one page makes, those behind it use.
RUN = (
    README,
    *(DOCS / f"{name}.md" for name in ("scoring", "filter", "audit", "metrics", "correlation")),
    DOCS / "language-models.md",
    *(DOCS / f"{name}.md" for name in ("training", "settings", "cluster")),
)
PAGES = (README, *sorted(DOCS.glob("*.md")))
MAX_README_LINES = 200
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# Run by CI and by whoever sets the project up.
SETUP_COMMANDS = ("make demo", "make check")


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return languages and texts of a page's code blocks."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, body) for kind, body in found if kind in languages]


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings have in links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_is_something_to_run() -> None:
    """Protects from pages whose blocks lost their language and run no more."""
    assert len(blocks(README, "sh")) >= 5
    assert len(blocks(README, "python")) >= 1
    assert any(command in blocks(README, "sh")[0][1] for command in SETUP_COMMANDS)
    for page in (README, DOCS / "filter.md"):
        run = "".join(body for _, body in blocks(page, "sh"))
        assert "--label-sheet " in run and "--labels " in run
    assert {page for page in PAGES if blocks(page, "sh", "python")} <= set(RUN)


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    """Protects from a README that grows to a manual, and from a page that nobody finds."""
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") < MAX_README_LINES
    assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Protects from pages and headings that were renamed."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_what_the_map_names_is_there() -> None:
    """Protects from a map of folders and functions that have other names now."""
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:qaeval_core|jobs|export|tests)/[\w/.]*)`", text))
    assert len(paths) > 15
    assert sorted(path for path in paths if not (REPOSITORY / path).exists()) == []
    # Functions and classes of the road stand behind their module.
    named = []
    for dotted in re.findall(r"`((?:\w+\.)+\w+)`", text):
        module, _, name = dotted.rpartition(".")
        path = REPOSITORY / "qaeval_core" / f"{module.replace('.', '/')}.py"
        if path.exists() and name != "py":
            source = path.read_text(encoding="utf-8")
            assert re.search(rf"^ *(def|class) {name}\b", source, re.MULTILINE), dotted
            named.append(dotted)
    assert len(named) > 8


@pytest.mark.ray
@pytest.mark.slow
def test_code_blocks_run_in_order(tmp_path: Path, artifacts_root: Path) -> None:
    """Protects from commands in prose that no longer work."""
    with LlmServer() as server:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "BASE_URL": server.base_url,
            "HOME": str(tmp_path / "home"),  # Where ledgers go.
            "QAEVAL_ARTIFACTS": str(artifacts_root),
        }
        for kind, body in (block for page in RUN for block in blocks(page, "sh", "python")):
            if any(command in body for command in SETUP_COMMANDS):
                continue
            command = ["sh", "-e", "-c", body] if kind == "sh" else [sys.executable, "-c", body]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"


def test_the_metric_of_the_map_can_be_added(tmp_path: Path) -> None:
    """One module and one line are all that a metric costs."""
    ((_, module),) = blocks(DOCS / "ARCHITECTURE.md", "py")
    shutil.copytree(REPOSITORY / "qaeval_core", tmp_path / "qaeval_core")
    first, _, _ = module.partition("\n")
    (tmp_path / first.removeprefix("# ")).write_text(module, encoding="utf-8")
    catalogue = tmp_path / "qaeval_core" / "metrics" / "catalogue.py"
    added = "from qaeval_core.metrics.length_ratio import LengthRatio"
    text = catalogue.read_text(encoding="utf-8").replace(
        "    Naco(),\n", "    LengthRatio(),\n    Naco(),\n"
    )
    catalogue.write_text(
        text.replace("\nfrom qaeval", f"\n{added}\nfrom qaeval", 1), encoding="utf-8"
    )
    score = (
        "from qaeval_core import Scorer\n"
        "rows = [{'candidate': 'a dog', 'references': ['the big red dog', 'a dog or two']}]\n"
        "print(Scorer(['length_ratio', 'rouge_l']).score(rows)['length_ratio'].to_pylist())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    for words, wanted in (
        (["-c", score], "[0.5]"),
        (["-m", "qaeval.cli", "metrics", "length_ratio"], "words of the shorter text"),
    ):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert wanted in done.stdout, done.stderr


def test_yaml_blocks_are_yaml_and_hold_no_secret() -> None:
    """Protects from a manifest that no cluster accepts."""
    manifests = [body for page in PAGES for _, body in blocks(page, "yaml")]
    assert manifests
    for body in manifests:
        for document in yaml.safe_load_all(body):
            assert isinstance(document, dict)
        assert not re.search(r"(api[_-]?key|token|password)\s*:\s*['\"]?[A-Za-z0-9]{16,}", body)


def test_help_of_every_verb_shows_examples() -> None:
    """Protects from a verb nobody can find out how to use."""
    from typer.testing import CliRunner

    from qaeval.cli import app

    for verb in (
        "score", "calibrate", "correlate", "filter", "audit", "metrics", "explain", "demo"
    ):  # fmt: skip
        shown = CliRunner().invoke(app, [verb, "--help"])
        assert shown.exit_code == 0
        assert f"qaeval {verb}" in shown.output
    # It takes over its process: not in this one.
    for kind in ("cross-encoder", "kpqa", "reader"):
        assert f"qaeval train {kind}" in qaeval("train", kind, "--help")
