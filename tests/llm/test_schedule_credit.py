"""Credit: estimates that are too high cost little of the limit, and give no window too much."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.llm.governor import Governor, Reservation
from qaeval_core.llm.limits import Limits

WINDOW_S = 60.0


@dataclass
class Pool:
    """Callers that ask one call after the other, of a server that counts less than estimated."""

    limit: int
    mean_tokens: int
    too_high: float  # estimate / truth
    latency_s: float
    n_callers: int
    tells: bool = True  # what it counted
    seed: int = 0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    spread: float = 0.5

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.arrivals: list[tuple[float, int]] = []
        self._rng = random.Random(self.seed)
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._n_seen = 0
        limits = Limits(tokens_per_minute=self.limit)
        self.governor = Governor(limits, clock=lambda: self.now_s, wall=lambda: self.now_s)

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        self._n_seen += 1
        heapq.heappush(self._queue, (time_s, self._n_seen, action))

    def run(self, until_s: float) -> None:
        for _ in range(self.n_callers):
            self.at(0.0, self.call)
        for at_s, seconds in self.pauses:
            self.at(at_s, lambda seconds=seconds: self.governor.pause(seconds))
        while self._queue and self.now_s < until_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()

    def call(self) -> None:
        share = self._rng.uniform(1 - self.spread, 1 + self.spread)
        truth = round(self.mean_tokens * share)
        estimate = round(truth * self.too_high)
        self.heed(self.governor.reserve(tokens=estimate, usd=0.0), truth)

    def heed(self, reservation: Reservation | None, truth: int) -> None:
        assert reservation is not None
        told = reservation.call_id

        def wake() -> None:
            if not reservation.is_final:
                self.heed(self.governor.confirm(told), truth)
                return
            self.arrivals.append((self.now_s, truth))
            latency_s = self.latency_s * self._rng.uniform(0.5, 1.5)
            self.at(self.now_s + latency_s, lambda: self.end(told, truth))

        self.at(self.now_s + reservation.wait_s, wake)

    def end(self, call_id: str, truth: int) -> None:
        n_admitted = truth if self.tells else None
        self.governor.settle(call_id, tokens=truth, usd=0.0, n_admitted=n_admitted)
        self.call()

    def most_tokens(self) -> int:
        """Return the most tokens in any window."""
        inside: deque[tuple[float, int]] = deque()
        n_tokens = most = 0
        for at_s, tokens in sorted(self.arrivals):
            inside.append((at_s, tokens))
            n_tokens += tokens
            while inside[0][0] <= at_s - WINDOW_S + 1e-6:
                n_tokens -= inside.popleft()[1]
            most = max(most, n_tokens)
        return most

    def use(self, since_s: float) -> float:
        """Return the share of the limit that was used from a time on."""
        sent = [call for call in self.arrivals if call[0] >= since_s]
        n_windows = (sent[-1][0] - sent[0][0]) / WINDOW_S
        return sum(tokens for _, tokens in sent[:-1]) / n_windows / self.limit


@given(
    mean_tokens=st.sampled_from([300, 1000, 3000]),
    too_high=st.floats(1.0, 2.5),
    latency_s=st.sampled_from([0.1, 1.0, 5.0, 30.0, 90.0]),  # also longer than a window
    n_callers=st.sampled_from([1, 8, 60]),
    pauses=st.lists(st.tuples(st.floats(0, 200), st.floats(0, 60)), max_size=2),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_credit_brings_no_window_above_the_limit(
    mean_tokens: int,
    too_high: float,
    latency_s: float,
    n_callers: int,
    pauses: list[tuple[float, float]],
    seed: int,
) -> None:
    """Protects from tokens that are given back twice, or while a server's window holds them."""
    pool = Pool(
        20_000, mean_tokens, too_high, latency_s, n_callers, seed=seed, pauses=sorted(pauses)
    )
    pool.run(until_s=300.0 + 6 * latency_s)
    assert len(pool.arrivals) >= 5
    assert pool.most_tokens() <= 20_000


@pytest.mark.parametrize(
    ("n_callers", "latency_s"), [(64, 5.0), (64, 8.0), (600, 5.0)], ids=["", "slow", "queue"]
)
def test_estimates_that_are_15_percent_too_high_leave_95_percent_of_the_limit(
    n_callers: int, latency_s: float
) -> None:
    """English prompts are estimated so; a window that was paid for must not stay empty.

    With 600 callers the queue is longer than the window: those that wait must move forward.
    """
    pool = Pool(200_000, 1000, 1.15, latency_s, n_callers)
    pool.run(until_s=600.0)
    assert 0.95 <= pool.use(since_s=120.0) <= 0.98
    assert pool.most_tokens() <= 200_000


def test_a_server_that_does_not_tell_leaves_estimates_as_they_are() -> None:
    """What is not known is not given back."""
    pool = Pool(200_000, 1000, 1.15, 5.0, 64, tells=False)
    pool.run(until_s=400.0)
    assert 0.83 <= pool.use(since_s=120.0) <= 0.86


def test_estimates_that_are_too_low_slow_down_what_follows() -> None:
    """The server counts more than was said: use of the limit must not stay above it.

    Nor may those who wait ask later than they are due, and leave it unused.
    """
    pool = Pool(200_000, 1000, 0.8, 5.0, 64)
    pool.run(until_s=600.0)
    assert 0.95 <= pool.use(since_s=120.0) <= 1.02


def test_a_caller_that_died_while_it_waited_holds_up_nobody() -> None:
    """Its slot moves forward with all others; if it never lapsed, each killed actor would cost
    its calls in every window.
    """
    pool = Pool(200_000, 1000, 1.15, 5.0, 32)
    for _ in range(100):
        pool.governor.reserve(tokens=1150, usd=0.0)  # And is never heard of again.
    pool.run(until_s=600.0)
    assert pool.use(since_s=120.0) >= 0.95
