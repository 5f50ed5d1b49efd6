"""Send times: no window above a limit, none of the limit wasted, checked against nested loops."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qaeval_core.errors import CallTooLargeError, ConfigError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor, Reservation
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.schedule import Schedule
from qaeval_core.llm.throttle import REFUSALS, End

WINDOW_S = 60.0


def most_in_a_window(arrivals: list[tuple[float, int]], window_s: float) -> tuple[int, int]:
    """Return the most calls and tokens in any window that ends with an arrival, by nested loops."""
    # A millionth of a second: two sums of the same floats may differ in their last digit.
    windows = [
        [tokens for at_s, tokens in arrivals if end_s - window_s + 1e-6 < at_s <= end_s]
        for end_s, _ in arrivals
    ]
    return max(map(len, windows), default=0), max(map(sum, windows), default=0)


def _reference_book(
    booked: list[tuple[float, int]], *, limits: Limits, not_before_s: float, n_tokens: int
) -> float:
    """Return the first time at which the span before it has room, by trying all candidates."""
    candidates = [not_before_s, *(at_s + limits.span_s for at_s, _ in booked)]
    for at_s in sorted(time_s for time_s in candidates if time_s >= not_before_s):
        inside = [tokens for sent_s, tokens in booked if sent_s + limits.span_s > at_s]
        has_room = len(inside) < (limits.requests_per_minute or math.inf)
        if has_room and sum(inside) + n_tokens <= (limits.tokens_per_minute or math.inf):
            return at_s
    raise AssertionError("a candidate always has room: the last call leaves the window")


@given(
    gaps_and_tokens=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 100)), max_size=40),
    requests=st.one_of(st.none(), st.integers(1, 8)),
    tokens=st.one_of(st.none(), st.integers(100, 300)),
)
@settings(max_examples=100, deadline=None)
def test_a_call_is_never_later_than_window_and_pace_demand(
    gaps_and_tokens: list[tuple[float, int]], requests: int | None, tokens: int | None
) -> None:
    """Protects from a limit that is kept by being idle."""
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    schedule = Schedule(limits, now_s=0.0)
    booked: list[tuple[float, int]] = []
    # The pace, as one sum: all that was booked since the last idle moment has leaked, but a bit.
    leaks_s = [0.02 * limits.span_s] * 2
    now_s = 0.0
    for gap_s, n_tokens in gaps_and_tokens:
        now_s += gap_s
        slack_s = 0.02 * limits.span_s
        last_s = booked[-1][0] if booked else 0.0
        bound_s = max(now_s, last_s, *(leak_s - slack_s for leak_s in leaks_s))
        expected_s = _reference_book(booked, limits=limits, not_before_s=bound_s, n_tokens=n_tokens)
        slot = schedule.book(now_s=now_s, n_tokens=n_tokens)
        assert slot.at_s == pytest.approx(expected_s, abs=1e-6)
        booked.append((slot.at_s, n_tokens))
        costs = (1 / (requests or math.inf), n_tokens / (tokens or math.inf))
        leaks_s = [
            max(leak_s, slot.at_s) + cost * limits.span_s
            for leak_s, cost in zip(leaks_s, costs, strict=True)
        ]


@dataclass
class World:
    """Callers with late wakes and a slow network, a clock, and a governor that may be killed."""

    limits: Limits
    rng: random.Random
    folder: Path
    now_s: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    n_governors: int = 0
    n_seen: int = 0

    def __post_init__(self) -> None:
        self._queue: list[tuple[float, int, Any]] = []
        self.start()

    def at(self, time_s: float, action: Any) -> None:
        self.n_seen += 1
        heapq.heappush(self._queue, (time_s, self.n_seen, action))

    def run(self) -> None:
        while self._queue:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()

    def start(self) -> None:
        """Start a governor on a copy of what its predecessor had written when it was killed."""
        folder = self.folder / str(self.n_governors)
        folder.mkdir()
        written = self.folder / str(self.n_governors - 1) / "ledger-main.jsonl"
        if written.exists():
            (folder / written.name).write_bytes(written.read_bytes())
        self.n_governors += 1
        wall = 1.7e9 + self.now_s  # Clocks of other machines agree, but none is monotonic.
        ledger = Ledger(folder, keep_s=self.limits.span_s, wall=lambda: 1.7e9 + self.now_s)
        self.governor = Governor(
            self.limits, clock=lambda: self.now_s, wall=lambda: wall, ledger=ledger
        )

    def call(self, n_tokens: int, truth: int, latency_s: float) -> None:
        """Reserve for an estimate of tokens; the server will count the truth."""
        reservation = self.governor.reserve(tokens=n_tokens, usd=0.0)
        self.heed(reservation, lambda: self.call(n_tokens, truth, latency_s), truth, latency_s)

    def heed(self, reservation: Reservation, again: Any, truth: int, latency_s: float) -> None:
        asked_s = self.now_s
        late_s = self.rng.choice([0.0, 0.5, 1.0, 1.0, 1.5]) * min(reservation.late_s, 1.0)

        def wake() -> None:
            since_s = self.now_s - asked_s
            # The clocks' sums differ by the last digit from the governor's.
            if reservation.is_final and since_s <= reservation.wait_s + reservation.late_s + 1e-9:
                # The other half of the jitter is the network's.
                travel_s = self.rng.choice([0.0, 0.5, 1.0]) * self.limits.jitter_s / 2
                self.arrivals.append((self.now_s + travel_s, truth))
                self.at(self.now_s + travel_s + latency_s, lambda: self.settle(reservation, truth))
                return
            confirmed = self.governor.confirm(reservation.call_id)
            if confirmed is None:
                again()
            else:
                self.heed(confirmed, again, truth, latency_s)

        self.at(self.now_s + reservation.wait_s + late_s, wake)

    def settle(self, reservation: Reservation, truth: int) -> None:
        end = self.ends.pop() if self.ends else "answered"
        if end == "answered":
            self.governor.settle(reservation.call_id, tokens=1, usd=0.0, n_admitted=truth)
        else:
            self.governor.failed(reservation.call_id, billed=False, end=end)

    def pause(self, seconds: float) -> None:
        self.pauses.append((self.now_s, self.now_s + seconds))
        self.governor.pause(seconds)


@pytest.fixture(scope="module")
def folders() -> Iterator[Iterator[Path]]:
    """An endless supply of empty folders."""
    with tempfile.TemporaryDirectory() as root:
        yield (Path(tempfile.mkdtemp(dir=root)) for _ in iter(int, 1))


@given(
    calls=st.lists(
        # When, estimated tokens, share of them that the server counts, latency.
        st.tuples(
            st.floats(0, 1),
            st.integers(1, 100),
            st.floats(0, 1),
            st.sampled_from([0.0, 2.0, 20.0, 90.0]),
        ),
        min_size=1,
        max_size=40,
    ),
    spread_s=st.sampled_from([0.0, 20.0, 200.0]),
    pauses=st.lists(st.tuples(st.floats(0, 200), st.floats(0, 90)), max_size=3),
    ends=st.lists(st.sampled_from([*sorted(REFUSALS), "faulty", "answered"]), max_size=40),
    kills=st.lists(st.floats(0, 200), max_size=2),
    requests=st.one_of(st.none(), st.integers(1, 8)),
    tokens=st.one_of(st.none(), st.integers(100, 300)),
    seed=st.integers(0, 1000),
)
# A probe that does not fit beside a long call: to plan it must not forget that call.
@example(
    calls=[*([(0.0, 1, 0.0, 0.0)] * 6), (0.0, 41, 1.0, 90.0), (1.0, 60, 1.0, 0.0)],
    spread_s=20.0,
    pauses=[],
    ends=["overloaded"] * 5,
    kills=[],
    requests=None,
    tokens=100,
    seed=0,
)
@settings(max_examples=50, deadline=None)
def test_no_window_is_above_a_limit_whatever_happens(
    folders: Iterator[Path],
    calls: list[tuple[float, int, float, float]],
    spread_s: float,
    pauses: list[tuple[float, float]],
    ends: list[End],
    kills: list[float],
    requests: int | None,
    tokens: int | None,
    seed: int,
) -> None:
    """Protects from late wakes, a slow network, pauses, outages and kills adding up to too much,
    and from credit that is given twice or for tokens that are still in the server's window.

    And every call is sent, once, and none is sent in a pause, but for those told before it.
    """
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    world = World(limits, random.Random(seed), next(folders))
    truths = [math.ceil(share * n_tokens) for _, n_tokens, share, _ in calls]
    for (at_share, n_tokens, _, latency_s), truth in zip(calls, truths, strict=True):
        call = functools.partial(world.call, n_tokens, truth, latency_s)
        world.at(spread_s * at_share, call)
    for at_s, seconds in pauses:
        world.at(at_s, lambda seconds=seconds: world.pause(seconds))
    world.ends = ends
    for at_s in kills:
        world.at(at_s, world.start)
    world.run()
    n_most, n_most_tokens = most_in_a_window(sorted(world.arrivals), WINDOW_S)
    assert n_most <= (requests or math.inf)
    assert n_most_tokens <= (tokens or math.inf)
    assert sorted(n for _, n in world.arrivals) == sorted(truths)
    assert not world.governor.open_calls()
    told_s = limits.window_s / 60 + limits.jitter_s
    for from_s, until_s in world.pauses:
        ends_s = until_s - 1e-6  # A ledger's seconds since 1970 are exact to a quarter of that.
        inside = [at_s for at_s, _ in world.arrivals if from_s + told_s < at_s < ends_s]
        assert inside == []


@pytest.mark.parametrize(
    ("mean_tokens", "share"), [(300, 0.97), (1000, 0.95), (2000, 0.92)], ids=["1 %", "3 %", "7 %"]
)
def test_the_limit_is_used(mean_tokens: int, share: float) -> None:
    """The numbers of the module's docstring: a limit that was paid for is filled."""
    rng = random.Random(0)
    schedule = Schedule(Limits(tokens_per_minute=30_000), now_s=0.0)
    slots = [
        schedule.book(now_s=0.0, n_tokens=rng.randint(mean_tokens // 2, mean_tokens * 3 // 2))
        for _ in range(4000)
    ]
    n_windows = (slots[-1].at_s - slots[0].at_s) / WINDOW_S
    assert share < sum(slot.n_tokens for slot in slots) / n_windows / 30_000 < share + 0.02


def test_equal_calls_use_all_but_the_jitter() -> None:
    """98 % of the limit, for 2 % of jitter."""
    schedule = Schedule(Limits(requests_per_minute=500, tokens_per_minute=10**9), now_s=0.0)
    slots = [schedule.book(now_s=0.0, n_tokens=100) for _ in range(5001)]
    used = 5000 / (slots[-1].at_s - slots[0].at_s) * WINDOW_S / 500
    assert used == pytest.approx(1 / 1.02, abs=0.003)


def test_nothing_begins_with_a_burst() -> None:
    """A full burst at the start meets whatever another process had just sent on this key."""
    schedule = Schedule(Limits(requests_per_minute=600), now_s=0.0)
    first_s = [schedule.book(now_s=0.0, n_tokens=1).at_s for _ in range(100)]
    assert sum(at_s < 1.0 for at_s in first_s) <= 10


def test_an_idle_hour_saves_up_no_more_than_a_fiftieth_of_a_window() -> None:
    """A bucket that fills while idle would send a minute's calls at once."""
    schedule = Schedule(Limits(requests_per_minute=600), now_s=0.0)
    times_s = [schedule.book(now_s=3600.0, n_tokens=1).at_s for _ in range(100)]
    assert sum(at_s < 3600.01 for at_s in times_s) <= 13


def test_who_waits_moves_back_in_order_when_paused() -> None:
    """A pause must reach calls that were promised a time in it, and keep first come first."""
    schedule = Schedule(Limits(requests_per_minute=60), now_s=0.0)
    slots = [schedule.book(now_s=0.0, n_tokens=1) for _ in range(30)]
    for slot in slots[:2]:
        schedule.promise(slot, now_s=slot.at_s)
    before_s = [slot.at_s for slot in slots]
    schedule.pause(now_s=1.0, until_s=100.0)
    after_s = [slot.at_s for slot in slots]
    assert after_s[:2] == before_s[:2]
    assert after_s[2] == pytest.approx(100.0)
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(after_s[2:])]
    assert gaps_s == pytest.approx([1.02] * 27, abs=0.01)
    assert schedule.book(now_s=1.0, n_tokens=1).at_s > after_s[-1]


def test_a_pause_that_ends_before_the_next_slot_moves_nothing() -> None:
    """Headers ask for such pauses with every reply near a limit; each would cost speed."""
    schedule = Schedule(Limits(requests_per_minute=60), now_s=0.0)
    slots = [schedule.book(now_s=0.0, n_tokens=1) for _ in range(5)]
    for slot in slots[:2]:
        schedule.promise(slot, now_s=slot.at_s)
    before_s = [slot.at_s for slot in slots]
    schedule.pause(now_s=0.1, until_s=slots[2].at_s - 0.01)
    assert [slot.at_s for slot in slots] == before_s


def test_a_call_larger_than_the_limit_is_refused_at_once() -> None:
    """It would wait for ever, and everything behind it."""
    schedule = Schedule(Limits(tokens_per_minute=1000), now_s=0.0)
    with pytest.raises(CallTooLargeError, match="1,001.*tokens_per_minute.*1,000.*QA0605"):
        schedule.book(now_s=0.0, n_tokens=1001)
    assert schedule.book(now_s=0.0, n_tokens=1000).at_s == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_minute": 0},
        {"tokens_per_minute": -5},
        {"window_s": 0.0},
    ],
)
def test_limits_that_allow_nothing_are_refused(wrong: dict[str, Any]) -> None:
    """A limit of 0 would hang a run without a word."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} .*QA0609"):
        Limits(**wrong)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_a_budget_that_allows_nothing_is_refused(wrong: float) -> None:
    """No call would fit it, and no message would say why."""
    with pytest.raises(ConfigError, match="budget_usd.*QA0609"):
        Budget(budget_usd=wrong)
