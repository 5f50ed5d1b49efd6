"""Limits: when each call may be sent so that no window of the server's counts too many.

Calls come in order and get send times in that order. Seconds of a clock that never goes back in,
seconds out: nothing is slept, sent or stored here.

Rule
----
A server counts arrivals in windows of W seconds (``window_s``) and allows L in each, requests or
tokens. A call arrives up to J seconds (``jitter_s``) after its send time, so with span S = W + J::

    sum of costs of calls with send times in (t - S, t]  <=  L          for every t

keeps every window of W seconds at the server within L: two calls whose send times are S apart
arrive at least W apart. What it costs is J / S of the limit (2 % by default). Within the span
calls are spread evenly, at most 2 % of it ahead of the pace S / L: a server that counts in shorter
windows than it says is not surprised, and nothing begins with a burst.

Calls of very different tokens cannot fill a window: one that does not fit waits, and all behind it.
Use of the limit, simulated with calls of 0.5 to 1.5 times a mean: 97 % where the mean is 1 % of the
limit, 95 % at 3 %, 93 % at 7 %. With equal calls it is W / S = 98 %.

Each call leaves the window once, so a booking costs O(1), amortised.

But: whose turn it is, money, and what survives a kill are ``llm.governor``'s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from qaeval_core.errors import ConfigError, RunError

# 2 %, not 1: calls of uneven tokens catch up, 0.3 % more use where one holds 3 % of the limit.
_BURST_SHARE = 0.02
# After a refusal the pace is cut once and what follows within this share of a window is the same
# event: a hundred calls in flight would otherwise cut it a hundred times.
_SLOW_AGAIN_SHARE = 1 / 12
_SLOW_FACTOR = 0.7
_MIN_PACE_FACTOR = 1 / 32
_RECOVERY_PER_WINDOW = 0.1


class CallTooLargeError(ConfigError):
    """One call holds more tokens than a window may: it could never be sent."""


class BudgetExhaustedError(RunError):
    """The next call might cost more than is left.

    ``may_free`` is true while calls are open: they may cost less than was reserved for them.
    """

    def __init__(self, message: str, may_free: bool = False) -> None:
        super().__init__(message, may_free)  # All of them: it is pickled on its way to a caller.
        self.may_free = may_free

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key allows; None is unlimited.

    Parameters
    ----------
    requests_per_minute : int or None
        Requests in any window of ``window_s``; inclusive.
    tokens_per_minute : int or None
        Tokens in any window, prompt and ``max_tokens`` counted when a call is sent; inclusive.
    budget_usd : float or None
        Money that may be spent, by all calls of the ledger; inclusive.
    window_s : float, default 60
        Length of the server's window; another one scales a minute down, in tests.
    jitter_share : float, default 0.02
        J / W: how much later than its send time a call may arrive. Half of it is for whoever sends
        (who asks again when it wakes later), half for the network: 0.6 s each in a minute.

    Raises
    ------
    ConfigError
        If a limit is not positive.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_usd: float | None = None
    window_s: float = 60.0
    jitter_share: float = 0.02

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "window_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; a limit is more than 0, or left out")
        if self.budget_usd is not None and not self.budget_usd >= 0:
            raise ConfigError(f"budget_usd is {self.budget_usd}; it is 0 or more, or left out")

    @property
    def jitter_s(self) -> float:
        """J: how late a call may arrive, in seconds."""
        return self.jitter_share * self.window_s

    @property
    def span_s(self) -> float:
        """S = W + J, in seconds."""
        return self.window_s + self.jitter_s


@dataclass(slots=True)
class Slot:
    """The send time of one call; moved by pauses until it ``is_final``: its caller was told."""

    at_s: float
    n_tokens: int
    is_final: bool = False


class _Pace:
    """One limit's even spacing: a bucket that leaks ``limit`` in a span and holds little."""

    def __init__(self, limit: float, *, span_s: float, now_s: float) -> None:
        self._span_s = span_s
        self.limit = limit
        # Empty, whoever starts: what is unknown of the last minute is met with no burst.
        self.next_s = now_s + _BURST_SHARE * span_s

    def earliest_s(self) -> float:
        return self.next_s - _BURST_SHARE * self._span_s

    def book(self, cost: int, *, at_s: float, factor: float) -> None:
        self.next_s = max(self.next_s, at_s) + self._seconds(cost) / factor

    def _seconds(self, cost: int) -> float:
        return cost / self.limit * self._span_s


class Timeline:
    """Send times of calls, first come first served, within both limits.

    Parameters
    ----------
    limits : Limits
        Requests and tokens that a window may hold.
    now_s : float
        The clock.
    sent : iterable of Slot
        What was sent in the last span, by a predecessor; in order of time.

    Examples
    --------
    Two requests a minute: the third waits until the first has left the window, and a bit.

    >>> timeline = Timeline(Limits(requests_per_minute=2), now_s=0.0)
    >>> [round(timeline.book(now_s=0.0, n_tokens=9).at_s, 1) for _ in range(4)]
    [0.0, 30.6, 61.2, 91.8]
    """

    def __init__(self, limits: Limits, *, now_s: float, sent: Iterable[Slot] = ()) -> None:
        self.limits = limits
        self._window: deque[Slot] = deque(sent)
        self._n_tokens = sum(slot.n_tokens for slot in self._window)
        # Not the window's: the queue may be longer than a window.
        self._queue: deque[Slot] = deque()
        self._paces = self._make_paces(now_s)
        self._last_s = max((slot.at_s for slot in self._window), default=-math.inf)
        self._paused_until_s = -math.inf
        self._slowed_s = -math.inf
        self._slowed_to = 1.0

    def _make_paces(self, now_s: float) -> tuple[_Pace, _Pace]:
        limits, span_s = self.limits, self.limits.span_s
        return (
            _Pace(limits.requests_per_minute or math.inf, span_s=span_s, now_s=now_s),
            _Pace(limits.tokens_per_minute or math.inf, span_s=span_s, now_s=now_s),
        )

    def change(self, limits: Limits, *, now_s: float) -> None:
        """Book by other limits from now on; the window's length stays."""
        self.limits = limits
        self._paces = self._make_paces(max(now_s, self._last_s))

    def book(self, *, now_s: float, n_tokens: int) -> Slot:
        """Return the earliest slot that is not before the last one.

        Raises
        ------
        CallTooLargeError
            If one call holds more tokens than a window may.
        """
        requests, tokens = self._paces
        if n_tokens > tokens.limit:
            raise CallTooLargeError(
                f"a call of {n_tokens:,} tokens can never be sent: "
                f"tokens_per_minute is {tokens.limit:,}"
            )
        at_s = max(now_s, self._last_s, self._paused_until_s)
        at_s = max(at_s, requests.earliest_s(), tokens.earliest_s())
        at_s = self._leave_room(at_s, n_tokens)
        factor = self.pace_factor(at_s)
        requests.book(1, at_s=at_s, factor=factor)
        tokens.book(n_tokens, at_s=at_s, factor=factor)
        slot = Slot(at_s, n_tokens)
        self._window.append(slot)
        self._n_tokens += n_tokens
        self._queue.append(slot)
        while not self._is_waiting(self._queue[0], now_s):
            self._queue.popleft()
        self._last_s = at_s
        return slot

    def _leave_room(self, at_s: float, n_tokens: int) -> float:
        """Return the first time from ``at_s`` on when the window has room, and forget the rest."""
        requests, tokens = self._paces
        while self._window:
            leaves_s = self._window[0].at_s + self.limits.span_s
            if leaves_s > at_s:
                has_room = (
                    len(self._window) + 1 <= requests.limit
                    and self._n_tokens + n_tokens <= tokens.limit
                )
                if has_room:
                    break
                at_s = leaves_s
            # Never needed again: no later call is sent before this one.
            self._n_tokens -= self._window.popleft().n_tokens
        return at_s

    def pause(self, *, now_s: float, until_s: float) -> None:
        """Send nothing until then: who still waits moves back, in order and with the same gaps."""
        if until_s <= self._paused_until_s:
            return
        self._paused_until_s = until_s
        waiting = self._waiting(now_s)
        shift_s = until_s - min((slot.at_s for slot in waiting), default=until_s)
        if shift_s > 0:
            self._move(waiting, [slot.at_s + shift_s for slot in waiting])

    def slow_down(self, *, now_s: float) -> None:
        """Cut the pace after a refusal; it comes back by a tenth of the limit in each window."""
        if now_s - self._slowed_s < _SLOW_AGAIN_SHARE * self.limits.window_s:
            return
        self._slowed_to = max(self.pace_factor(now_s) * _SLOW_FACTOR, _MIN_PACE_FACTOR)
        self._slowed_s = now_s
        waiting = [slot for slot in self._waiting(now_s) if slot.at_s > now_s]
        self._move(waiting, [now_s + (slot.at_s - now_s) / _SLOW_FACTOR for slot in waiting])

    def pace_factor(self, at_s: float) -> float:
        """Return the share of the limit that is used at a time, in (0, 1]."""
        windows = max(at_s - self._slowed_s, 0.0) / self.limits.window_s
        return min(self._slowed_to + _RECOVERY_PER_WINDOW * windows, 1.0)

    def paused_s(self, now_s: float) -> float:
        """Return for how many more seconds nothing is sent."""
        return max(self._paused_until_s - now_s, 0.0)

    def in_use(self, now_s: float) -> tuple[int, int]:
        """Return requests and tokens of calls sent in the last window."""
        since_s = now_s - self.limits.window_s
        sent = [slot for slot in self._window if since_s < slot.at_s <= now_s and slot.is_final]
        return len(sent), sum(slot.n_tokens for slot in sent)

    def _is_waiting(self, slot: Slot, now_s: float) -> bool:
        """Whether the slot's caller will ask again before it sends."""
        # Older ones have lapsed: their callers get another slot, or are dead.
        return not slot.is_final and slot.at_s >= now_s - self.limits.jitter_s

    def _waiting(self, now_s: float) -> list[Slot]:
        return [slot for slot in self._queue if self._is_waiting(slot, now_s)]

    def _move(self, slots: list[Slot], times_s: list[float]) -> None:
        if not slots:
            return
        for slot, at_s in zip(slots, times_s, strict=True):
            slot.at_s = at_s
        # A final slot may stand between two that moved.
        self._window = deque(sorted(self._window, key=lambda slot: slot.at_s))
        last_s = max(self._window[-1].at_s, self._last_s)
        for pace in self._paces:
            pace.next_s += last_s - self._last_s
        self._last_s = last_s
