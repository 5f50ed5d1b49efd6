"""Imports tell the architecture: light libraries stay light, and files stay short."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from filter_corpora import questions
from helpers import REPOSITORY

HEAVY = ("onnx", "onnxruntime", "ray", "torch", "transformers", "matplotlib", "spacy", "httpx")
# Of STYLE: one idea a file, which is 100 to 400 lines for most ideas.
MAX_LINES = 500


def loaded_after(statement: str) -> list[str]:
    """Return the modules that a new Python process holds after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "import qaeval_core",
        "from qaeval_core.planning.job import make_job",
        "import qaeval_core.running.local_executor",
        "import qaeval_core.scoring.report",
        "import qaeval_core.study.run",
        "import qaeval.work.score",
        "import qaeval.cli",
        "from qaeval_core import Scorer\n"
        "metrics = ['f1', 'rouge_l', 'bleu_4', 'meteor', 'cider', 'q_bleu']\n"
        "Scorer(metrics).score([{'candidate': 'a dog', 'references': ['the dog']}])",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    """Scoring with artifacts at hand needs no torch, words no engine, --help no Ray or client."""
    loaded = loaded_after(statement)
    assert [name for name in HEAVY if name in loaded] == []


# Of what a command needs once its words are read: none of it is there for --help.
NOT_FOR_HELP = (*HEAVY, "numpy", "scipy", "pyarrow", "polars", "tokenizers", "sacrebleu")
VERBS = (
    "demo", "metrics", "score", "report", "explain", "correlate", "filter", "audit", "calibrate",
)  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "import qaeval",
        "import qaeval.cli",
        *(f"_help(main, ['{verb}', '--help'])" for verb in VERBS),
        "_help(main, ['--version'])",
        "from qaeval_export.__main__ import main as own; _help(lambda: own(['--help']), [])",
        "from qaeval_export.training.__main__ import main as own; "
        "_help(lambda: own(['kpqa', '--help']), [])",
    ],
)
def test_the_command_line_loads_no_library_for_its_help(statement: str) -> None:
    """``--help`` took 1.35 s of CPU: most of it were imports that it had no use for."""
    code = (
        "import contextlib, io, sys\n"
        "from qaeval.cli import main\n"
        "def _help(main, words):\n"
        "    sys.argv = ['qaeval', *words]\n"
        "    said = io.StringIO()\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):\n"
        "        main()\n"
        "    assert 'qaeval' in said.getvalue()\n"
    )
    loaded = loaded_after(code + statement if "_help" in statement else statement)
    assert [name for name in NOT_FOR_HELP if name in loaded] == []


def test_a_run_of_words_loads_no_engine_and_no_display(tmp_path: Path) -> None:
    """100 rows are scored in milliseconds: what is imported for them is what people wait for."""
    questions(100).write_parquet(tmp_path / "q.parquet")
    words = [
        *("qaeval", "score", str(tmp_path / "q.parquet"), "--metrics", "f1", "--local"),
        *("--column", "references=reference", "--out", str(tmp_path / "out")),
    ]
    loaded = loaded_after(
        "import contextlib, os, sys\n"
        "from qaeval.cli import main\n"
        f"sys.argv, os.environ['PATH'] = {words!r}, ''\n"  # Where no tool tells of a GPU.
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr): main()"
    )
    assert (tmp_path / "out" / "report.html").exists()
    assert [name for name in (*HEAVY, "rich", "pyarrow.dataset") if name in loaded] == []


def test_what_users_import_is_what_its_types_say() -> None:
    """Names are loaded on first use; editors see them by the block for type checkers."""
    import qaeval

    source = (REPOSITORY / "jobs" / "qaeval" / "__init__.py").read_text(encoding="utf-8")
    typed = set(re.findall(r"import \w+ as (\w+)", source))
    assert typed == set(qaeval.__all__) == set(qaeval._MODULES)
    assert all(callable(getattr(qaeval, name)) for name in qaeval.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Score'"):
        qaeval.Score  # noqa: B018


def test_a_heavy_import_would_be_seen() -> None:
    """A check that sees nothing would make the test above worthless."""
    assert "ray" in loaded_after("import qaeval.on_ray.cluster")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of a checkout, none of whose results are known from before."""
    lint = Path(sys.executable).with_name("lint-imports")
    command = [lint, "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_the_rules_of_imports_hold() -> None:
    """The contracts in pyproject.toml: who may import whom."""
    done = lint_imports(REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_without_a_place_breaks_the_rules(tmp_path: Path) -> None:
    """The layers name every package of the library: none is added without a place among them."""
    for folder in ("qaeval_core", "jobs", "export"):
        ignored = shutil.ignore_patterns("__pycache__", "*.jsonl", "*.safetensors")
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / "qaeval_core" / "stray").mkdir()
    (tmp_path / "qaeval_core" / "stray" / "__init__.py").write_text('"""Nobody\'s."""\n')
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "stray" in done.stdout and "1 broken" in done.stdout


def test_no_file_is_long() -> None:
    """A long file holds more than one idea."""
    lengths = {
        str(path.relative_to(REPOSITORY)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("qaeval_core", "jobs", "export")
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    assert len(lengths) > 50
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


# The three packages, and the folder that each is imported from.
ROOTS = {"qaeval_core": ".", "qaeval": "jobs", "qaeval_export": "export"}


def modules() -> dict[str, Path]:
    """Return the modules of the three packages, by dotted name."""
    found = {}
    for package, folder in ROOTS.items():
        root = REPOSITORY / folder
        paths = list((root / package).rglob("*.py"))
        assert len(paths) > 20, package
        for path in paths:
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports() -> dict[str, set[str]]:
    """Return which modules each module imports, wherever it does."""
    known = modules()
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            wanted: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            elif isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            found[name] |= {one for one in wanted if one in known and one != name}
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """What is in a circle can only be read as a whole."""
    found = imports()
    # A package imports nothing for those that are in it.
    left = {name: {m for m in own if not name.startswith(f"{m}.")} for name, own in found.items()}
    while free := [name for name, own in left.items() if not own & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}


# Modules of under 60 lines that one other module imports alone, and why they stand alone.
STAND_ALONE = {
    "qaeval_core": "it turns telemetry off before any library is loaded",
    "qaeval_core.codes": "docs/errors.md is made from what it reads, too",
}


def test_small_modules_that_serve_one_other_say_why() -> None:
    """An idea that is cut into files is read in all of them."""
    found = imports()
    small = {
        name
        for name, path in modules().items()
        if 1 < len(path.read_text(encoding="utf-8").splitlines()) < 60
        and sum(name in own for own in found.values()) == 1
    }
    assert small - STAND_ALONE.keys() == set()
    assert STAND_ALONE.keys() - small == set()


# Functions that write, by name: a call of one outside ``storage.files`` is a write that no other
# kind of store could stand behind.
_WRITERS = {"write_text", "write_bytes", "unlink", "rename", "touch", "link", "fsync", "mkdir"}
_TABLE_WRITERS = {"write_table": 1, "ParquetWriter": 0}  # which argument names the file


# Artifacts lie in a cache, not below OUT.
_WRITERS_OF_MODELS = ("models/artifact.py", "models/registry.py")


def writes(path: Path) -> set[str]:
    """Return the names of functions by which a module writes to a disk."""
    calls = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )
    return {call.func.attr for call in calls if is_write(call)}


def is_write(call: ast.Call) -> bool:
    name, given = call.func.attr, [ast.unparse(argument) for argument in call.args]
    if name == "replace":  # Of a path; that of a text has two arguments, that of a record fields.
        return len(given) == 1 and not call.keywords
    if name == "open":
        return any(re.fullmatch("'[wax]b?'", argument) for argument in given)
    if name in _TABLE_WRITERS:
        where = given[_TABLE_WRITERS[name] :][:1]  # A writer's own write_table names no file.
        return bool(where) and where[0] not in ("buffer", "sink")
    return name in _WRITERS and ast.unparse(call.func.value) != "files"


def test_all_writes_below_out_go_through_one_module() -> None:
    """Another kind of store can stand behind one module, not behind thirty lines."""
    strangers = {}
    for path in (REPOSITORY / "qaeval_core").rglob("*.py"):
        name = str(path.relative_to(REPOSITORY / "qaeval_core"))
        if writes(path) and name not in ("storage/files.py", *_WRITERS_OF_MODELS):
            strangers[name] = writes(path)
    assert strangers == {}
    known = writes(REPOSITORY / "qaeval_core" / "storage" / "files.py")
    assert {"unlink", "link", "fsync", "replace", "open", "mkdir"} <= known, (
        "a check that sees nothing would make this one worthless"
    )


def classes_and_aliases() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return which modules define each class, and each capitalized name of a type, by name."""
    classes: dict[str, set[str]] = {}
    aliases: dict[str, set[str]] = {}
    for module, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, set()).add(module)
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and re.fullmatch("[A-Z][A-Za-z]+", target.id):
                        aliases.setdefault(target.id, set()).add(module)
    return classes, aliases


def test_a_class_name_means_one_thing() -> None:
    """A name with two meanings is read with the wrong one."""
    classes, aliases = classes_and_aliases()
    assert len(classes) > 300
    twice = {name: own for name, own in classes.items() if len(own | aliases.get(name, set())) > 1}
    assert twice == {}
