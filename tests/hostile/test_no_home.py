"""A user without a home, as containers have them: words need none, and all else is one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import REPOSITORY, write_parquet

pytestmark = pytest.mark.slow

# A user id that no one has, so that no home can be looked up either.
NOBODY = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
COMMANDS = {
    "score": ("score", "a.parquet", "--out", "new", "--local", "--metrics", "f1,rouge_l"),
    "words of libraries": (
        "score", "a.parquet", "--out", "words", "--local", "--metrics",
        "meteor,q_bleu,adapted_rouge_l,cider",
    ),
    "dry run": ("score", "a.parquet", "--out", "new", "--local", "--metrics", "f1", "--dry-run"),
    "explain": ("explain", "out", "--row", "a.parquet:0"),
    "filter": ("filter", "out", "--to", "kept", "--rules", "none", "--rank-by", "f1",
               "--near-duplicates", "none", "--share", "0.5", "--local"),
    "audit": ("audit", "out", "--history", "history", "--to", "audited", "--pin",
              "--cluster", "id"),
    "correlate": ("correlate", "out", "--human", "is_right"),
    "metrics": ("metrics", "sas"),
}  # fmt: skip


def homeless(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    gone = ("HOME", "USER", "LOGNAME", "QAEVAL_ARTIFACTS")
    roots = (REPOSITORY, REPOSITORY / "jobs", REPOSITORY / "export")
    return subprocess.run(
        [*NOBODY, sys.executable, *words],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name not in gone},
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, and a finished run of them."""
    folder = tmp_path_factory.mktemp("homeless")
    if shutil.which(NOBODY[0]) is None or homeless(folder, "-c", "").returncode:
        pytest.skip("this machine lets nobody be another user")
    rows = {
        "id": ["a", "b", "c"],
        "candidate": ["Oslo", "Rome", "a dog"],
        "references": [["Oslo"], ["Paris"], ["the dog"]],
        "is_right": [1, 0, 1],
    }
    write_parquet(folder / "a.parquet", pa.table(rows))
    words = ("-m", "qaeval", *COMMANDS["score"], "--carry", "is_right")
    done = homeless(folder, *words[:5], "out", *words[6:])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_what_needs_no_model_needs_no_home(name: str, folder: Path) -> None:
    """A lookup of the cache that nothing is read from ended every command in a traceback."""
    done = homeless(folder, "-m", "qaeval", *COMMANDS[name])
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_in_memory_need_no_home(folder: Path) -> None:
    """A library of tokenizers looked for a place to download to when it was imported."""
    settings = [
        {},
        {"tokenizer": "treebank"},
        {"tokenizer": "coco"},
        {"tokenizer": "13a"},
        {"tokenizer": "words", "stemming": "porter"},
    ]
    code = (
        "import os\nfrom qaeval_core import Scorer\n"
        "row = {'candidate': 'running', 'references': ['running']}\n"
        f"for settings in {settings}:\n"
        "    (found,) = Scorer({'f1': settings}).score([row])\n"
        "    print(found['f1'], 'HOME' in os.environ)"
    )
    done = homeless(folder, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1.0 False"] * len(settings)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--metrics", "sas"), "QAEVAL_ARTIFACTS"),
        (("--metrics", "f1", "--set", "output.path=~/out"), "~/out"),
        (("--metrics", "sas", "--set", "sas.cross_encoder=~/model", "--set",
          "models.artifacts_path=a"), "~/model"),
        (
            ("--metrics", "judge", "--set", "judge.prompt_file=~/prompt.txt", "--set",
             "judge.model=m", "--set", "judge.base_url=http://127.0.0.1:9/v1"),
            "~/prompt.txt",
        ),
        (
            ("--metrics", "naco", "--column", "context=candidate", "--column", "answer=candidate",
             "--set", "naco.model=m", "--set", "naco.base_url=http://127.0.0.1:9/v1",
             "--set", "naco.expected_complexity=2",
             "--set", "naco.requests_per_minute=9"),
            "ledger_path",
        ),
    ],
)  # fmt: skip
def test_what_needs_one_says_so_in_one_line(
    words: tuple[str, ...], named: str, folder: Path, tmp_path: Path
) -> None:
    """The line names what can be set instead."""
    own = ("score", "a.parquet", "--local", *words)
    if "output.path=~/out" not in words:
        own = (*own, "--out", str(tmp_path / "out"))
    done = homeless(folder, "-m", "qaeval", *own)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "no home" in line]
    assert named in line and "set HOME" in line
