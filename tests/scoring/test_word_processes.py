"""Words by processes: the same bytes as by one, also where processes or the command are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY, qaeval, wait_until
from qaeval_core.errors import InputChangedError, RunError, RunStoppedError
from qaeval_core.running import local_executor, range_executor, word_processes
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.storage.path import as_path
from s3_server import S3Server
from word_jobs import Watched, request, run

# Each test begins processes, which load what they need.
pytestmark = [pytest.mark.slow]
N_ROWS = 20_000
METRICS = ("f1", "bleu_4", "cider")


@pytest.fixture(autouse=True)
def any_rows_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_processes, "_LEAST_S", 1e-9)
    monkeypatch.setattr(local_executor, "_TRIED_S", 0.0)
    monkeypatch.setattr(local_executor, "_LEAST_ROWS", 0)
    monkeypatch.setattr(range_executor, "_ROWS_FOR_PROCESSES", 0)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes each pass was spread over."""
    found: list[int] = []
    spread = LocalPieceExecutor._run_apart
    monkeypatch.setattr(
        LocalPieceExecutor,
        "_run_apart",
        lambda *given, n: found.append(n) or spread(*given, n=n),
    )
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of rows to score, to quarantine, and without a word."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    known = np.array([f"w{number}" for number in range(50)])
    texts = [" ".join(rng.choice(known, 4)) for _ in range(N_ROWS)]
    answers = [None if rng.random() < 0.01 else " ".join(rng.choice(known, 3)) for _ in texts]
    table = pa.table(
        {
            "id": [f"q{row}" for row in range(N_ROWS)],
            "candidate": answers,
            "reference": texts,
            "context": [f"passage {row // 4}" for row in range(N_ROWS)],
        }
    )
    pq.write_table(table.slice(0, 15_000), folder / "large.parquet", row_group_size=4_000)
    pq.write_table(table.slice(15_000), folder / "small.parquet", row_group_size=1_500)
    return folder


def words(source: Path, out: Path, **given: Any) -> dict[str, Any]:
    metrics = {f"metrics.{name}.metric": name for name in METRICS}
    own = {"scoring__rows_per_shard": 1_000, "input.columns.id": "id", **metrics}
    return request(source, out, **{**own, **given})


def contents(out: Path) -> dict[str, Any]:
    """Return scores, and the rows of commits, whose footers say what they cost."""
    found: dict[str, Any] = {}
    for path in (out / "scores").rglob("*.parquet"):
        found[path.name] = path.read_bytes()
    for path in out.glob("families/*/*.parquet"):
        name = f"{path.parent.name}/{path.name}"
        found[name] = pq.read_table(path).replace_schema_metadata(None)
    return found


def watched(after: int, then: Callable[[], object]) -> Any:
    """Return an executor of two processes that calls back after so many shards."""
    executor = Watched(after, then)
    executor._n_threads = 2
    return executor


def children() -> list[psutil.Process]:
    """Return processes that this one began to work."""
    own = psutil.Process().children(recursive=True)
    return [child for child in own if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.parametrize(
    ("sample", "n_rows", "most"),
    [pytest.param(None, N_ROWS, 3, marks=pytest.mark.long), (500, 2_000, 2)],
)
def test_any_number_of_processes_commits_the_same(
    source: Path,
    tmp_path: Path,
    sample: int | None,
    n_rows: int,
    most: int,
    used: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools: list[int] = []
    pool = range_executor.ProcessPoolExecutor
    monkeypatch.setattr(
        range_executor,
        "ProcessPoolExecutor",
        lambda n, **given: pools.append(n) or pool(n, **given),
    )
    more = {} if sample is None else {"input.sample_groups": sample}
    found = []
    for n in range(1, most + 1):
        out = tmp_path / f"out{n}"
        outcome, _ = run(words(source, out, **more), executor=LocalPieceExecutor(n_threads=n))
        found.append(contents(out))
        assert outcome.report is not None
        families = outcome.report["families"].values()
        assert {own["rows"] for own in families} == {n_rows}
    assert all(own == found[0] for own in found) and len(found[0]) > 3 * N_ROWS / 1_000
    assert used == [2, 2, 3, 3][: 2 * most - 2], "a pass of f1 and bleu_4, and one behind counts"
    assert pools == [2, 3][: most - 1], "passes, counts and the join share processes"
    assert not children()


MAIN = """
import time
from qaeval_core.running.range_executor import LocalRangeExecutor, Processes
print("loaded", flush=True)
if __name__ == "__main__":
    processes = Processes(3)
    processes.begin(1)
    own = LocalRangeExecutor(n_processes=3, least_rows=0, processes=processes)
    list(own.map(time.sleep, [1.0] * 6, label="", n_rows=[1] * 6))
    print(len(processes._pool._processes))
    processes.close()
"""


def test_processes_that_begin_later_load_no_program_either(tmp_path: Path) -> None:
    """Protects from half a second each, and from a traceback where Ctrl-C comes meanwhile."""
    (tmp_path / "program.py").write_text(MAIN)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["loaded", "3"]


def test_a_stop_is_heard_within_a_shard_and_nothing_is_lost(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes stand still from a first commit until they are told, however fast they are."""
    out, stop, told = tmp_path / "out", threading.Event(), threading.Event()
    n_held: list[int] = []
    # The first piece, of four shards of three families, is committed here.
    n_here, n_families_of_a_pass = 12, 3
    tell = ProcessEvent.set
    monkeypatch.setattr(ProcessEvent, "set", lambda own: (tell(own), told.set()))

    def n_commits() -> int:
        return len(list(out.glob("families/*/*.parquet")))

    def hold() -> None:
        wait_until(lambda: n_commits() > n_here, timeout_s=300)
        held = children()
        try:
            for child in held:
                child.suspend()
            n_held.append(n_commits())
            stop.set()
            told.wait(20)  # One that stands still while it looks is told once it goes on.
        finally:
            for child in held:
                child.resume()

    holder = threading.Thread(target=hold)
    holder.start()
    with pytest.raises(RunStoppedError):
        run(words(source, out), executor=LocalPieceExecutor(n_threads=2, stop=stop))
    holder.join()
    assert n_here < n_held[0] <= n_commits() <= n_held[0] + 2 * n_families_of_a_pass
    assert not children()
    run(words(source, out))
    run(words(source, tmp_path / "alone"), executor=LocalPieceExecutor(n_threads=1))
    assert contents(out) == contents(tmp_path / "alone")


def test_a_killed_process_ends_the_run_in_one_line(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def kill() -> None:
        children()[0].send_signal(signal.SIGKILL)

    with pytest.raises(RunError, match="QA0516"):
        run(words(source, out), executor=watched(5, kill))
    assert not (out / "_SUCCESS").exists()
    wait_until(lambda: not children())
    run(words(source, out))
    run(words(source, tmp_path / "alone"), executor=LocalPieceExecutor(n_threads=1))
    assert contents(out) == contents(tmp_path / "alone")


def test_errors_of_a_process_are_those_of_the_run(source: Path, tmp_path: Path) -> None:
    """Of a file that became another one, as one process would say it."""
    own = tmp_path / "in"
    own.mkdir()
    for path in source.glob("*.parquet"):
        (own / path.name).write_bytes(path.read_bytes())

    def change() -> None:
        for path in own.glob("*.parquet"):
            os.utime(path, ns=(1, 1))

    with pytest.raises(InputChangedError, match=r"parquet.*QA0309"):
        run(words(own, tmp_path / "out"), executor=watched(5, change))
    wait_until(lambda: not children())


def test_what_a_process_waits_for_is_beside_the_progress(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, away = tmp_path / "out", tmp_path / "away"
    told: list[str] = []
    tell = local_executor.LocalSupervisor.set_status
    monkeypatch.setattr(
        local_executor.LocalSupervisor,
        "set_status",
        lambda own, note: (told.append(note), tell(own, note)),
    )

    def come_back() -> None:
        try:
            wait_until(lambda: any("trying again" in note for note in told))
        finally:
            away.rename(out)

    def vanish() -> None:
        out.rename(away)
        threading.Thread(target=come_back).start()

    # The first piece, of four shards, is counted here; of the others two are not begun.
    run(words(source, out, scoring__retry_storage_s=300), executor=watched(5, vanish))
    assert any("trying again" in note for note in told) and told[-1] == ""
    run(words(source, tmp_path / "alone"), executor=LocalPieceExecutor(n_threads=1))
    assert contents(out) == contents(tmp_path / "alone")


def test_processes_commit_into_a_bucket(
    source: Path, tmp_path: Path, store: S3Server, used: list[int]
) -> None:
    store.make_bucket("bucket")
    out = store.uri("bucket/out")
    run(words(source, Path(out), **{"output.path": out}), executor=LocalPieceExecutor(n_threads=2))
    run(words(source, tmp_path / "alone"), executor=LocalPieceExecutor(n_threads=1))
    assert used == [2, 2]
    alone = (tmp_path / "alone" / "scores").glob("*.parquet")
    scores = {path.name: path.read_bytes() for path in alone}
    found = {name: (as_path(out) / "scores" / name).read_bytes() for name in scores}
    assert len(scores) == 2 and found == scores


def test_processes_end_with_a_killed_command(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "from qaeval_core.running import local_executor, range_executor, word_processes\n"
        "word_processes._LEAST_S = 1e-9\n"
        "local_executor._TRIED_S, local_executor._LEAST_ROWS = 0.0, 0\n"
        "range_executor._ROWS_FOR_PROCESSES = 0\n"
        "local_executor.available_cpus = lambda: 2\n"
        "from qaeval import cli\n"
        "cli.main()\n"
    )
    command = [
        "score", str(source), "--out", str(out), "--local", "--metrics", ",".join(METRICS),
        "--column", "references=reference", "--set", "scoring.rows_per_shard=1000",
    ]  # fmt: skip
    program = subprocess.Popen(
        [sys.executable, "-c", code, *command], cwd=REPOSITORY, stderr=subprocess.DEVNULL,
        env={**os.environ, "QAEVAL_DEBUG": "1"},
    )  # fmt: skip
    n_here = 12  # commits, before processes begin
    wait_until(lambda: len(list(out.glob("families/*/*.parquet"))) > n_here, timeout_s=300)
    began = psutil.Process(program.pid).children(recursive=True)
    assert began
    program.kill()
    program.wait()
    wait_until(lambda: not any(own.is_running() for own in began))
    assert not (out / "_SUCCESS").exists()
    qaeval(*command)
    run(words(source, tmp_path / "alone"), executor=LocalPieceExecutor(n_threads=1))
    scores = [
        {path.name: pq.read_table(path) for path in (own / "scores").glob("*")}
        for own in (out, tmp_path / "alone")
    ]
    assert scores[0] == scores[1] and scores[0]
