"""Imports tell the architecture: light libraries stay light, and files stay short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY

HEAVY = ("onnx", "onnxruntime", "ray", "torch", "transformers", "matplotlib", "spacy")
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
        "from qaeval_core.scoring.job import make_job",
        "import qaeval_core.scoring.local",
        "import qaeval_core.report",
        "import jobs.cli",
        "from qaeval_core import Scorer\n"
        "metrics = ['f1', 'rouge_l', 'bleu_4', 'meteor', 'cider', 'q_bleu']\n"
        "Scorer(metrics).score([{'candidate': 'a dog', 'references': ['the dog']}])",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    """Scoring with artifacts at hand needs no torch, words no engine, and --help no Ray."""
    loaded = loaded_after(statement)
    assert [name for name in HEAVY if name in loaded] == []


def test_a_heavy_import_would_be_seen() -> None:
    """A check that sees nothing would make the test above worthless."""
    assert "ray" in loaded_after("import jobs.cluster")


def test_the_rules_of_imports_hold() -> None:
    """The contracts in pyproject.toml: who may import whom."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_long() -> None:
    """A long file holds more than one idea."""
    lengths = {
        str(path.relative_to(REPOSITORY)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("qaeval_core", "jobs", "export")
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    assert len(lengths) > 50
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}
