"""Takeovers: a filter was held for dead while it was frozen, and wakes up after its successor."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from filter_corpora import files_of, filtered, score_again, scored
from qaeval_core.errors import LockLostError, RunError, StoreLockedError
from qaeval_core.filter import join, output, unfenced
from qaeval_core.filter.filtering import Filtering
from qaeval_core.filter.unfenced import PREFIX, declared
from qaeval_core.storage import files
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from qaeval_core.store.lock import RunLock, Tenure, this_process
from qaeval_core.tables import corpus
from s3_server import S3Server

FIRST = {"share": "0.5", "near_duplicates": "exact"}
SECOND = {"share": "0.25", "near_duplicates": "none"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(params=["disk", "memory", pytest.param("bucket", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> AnyPath:
    if request.param == "disk":
        return as_path(tmp_path)
    if request.param == "memory":
        return as_path(f"memory://takeovers/{tmp_path.name}")
    store: S3Server = request.getfixturevalue("store")
    store.make_bucket("bucket")
    return as_path(store.uri(f"bucket/takeovers/{tmp_path.name}"))


@pytest.fixture(params=[1, 2], ids=["one part", "parts"])
def n_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Parts of an output file: a single one is moved on a disk, several are joined."""
    if request.param > 1:
        monkeypatch.setattr(corpus, "ROWS_PER_RANGE", 34)
    return int(request.param)


def lose_lock(kept: AnyPath) -> None:
    """Let a lock be that of a process that is dead."""
    lock = as_path(kept) / ".lock"
    lock.put(json.dumps({**json.loads(lock.read_bytes()), "started": 0.0}).encode())


def take_over(out: Path, kept: AnyPath, rules: dict[str, str] = SECOND) -> None:
    """Let a filter find the lock of a process that is dead, and do all its work."""
    lose_lock(kept)
    result, _ = filtered(out, kept, **rules)
    assert result.is_new


@contextlib.contextmanager
def before_first(owner: Any, name: str, action: Callable[[], None]) -> Iterator[None]:
    """Let a function do something else before its first call, which no later one does."""
    own, left = getattr(owner, name), [action]

    def call(*given: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return own(*given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, call)
        yield


def check_late(out: Path, folder: AnyPath, *errors: type[Exception]) -> None:
    """Let a filter that is taken over go on; check that its successor's files alone are there."""
    kept, alone = as_path(folder) / "kept", as_path(folder) / "alone"
    with pytest.raises(errors):
        filtered(out, kept, **FIRST)
    filtered(out, alone, **SECOND)
    # With all that is hidden, but the lock.
    assert files_of(kept) == files_of(alone)
    assert "_SUCCESS" in files_of(kept)


@pytest.mark.parametrize("name", ["write_range", "join_file"])
def test_a_late_worker_finds_nothing_to_work_on(
    out: Path, folder: AnyPath, n_parts: int, name: str
) -> None:
    with before_first(output, name, lambda: take_over(out, as_path(folder) / "kept")):
        check_late(out, folder, RunError)


def test_a_worker_that_has_read_all_puts_nothing(out: Path, folder: AnyPath, n_parts: int) -> None:
    """It was frozen between its last row and the end of its file."""
    with contextlib.ExitStack() as frozen:

        def freeze() -> None:
            look = before_first(Tenure, "check", lambda: take_over(out, as_path(folder) / "kept"))
            frozen.enter_context(look)

        with before_first(output, "join_file", freeze):
            check_late(out, folder, LockLostError)


def test_who_is_frozen_while_it_cleans_up_takes_away_no_work_of_its_successor(
    out: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"

    def begin() -> None:
        (kept / ".work-of-the-successor" / "ids").mkdir(parents=True)
        lock = kept / ".lock"
        lock.write_text(json.dumps({**json.loads(lock.read_text()), "token": "another"}))

    with contextlib.ExitStack() as frozen:

        def freeze() -> None:
            frozen.enter_context(before_first(StoragePath, "folders", begin))

        with before_first(Filtering, "remove_leftovers", freeze), pytest.raises(LockLostError):
            filtered(out, kept, **FIRST)
    assert (kept / ".work-of-the-successor" / "ids").is_dir()


def test_a_second_filter_is_told_to_choose_a_folder(out: Path, tmp_path: Path) -> None:
    """It has no --out."""
    with RunLock(tmp_path), pytest.raises(StoreLockedError, match="QA0505") as raised:
        filtered(out, tmp_path, **FIRST)
    assert "--out" not in str(raised.value)


def last_step(folder: AnyPath) -> tuple[Any, str]:
    """Return what comes after the last look at the lock."""
    return (StoragePath, "copy") if as_path(folder).local is None else (files, "move")


def test_a_worker_is_late_even_after_its_look(out: Path, folder: AnyPath, n_parts: int) -> None:
    """Its successor has taken away what it is about to move, or to copy."""
    with contextlib.ExitStack() as frozen:

        def freeze() -> None:
            look = before_first(
                *last_step(folder), lambda: take_over(out, as_path(folder) / "kept")
            )
            frozen.enter_context(look)

        with before_first(output, "join_file", freeze):
            check_late(out, folder, RunError)


@pytest.mark.parametrize("name", ["yield.parquet", "filter.html", "filter.json", "_SUCCESS"])
def test_a_driver_is_late_even_after_its_look(out: Path, folder: AnyPath, name: str) -> None:
    """What it writes itself is put in its place as workers do it."""
    own = Filtering.write

    def write(run: Filtering, given: str, content: bytes) -> None:
        if given != name or run.plan.request.near_duplicates != FIRST["near_duplicates"]:
            return own(run, given, content)
        with before_first(*last_step(folder), lambda: take_over(out, as_path(folder) / "kept")):
            return own(run, given, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Filtering, "write", write)
        check_late(out, folder, RunError)


@pytest.fixture
def bucket(tmp_path: Path) -> StoragePath:
    """Return a folder of a bucket in memory."""
    return as_path(f"memory://takeovers/{tmp_path.name}")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all files be too large for a store to copy: S3 copies five gigabytes at most."""
    monkeypatch.setattr(join, "_MAX_COPY_BYTES", 0)
    monkeypatch.setattr(StoragePath, "copy", None)


@pytest.fixture(scope="module")
def half(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that has one of the two files."""
    folder = tmp_path_factory.mktemp("half")
    shutil.copytree(out.parent / "source", folder / "source")
    (folder / "source" / "part1.parquet").unlink()
    score_again(folder)
    return folder / "out"


def refused(out: Path, kept: StoragePath, rules: dict[str, str], change: str) -> None:
    """Let a filter find one that was lost, and not begin beside it."""
    with pytest.raises(StoreLockedError, match=f"{change}.*QA0505") as raised:
        filtered(out, kept, **rules)
    [path] = declarations(kept)
    assert str(path) in str(raised.value)


def declarations(kept: StoragePath) -> list[StoragePath]:
    return [kept / found.name for found in kept.list() if found.name.startswith(PREFIX)]


def check_alone(out: Path, kept: AnyPath, alone: AnyPath, rules: dict[str, str]) -> None:
    filtered(out, alone, **rules)
    assert files_of(kept) == files_of(alone)
    assert "_SUCCESS" in files_of(kept)


def test_a_file_too_large_to_be_copied_is_sent(
    out: Path, bucket: StoragePath, request: pytest.FixtureRequest
) -> None:
    filtered(out, bucket / "copied", **FIRST)
    request.getfixturevalue("large")
    check_alone(out, bucket / "copied", bucket / "sent", FIRST)


@contextlib.contextmanager
def frozen_at_the_end(action: Callable[[], None]) -> Iterator[None]:
    """Let something happen after the first look before the end of a file that is sent."""
    left = [action]

    @contextlib.contextmanager
    def late(*given: Any) -> Iterator[None]:
        with declared(*given):
            if left:
                left.pop()()
            yield

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join, "declared", late)
        yield


@pytest.mark.usefixtures("large")
def test_nothing_by_other_rules_begins_beside_a_file_that_may_still_be_sent(
    out: Path, bucket: StoragePath
) -> None:
    kept = bucket / "kept"

    def take() -> None:
        lose_lock(kept)
        refused(out, kept, SECOND, "send kept/part0.parquet")

    with frozen_at_the_end(take), pytest.raises(RunError):
        filtered(out, kept, **FIRST)
    assert "kept/part0.parquet" in files_of(kept) and "_SUCCESS" not in files_of(kept)
    filtered(out, kept, **SECOND)
    check_alone(out, kept, bucket / "alone", SECOND)


@pytest.mark.usefixtures("large")
def test_a_file_that_is_sent_late_is_that_of_the_same_filter(
    out: Path, bucket: StoragePath
) -> None:
    kept = bucket / "kept"
    with frozen_at_the_end(lambda: take_over(out, kept, FIRST)), pytest.raises(RunError):
        filtered(out, kept, **FIRST)
    check_alone(out, kept, bucket / "alone", FIRST)


@pytest.mark.usefixtures("large")
def test_a_file_is_not_sent_after_a_late_look(out: Path, bucket: StoragePath) -> None:
    kept = bucket / "kept"
    with before_first(StoragePath, "put_json", lambda: take_over(out, kept)):
        check_late(out, bucket, LockLostError)
    assert "_SUCCESS" in files_of(kept)


def declare(
    kept: StoragePath, change: unfenced.UnfencedChange, name: str, **process: object
) -> None:
    """Let a process of another filter be killed after what it declares."""
    with RunLock(kept) as lock, declared(change, [kept / name], lock.tenure, "another"):
        [path] = declarations(kept)
        told = json.loads(path.read_bytes())
    assert not declarations(kept)
    path.put_json({**told, "started": 0.0, **process})


@pytest.mark.parametrize("change", ["delete", "send"])
@pytest.mark.parametrize("is_here", [True, False])
def test_what_a_dead_process_declared_does_not_come(
    out: Path,
    bucket: StoragePath,
    monkeypatch: pytest.MonkeyPatch,
    change: unfenced.UnfencedChange,
    *,
    is_here: bool,
) -> None:
    """Of one on another machine nobody knows whether it is dead: a person says so.

    A store may still be at the end of an upload whose sender died a moment ago.
    """
    kept, name = bucket / "kept", "kept/part0.parquet"
    declare(kept, change, name, **({} if is_here else {"host": "elsewhere"}))
    if change == "send" or not is_here:
        refused(out, kept, SECOND, f"{change} {name}")
        monkeypatch.setattr(unfenced, "_SEND_S", -1.0)
    if not is_here:
        refused(out, kept, SECOND, f"{change} {name}")
        declarations(kept)[0].delete()
    filtered(out, kept, **SECOND)
    check_alone(out, kept, bucket / "alone", SECOND)


def test_another_process_of_the_same_work_declares_for_itself(
    bucket: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives a worker's file to a second one; the first may only be frozen."""
    path = bucket / "kept" / "a"
    with (
        RunLock(bucket) as lock,
        declared("send", [path], lock.tenure, "one"),
        monkeypatch.context() as patched,
    ):
        [first] = declarations(bucket)
        patched.setattr(unfenced, "this_process", lambda: {**this_process(), "pid": 1})
        with declared("send", [path], lock.tenure, "one"):
            assert len(declarations(bucket)) == 2
        assert declarations(bucket) == [first]


def test_what_this_process_gave_up_does_not_come(
    out: Path, half: Path, bucket: StoragePath
) -> None:
    """A notebook lives on after a filter that a store has ended."""
    kept = bucket / "kept"
    filtered(out, kept, **FIRST)
    error = OSError("the store is out")
    with contextlib.ExitStack() as left:

        def fail() -> None:
            left.enter_context(before_first(type(kept.storage), "delete", raising(error)))

        with before_first(output, "_delete_others", fail), pytest.raises(RunError):
            filtered(half, kept, **FIRST)
    assert len(declarations(kept)) == 1
    filtered(out, kept, **SECOND)
    check_alone(out, kept, bucket / "alone", SECOND)


def test_a_file_that_a_filter_has_not_is_anothers_to_delete(out: Path, bucket: StoragePath) -> None:
    """Only what learns a rank has a combine.json."""
    declare(bucket, "delete", "combine.json", host="elsewhere")
    filtered(out, bucket, **SECOND)
    assert len(declarations(bucket)) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"files": 3, "change": "delete"}'])
def test_what_says_nothing_may_be_anything(out: Path, bucket: StoragePath, content: bytes) -> None:
    kept = bucket / "kept"
    (kept / f"{PREFIX}1").put(content)
    refused(out, kept, SECOND, "")


def raising(error: Exception) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def test_a_deletion_is_late_even_after_its_look(out: Path, half: Path, folder: AnyPath) -> None:
    """It is of a file that its successor has, and it has not."""
    kept = as_path(folder) / "kept"
    filtered(out, kept, **FIRST)
    is_local = kept.local is not None

    def take() -> None:
        assert (kept / "kept" / "part1.parquet").is_file()  # Nothing is done yet.
        if is_local:
            return take_over(out, kept)
        lose_lock(kept)
        return refused(out, kept, SECOND, "delete kept/part1.parquet")

    step = (files, "move") if is_local else (type(kept.storage), "delete")
    with contextlib.ExitStack() as frozen:

        def freeze() -> None:
            frozen.enter_context(before_first(*step, take))

        with before_first(output, "_delete_others", freeze), pytest.raises(RunError):
            filtered(half, kept, **FIRST)
    if not is_local:
        assert "_SUCCESS" not in files_of(kept)
        filtered(out, kept, **SECOND)
    check_alone(out, kept, as_path(folder) / "alone", SECOND)


def test_a_late_deletion_of_what_a_filter_has_not_is_none_of_its_business(
    out: Path, half: Path, bucket: StoragePath
) -> None:
    kept = bucket / "kept"
    filtered(out, kept, **FIRST)
    with contextlib.ExitStack() as frozen:

        def freeze() -> None:
            look = before_first(type(kept.storage), "delete", lambda: take_over(half, kept))
            frozen.enter_context(look)

        with before_first(output, "_delete_others", freeze), pytest.raises(LockLostError):
            filtered(half, kept, **FIRST)
    check_alone(half, kept, bucket / "alone", SECOND)


def test_what_is_declared_too_late_is_not_done(out: Path, half: Path, bucket: StoragePath) -> None:
    """It was frozen before it said what it was about to do; the store is out at its look."""
    kept = bucket / "kept"
    filtered(out, kept, **FIRST)
    with contextlib.ExitStack() as frozen:

        def take() -> None:
            take_over(out, kept)
            frozen.enter_context(before_first(Tenure, "tag", raising(OSError("out"))))

        def freeze() -> None:
            frozen.enter_context(before_first(StoragePath, "put_json", take))

        with before_first(output, "_delete_others", freeze), pytest.raises(RunError):
            filtered(half, kept, **FIRST)
    check_alone(out, kept, bucket / "alone", SECOND)
