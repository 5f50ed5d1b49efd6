"""Ledgers and locks that others wrote to, or a disk has damaged: no lost budget, trace or hang."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journals import sealed_text
from qaeval_core.errors import QAEvalError, RunError, StoreLockedError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.leases import LeaseLog
from qaeval_core.llm.ledger import Ledger, SentCall
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.sealed_lines import sealed
from qaeval_core.store.lock import LockTimes, RunLock

NOW = 1e9
SOMEBODY = 12_345  # a user who is not us
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def opened(folder: Path) -> Ledger:
    return Ledger(folder, block_usd=1e-6, wall=lambda: NOW + 1)


def kill(ledger: Ledger) -> None:
    """Close its files, as the death of its process does."""
    os.close(ledger._lock)
    os.close(ledger._file._file)


def kept(folder: Path) -> Path:
    """Write what a killed governor leaves behind; return its ledger."""
    ledger = Ledger(folder, block_usd=1e-6, wall=lambda: NOW)
    ledger.spent("a", nano_usd=5_000)
    for number in range(4):
        ledger.sent(f"c-{number}", SentCall(NOW, 10, 700, "ab"[number % 2]))
    ledger.settled("c-0", n_tokens=8, nano_usd=300)
    ledger.failed("c-1", is_billed=True)
    ledger.failed("c-2", is_billed=False)
    ledger.paused(NOW + 5)
    kill(ledger)
    return folder / "ledger-main.jsonl"


def foreign_ledger(folder: Path, *lines: str) -> Path:
    """Write a ledger of somebody who can also seal its lines."""
    folder.mkdir(exist_ok=True)
    path = folder / "ledger-main.jsonl"
    first = json.dumps({"totals": {**dict.fromkeys(TOTALS, 0), "spent": 900}, "purse": "main"})
    given = (sealed_text(line) if line.startswith("{") else f"{line}\n" for line in (first, *lines))
    path.write_text("".join(given))
    return path


TOTALS = ("spent", "n_settled", "n_billed_failures", "n_tokens")


def test_a_line_without_a_checksum_is_damaged(tmp_path: Path) -> None:
    """A bit that turns in the mark of a checksum must not make the line one of trust."""
    path = kept(tmp_path)
    content = path.read_text()
    path.write_text(re.sub(r',"crc32":"[0-9a-f]{8}"}', "}", content, count=1))
    ledger = opened(tmp_path)
    assert ledger.notes[0] == "ledger-main.jsonl: line 1 is damaged, ignored"
    assert ledger.found.is_after_crash


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_no_bit_of_a_ledger_turns_in_silence(tmp_path: Path, is_rewritten: bool) -> None:
    """A budget was given back, or a window forgotten, without a word."""
    path = kept(tmp_path)
    if is_rewritten:  # By the next governor, which is killed as well.
        kill(opened(tmp_path))
    content, drawn = path.read_bytes(), random.Random(3)
    whole = opened(tmp_path)
    kill(whole)
    assert whole.notes == []
    for _ in range(400):
        flipped = bytearray(content)
        at = drawn.randrange(8 * len(content))
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        ledger = opened(tmp_path)
        kill(ledger)
        if ledger.found != whole.found:
            assert ledger.notes and ledger.found.is_after_crash
        for budget in "ab":
            assert ledger.found.of(budget).committed >= whole.found.of(budget).committed, flipped
        # What was found is kept, and is no news to the next one.
        again = opened(tmp_path)
        kill(again)
        assert again.notes == []
        assert again.found.money == ledger.found.money


@pytest.mark.parametrize(
    "line",
    [
        '{"paused_until": Infinity, "at": 0}',
        '{"paused_until": 1e9, "at": -Infinity}',
        '{"spent": NaN, "purse": "main"}',
        '{"spent": -900, "purse": "main"}',
        '{"spent": ' + "9" * 400 + ', "purse": "main"}',
        '{"spent": ' + "9" * 5_000 + ', "purse": "main"}',
        '{"spent": "9", "purse": "main"}',
        '{"spent": true, "purse": "main"}',
        '{"spent": 1, "purse": ["main"]}',
        '{"totals": [], "purse": "main"}',
        '{"totals": 5, "purse": "main"}',
        '{"sent": ["a"], "at": 1, "n_tokens": 1, "nano_usd": 1, "purse": "main"}',
        '{"sent": "a", "at": ' + "9" * 400 + ', "n_tokens": 1, "nano_usd": 1, "purse": "main"}',
        '{"sent": "a", "at": 1, "n_tokens": 1, "nano_usd": -1e300, "purse": "main"}',
        '{"closed": "no"}',
        '"closed"',
        "[1, 2]",
        "7",
        "[" * 100_000,
        "\0" * 500,
        "junk",
    ],
)
def test_a_line_that_cannot_be_is_left_out_by_name(tmp_path: Path, line: str) -> None:
    """A trace at each start, or a budget of somebody's choosing."""
    foreign_ledger(tmp_path, '{"machine": "gone"}', line, '{"closed": true}')
    ledger = opened(tmp_path)
    assert ledger.found.of("main").committed == 900
    assert ledger.notes[0] == "ledger-main.jsonl: line 3 is damaged, ignored"
    Governor(Limits(requests_per_minute=60), ledger=ledger).reserve(tokens=1, usd=0.0)
    ledger.close()
    assert opened(tmp_path).notes == []


def test_a_fact_of_a_newer_version_is_no_damage(tmp_path: Path) -> None:
    """Who goes back to an older version would pay a block and wait a minute for it."""
    path = kept(tmp_path)
    with path.open("a") as file:
        file.write(sealed({"weather": 7.5, "at": NOW}))
    ledger = opened(tmp_path)
    assert (ledger.notes, ledger.found.is_after_crash) == ([], False)


def test_a_forged_line_takes_no_budget_for_ever(tmp_path: Path) -> None:
    """One line, and the budget was refused, also after the line was removed."""
    path = kept(tmp_path)
    with path.open("a") as file:
        file.write('{"spent": 1000000000000000, "purse": "a"}\n')
    ledger = opened(tmp_path)
    assert ledger.found.of("a").committed < 20_000
    governor = Governor(Limits(), ledger=ledger)
    governor.reserve(tokens=1, usd=1e-5, budget=Budget("a", budget_usd=1e-4))


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "victim")


def a_second_name(path: Path) -> None:
    os.link(path.parent.parent / "victim", path)


def of_somebody(path: Path) -> None:
    path.touch()
    os.chown(path, SOMEBODY, SOMEBODY)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["ledger-main.jsonl", "ledger-main.lock"])
@pytest.mark.parametrize("put", [a_pipe, a_link, pytest.param(of_somebody, marks=as_root)])
def test_a_ledger_takes_regular_files_of_ones_own_alone(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    """A pipe held the run for ever; a link led to a victim's file, which was overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "ledgers"
    folder.mkdir()
    put(folder / name)
    with pytest.raises(RunError, match=rf"{name}.*\(naco.ledger_path\).*QA0606"):
        Ledger(folder, section="naco.")
    assert victim.read_text() == "precious"


def test_a_lock_that_is_a_second_name_of_a_file_is_refused(tmp_path: Path) -> None:
    """Who locks it writes into it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "ledgers").mkdir()
    a_second_name(tmp_path / "ledgers" / "ledger-main.lock")
    with pytest.raises(RunError, match="QA0606"):
        Ledger(tmp_path / "ledgers")
    assert victim.read_text() == "precious"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("put", [a_pipe, a_link])
def test_claims_are_kept_in_a_regular_file_alone(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    """The same, for the file beside the ledger."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "ledgers").mkdir()
    put(tmp_path / "ledgers" / "claims.jsonl")
    with pytest.raises(RunError, match=r"claims\.jsonl.*QA0508"):
        LeaseLog(tmp_path / "ledgers" / "claims.jsonl", life="one")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("line", ['{"0a": 5}', '{"0a": ["x"]}', "5", "null", '{"0a": "b", "c": 1}'])
def test_claims_that_cannot_be_are_left_out(tmp_path: Path, line: str) -> None:
    """A governor that does not start asks nothing at all."""
    path = tmp_path / "claims.jsonl"
    LeaseLog(path, life="one").claimed("0f", owner="me")
    with path.open("a") as file:
        file.write(f"{line}\n")
    assert LeaseLog(path, life="one").found == {"0f": "me"}


def test_ledgers_are_private(tmp_path: Path) -> None:
    """What an account spends was readable by all users."""
    before = os.umask(0o022)
    try:
        ledger = Ledger(tmp_path / "ledgers")
        LeaseLog(tmp_path / "ledgers" / "claims.jsonl", life="one")
    finally:
        os.umask(before)
    assert (tmp_path / "ledgers").stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "ledgers").iterdir()}
    assert len(modes) == 3 and set(modes.values()) == {0o600}, modes
    ledger.close()


LOCKS = {
    "garbage": b"\xff\x00\x01",
    "list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "text": b'"x"',
    "no process": b'{"host": 5, "pid": [1]}',
    "large process": json.dumps({"host": os.uname().nodename, "pid": 10**30}).encode(),
    "infinite start": json.dumps({"host": os.uname().nodename, "pid": 1}).encode()[:-1]
    + b', "started": Infinity}',
}


@pytest.mark.parametrize("content", LOCKS.values(), ids=LOCKS)
def test_a_lock_that_says_nothing_is_no_trace(tmp_path: Path, content: bytes) -> None:
    """Once, or for ever: the run ended with a trace that did not name the file."""
    lock = tmp_path / ".lock"
    lock.write_bytes(content)
    os.utime(lock, (time.time() - 3_600, time.time() - 3_600))
    with RunLock(tmp_path):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("put", [a_pipe, a_link])
def test_a_lock_that_is_no_regular_file_is_named(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    """A pipe kept the run waiting for ever."""
    out = tmp_path / "out"
    out.mkdir()
    put(out / ".lock")
    with pytest.raises(StoreLockedError, match=r"out/\.lock.*QA0505"):
        RunLock(out).__enter__()


def test_a_lock_of_the_future_says_what_to_delete(tmp_path: Path) -> None:
    """Its message said to wait; nobody would have come."""
    lock = tmp_path / ".lock"
    lock.write_text('{"host": "elsewhere", "pid": 1}')
    os.utime(lock, (time.time() + 1e9, time.time() + 1e9))
    with pytest.raises(StoreLockedError, match=f"{lock}.*QA0505"):
        RunLock(tmp_path).__enter__()


@pytest.mark.timeout(20)
def test_a_lock_that_becomes_a_pipe_holds_nobody(tmp_path: Path) -> None:
    """The heartbeat, and what follows it, waited for a writer."""
    heard = threading.Event()
    with RunLock(tmp_path, on_loss=heard.set, times=LockTimes(heartbeat_s=0.05)) as lock:
        (tmp_path / ".lock").unlink()
        os.mkfifo(tmp_path / ".lock")
        with pytest.raises(QAEvalError):
            lock.check()
        assert heard.wait(5)
