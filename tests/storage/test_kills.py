"""kill -9, outages and frozen runs, through the real command, with OUT in a bucket.

Whatever happens, and whenever, the same command gives in the end what a folder holds, value for
value, and no shard that was committed is computed again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from bucket_outs import commits_of, is_as_local, names
from helpers import processes, qaeval, start_qaeval, wait_until, write_parquet
from naco_runs import kill_tree
from qaeval_core.storage.path import as_path
from s3_server import S3Server
from word_jobs import ROWS_PER_GROUP, rows

pytestmark = pytest.mark.slow

N_ROWS = 2_400
ROWS_PER_SHARD = 8
METRICS = {"metrics.f1.metric": "f1", "metrics.rouge_l.metric": "rouge_l"}
N_COMMITS = 2 * N_ROWS // ROWS_PER_SHARD
MODES = {
    "local": ["--local"],
    "ray": ["--set=cluster.actors=2", "--set=cluster.cpus_per_actor=1"],
}
_KILLS = [1, pytest.param(20, marks=pytest.mark.long)]
_MODES = ["local", pytest.param("ray", marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = rows(N_ROWS).to_pylist()
    table[5]["candidate"] = table[1_900]["reference"] = None
    path = tmp_path_factory.mktemp("kills") / "input.parquet"
    return write_parquet(path, pa.Table.from_pylist(table), row_group_size=10 * ROWS_PER_GROUP)


@pytest.fixture
def uri(store: S3Server, tmp_path: Path) -> str:
    store.make_bucket("kills")
    return store.uri(f"kills/{tmp_path.name}")


def words(source: Path, uri: str, *more: str) -> list[str]:
    return [
        *("score", str(source), "--metrics", "f1,rouge_l", "--column", "references=reference"),
        *("--rows-per-shard", str(ROWS_PER_SHARD), "--out", uri, "--ray", *more),
    ]


def wait_for_commits(uri: str, process: subprocess.Popen[str], *, share: float) -> None:
    wait_until(lambda: len(commits_of(uri)) >= share * N_COMMITS, process)


def finish(source: Path, uri: str, folder: Path, *more: str) -> None:
    """Run the same command to its end, and compare all of OUT with a folder's."""
    before = commits_of(uri)
    qaeval(*words(source, uri, *more))
    after = commits_of(uri)
    assert len(after) == N_COMMITS
    assert {name: after[name] for name in before} == before, "a shard was computed twice"
    assert is_as_local(uri, source, folder, **METRICS)
    assert "nothing to do" in qaeval(*words(source, uri, *more))


@pytest.mark.ray
@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("n_kills", _KILLS)
def test_killed_drivers_leave_what_the_next_one_goes_on_from(
    source: Path, uri: str, tmp_path: Path, mode: str, n_kills: int
) -> None:
    drawn, n_mid_work = random.Random(n_kills), 0
    known: dict[str, tuple[str, float]] = {}
    for i in range(n_kills):
        process = start_qaeval(*words(source, uri, *MODES[mode]))
        wait_for_commits(uri, process, share=0.8 * (i + drawn.random()) / n_kills)
        time.sleep(drawn.uniform(0, 0.3))
        kill_tree(process)
        found = commits_of(uri)
        assert {name: found[name] for name in known} == known, "a shard was computed twice"
        known = found
        n_mid_work += 0 < len(found) < N_COMMITS
        assert not (as_path(uri) / "_SUCCESS").exists()
    assert n_mid_work >= n_kills / 2
    finish(source, uri, tmp_path / "out", *MODES[mode])


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("n_kills", _KILLS)
def test_killed_workers_are_replaced(source: Path, uri: str, tmp_path: Path, n_kills: int) -> None:
    drawn, n_killed = random.Random(n_kills), 0
    process = start_qaeval(*words(source, uri, *MODES["ray"]))
    for i in range(n_kills):
        wait_for_commits(uri, process, share=0.8 * (i + drawn.random()) / n_kills)
        workers = processes(process.pid, title="ScorePieces")
        if workers:
            drawn.choice(workers).kill()
            n_killed += 1
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert n_killed >= n_kills / 2
    finish(source, uri, tmp_path / "out", *MODES["ray"])


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("outage", ["refuses", pytest.param("is frozen", marks=pytest.mark.long)])
def test_a_server_that_is_away_for_ten_seconds_is_waited_for(
    source: Path, uri: str, tmp_path: Path, store: S3Server, mode: str, outage: str
) -> None:
    process = start_qaeval(*words(source, uri, *MODES[mode]))
    wait_for_commits(uri, process, share=0.2)
    assert store.process is not None
    if outage == "refuses":
        store.door.shut()
    else:
        os.killpg(store.process.pid, signal.SIGSTOP)
    time.sleep(10)
    assert process.poll() is None, process.communicate()[0]
    if outage == "refuses":
        store.door.open()
    else:
        os.killpg(store.process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and "Traceback" not in output, output
    finish(source, uri, tmp_path / "out", *MODES[mode])


@pytest.mark.ray
@pytest.mark.long  # A store that stays away is met by default in test_out.py, in one process.
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_stays_away_ends_the_run_with_1(
    source: Path, uri: str, tmp_path: Path, store: S3Server, mode: str
) -> None:
    given = [*MODES[mode], "--set=scoring.retry_storage_s=5"]
    process = start_qaeval(*words(source, uri, *given))
    wait_for_commits(uri, process, share=0.2)
    store.door.shut()
    output, _ = process.communicate(timeout=240)
    store.door.open()
    assert process.returncode == 1 and "run the same command again" in output, output
    assert "Traceback" not in output, output
    assert len(commits_of(uri)) < N_COMMITS and not (as_path(uri) / "_SUCCESS").exists()
    assert not [name for name in names(as_path(uri)) if name.startswith("scores/")]
    finish(source, uri, tmp_path / "out", *given)


@pytest.mark.long
def test_a_frozen_run_is_taken_over_and_ends_when_it_wakes(
    source: Path, uri: str, tmp_path: Path
) -> None:
    """A lease is held for dead after two minutes: nobody waits so long but those who ask for it."""
    frozen = start_qaeval(*words(source, uri, "--local"))
    wait_for_commits(uri, frozen, share=0.2)
    os.killpg(frozen.pid, signal.SIGSTOP)
    known = commits_of(uri)
    assert len(known) < N_COMMITS
    said = qaeval(*words(source, uri, "--local"), expect=1)
    assert f"process {frozen.pid}" in said and "--wait" in said
    qaeval(*words(source, uri, "--local", "--wait", "140"))
    done = commits_of(uri)
    assert {name: done[name] for name in known} == known
    report = (as_path(uri) / "report.json").read_bytes()
    os.killpg(frozen.pid, signal.SIGCONT)
    output, _ = frozen.communicate(timeout=60)
    assert frozen.returncode == 1 and "took over" in output, output
    assert (as_path(uri) / "report.json").read_bytes() == report
    assert json.loads(report)["rows"] == N_ROWS
    assert is_as_local(uri, source, tmp_path / "out", **METRICS)
