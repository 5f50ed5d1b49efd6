"""SIGTERM and Ctrl-C: a run ends soon, however much is left; what is committed stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bucket_outs import commits_of
from helpers import REPOSITORY, qaeval, wait_until, write_parquet
from word_jobs import is_whole, rows

pytestmark = pytest.mark.slow

_N_PIECES = 2_000
_ROWS_PER_PIECE = 10
_N_ROWS = _N_PIECES * _ROWS_PER_PIECE
_N_SHORT = 1_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stops") / "input.parquet"
    return write_parquet(path, rows(_N_ROWS), row_group_size=_ROWS_PER_PIECE)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fewer pieces, for runs that are finished."""
    path = tmp_path_factory.mktemp("short") / "input.parquet"
    return write_parquet(path, rows(_N_SHORT), row_group_size=_ROWS_PER_PIECE)


def words(source: Path, out: Path, mode: str, *, size: int = _ROWS_PER_PIECE) -> list[str]:
    own = ["--metrics", "f1", "--column", "references=reference"]
    return ["score", str(source), *own, "--rows-per-shard", str(size), "--out", str(out), mode]


def start(command: list[str], out: Path, *, n_commits: int) -> subprocess.Popen[str]:
    """Start a command, and wait for commits."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: len(commits_of(str(out))) >= n_commits, process)
    return process


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        pytest.param(signal.SIGTERM, "--ray", marks=pytest.mark.ray),
        pytest.param(signal.SIGTERM, "--local", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "--ray", marks=[pytest.mark.ray, pytest.mark.long]),
        (signal.SIGINT, "--local"),
    ],
)
def test_a_run_ends_soon_however_many_pieces_are_left(
    source: Path, tmp_path: Path, mode: str, number: signal.Signals
) -> None:
    """Each piece that was left was opened and tokenized first: 50 s for a million rows."""
    command = ["-m", "qaeval", *words(source, tmp_path / "out", mode)]
    process = start(command, tmp_path / "out", n_commits=20)
    process.send_signal(number)
    asked = time.monotonic()
    output, _ = process.communicate(timeout=120)
    passed_s = time.monotonic() - asked
    assert process.returncode == 1, output
    assert f"{number.name}: stopping after this batch" in output
    assert output.endswith(
        "error: stopped as asked; run the same command again to resume [QA0005]\n"
    ), output
    assert "Traceback" not in output and "(raylet)" not in output, output
    n_done = len(commits_of(str(tmp_path / "out")))
    assert n_done < _N_PIECES / 2, "the signal came too late to show anything"
    # Ten seconds, and room for a machine that is busy with other tests.
    assert passed_s < 30, f"{passed_s:.0f} s"


# A batch that takes a minute, as in a library that hears of no signal.
_SLOW = """
import sys, time
from qaeval.last_words import run
from qaeval_core.store.store import Store
commit = Store.commit
def slow(*given, **more):
    time.sleep(0 if len(given) and given[3].start < 40 else 60)
    return commit(*given, **more)
Store.commit = slow
from qaeval import cli
run(cli.main)
"""


@pytest.mark.parametrize(
    "mode", [pytest.param("--ray", marks=[pytest.mark.ray, pytest.mark.long]), "--local"]
)
def test_a_second_ctrl_c_ends_it_at_once(short: Path, tmp_path: Path, mode: str) -> None:
    out = tmp_path / "out"
    own = words(short, out, mode)
    command = ["-c", _SLOW, *own] if mode == "--local" else ["-m", "qaeval", *own]
    process = start(command, out, n_commits=4)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    for line in process.stdout:
        if "stopping after this batch" in line:
            break
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, output
    assert time.monotonic() - asked < 30, "it has waited for its batch"
    known = commits_of(str(out))
    assert known and not (out / "_SUCCESS").exists()
    qaeval(*own)
    done = commits_of(str(out))
    assert {name: done[name] for name in known} == known, "a shard was computed twice"
    assert is_whole(out, _N_SHORT)


def test_a_run_that_joins_its_scores_ends_soon_too(source: Path, tmp_path: Path) -> None:
    """After the passes nothing looked any more: joining ten million rows takes minutes."""
    out = tmp_path / "out"
    command = words(source, out, "--local", size=_N_ROWS)
    code = (
        "import os, signal, sys\n"
        "from qaeval_core.scoring import join\n"
        "score_rows = join.score_rows\n"
        "def score(*given, **options):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return score_rows(*given, **options)\n"
        "join.score_rows = score\n"
        "from qaeval import cli\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.endswith(
        "error: stopped as asked; run the same command again to resume [QA0005]\n"
    )
    assert not (out / "_SUCCESS").exists() and not list((out / "scores").glob("*.parquet"))
    qaeval(*command)
    assert is_whole(out, _N_ROWS)
