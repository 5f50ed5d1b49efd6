"""Pace: what is no answer to our pace does not change it, and what is does, quickly.

Simulated: callers that always want more, a server that refuses for one reason or the other, and a
clock, with the limit of the report, 1,200 requests a minute. Windows are a minute long.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor, Reservation
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import REFUSALS, End, Kept, Throttle

LIMIT = 1200
WINDOW_S = 60.0
BUDGETS = (Budget("one run"), Budget("the other run"))

# (now_s, rng) -> how the server ends a call that arrives then.
Server = Callable[[float, random.Random], End]


def noisy(share: float, end: End) -> Server:
    """Return a server that refuses a share of calls, whatever the pace."""
    return lambda _, rng: end if rng.random() < share else "answered"


def down(from_s: float, until_s: float, end: End) -> Server:
    """Return a server that answers nobody for a while."""
    return lambda now_s, _: end if from_s <= now_s < until_s else "answered"


def bucket(limit: int, from_s: float, until_s: float, end: End = "refused") -> Server:
    """Return a server with a limit for a while, kept evenly: a bucket of 2 % of it that leaks."""
    filled, most = [0.0, 0.0], max(0.02 * limit, 1.0)  # how full, when

    def answer(now_s: float, _: random.Random) -> End:
        level, at_s = filled
        level = max(level - (now_s - at_s) * limit / WINDOW_S, 0.0)
        is_over = from_s <= now_s < until_s and level + 1 > most
        filled[:] = [level if is_over else min(level + 1, most), now_s]
        return end if is_over else "answered"

    return answer


def halved_bucket(from_s: float, until_s: float, end: End = "refused") -> Server:
    """Return a server that allows half the limit for a while, evenly."""
    return bucket(LIMIT // 2, from_s, until_s, end)


def halved_window(from_s: float, until_s: float, end: End = "refused") -> Server:
    """Return a server that allows half the limit in any minute for a while."""
    admitted: deque[float] = deque()

    def answer(now_s: float, _: random.Random) -> End:
        while admitted and admitted[0] <= now_s - WINDOW_S:
            admitted.popleft()
        if from_s <= now_s < until_s and len(admitted) >= LIMIT / 2:
            return end
        admitted.append(now_s)
        return "answered"

    return answer


@dataclass
class World:
    """Callers of two runs, a server and a governor, on one clock."""

    server: Server
    n_callers: int = 64
    latency_s: tuple[float, float] = (0.2, 0.6)
    seed: int = 0
    ledger: Ledger | None = None
    now_s: float = 0.0
    ends: list[tuple[float, End]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        limits = Limits(requests_per_minute=LIMIT)
        self.governor = Governor(
            limits,
            clock=lambda: self.now_s,
            wall=lambda: 1.7e9 + self.now_s,
            ledger=self.ledger,
        )
        for number in range(self.n_callers):
            self._at(self.rng.uniform(0.0, 0.1), Caller(self, BUDGETS[number % 2]).call)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._queue[0][0] < until_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()

    def _at(self, time_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (time_s, next(self._numbers), action))

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something after so long."""
        self._at(self.now_s + seconds, action)

    def sent(self, from_s: float, until_s: float) -> list[End]:
        """Return the ends of what was sent in a time."""
        return [end for at_s, end in self.ends if from_s <= at_s < until_s]

    def use(self, from_s: float, until_s: float) -> float:
        """Return the share of the limit that was used in a time."""
        return len(self.sent(from_s, until_s)) / LIMIT * WINDOW_S / (until_s - from_s)

    def refused(self, from_s: float, until_s: float) -> float:
        """Return the share of calls that were refused in a time."""
        ends = self.sent(from_s, until_s)
        return sum(end != "answered" for end in ends) / len(ends)

    def most_in_a_window(self) -> int:
        """Return the most calls in any minute."""
        inside: deque[float] = deque()
        most = 0
        for at_s, _ in sorted(self.ends):
            inside.append(at_s)
            while inside[0] <= at_s - WINDOW_S:
                inside.popleft()
            most = max(most, len(inside))
        return most


@dataclass
class Caller:
    """One that calls again and again, a while after what failed."""

    world: World
    budget: Budget

    def call(self) -> None:
        self._heed(self.world.governor.reserve(tokens=1, usd=0.0, budget=self.budget))

    def _heed(self, reservation: Reservation) -> None:
        late_s = self.world.rng.uniform(0.0, 0.002)
        self.world.later(reservation.wait_s + late_s, lambda: self._wake(reservation))

    def _wake(self, reservation: Reservation) -> None:
        world = self.world
        if not reservation.is_final:
            confirmed = world.governor.confirm(reservation.call_id)
            return self._heed(confirmed) if confirmed is not None else self.call()
        end = world.server(world.now_s, world.rng)
        world.ends.append((world.now_s, end))
        if end == "answered":
            world.later(world.rng.uniform(*world.latency_s), lambda: self._settle(reservation))
        else:
            world.later(0.05, lambda: self._fail(reservation, end))
        return None

    def _settle(self, reservation: Reservation) -> None:
        self.world.governor.settle(reservation.call_id, tokens=1, usd=0.0)
        self.call()

    def _fail(self, reservation: Reservation, end: End) -> None:
        self.world.governor.failed(reservation.call_id, billed=False, end=end)
        self.world.later(self.world.rng.uniform(0.2, 1.0), self.call)


@pytest.mark.parametrize("end", ["overloaded", "refused"])
@pytest.mark.parametrize("share", [0.01, 0.025, 0.05, 0.10])
def test_noise_costs_nothing_of_the_limit(share: float, end: End) -> None:
    """One 503 in forty, whatever the pace, held it at a tenth of the limit for ever."""
    world = World(noisy(share, end))
    world.run(10 * WINDOW_S)
    assert world.use(0.0, 10 * WINDOW_S) >= 0.95
    assert world.most_in_a_window() <= LIMIT


def test_noise_beside_replies_that_take_long_is_noise() -> None:
    """A refusal is heard at once and a reply after ten seconds: the first ends are all refusals."""
    world = World(noisy(0.10, "overloaded"), n_callers=400, latency_s=(5.0, 15.0))
    world.run(3 * WINDOW_S)
    assert world.use(0.0, 3 * WINDOW_S) >= 0.95


@pytest.mark.parametrize("share", [0.2, 0.3])
def test_much_noise_is_known_after_two_windows(share: float) -> None:
    """More than what is taken for noise at first: the pace is cut, and found not to matter."""
    world = World(noisy(share, "overloaded"))
    world.run(8 * WINDOW_S)
    assert world.use(2 * WINDOW_S, 8 * WINDOW_S) >= 0.95


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("end", ["refused", "told", "overloaded"])
@pytest.mark.parametrize("halved", [halved_bucket, halved_window])
def test_half_the_capacity_is_found_used_and_left(
    halved: Callable[..., Server], end: End, seed: int
) -> None:
    """Protects from a pace that does not follow, or that does not come back."""
    from_s, until_s = 3 * WINDOW_S, 8 * WINDOW_S
    world = World(halved(from_s, until_s, end), seed=seed)
    world.run(12 * WINDOW_S)
    assert world.use(from_s + 2 * WINDOW_S, until_s) >= 0.9 * 0.5
    assert world.refused(from_s + 2 * WINDOW_S, until_s) <= 0.03
    assert world.use(until_s + 2 * WINDOW_S, until_s + 3 * WINDOW_S) >= 0.95
    assert world.most_in_a_window() <= LIMIT


@pytest.mark.parametrize("end", ["overloaded", "faulty"])
@pytest.mark.parametrize("latency_s", [(0.2, 0.6), (5.0, 15.0)])
def test_a_server_that_is_down_gets_probes_alone(end: End, latency_s: tuple[float, float]) -> None:
    """Whatever is sent fails, may be billed, and greets the server when it comes back."""
    from_s, until_s = 3 * WINDOW_S, 3.5 * WINDOW_S
    world = World(down(from_s, until_s, end), n_callers=400, latency_s=latency_s)
    world.run(5 * WINDOW_S)
    # A second until it is known, and one for calls that were told when to be sent.
    probes = [at_s for at_s, _ in world.ends if from_s + 2.0 <= at_s < until_s]
    assert 3 <= len(probes) <= 10
    assert min(later - earlier for earlier, later in itertools.pairwise(probes)) >= 0.25
    assert world.use(until_s + WINDOW_S / 2, until_s + 1.5 * WINDOW_S) >= 0.95
    assert world.most_in_a_window() <= LIMIT


def test_a_killed_governor_does_not_begin_with_full_pace(tmp_path: Path) -> None:
    """It would meet all that its predecessor had learned to avoid."""
    ledger = Ledger(tmp_path, wall=lambda: 1.7e9)
    world = World(halved_bucket(60.0, 1e9), ledger=ledger)
    world.run(3 * WINDOW_S)
    before = world.governor.status().pace_factor
    assert before < 0.7
    lines = ledger.path.read_bytes()
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / ledger.path.name).write_bytes(lines)
    now_s = world.now_s + 1.0
    found = Ledger(tmp_path / "after", wall=lambda: 1.7e9 + now_s)
    after = Governor(
        Limits(requests_per_minute=LIMIT),
        clock=lambda: now_s,
        wall=lambda: 1.7e9 + now_s,
        ledger=found,
    ).status()
    assert after.pace_factor == pytest.approx(before, abs=0.05)


@pytest.mark.parametrize(
    "wrong",
    [{"top": 7.0}, {"top": float("nan")}, {"since_s": float("inf")}, {"n_known_refused": 99.0}],
)
def test_a_pace_that_cannot_be_is_not_taken_over(wrong: dict[str, float]) -> None:
    """A damaged line must not stop all calls, or let them run wild."""
    fact = {"top": 0.5, "since_s": 0.0, "is_open": False, "n_known": 9.0, "n_known_refused": 1.0}
    assert Kept.checked(fact).top == 0.5
    with pytest.raises(ValueError, match="no pace"):
        Kept.checked({**fact, **wrong})


def test_many_refusals_leave_a_trickle() -> None:
    """A pace of zero would never find out that the server recovered."""
    world = World(bucket(LIMIT // 50, 0.0, 1e9))
    world.run(10 * WINDOW_S)
    assert 0.02 < world.use(2 * WINDOW_S, 10 * WINDOW_S) < 0.1


@pytest.mark.parametrize("end", sorted(REFUSALS | {"faulty"}))
def test_no_end_is_learned_from_before_a_cut(end: End) -> None:
    """A hundred calls in flight are one event."""
    throttle = Throttle(window_s=WINDOW_S)
    in_flight = [throttle.sent(number / 20) for number in range(100)]
    changes = [throttle.heard(sent, end, now_s=6.0) for sent in in_flight]
    assert sum(changes) == 1
