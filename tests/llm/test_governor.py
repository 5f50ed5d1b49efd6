"""The governor: order, money, and what a caller that is late or unknown is told."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runs import Clock
from qaeval_core.errors import BudgetExhaustedError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.limits import Limits


@given(
    calls=st.lists(
        st.tuples(
            st.integers(0, 50),  # cents reserved
            st.floats(0, 1),  # share of it that the call cost in the end
            st.sampled_from(["settle", "billed", "free", "open"]),
        ),
        max_size=60,
    ),
    budget_cents=st.integers(0, 500),
)
@settings(max_examples=100, deadline=None)
def test_spending_never_exceeds_the_budget(
    calls: list[tuple[int, float, str]], budget_cents: int
) -> None:
    """Protects from a cap that calls in flight break, and from cents lost to rounding."""
    governor = Governor(Limits())
    budget = Budget(budget_usd=budget_cents / 100)
    spent_cents = reserved_cents = 0.0
    for cents, share, end in calls:
        fits = spent_cents + reserved_cents + cents <= budget_cents + 1e-6
        if not fits:
            with pytest.raises(BudgetExhaustedError) as refused:
                governor.reserve(tokens=1, usd=cents / 100, budget=budget)
            assert refused.value.may_free == (spent_cents + cents <= budget_cents + 1e-6)
            continue
        reservation = governor.reserve(tokens=1, usd=cents / 100, budget=budget)
        cost_cents = round(share * cents, 7)
        if end == "settle":
            governor.settle(reservation.call_id, tokens=1, usd=cost_cents / 100)
        elif end != "open":
            governor.failed(reservation.call_id, billed=end == "billed")
        spent_cents += {"settle": cost_cents, "billed": cents}.get(end, 0.0)
        reserved_cents += cents if end == "open" else 0.0
        status = governor.status()
        assert status.spent_usd == pytest.approx(spent_cents / 100, abs=1e-7)
        assert status.reserved_usd == pytest.approx(reserved_cents / 100, abs=1e-7)
        assert spent_cents + reserved_cents <= budget_cents + 1e-6


def test_ten_dimes_are_a_dollar() -> None:
    """Sums of floats are not: 0.1 ten times is less than 1, three times more than 0.3."""
    governor, budget = Governor(Limits()), Budget(budget_usd=0.3)
    for _ in range(3):
        governor.reserve(tokens=1, usd=0.1, budget=budget)
    with pytest.raises(BudgetExhaustedError, match=r"budget_usd=0\.3.*QA0604"):
        governor.reserve(tokens=1, usd=0.000001, budget=budget)


def test_a_raised_budget_resumes() -> None:
    """Who raises the cap must not have to start again."""
    governor = Governor(Limits())
    first = governor.reserve(tokens=1, usd=1.0, budget=Budget(budget_usd=1.0))
    with pytest.raises(BudgetExhaustedError):
        governor.reserve(tokens=1, usd=0.5, budget=Budget(budget_usd=1.0))
    governor.reserve(tokens=1, usd=0.5, budget=Budget(budget_usd=1.5))
    governor.settle(first.call_id, tokens=1, usd=0.25)
    assert governor.status().spent_usd == 0.25
    with pytest.raises(BudgetExhaustedError):  # A lowered one holds as well.
        governor.reserve(tokens=1, usd=0.1, budget=Budget(budget_usd=0.8))


def test_an_ended_call_ends_once() -> None:
    """A reply that is settled again after a lost answer must not be paid twice."""
    governor = Governor(Limits())
    call_id = governor.reserve(tokens=1, usd=0.5).call_id
    for _ in range(3):
        governor.settle(call_id, tokens=1, usd=0.25)
    governor.failed(call_id, billed=True)
    assert (governor.status().spent_usd, governor.status().n_settled) == (0.25, 1)


def test_the_error_survives_its_way_between_processes() -> None:
    """Exceptions with two arguments are often lost in pickling, and with them the reason."""
    sent = BudgetExhaustedError("no more", may_free=True, n_waiting=3)
    error = pickle.loads(pickle.dumps(sent))
    assert (str(error), error.may_free, error.n_waiting) == ("no more", True, 3)


def test_first_come_first_served(clock: Clock) -> None:
    """A small call must not overtake a large one for ever."""
    governor = Governor(Limits(tokens_per_minute=1000), clock=clock)
    waits_s = [governor.reserve(tokens=n, usd=0.0).wait_s for n in (900, 900, 1, 900, 1)]
    assert waits_s == sorted(waits_s)


def test_a_short_wait_is_final_and_a_long_one_is_not(clock: Clock) -> None:
    """A caller that waits a minute without asking again would not hear of a pause."""
    governor = Governor(Limits(requests_per_minute=120), clock=clock)
    reservations = [governor.reserve(tokens=1, usd=0.0) for _ in range(20)]
    assert reservations[0].is_final and not reservations[-1].is_final
    governor.pause(30.0)
    clock.now_s = reservations[-1].wait_s
    told = governor.confirm(reservations[-1].call_id)
    assert told is not None and told.wait_s > 20.0


def test_who_wakes_too_late_gets_another_slot(clock: Clock) -> None:
    """Two calls sent at once, one late and one in time, are one too many for a window."""
    governor = Governor(Limits(requests_per_minute=1), clock=clock)
    first = governor.reserve(tokens=1, usd=0.25)
    second = governor.reserve(tokens=1, usd=0.25)
    clock.now_s = first.wait_s + first.late_s + 0.1
    again = governor.confirm(first.call_id)
    assert again is not None and again.call_id == first.call_id
    assert clock.now_s + again.wait_s >= second.wait_s + 61.0
    assert governor.status().reserved_usd == 0.5


def test_an_unknown_call_is_told_so(clock: Clock) -> None:
    """After a kill of the governor those that waited must reserve again, not be refused."""
    assert Governor(Limits(), clock=clock).confirm("a-1") is None


def test_status_shows_the_use_of_the_limit_that_binds(clock: Clock) -> None:
    """Progress that shows the idle limit makes a full one look empty."""
    limits = Limits(requests_per_minute=100, tokens_per_minute=1000)
    governor = Governor(limits, clock=clock)
    for _ in range(15):
        reservation = governor.reserve(tokens=50, usd=0.0)
        while not reservation.is_final:
            clock.now_s += reservation.wait_s
            reservation = governor.confirm(reservation.call_id) or reservation
        clock.now_s += reservation.wait_s
    status = governor.status()
    assert (status.n_requests_in_use, status.n_tokens_in_use) == (15, 750)
    assert status.binding_use == 0.75


def test_without_limits_nothing_waits(clock: Clock) -> None:
    """A server of one's own has none."""
    governor = Governor(Limits(), clock=clock)
    assert {governor.reserve(tokens=10**6, usd=1.0).wait_s for _ in range(100)} == {0.0}
    assert governor.status().binding_use == 0.0
