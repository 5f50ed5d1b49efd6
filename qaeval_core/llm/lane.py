"""Lane: calls in order of time, what a window of them holds, and how evenly they are spaced.

But: which calls are in one, and when they move, is ``llm.timeline``'s.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import Sent

# 2 %, not 1: calls of uneven tokens catch up, 0.3 % more use where one holds 3 % of the limit.
BURST_SHARE = 0.02


@dataclass(slots=True)
class Slot:
    """The send time of one call; it may move until it ``is_final``: its caller was told."""

    at_s: float
    n_tokens: int
    is_final: bool = False
    is_dropped: bool = False
    asks_s: float = -math.inf  # when its caller asks again: no sooner is it sent
    sent: Sent | None = None  # as the throttle knows it, once it is final


class Pace:
    """One limit's even spacing: a bucket that leaks ``limit`` in a span and holds little.

    Parameters
    ----------
    limit : float
        Requests or tokens in a span; may be infinite.
    span_s : float
        Length of the span.
    next_s : float
        When all that was booked has leaked.
    """

    __slots__ = ("_span_s", "limit", "next_s")

    def __init__(self, limit: float, *, span_s: float, next_s: float) -> None:
        self._span_s = span_s
        self.limit = limit
        self.next_s = next_s

    def copy(self) -> Pace:
        """Return one that goes on by itself."""
        return Pace(self.limit, span_s=self._span_s, next_s=self.next_s)

    def earliest_s(self) -> float:
        """Return when the next call may be sent."""
        return self.next_s - BURST_SHARE * self._span_s

    def book(self, cost: int, *, at_s: float, factor: float) -> None:
        """Take a call, at this share of the pace."""
        self.next_s = max(self.next_s, at_s) + self._seconds(cost) / factor

    def give_back(self, cost: int, *, factor: float) -> None:
        """Take it that so much less was booked."""
        self.next_s -= self._seconds(cost) / factor

    def _seconds(self, cost: int) -> float:
        return cost / self.limit * self._span_s


class Lane:
    """Calls in order of time: the last span before the last of them, and the paces after it.

    Parameters
    ----------
    limits : Limits
        Requests and tokens that a window may hold.
    next_s : float
        When the paces begin to count.
    """

    def __init__(self, limits: Limits, *, next_s: float) -> None:
        self.window: deque[Slot] = deque()
        self.n_tokens = 0
        self.last_s = -math.inf
        self.set_limits(limits, next_s=(next_s, next_s))

    def set_limits(self, limits: Limits, *, next_s: tuple[float, float]) -> None:
        """Book by these limits from now on; when each pace begins to count."""
        self._span_s = span_s = limits.span_s
        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self.requests = Pace(requests or math.inf, span_s=span_s, next_s=next_s[0])
        self.tokens = Pace(tokens or math.inf, span_s=span_s, next_s=next_s[1])

    def copy(self) -> Lane:
        """Return one that goes on by itself, with the same calls."""
        lane = object.__new__(Lane)
        lane.window, lane.n_tokens, lane.last_s = self.window.copy(), self.n_tokens, self.last_s
        lane._span_s = self._span_s
        lane.requests, lane.tokens = self.requests.copy(), self.tokens.copy()
        return lane

    def earliest_s(self, n_tokens: int, *, not_before_s: float) -> float:
        """Return when a call can follow the others, and forget what has left the window then."""
        at_s = max(not_before_s, self.last_s, self.requests.earliest_s(), self.tokens.earliest_s())
        window = self.window
        while window:
            leaves_s = window[0].at_s + self._span_s
            if leaves_s > at_s:
                has_room = (
                    len(window) + 1 <= self.requests.limit
                    and self.n_tokens + n_tokens <= self.tokens.limit
                )
                if has_room:
                    break
                at_s = leaves_s
            # Never needed again: no later call is sent before this one.
            self.n_tokens -= window.popleft().n_tokens
        return at_s

    def add(self, slot: Slot, *, factor: float) -> None:
        """Append a call; one that is earlier than the last goes to its place."""
        self.requests.book(1, at_s=slot.at_s, factor=factor)
        self.tokens.book(slot.n_tokens, at_s=slot.at_s, factor=factor)
        self.put(slot)

    def put(self, slot: Slot) -> None:
        """Put a call into the window, whatever the pace."""
        window, place = self.window, len(self.window)
        self.n_tokens += slot.n_tokens
        self.last_s = max(self.last_s, slot.at_s)
        if not window or window[-1].at_s <= slot.at_s:
            window.append(slot)
            return
        while place and window[place - 1].at_s > slot.at_s:
            place -= 1
        window.insert(place, slot)

    def forget(self, before_s: float) -> None:
        """Forget calls up to a time."""
        while self.window and self.window[0].at_s <= before_s:
            self.n_tokens -= self.window.popleft().n_tokens

    def hold(self, until_s: float) -> None:
        """Save up nothing until then."""
        for pace in (self.requests, self.tokens):
            pace.next_s = max(pace.next_s, until_s + BURST_SHARE * self._span_s)

    def give_back(self, n_tokens: int, slot: Slot, *, factor: float) -> None:
        """Take it that a call holds so many tokens less."""
        if self.window and slot.at_s >= self.window[0].at_s:
            self.n_tokens -= n_tokens
        self.tokens.give_back(n_tokens, factor=factor)
