"""A run may be killed anywhere: what is committed is kept, and the table comes out the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import (
    assert_same_scores,
    commits,
    processes,
    qaeval,
    read_scores,
    short_sample,
    start_qaeval,
    wait_until,
    write_parquet,
)

pytestmark = pytest.mark.ray

N_ROWS = 320
SHARD = "4"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    rows = pa.concat_tables([short_sample(32)] * (N_ROWS // 32))
    return write_parquet(folder / "input.parquet", rows)


@pytest.fixture(scope="module")
def metrics(tiny_settings: dict[str, object]) -> list[str]:
    return ["--metrics", "qrelscore", *(f"--set={key}={own}" for key, own in tiny_settings.items())]


@pytest.fixture(scope="module")
def uninterrupted(source: Path, metrics: list[str]) -> Path:
    """The oracle: the same rows in one process, in shards of another size."""
    out = source.parent / "uninterrupted"
    qaeval("score", source, "--out", out, "--local", *metrics)
    return out


@pytest.mark.slow
def test_killed_driver_resumes_without_computing_a_shard_twice(
    source: Path, metrics: list[str], uninterrupted: Path, tmp_path: Path
) -> None:
    """Protects from lost, doubled or recomputed rows after kill -9 of the driver."""
    out = tmp_path / "out"
    words = ["score", source, "--out", out, "--ray", *metrics, "--rows-per-shard", SHARD]
    process = start_qaeval(*words)
    wait_until(lambda: len(commits(out, "grg")) >= 3, process)
    os.killpg(process.pid, signal.SIGKILL)  # The driver and the local Ray it started.
    process.communicate()
    before = commits(out, "grg") | commits(out, "lrm")
    assert not (out / "_SUCCESS").exists()
    assert len(commits(out, "grg")) < N_ROWS / int(SHARD)

    output = qaeval(*words)
    after = commits(out, "grg") | commits(out, "lrm")
    assert {name: after[name] for name in before} == before
    assert "rows are done" in output
    # The first thing that a new user saw was a line of Ray's about its log level.
    assert "ray log level" not in output.lower()
    assert_same_scores(read_scores(out), read_scores(uninterrupted))

    assert "nothing to do" in qaeval(*("--local" if own == "--ray" else own for own in words))


@pytest.mark.long
def test_killed_scoring_actor_changes_nothing(
    source: Path, metrics: list[str], uninterrupted: Path, tmp_path: Path
) -> None:
    """Protects from rows lost or doubled when one worker process dies."""
    out = tmp_path / "out"
    process = start_qaeval(
        "score", source, "--out", out, "--ray", *metrics, "--rows-per-shard", SHARD
    )
    wait_until(lambda: len(commits(out, "grg")) >= 2, process)
    workers = processes(process.pid, title="ScorePieces")
    assert workers, "no scoring actor was found"
    for worker in workers:
        worker.kill()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert_same_scores(read_scores(out), read_scores(uninterrupted))


@pytest.mark.long
def test_sigterm_keeps_whole_shards_and_exits_1(
    source: Path, metrics: list[str], uninterrupted: Path, tmp_path: Path
) -> None:
    """Protects from work lost when a scheduler asks a job to end."""
    out = tmp_path / "out"
    words = ["score", source, "--out", out, "--ray", *metrics, "--rows-per-shard", SHARD]
    process = start_qaeval(*words)
    wait_until(lambda: len(commits(out, "grg")) >= 2, process)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "stopp" in output
    assert "Traceback" not in output, output
    before = commits(out, "grg")
    assert len(before) >= 2

    qaeval(*words, "--local")  # The next run may go on without Ray.
    after = commits(out, "grg")
    assert {name: after[name] for name in before} == before
    assert_same_scores(read_scores(out), read_scores(uninterrupted))
