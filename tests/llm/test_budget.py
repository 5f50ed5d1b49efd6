"""Several runs on one governor: each its own money, all of them the smallest limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_runs import Clock
from qaeval_core.errors import BudgetExhaustedError, CallTooLargeError, ConfigError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor, Reservation
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits


def send(governor: Governor, clock: Clock, reservation: Reservation) -> float:
    """Wait as told until the call is sent; return when."""
    while not reservation.is_final:
        clock.now_s += reservation.wait_s
        told = governor.confirm(reservation.call_id)
        assert told is not None
        reservation = told
    clock.now_s += reservation.wait_s
    return clock.now_s


def test_a_run_spends_its_own_money() -> None:
    """A weekly audit must not inherit what last week's had spent."""
    governor = Governor(Limits())
    last, this = Budget("last week", 1.0), Budget("this week", 1.0)
    reservation = governor.reserve(tokens=1, usd=1.0, budget=last)
    governor.settle(reservation.call_id, tokens=7, usd=0.75)
    governor.reserve(tokens=1, usd=1.0, budget=this)
    with pytest.raises(BudgetExhaustedError, match=r"\$0\.75.*\$0\.00.*QA0604"):
        governor.reserve(tokens=1, usd=0.5, budget=last)
    spent = [governor.status(name).spent_usd for name in ("last week", "this week", "main")]
    assert spent == [0.75, 0.0, 0.0]
    assert (governor.status("last week").n_settled, governor.status("this week").n_open) == (1, 1)
    assert governor.status("main").n_sent == 2  # Of all budgets.


def test_runs_share_the_window(clock: Clock) -> None:
    """Two runs with the whole limit each would be two times too fast."""
    limits = Limits(requests_per_minute=60)
    governor = Governor(limits, clock=clock)
    waits_s = [
        governor.reserve(tokens=1, usd=0.0, budget=Budget(name), limits=limits).wait_s
        for name in ("a", "b") * 10
    ]
    assert waits_s[-1] > 17.0


def test_the_smallest_limit_holds_for_all_and_leaves_with_its_run(clock: Clock) -> None:
    """A run that promises less must not be overrun by one that promises more."""
    governor = Governor(Limits(requests_per_minute=600), clock=clock)
    fast, slow = Limits(requests_per_minute=600), Limits(60, 1000)
    waiting = [
        governor.reserve(tokens=1, usd=0.0, budget=Budget("fast"), limits=fast) for _ in range(100)
    ]
    assert waiting[-1].wait_s < 11.0
    governor.reserve(tokens=1, usd=0.0, budget=Budget("slow"), limits=slow)
    assert governor.limits == Limits(60, 1000)
    # Those that were promised a time by the old limits as well.
    sent_s = [send(governor, clock, reservation) for reservation in waiting[:40]]
    late = [at_s for at_s in sent_s if at_s > 3.0]
    assert len(late) > 20 and late[20] - late[0] >= 19.0
    assert not governor.unregister("slow")
    assert governor.limits == fast
    assert governor.unregister("fast")
    assert governor.unregister("never came")


def test_a_window_stays_below_a_limit_that_was_lowered(clock: Clock) -> None:
    """What was sent before counts: the server's window does not begin anew."""
    governor = Governor(Limits(requests_per_minute=600), clock=clock)
    sent_s = [send(governor, clock, governor.reserve(tokens=1, usd=0.0)) for _ in range(50)]
    low = {"budget": Budget("low"), "limits": Limits(requests_per_minute=55)}
    sent_s += [send(governor, clock, governor.reserve(tokens=1, usd=0.0, **low)) for _ in range(20)]
    assert max(sum(end_s - 60 < at_s <= end_s for at_s in sent_s) for end_s in sent_s) <= 55


def test_a_call_that_became_too_large_is_told_when_it_asks(clock: Clock) -> None:
    """It waits for a window that cannot hold it any more, and would be refused by the server."""
    governor = Governor(Limits(tokens_per_minute=1000), clock=clock)
    for _ in range(2):
        waiting = governor.reserve(tokens=900, usd=0.0)
    small = {"budget": Budget("small"), "limits": Limits(tokens_per_minute=500)}
    governor.reserve(tokens=100, usd=0.0, **small)
    assert governor.confirm(waiting.call_id) is None
    with pytest.raises(CallTooLargeError):
        governor.reserve(tokens=900, usd=0.0)


def test_windows_of_two_lengths_are_refused() -> None:
    """The server has one; the smaller of two limits means nothing then."""
    governor = Governor(Limits(requests_per_minute=60))
    other = Limits(requests_per_minute=60, window_s=2.0)
    with pytest.raises(ConfigError, match="2.*60.*QA0609"):
        governor.reserve(tokens=1, usd=0.0, budget=Budget("other"), limits=other)
    assert governor.unregister("other")


def test_a_run_that_was_killed_binds_nobody_for_ever(clock: Clock) -> None:
    """It never says that it leaves."""
    governor = Governor(Limits(requests_per_minute=60), clock=clock)
    for name, limit in (("killed", 5), ("lives", 60)):
        limits = Limits(requests_per_minute=limit)
        governor.reserve(tokens=1, usd=0.0, budget=Budget(name), limits=limits)
    assert governor.limits.requests_per_minute == 5
    clock.now_s = 2000.0
    governor.reserve(tokens=1, usd=0.0, budget=Budget("lives"), limits=limits)
    assert governor.limits.requests_per_minute == 60


def test_a_run_that_waits_for_long_is_not_forgotten(clock: Clock) -> None:
    """A server that asks for an hour's pause silences a run that lives: its limits must hold."""
    governor = Governor(Limits(requests_per_minute=60), clock=clock)
    for name, limit in (("waits", 5), ("lives", 60)):
        limits = Limits(requests_per_minute=limit)
        governor.reserve(tokens=1, usd=0.0, budget=Budget(name), limits=limits)
    for _ in range(40):
        clock.now_s += 60.0
        governor.status("waits")
        governor.status("unknown")  # Who is only looked at is no run.
    governor.reserve(tokens=1, usd=0.0, budget=Budget("lives"), limits=limits)
    assert governor.limits.requests_per_minute == 5
    assert not governor.unregister("waits")
    assert governor.unregister("lives")


def test_a_budget_of_cents_is_told_in_full() -> None:
    """$0.00 of $0.02 spent explains nothing."""
    governor, budget = Governor(Limits()), Budget(budget_usd=0.02, section="naco.")
    governor.settle(
        governor.reserve(tokens=1, usd=0.02, budget=budget).call_id, tokens=1, usd=0.0123
    )
    governor.reserve(tokens=1, usd=0.004, budget=budget)
    with pytest.raises(BudgetExhaustedError) as refused:
        governor.reserve(tokens=1, usd=0.00512345, budget=budget)
    assert str(refused.value) == (
        "spent $0.0123, reserved $0.004: a call of up to $0.005123 does not fit "
        "naco.budget_usd=0.02; raise it and run the same command again [QA0604]"
    )


def test_a_call_of_a_known_name_is_reserved_once(clock: Clock) -> None:
    """A question to a governor elsewhere is repeated when its answer was lost."""
    governor = Governor(Limits(requests_per_minute=60), clock=clock)
    governor.reserve(tokens=1, usd=0.0)
    first = governor.reserve(tokens=1, usd=0.5, call_id="mine")
    again = governor.reserve(tokens=1, usd=0.5, call_id="mine")
    assert (first.call_id, again) == ("mine", first)
    assert (governor.status().n_open, governor.status().reserved_usd) == (2, 0.5)


def test_a_known_call_survives_a_kill_of_the_governor(tmp_path: Path, clock: Clock) -> None:
    """The same, where the governor was killed between the question and its repetition."""
    ledger = Ledger(tmp_path / "a", wall=lambda: 1e9)
    governor = Governor(Limits(600, 9000), clock=clock, wall=lambda: 1e9, ledger=ledger)
    first = governor.reserve(tokens=900, usd=0.5, call_id="mine", budget=Budget("p"))
    ledger = Ledger(copy_of(ledger, tmp_path / "b"), wall=lambda: 1e9)
    after = Governor(Limits(600, 9000), clock=clock, wall=lambda: 1e9, ledger=ledger)
    assert after.reserve(tokens=900, usd=0.5, call_id="mine", budget=Budget("p")) == first
    assert (after.status("p").n_open, after.status("p").reserved_usd) == (1, 0.5)
    # And what the server counted for it corrects the window that was taken over.
    assert after.status().n_tokens_in_use == 900
    after.settle("mine", tokens=700, usd=0.25, n_admitted=800)
    assert after.status().n_tokens_in_use == 800


def copy_of(ledger: Ledger, folder: Path, *, is_machine: bool = False) -> Path:
    """Copy a ledger as it lies on the disk; of another machine's life, if that died."""
    folder.mkdir()
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    if is_machine:
        lines[0] = json.dumps({"machine": "another"}).encode() + b"\n"
    (folder / ledger.path.name).write_bytes(b"".join(lines))
    return folder


def test_the_ledger_tells_budgets_apart(tmp_path: Path, clock: Clock) -> None:
    """After a kill each run must find what it had spent itself, through a second kill as well."""
    ledger = Ledger(tmp_path / "0")
    governor = Governor(Limits(), clock=clock, ledger=ledger)
    for name, usd in (("a", 0.5), ("b", 0.25)):
        reservation = governor.reserve(tokens=1, usd=1.0, budget=Budget(name))
        governor.settle(reservation.call_id, tokens=1, usd=usd)
        governor.reserve(tokens=1, usd=2 * usd, budget=Budget(name))
    governor.spent_at_least(7.0, budget_name="c")
    for number in range(2):
        ledger = Ledger(copy_of(ledger, tmp_path / str(number + 1)))
        governor = Governor(Limits(), clock=clock, ledger=ledger)
        found = [governor.status(name) for name in "abc"]
        assert [status.spent_usd for status in found] == [0.5, 0.25, 7.0]
        assert [status.reserved_usd for status in found] == [1.0, 0.5, 0.0]
        assert [status.n_settled for status in found] == [1, 1, 0]


def test_a_dead_machine_costs_each_budget_its_own_block(tmp_path: Path, clock: Clock) -> None:
    """No dollar that was spent is forgotten; a run that had left pays nothing."""
    ledger = Ledger(tmp_path / "0", block_usd=1.0)
    governor = Governor(Limits(), clock=clock, ledger=ledger)
    for name in ("gone", "here"):
        reservation = governor.reserve(tokens=1, usd=0.5, budget=Budget(name))
        governor.settle(reservation.call_id, tokens=1, usd=0.5)
    governor.unregister("gone")
    found = Ledger(copy_of(ledger, tmp_path / "1", is_machine=True)).found
    assert found.is_after_crash
    assert (found.of("gone").spent, found.of("here").spent) == (500_000_000, 1_500_000_000)


def test_who_died_while_it_waited_frees_its_money(clock: Clock) -> None:
    """Its call was never sent; kept for ever, a few kills would use up a budget."""
    governor = Governor(Limits(requests_per_minute=6), clock=clock)
    budget = Budget(budget_usd=1.0)
    sent = governor.reserve(tokens=1, usd=0.4, budget=budget)
    waiting = governor.reserve(tokens=1, usd=0.4, budget=budget)
    assert sent.is_final and not waiting.is_final
    with pytest.raises(BudgetExhaustedError) as refused:
        governor.reserve(tokens=1, usd=0.4, budget=budget)
    assert (refused.value.may_free, refused.value.n_waiting) == (True, 1)
    clock.now_s = waiting.wait_s + 6.0
    governor.reserve(tokens=1, usd=0.4, budget=budget)
    assert governor.confirm(waiting.call_id) is None
    # That one was sent: it may have been billed.
    clock.now_s += 100.0
    with pytest.raises(BudgetExhaustedError):
        governor.reserve(tokens=1, usd=0.7, budget=budget)


def test_a_call_that_no_other_can_make_room_for_is_refused_for_good() -> None:
    """Else each of a thousand rows would wait for calls whose end does not help."""
    governor, budget = Governor(Limits()), Budget(budget_usd=1.0)
    reservation = governor.reserve(tokens=1, usd=0.5, budget=budget)
    governor.settle(reservation.call_id, tokens=1, usd=0.5)
    governor.reserve(tokens=1, usd=0.3, budget=budget)
    for usd, may_free in ((0.4, True), (0.6, False)):
        with pytest.raises(BudgetExhaustedError) as refused:
            governor.reserve(tokens=1, usd=usd, budget=budget)
        assert refused.value.may_free == may_free


def test_replies_of_open_calls_are_not_counted_twice() -> None:
    """A journal that a second caller reads holds replies that the first is about to settle."""
    governor = Governor(Limits())
    reservation = governor.reserve(tokens=1, usd=0.5)
    governor.spent_at_least(0.4)  # Of which 0.4 are this call's.
    governor.settle(reservation.call_id, tokens=1, usd=0.4)
    assert governor.status().spent_usd == 0.4
    governor.spent_at_least(0.9)
    assert governor.status().spent_usd == 0.9
