"""Takeovers: a filter was held for dead while it was frozen, and wakes up after its successor."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filter_corpora import files_of, filtered, scored
from s3_server import S3Server

from qaeval_core import files
from qaeval_core.errors import LockLostError, RunError, StoreLockedError
from qaeval_core.filter import corpus, join, output
from qaeval_core.filter.filtering import Filtering
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from qaeval_core.store.lock import RunLock, Tenure

FIRST = {"share": "0.5", "near_duplicates": "exact"}
SECOND = {"share": "0.25", "near_duplicates": "none"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> AnyPath:
    if request.param == "disk":
        return as_path(tmp_path)
    store: S3Server = request.getfixturevalue("store")
    store.make_bucket("bucket")
    return as_path(store.uri(f"bucket/takeovers/{tmp_path.name}"))


@pytest.fixture(params=[1, 2], ids=["one part", "parts"])
def n_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Parts of an output file: a single one is moved on a disk, several are joined."""
    if request.param > 1:
        monkeypatch.setattr(corpus, "ROWS_PER_RANGE", 34)
    return int(request.param)


def take_over(out: Path, kept: AnyPath) -> None:
    """Let a filter by other rules find the lock of a process that is dead, and do all its work."""
    lock = as_path(kept) / ".lock"
    lock.put(json.dumps({**json.loads(lock.read_bytes()), "started": 0.0}).encode())
    result, _ = filtered(out, kept, **SECOND)
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
    with RunLock(tmp_path), pytest.raises(StoreLockedError, match="another folder") as raised:
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


@pytest.mark.slow
def test_a_file_too_large_to_be_copied_is_sent(
    out: Path, store: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S3 copies five gigabytes at most."""
    store.make_bucket("bucket")
    folder = as_path(store.uri(f"bucket/takeovers/{tmp_path.name}"))
    filtered(out, folder / "copied", **FIRST)
    monkeypatch.setattr(join, "_MAX_COPY_BYTES", 100)
    monkeypatch.setattr(StoragePath, "copy", None)
    filtered(out, folder / "sent", **FIRST)
    assert files_of(folder / "sent") == files_of(folder / "copied")
