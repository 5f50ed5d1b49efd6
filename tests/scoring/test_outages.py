"""Outages are not verdicts: content alone is quarantined, and a store that is out is waited for."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import full_disk, write_parquet
from qaeval_core.errors import InputChangedError, LockLostError, RunError, StorageError
from qaeval_core.running.local_executor import LocalSupervisor
from qaeval_core.storage.files import temporary_path
from qaeval_core.storage.retry import Outages
from qaeval_core.store.leftovers import remove_leftovers_of
from qaeval_core.store.lock import LockTimes, RunLock
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Store
from s3_server import S3Server
from wall_clock import FakeClock
from word_jobs import N_ROWS, ROWS_PER_GROUP, is_whole, n_quarantined, request, rows, run


def score_files(out: Path) -> list[Path]:
    return list((out / "scores").rglob("*.parquet"))


def replace_with(path: Path, table: pa.Table) -> None:
    """Put another file in the place of one, as a daily export does."""
    new = write_parquet(path.with_name("new"), table, row_group_size=ROWS_PER_GROUP)
    new.replace(path)


def test_an_input_that_is_replaced_in_mid_run_ends_it(tmp_path: Path) -> None:
    """Ids of the new file stood beside scores of the old one, under a _SUCCESS."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    other = rows(80)
    with pytest.raises(InputChangedError, match=r"input\.parquet.*QA0309"):
        run(request(source, tmp_path / "out"), after=3, then=lambda: replace_with(source, other))
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert not score_files(tmp_path / "out")
    assert n_quarantined(tmp_path / "out") == 0


def test_an_input_that_is_replaced_before_the_join_ends_it(tmp_path: Path) -> None:
    """The join opens the input once more, for ids."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    with pytest.raises(InputChangedError, match=r"input\.parquet.*QA0309"):
        run(request(source, tmp_path / "out"), after=8, then=lambda: replace_with(source, rows(80)))
    assert not score_files(tmp_path / "out")


def test_an_input_that_is_gone_in_mid_run_is_no_verdict_on_its_rows(tmp_path: Path) -> None:
    """The rest was quarantined as unreadable, all ids null, with a _SUCCESS and exit 0."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    away = tmp_path / "away"
    with pytest.raises(StorageError, match=r"input\.parquet.*QA0507"):
        run(request(source, tmp_path / "out"), after=2, then=lambda: source.rename(away))
    assert n_quarantined(tmp_path / "out") == 0
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    away.rename(source)
    run(request(source, tmp_path / "out"))
    assert is_whole(tmp_path / "out")


def test_an_input_that_comes_back_is_read_on(tmp_path: Path) -> None:
    """A mount that is away for a second must cost no run of hours."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    source = write_parquet(mount / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)

    def vanish() -> None:
        mount.rename(away)
        threading.Timer(1.5, lambda: away.rename(mount)).start()

    run(request(source, tmp_path / "out", scoring__retry_storage_s=60), after=2, then=vanish)
    assert is_whole(tmp_path / "out")


@pytest.mark.slow
def test_damaged_files_are_content_whatever_their_exceptions(tmp_path: Path) -> None:
    """Of 360 damaged files 147 raised OSError, as disks do: types of exceptions tell nothing."""
    reasons = [reasons_of_a_damaged_file(tmp_path / str(seed), seed) for seed in range(60)]
    # Not every damage may hit what is not read.
    assert sum("unreadable" in own for own in reasons) >= 20


def reasons_of_a_damaged_file(folder: Path, seed: int) -> set[str]:
    """Damage a file and score it; return why rows are quarantined."""
    path = folder / "input.parquet"
    write_parquet(path, rows(), row_group_size=ROWS_PER_GROUP, compression="zstd")
    footer_bytes = int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
    content = bytearray(path.read_bytes())
    drawn = random.Random(seed)
    start = drawn.randrange(4, len(content) - footer_bytes - 64)
    for at in range(start, start + drawn.choice([1, 8, 64])):
        content[at] = drawn.randrange(256)
    path.write_bytes(content)
    started = time.monotonic()
    outcome, _ = run(request(path, folder / "out", scoring__retry_storage_s=60))
    assert time.monotonic() - started < 30, "it was waited for"
    assert outcome.report is not None
    counts = outcome.report["instances"]["f1"]
    assert counts["scored"] + counts["undefined"] + counts["quarantined"] == N_ROWS
    reasons = set(outcome.report["quarantined_by_reason"])
    assert reasons <= {"unreadable", "invalid_utf8_candidate", "invalid_utf8_references"}
    return reasons


def test_what_a_killed_worker_left_of_a_shard_goes_with_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed until the next command: a file for each kill, in a run of weeks."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    out = tmp_path / "out"
    begun: list[Path] = []

    def second_attempt(self: LocalSupervisor, family: str, file_id: str, at: RowRange) -> int:
        folder = out / "families" / family
        folder.mkdir(parents=True, exist_ok=True)
        for stop in (at.stop, at.start + 1):  # Of the shard, and of its first row.
            path = folder / f"{file_id}-{at.start:012d}-{stop:012d}.parquet"
            begun.append(temporary_path(path))
            begun[-1].write_bytes(b"PAR1")
        return 2

    monkeypatch.setattr(LocalSupervisor, "start_attempt", second_attempt)
    run(request(source, out))
    assert is_whole(out)
    assert len(begun) > 4 and not list(out.rglob("*.tmp"))


def test_an_attempt_takes_away_what_is_of_its_own_shard_alone(tmp_path: Path) -> None:
    """Others write beside it."""
    store = Store(tmp_path)
    folder = tmp_path / "families" / "words"
    folder.mkdir(parents=True)
    own, later, other = (
        temporary_path(folder / f"{name}.parquet")
        for name in (
            "0a-000000000010-000000000015",
            "0a-000000000020-000000000030",
            "0b-000000000010-000000000020",
        )
    )
    foreign = folder / ".0a-000000000010-000000000020.parquet.tmp"
    for path in (own, later, other, foreign):
        path.touch()
    remove_leftovers_of(store, "words", "0a", RowRange(10, 20))
    assert set(folder.iterdir()) == {later, other, foreign}


def lift(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_is_full_for_a_moment_costs_nothing(tmp_path: Path) -> None:
    """A trace, and a half-written file that keeps the disk full."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        lift((1000, before[1]))
        threading.Timer(1.5, lift, [before]).start()

    try:
        run(request(source, tmp_path / "out", scoring__retry_storage_s=60), after=2, then=fill)
    finally:
        lift(before)
    assert is_whole(tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_disk_that_stays_full_ends_the_run_and_leaves_nothing_half(tmp_path: Path) -> None:
    """Seven kinds of traces, by the moment at which the disk was full."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(StorageError, match=r"File too large.*QA0507"):
            run(request(source, tmp_path / "out"), after=2, then=lambda: lift((1000, before[1])))
    finally:
        lift(before)
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    with full_disk(), pytest.raises(RunError, match="QA0508"):
        run(request(source, tmp_path / "out"))
    run(request(source, tmp_path / "out"))
    assert is_whole(tmp_path / "out")


def test_an_out_that_is_unmounted_in_mid_run_gets_no_second_life(tmp_path: Path) -> None:
    """What is left under a mount is an empty folder: a new OUT was begun in it."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    out = tmp_path / "out"

    def unmount() -> None:
        out.rename(tmp_path / "elsewhere")
        out.mkdir()

    with pytest.raises(RunError):
        run(request(source, out), after=2, then=unmount)
    assert not list(out.iterdir())


def test_waiting_is_said_and_the_wish_to_stop_is_heard(retry_clock: FakeClock) -> None:
    """A run that seems to hang for five minutes is killed by hand."""
    told: list[str] = []

    def look() -> None:
        if retry_clock.now_s > 1.0:
            raise RunError("stopped [QA0005]")

    def fail() -> None:
        raise OSError(5, "Input/output error")

    outages = Outages(retry_s=60.0, tell=told.append, look=look)
    with pytest.raises(RunError, match="QA0005"):
        outages.call(fail, store="/data", what="cannot read a.parquet")
    assert retry_clock.now_s < 2.0
    assert told[0].startswith("cannot read a.parquet: Input/output error; out for 0 s")


def test_a_store_that_fails_now_and_then_is_never_given_up(retry_clock: FakeClock) -> None:
    """The time counts from the first failure after the last success, not from the first of all."""
    outages = Outages(retry_s=1.2)

    def flaky() -> None:
        nonlocal fails
        fails = not fails
        if fails:
            raise OSError(5, "Input/output error")

    fails = False
    while retry_clock.now_s < 20.0:
        outages.call(flaky, store="/data", what="cannot read")


def test_calls_that_fail_one_after_the_other_share_one_patience(retry_clock: FakeClock) -> None:
    """Sixteen shards of a piece, each waited for five minutes, are eighty minutes."""
    outages = Outages(retry_s=1.0)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageError):
        outages.call(fail, store="/data", what="cannot read")
    ended_s = retry_clock.now_s
    assert ended_s >= 1.0
    with pytest.raises(StorageError):
        outages.call(fail, store="/data", what="cannot read")
    assert retry_clock.now_s == ended_s


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_uri_keeps_its_query_on_the_way_to_workers(store: S3Server, tmp_path: Path) -> None:
    """The plan was made with the endpoint of the query, and scoring without."""
    uri = store.put(rows(), "bucket/a folder/input.parquet", row_group_size=ROWS_PER_GROUP)
    run(request(uri.replace(" ", "%20"), tmp_path / "out"))
    assert is_whole(tmp_path / "out")
    run(request(store.uri("bucket/a%20folder"), tmp_path / "folder"))
    assert is_whole(tmp_path / "folder")


def test_a_store_that_is_out_for_a_while_is_waited_for(store: S3Server, tmp_path: Path) -> None:
    """Shard after shard was committed as quarantined while the store was away."""
    uri = store.put(rows(), "bucket/input.parquet", row_group_size=ROWS_PER_GROUP)

    def go_away() -> None:
        store.door.shut()
        threading.Timer(2.0, store.door.open).start()

    run(request(uri, tmp_path / "out", scoring__retry_storage_s=120), after=2, then=go_away)
    assert is_whole(tmp_path / "out")


@pytest.mark.slow  # The S3 client tries by itself for 20 s.
def test_a_store_that_is_gone_ends_the_run_without_a_verdict(
    store: S3Server, tmp_path: Path
) -> None:
    """40 of 60 commits were of quarantined rows after four minutes without the store."""
    uri = store.put(rows(), "bucket/input.parquet", row_group_size=ROWS_PER_GROUP)
    with pytest.raises(StorageError, match=r"s3://bucket/input\.parquet.*QA0507"):
        run(request(uri, tmp_path / "out"), after=2, then=store.door.shut)
    assert n_quarantined(tmp_path / "out") == 0
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    store.door.open()
    run(request(uri, tmp_path / "out"))
    assert is_whole(tmp_path / "out")


def test_everything_is_on_the_disk_before_success_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut _SUCCESS stood beside empty scores: they were renamed, never flushed."""
    flushed: list[str] = []
    flush = os.fsync

    def note(file: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{file}"))
        flush(file)

    monkeypatch.setattr(os, "fsync", note)
    table = rows().set_column(
        1, "candidate", pa.array([None, *rows()["candidate"].to_pylist()[1:]])
    )
    source = write_parquet(tmp_path / "input.parquet", table)
    run(request(source, tmp_path / "out"))
    names = [Path(path).relative_to(tmp_path / "out").as_posix() for path in flushed]
    success = next(i for i, name in enumerate(names) if "_SUCCESS" in name)
    for folder in ("scores", "quarantine", "families"):
        written = [i for i, name in enumerate(names) if name.startswith(f"{folder}/")]
        assert written, f"{folder} was never flushed"
        assert max(written) < success
    assert any(name == "scores" for name in names), "nor was its name"


def test_a_holder_that_lost_its_lock_notices_and_keeps_nobody_elses_fresh(tmp_path: Path) -> None:
    """A run that was frozen went on, and its heartbeats kept the lock of its successor alive."""
    lost = threading.Event()
    with RunLock(tmp_path, on_loss=lost.set, times=LockTimes(heartbeat_s=0.05)) as held:
        held.check()
        successor = tmp_path / "successor"
        successor.write_text('{"host": "b", "pid": 7, "started": 0.0, "token": "other"}')
        os.utime(successor, (1e9, 1e9))
        successor.replace(tmp_path / ".lock")
        assert lost.wait(10)
        time.sleep(0.2)
        assert (tmp_path / ".lock").stat().st_mtime == 1e9
        with pytest.raises(LockLostError, match="7.*QA0506"):
            held.check()
    assert (tmp_path / ".lock").exists(), "it is the successor's"


def test_a_run_that_lost_its_lock_stops_and_writes_no_scores(tmp_path: Path) -> None:
    """Two runs wrote one OUT at once, each sure to be alone."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    for after in (2, 8):  # In mid-run, and before the join.
        out = tmp_path / f"out{after}"

        def lose(lock: Path = out / ".lock") -> None:
            lock.write_text('{"host": "b", "pid": 7, "started": 0.0, "token": "other"}')

        with pytest.raises(LockLostError, match="7.*QA0506"):
            run(request(source, out), after=after, then=lose)
        assert not score_files(out)
        (out / ".lock").unlink()
        run(request(source, out))
        assert is_whole(out)
