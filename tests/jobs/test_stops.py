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
_MODES = [pytest.param("--ray", marks=pytest.mark.ray), "--local"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stops") / "input.parquet"
    return write_parquet(path, rows(_N_ROWS), row_group_size=_ROWS_PER_PIECE)


def words(source: Path, out: Path, mode: str) -> list[str]:
    own = ["--metrics", "f1", "--column", "references=reference"]
    return ["score", str(source), *own, "--rows-per-shard", str(_ROWS_PER_PIECE),
            "--out", str(out), mode]  # fmt: skip


def start(source: Path, out: Path, mode: str) -> subprocess.Popen[str]:
    """Start the command as it is installed, and wait for commits."""
    process = subprocess.Popen(
        [sys.executable, "-m", "qaeval", *words(source, out, mode)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: len(commits_of(str(out))) > 20, process)
    return process


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_ends_soon_however_many_pieces_are_left(
    source: Path, tmp_path: Path, mode: str, number: signal.Signals
) -> None:
    """Each piece that was left was opened and tokenized first: 50 s for a million rows."""
    process = start(source, tmp_path / "out", mode)
    process.send_signal(number)
    asked = time.monotonic()
    output, _ = process.communicate(timeout=120)
    passed_s = time.monotonic() - asked
    assert process.returncode == 1, output
    assert f"{number.name}: stopping after the batch in hand" in output
    assert output.endswith("error: stopped as asked; run again to go on from here\n"), output
    assert "Traceback" not in output
    n_done = len(commits_of(str(tmp_path / "out")))
    assert n_done < _N_PIECES / 2, "the signal came too late to show anything"
    # Ten seconds, and room for a machine that is busy with other tests.
    assert passed_s < 30, f"{passed_s:.0f} s"


@pytest.mark.parametrize("mode", _MODES)
def test_a_second_ctrl_c_ends_it_at_once(source: Path, tmp_path: Path, mode: str) -> None:
    out = tmp_path / "out"
    process = start(source, out, mode)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    for line in process.stdout:
        if "stopping after the batch in hand" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    known = commits_of(str(out))
    assert known and not (out / "_SUCCESS").exists()
    qaeval(*words(source, out, mode))
    done = commits_of(str(out))
    assert {name: done[name] for name in known} == known, "a shard was computed twice"
    assert is_whole(out, _N_ROWS)


@pytest.mark.parametrize("mode", ["--local"])
def test_a_run_that_joins_its_scores_ends_soon_too(
    source: Path, tmp_path: Path, mode: str
) -> None:
    """After the passes nothing looked any more: joining ten million rows takes minutes."""
    out = tmp_path / "out"
    code = (
        "import os, signal, sys\n"
        "from qaeval_core.scoring import join\n"
        "write = join.FileJoin._score\n"
        "def score(*given):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return write(*given)\n"
        "join.FileJoin._score = score\n"
        "from qaeval import cli\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words(source, out, mode)],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.endswith("error: stopped as asked; run again to go on from here\n")
    assert not (out / "_SUCCESS").exists() and not list((out / "scores").glob("*.parquet"))
    qaeval(*words(source, out, mode))
    assert is_whole(out, _N_ROWS)
