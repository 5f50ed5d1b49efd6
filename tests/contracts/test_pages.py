"""The pages of docs: their code blocks run; links lead somewhere, those of the README as well."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from doc_blocks import CONTRIBUTING, DOCS, PAGES, README, blocks
from helpers import REPOSITORY, qaeval
from llm_server import LlmServer

# In this order, in one folder: what one page makes, those behind it use.
RUN = (
    *(DOCS / f"{name}.md" for name in ("scoring", "filter", "audit", "metrics", "correlation")),
    DOCS / "systems.md",
    DOCS / "language-models.md",
    *(DOCS / f"{name}.md" for name in ("extending", "training", "settings", "cluster")),
)
# Signs that a shell may read otherwise than as they are; a word that is no more than others, too.
_SHELL = re.compile(r"[$*?~`]|^[();<>|&]+$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings have in links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_is_something_to_run() -> None:
    """Protects from pages whose blocks lost their language and run no more."""
    assert sum(len(blocks(page, "sh", "python")) for page in RUN) >= 20
    run = "".join(body for _, body in blocks(DOCS / "filter.md", "sh"))
    assert "--label-sheet " in run and "--labels " in run
    assert {page for page in PAGES if blocks(page, "sh", "python")} <= {README, *RUN}


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Protects from pages and headings that were renamed."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_no_document_is_cited_that_is_not_here() -> None:
    """A reader would look for it in vain."""
    here = {path.name for folder in (REPOSITORY, DOCS) for path in folder.glob("*.md")}
    texts = [*PAGES, CONTRIBUTING, REPOSITORY / "DECISIONS.md", REPOSITORY / "CHANGELOG.md"]
    for folder in ("qaeval_core", "jobs", "export", "benchmarks", "tests", "tools"):
        texts += (REPOSITORY / folder).rglob("*.py")
    cited = {
        f"{path.name}: {name}"
        for path in texts
        for name in re.findall(r"\b([A-Z][A-Z_]+\.md)\b", path.read_text(encoding="utf-8"))
        if name not in here
    }
    assert not cited


def map_of_folders() -> tuple[set[str], set[str], list[set[str]]]:
    """Return the folders of the map, the modules it names, and its groups below the library."""
    ((_, tree),) = blocks(DOCS / "ARCHITECTURE.md", "text")
    folders, named, groups, above = set(), set(), [set()], {}
    for line in tree.splitlines():
        if not line:
            groups.append(set())
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        entry, _, holds = line.strip().partition(" ")
        path = above[depth - 1] + entry if depth else entry
        above[depth] = path
        if path.count("/") == 1 + path.endswith("/") and path.startswith("qaeval_core/"):
            groups[-1].add(entry.rstrip("/").removesuffix(".py"))
        if path.endswith("/"):
            folders.add(path)
        else:
            named.add(path)
        folder = path[: path.rindex("/") + 1]
        named |= {folder + name for name in re.findall(r"[\w./]+\.py\b", holds)}
    return folders, named, [group for group in groups if group]


def test_the_map_is_the_tree_on_disk() -> None:
    """Protects from folders that nobody finds, and from a map of what is not there any more."""
    folders, named, groups = map_of_folders()
    roots = ("jobs/qaeval", "export/qaeval_export", "qaeval_core")
    on_disk = {
        f"{path.parent.relative_to(REPOSITORY)}/"
        for root in roots
        for path in (REPOSITORY / root).rglob("*.py")
    }
    assert folders == on_disk
    loose = {f"qaeval_core/{path.name}" for path in (REPOSITORY / "qaeval_core").glob("*.py")}
    assert loose - named == {"qaeval_core/__init__.py"}
    assert len(named) > 60
    assert sorted(path for path in named if not (REPOSITORY / path).exists()) == []
    rules = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (layers,) = [own for own in rules["importlinter"]["contracts"] if own["type"] == "layers"]
    assert groups == [set(layer.split(" | ")) for layer in layers["layers"]]


def test_what_the_road_names_is_there() -> None:
    """Protects from a road of functions and classes that have other names now."""
    text = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:qaeval_core|jobs|export|tests)/[\w/.]*)`", text))
    assert len(paths) > 5
    assert sorted(path for path in paths if not (REPOSITORY / path).exists()) == []
    library = {path.stem for path in (REPOSITORY / "qaeval_core").iterdir()}
    dotted = re.findall(r"`((?:\w+\.)+\w+)`", text)
    named = [name for name in dotted if name.partition(".")[0] in library]
    assert len(named) > 15
    assert [name for name in named if not is_there(name)] == []


def is_there(dotted: str) -> bool:
    """Return whether a dotted name is a module of the library, or what one defines."""
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        path = (REPOSITORY / "qaeval_core").joinpath(*parts[:n]).with_suffix(".py")
        if path.exists():
            source = path.read_text(encoding="utf-8")
            defined = [rf"^ *(def|class) {name}\b" for name in parts[n:]]
            return all(re.search(one, source, re.MULTILINE) for one in defined)
    return False


def own_commands(body: str) -> list[list[str]]:
    """Return the words of a block of commands of qaeval; none where it needs a shell."""
    found = []
    for line in body.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            program, *words = lexer
        except ValueError:  # A quote that ends in another line, or no word.
            return []
        if program != "qaeval" or any(_SHELL.search(word) for word in words):
            return []
        found.append(words)
    return found


def test_commands_that_need_a_shell_are_told() -> None:
    """Protects from blocks that run here otherwise than in the reader's shell."""
    assert own_commands("qaeval a 'b > c' \\\n  --d 'e|f'\nqaeval g\n") == [
        ["a", "b > c", "--d", "e|f"], ["g"]
    ]  # fmt: skip
    for body in ("a > b", "a || b", "a\nb", "a 'b\nc'", "a $B", "a *.c", "a; b", "a <<B\nB"):
        assert own_commands(f"qaeval {body}\n") == [], body
    assert own_commands("\n") == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1800)  # Five minutes beside other tests.
def test_code_blocks_run_in_order(
    tmp_path: Path, artifacts_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from commands in prose that no longer work.

    Where a block holds nothing but commands of qaeval, this process runs them: each would load for
    seconds what it has.
    """
    own = str(Path(sys.executable).parent)
    with LlmServer() as server:
        monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))  # Where ledgers go.
        monkeypatch.setenv("QAEVAL_ARTIFACTS", str(artifacts_root))
        monkeypatch.setenv("BASE_URL", server.base_url)
        for kind, body in (block for page in RUN for block in blocks(page, "sh", "python")):
            if kind == "sh" and (commands := own_commands(body)):
                for words in commands:
                    qaeval(*words, folder=tmp_path)
                continue
            command = ["sh", "-e", "-c", body] if kind == "sh" else [sys.executable, "-c", body]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"


def test_the_metric_of_the_map_can_be_added(tmp_path: Path) -> None:
    """One module and one line are all that a metric costs."""
    ((_, module),) = blocks(DOCS / "ARCHITECTURE.md", "py")
    shutil.copytree(REPOSITORY / "qaeval_core", tmp_path / "qaeval_core")
    first, _, _ = module.partition("\n")
    (tmp_path / first.removeprefix("# ")).write_text(module, encoding="utf-8")
    catalog = tmp_path / "qaeval_core" / "metrics" / "catalog.py"
    added = "from qaeval_core.metrics.length_ratio import LengthRatio"
    text = catalog.read_text(encoding="utf-8").replace(
        "    Naco(),\n", "    LengthRatio(),\n    Naco(),\n"
    )
    catalog.write_text(
        text.replace("\nfrom qaeval", f"\n{added}\nfrom qaeval", 1), encoding="utf-8"
    )
    score = (
        "from qaeval import Scorer\n"
        "rows = [{'candidate': 'a dog', 'references': ['the big red dog', 'a dog or two']}]\n"
        "found = Scorer(['length_ratio', 'rouge_l']).score(rows)\n"
        "print([row['length_ratio'] for row in found])"
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
