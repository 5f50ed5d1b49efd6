"""The ledger: what a governor still knows after it, or its machine, was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import full_disk
from qaeval_core.errors import BudgetExhaustedError, RunError, StoreLockedError
from qaeval_core.llm import ledger as ledger_module
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.ledger import Ledger, LedgerState, SentCall
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.sealed_lines import sealed
from qaeval_core.storage.files import AppendFile

# Tells of each call after the governor answered, as a caller would act on it.
VICTIM = """
import sys, time
from pathlib import Path
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits

limits = Limits(requests_per_minute=6000)
ledger = Ledger(Path(sys.argv[1]), keep_s=limits.span_s, block_usd=0.5)
governor = Governor(limits, ledger=ledger)
for number in range(10_000):
    reservation = governor.reserve(tokens=100, usd=0.001)
    while not reservation.is_final:
        time.sleep(reservation.wait_s)
        reservation = governor.confirm(reservation.call_id)
    time.sleep(reservation.wait_s)
    print(reservation.call_id, time.time(), flush=True)
    if number % 3 == 0:
        governor.settle(reservation.call_id, tokens=60, usd=0.0005)
        print(reservation.call_id, "settled", flush=True)
    if number == 20:
        governor.pause(3.0)
        print("paused", time.time(), flush=True)
"""


def kill_after(folder: Path, *, n_lines: int) -> list[list[str]]:
    """Run the victim until it told so many lines, kill it, and return all that it told."""
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(n_lines)]
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    return [line.split() for line in lines if line.endswith("\n")]


def test_a_killed_governor_is_followed_by_one_that_knows(tmp_path: Path) -> None:
    """Protects from money, a window or a pause that a kill -9 makes forget."""
    told = kill_after(tmp_path, n_lines=29)
    settled = {line[0] for line in told if line[1] == "settled"}
    sent = {line[0]: float(line[1]) for line in told if line[1] != "settled" and len(line[0]) > 8}
    paused_at = next(float(line[1]) for line in told if line[0] == "paused")
    limits = Limits(requests_per_minute=6000)
    governor = Governor(limits, ledger=Ledger(tmp_path, keep_s=limits.span_s, block_usd=0.5))
    # One more may have been sent, or settled, and not told.
    assert settled <= sent.keys()
    assert len(sent.keys() - settled - governor.open_calls()) <= 1
    assert len(governor.open_calls()) <= len(sent) - len(settled) + 1
    status = governor.status()
    assert status.spent_usd == pytest.approx(0.0005 * status.n_settled)
    assert status.n_settled - len(settled) in (0, 1)
    assert status.reserved_usd == pytest.approx(0.001 * status.n_open)
    assert status.n_requests_in_use >= len(sent)  # All sent in the last minute.
    assert status.paused_s == pytest.approx(paused_at + 3.0 - time.time(), abs=0.3)
    assert governor.reserve(tokens=1, usd=0.0).wait_s >= status.paused_s - 0.1


def governor_on(folder: Path, limits: Limits, *, now: float, block_usd: float = 0.0) -> Governor:
    """Return a governor whose clocks stand."""
    ledger = Ledger(folder, keep_s=limits.span_s, block_usd=block_usd, wall=lambda: now)
    return Governor(limits, clock=lambda: now - 5000.0, wall=lambda: now, ledger=ledger)


def die(folder: Path, to: Path, *, n_lines_lost: int = 0, is_machine: bool = False) -> Path:
    """Copy a ledger as it lay on the disk when its governor, or its machine, died."""
    to.mkdir()
    lines = (folder / "ledger-main.jsonl").read_bytes().splitlines(keepends=True)
    if is_machine:
        first = json.loads(lines[0]) | {"machine": "another, or before its last start"}
        del first["crc32"]
        lines[0] = sealed(first).encode()
    (to / "ledger-main.jsonl").write_bytes(b"".join(lines[: len(lines) - n_lines_lost]))
    return to


def test_a_torn_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    """Protects from a governor that never starts again, or reads half a number."""
    limits = Limits(requests_per_minute=100)
    governor = governor_on(tmp_path / "a", limits, now=1e9)
    for _ in range(2):
        governor.reserve(tokens=100, usd=0.5)
    copy = die(tmp_path / "a", tmp_path / "b")
    path = copy / "ledger-main.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    ledger = Ledger(copy, wall=lambda: 1e9 + 1)
    assert len(ledger.found.open) == 1
    assert ledger.notes[0] == "ledger-main.jsonl: line 4 is torn, ignored"


def test_a_dead_machine_costs_a_block_and_a_window(tmp_path: Path) -> None:
    """Lines that were not on its disk had been calls: neither money nor limits forget them."""
    limits = Limits(requests_per_minute=600)
    governor = governor_on(tmp_path / "a", limits, now=1e9, block_usd=1.0)
    for _ in range(5):
        governor.reserve(tokens=100, usd=0.1)
    copy = die(tmp_path / "a", tmp_path / "b", n_lines_lost=4, is_machine=True)
    after = governor_on(copy, limits, now=1e9 + 1, block_usd=1.0)
    status = after.status()
    assert status.spent_usd + status.reserved_usd >= 0.5
    assert status.spent_usd + status.reserved_usd <= 0.5 + 1.0
    assert after.reserve(tokens=1, usd=0.0).wait_s >= 60.0


def test_a_killed_process_costs_neither(tmp_path: Path) -> None:
    """Its lines are all there: a block lost at each kill would use up a budget."""
    limits = Limits(requests_per_minute=600)
    folder = tmp_path / "0"
    for number in range(5):
        governor = governor_on(folder, limits, now=1e9, block_usd=1.0)
        reservation = governor.reserve(tokens=100, usd=0.1)
        assert reservation.wait_s < 2.0
        governor.settle(reservation.call_id, tokens=100, usd=0.1)
        folder = die(folder, tmp_path / str(number + 1))
    status = governor_on(folder, limits, now=1e9, block_usd=1.0).status()
    assert (status.spent_usd, status.reserved_usd) == (0.5, 0.0)


def test_calls_that_never_ended_keep_their_money(tmp_path: Path) -> None:
    """They were sent, and may have been billed: a restart must not make room for them."""
    limits = Limits()
    governor = governor_on(tmp_path / "a", limits, now=1e9)
    open_id = governor.reserve(tokens=1, usd=0.75).call_id
    after = governor_on(die(tmp_path / "a", tmp_path / "b"), limits, now=1e9 + 1)
    with pytest.raises(BudgetExhaustedError):
        after.reserve(tokens=1, usd=0.5, budget=Budget(budget_usd=1.0))
    after.settle(open_id, tokens=1, usd=0.25)  # Its caller had outlived the governor.
    after.reserve(tokens=1, usd=0.75, budget=Budget(budget_usd=1.0))


def test_a_clock_set_back_does_not_stop_a_run(tmp_path: Path) -> None:
    """Times of the future in a ledger would be waited for: for an hour, or for years."""
    limits = Limits(requests_per_minute=60)
    governor = governor_on(tmp_path / "a", limits, now=2e9)
    governor.pause(20.0)
    governor.reserve(tokens=1, usd=0.0)
    Ledger(tmp_path / "c", wall=lambda: 2e9).sent("a-1", SentCall(2e9, 1, 0))
    paused = governor_on(die(tmp_path / "a", tmp_path / "b"), limits, now=1e9)
    assert paused.reserve(tokens=1, usd=0.0).wait_s <= 20.0
    sent = governor_on(die(tmp_path / "c", tmp_path / "d"), limits, now=1e9)
    assert sent.reserve(tokens=1, usd=0.0).wait_s <= 3.0


def test_two_governors_do_not_share_a_ledger(tmp_path: Path) -> None:
    """Each would allow the whole limit."""
    first = Ledger(tmp_path)
    with pytest.raises(StoreLockedError, match=f"{os.getpid()}.*QA0607"):
        Ledger(tmp_path)
    Ledger(tmp_path, "other key").close()
    first.close()
    Ledger(tmp_path).close()


def test_an_orderly_end_is_no_crash_on_any_machine(tmp_path: Path) -> None:
    """A run that goes on elsewhere must not pay a block for it."""
    ledger = Ledger(tmp_path / "a", block_usd=1.0)
    ledger.sent("a-1", SentCall(time.time(), 10, 1000))
    ledger.settled("a-1", n_tokens=10, nano_usd=900)
    ledger.close()
    found = Ledger(die(tmp_path / "a", tmp_path / "b", is_machine=True)).found
    assert (found.is_after_crash, found.of("main").committed) == (False, 900)


def test_a_ledger_stays_small(tmp_path: Path) -> None:
    """Each start must not read all calls of all runs again."""
    ledger = Ledger(tmp_path / "0", wall=lambda: 1e9)
    for number in range(1000):
        ledger.sent(f"a-{number}", SentCall(1e9, 10, 7))
        ledger.settled(f"a-{number}", n_tokens=10, nano_usd=7)
    copy = die(tmp_path / "0", tmp_path / "1")
    found = Ledger(copy, wall=lambda: 1e9 + 100).found
    money = found.of("main")
    assert (money.spent, money.n_settled, money.n_tokens) == (7000, 1000, 10_000)
    assert (copy / "ledger-main.jsonl").stat().st_size < 1000


@contextmanager
def rewritten_after(n_lines: int) -> Iterator[None]:
    """Let ledgers be written anew after so many lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "_MAX_NEW_LINES", n_lines)
        yield


Step = tuple[str, int, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "sent", "settled", "billed", "free", "spent", "left", "paused"]),
        st.integers(0, 7),
        st.floats(0, 20),
    ),
    max_size=40,
)


def state_after(
    steps: list[Step], folder: Path, *, n_lines: int, is_machine: bool, is_closed: bool
) -> tuple[LedgerState, int]:
    """Return what is read after these steps and the end of the process or the machine."""
    now = 1e9
    with rewritten_after(n_lines):
        ledger = Ledger(folder, keep_s=60.0, block_usd=1e-6, wall=lambda: now)
        for what, number, gap_s in steps:
            now += gap_s
            budget = "ab"[number % 2]
            if what == "sent":
                ledger.sent(f"c-{number}", SentCall(now, 10 + number, 100 + number, budget))
            elif what == "settled":
                ledger.settled(f"c-{number}", n_tokens=number, nano_usd=10 * number)
            elif what in ("billed", "free"):
                ledger.failed(f"c-{number}", is_billed=what == "billed")
            elif what == "spent":
                ledger.spent(budget, nano_usd=number)
            elif what == "left":
                ledger.left(budget)
            else:
                ledger.paused(now + number)
        if is_closed:
            ledger.close()
    copy = die(folder, folder.with_name(f"{folder.name} later"), is_machine=is_machine)
    n_left = len((copy / "ledger-main.jsonl").read_bytes().splitlines())
    after = Ledger(copy, keep_s=60.0, wall=lambda: now + 1)
    assert after.notes == []
    return after.found, n_left


@given(steps=STEPS, is_machine=st.booleans(), is_closed=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_rewritten_ledger_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], is_machine: bool, is_closed: bool
) -> None:
    """Each line that the new file forgets is money, a call or a pause that the next one forgets."""
    ends = {"is_machine": is_machine, "is_closed": is_closed}
    folder = tmp_path_factory.mktemp("ledger")
    whole, _ = state_after(steps, folder / "whole", n_lines=10_000, **ends)
    short, _ = state_after(steps, folder / "short", n_lines=3, **ends)
    assert short == whole


def test_a_ledger_stays_small_while_it_is_open(tmp_path: Path) -> None:
    """A million calls would leave 155 MB, and a governor that starts again reads for 8 s."""
    steps = [step for n in range(300) for step in (("sent", n % 8, 1.0), ("settled", n % 8, 1.0))]
    found, n_lines = state_after(
        steps, tmp_path / "a", n_lines=100, is_machine=False, is_closed=False
    )
    assert n_lines < 150
    assert sum(money.n_settled for money in found.money.values()) == 300


def test_a_rewrite_that_the_disk_refuses_leaves_the_old_lines(tmp_path: Path) -> None:
    """Half a ledger in the place of a whole one has lost a budget."""
    ledger = Ledger(tmp_path / "a", wall=lambda: 1e9)
    ledger.sent("c-1", SentCall(1e9, 10, 700))
    with rewritten_after(1), full_disk(), pytest.raises(RunError, match="File too large.*QA0508"):
        ledger.settled("c-1", n_tokens=10, nano_usd=500)
    ledger.settled("c-1", n_tokens=10, nano_usd=500)  # There is room again.
    assert not list((tmp_path / "a").glob(".*")), "a half-written file keeps a full disk full"
    found = Ledger(die(tmp_path / "a", tmp_path / "b"), wall=lambda: 1e9).found
    assert (found.of("main").spent, found.open) == (500, {})


def test_lines_after_a_rewrite_are_in_the_new_file(tmp_path: Path) -> None:
    """A file that was replaced can still be written to, and nobody reads it."""
    (tmp_path / "lines").write_text("old\n")
    file = AppendFile(tmp_path / "lines")
    file.rewrite(["new\n"])
    file.append("and more\n")
    file.close()
    assert (tmp_path / "lines").read_text() == "new\nand more\n"
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


@pytest.mark.parametrize("folder", ["a file", "a file/below", "/proc/nope"])
def test_a_folder_that_cannot_be_is_named_with_its_key(tmp_path: Path, folder: str) -> None:
    """A trace of thirty lines does not say which setting is wrong."""
    (tmp_path / "a file").write_text("")
    with pytest.raises(RunError) as refused:
        Ledger(tmp_path / folder, section="naco.")
    assert str(refused.value).startswith(
        f"cannot keep the record of calls in {tmp_path / folder}: "
    )
    assert str(refused.value).endswith(" (naco.ledger_path) [QA0606]")


def test_a_ledger_that_could_not_start_is_not_held(tmp_path: Path) -> None:
    """Who frees the disk and tries again must not be told of another governor."""
    path = tmp_path / "ledger-main.jsonl"
    path.mkdir()
    with pytest.raises(RunError, match=r"\(naco.ledger_path\).*QA0606"):
        Ledger(tmp_path, section="naco.")
    path.rmdir()
    Ledger(tmp_path).close()
