"""Schedule: when each call may be sent so that no window of the server's counts too many.

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

Credit
------
A call holds an estimate of its tokens until the server's own count of it is known; then the
difference goes back into the window and the pace, and calls that wait are planned anew, earlier.
So their callers are told to ask again when, by what estimates were worth so far, they could be
sent, and no call is moved before the moment when its caller asks.

Calls of very different tokens cannot fill a window: one that does not fit waits, and all behind it.
Use of the limit, simulated with calls of 0.5 to 1.5 times a mean: 97 % where the mean is 1 % of the
limit, 95 % at 3 %, 93 % at 7 %. With equal calls it is W / S = 98 %. Estimates that are a share o
too high cost use while a call of F seconds is in flight: W / (S + o F), 95 % for 15 % and 10 s.

A booking costs O(1), amortized: each call leaves the window once. To plan anew costs O(n) in the
calls that wait; credits do so once for each 0.5 % of the limit.

But: which share of the limits is used is ``llm.throttle``'s; whose turn it is, money, and what
survives a kill are ``llm.governor``'s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace

from qaeval_core.errors import CallTooLargeError
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import End, Sent, Throttle

# 2 %, not 1: calls of uneven tokens catch up, 0.3 % more use where one holds 3 % of the limit.
BURST_SHARE = 0.02
# A wait that is at most this share of a window is final: its caller sends without asking again.
_FINAL_SHARE = 1 / 60
# What servers count of an estimate, until they told; and how fast what they tell is learned.
_FIRST_TRUTH = 0.8
_LEARN_SHARE = 1 / 32
# Estimates differ: who asks this share of the wait earlier than on average it could be sent.
_EARLY_SHARE = 0.04
# Who is later than this, as a share of a window, is taken for dead: its time is another's.
_LAPSE_SHARE = 1 / 12
_REPLAN_SHARE = 0.005
# While less than the limits is used: who waits asks again so soon, for the pace may come back.
_LISTEN_SHARE = 1 / 12


@dataclass(slots=True)
class ScheduledCall:
    """The send time of one call; it may move until it ``is_final``: its caller was told."""

    at_s: float
    n_tokens: int
    is_final: bool = False
    is_dropped: bool = False
    asks_s: float = -math.inf  # when its caller asks again: no sooner is it sent
    sent: Sent | None = None  # as the throttle knows it, once it is final


@dataclass(slots=True)
class LeakyBucket:
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

    limit: float
    span_s: float
    next_s: float

    def earliest_s(self) -> float:
        """Return when the next call may be sent."""
        return self.next_s - BURST_SHARE * self.span_s

    def book(self, cost: int, *, at_s: float, factor: float) -> None:
        """Take a call, at this share of the pace."""
        self.next_s = max(self.next_s, at_s) + self._seconds(cost) / factor

    def give_back(self, cost: int, *, factor: float) -> None:
        """Take it that so much less was booked."""
        self.next_s -= self._seconds(cost) / factor

    def _seconds(self, cost: int) -> float:
        return cost / self.limit * self.span_s


class SlidingWindow:
    """Calls in order of time: the last span before the last of them, and the paces after it.

    Parameters
    ----------
    limits : Limits
        Requests and tokens that a window may hold.
    next_s : float
        When the paces begin to count.
    """

    # Copied often: a copy without slots would be slower to use than what it was copied from.
    __slots__ = ("_span_s", "calls", "last_s", "n_tokens", "requests", "tokens")

    def __init__(self, limits: Limits, *, next_s: float) -> None:
        self.calls: deque[ScheduledCall] = deque()
        self.n_tokens = 0
        self.last_s = -math.inf
        self.set_limits(limits, next_s=(next_s, next_s))

    def set_limits(self, limits: Limits, *, next_s: tuple[float, float]) -> None:
        """Book by these limits from now on; when each pace begins to count."""
        self._span_s = span_s = limits.span_s
        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self.requests = LeakyBucket(requests or math.inf, span_s=span_s, next_s=next_s[0])
        self.tokens = LeakyBucket(tokens or math.inf, span_s=span_s, next_s=next_s[1])

    def copy(self) -> SlidingWindow:
        """Return one that goes on by itself, with the same calls."""
        twin = copy(self)
        twin.calls = self.calls.copy()
        twin.requests, twin.tokens = replace(self.requests), replace(self.tokens)
        return twin

    def earliest_s(self, n_tokens: int, *, not_before_s: float) -> float:
        """Return when a call can follow the others, and forget what has left the window then."""
        at_s = max(not_before_s, self.last_s, self.requests.earliest_s(), self.tokens.earliest_s())
        calls = self.calls
        while calls:
            leaves_s = calls[0].at_s + self._span_s
            if leaves_s > at_s:
                has_room = (
                    len(calls) + 1 <= self.requests.limit
                    and self.n_tokens + n_tokens <= self.tokens.limit
                )
                if has_room:
                    break
                at_s = leaves_s
            # Never needed again: no later call is sent before this one.
            self.n_tokens -= calls.popleft().n_tokens
        return at_s

    def add(self, call: ScheduledCall, *, factor: float) -> None:
        """Append a call; one that is earlier than the last goes to its place."""
        self.requests.book(1, at_s=call.at_s, factor=factor)
        self.tokens.book(call.n_tokens, at_s=call.at_s, factor=factor)
        self.put(call)

    def put(self, call: ScheduledCall) -> None:
        """Put a call into the window, whatever the pace."""
        calls, place = self.calls, len(self.calls)
        self.n_tokens += call.n_tokens
        self.last_s = max(self.last_s, call.at_s)
        if not calls or calls[-1].at_s <= call.at_s:
            calls.append(call)
            return
        while place and calls[place - 1].at_s > call.at_s:
            place -= 1
        calls.insert(place, call)

    def forget(self, before_s: float) -> None:
        """Forget calls up to a time."""
        while self.calls and self.calls[0].at_s <= before_s:
            self.n_tokens -= self.calls.popleft().n_tokens

    def hold(self, until_s: float) -> None:
        """Save up nothing until then."""
        for bucket in (self.requests, self.tokens):
            bucket.next_s = max(bucket.next_s, until_s + BURST_SHARE * self._span_s)

    def give_back(self, n_tokens: int, call: ScheduledCall, *, factor: float) -> None:
        """Take it that a call holds so many tokens less."""
        if self.calls and call.at_s >= self.calls[0].at_s:
            self.n_tokens -= n_tokens
        self.tokens.give_back(n_tokens, factor=factor)


class Schedule:
    """Send times of calls, first come first served, within both limits.

    Parameters
    ----------
    limits : Limits
        Requests and tokens that a window may hold.
    now_s : float
        The clock.
    sent : iterable of ScheduledCall
        What was sent in the last span, by a predecessor; in order of time.

    Examples
    --------
    Two requests a minute: the third waits until the first has left the window, and a bit.

    >>> schedule = Schedule(Limits(requests_per_minute=2), now_s=0.0)
    >>> [round(schedule.book(now_s=0.0, n_tokens=9).at_s, 1) for _ in range(4)]
    [0.0, 30.6, 61.2, 91.8]
    """

    def __init__(self, limits: Limits, *, now_s: float, sent: Iterable[ScheduledCall] = ()) -> None:
        self.limits = limits
        # Empty, whoever starts: what is unknown of the last minute is met with no burst.
        self._sent = SlidingWindow(limits, next_s=now_s + BURST_SHARE * limits.span_s)
        for call in sent:
            self._sent.put(call)
        # All that was promised, and all that waits behind it.
        self._all = self._sent.copy()
        self._queue: deque[ScheduledCall] = deque()
        self._n_credit_tokens = 0
        self._truth = _FIRST_TRUTH
        self._paused_until_s = -math.inf
        self.throttle = Throttle(window_s=limits.window_s)

    @property
    def final_s(self) -> float:
        """The longest wait that is final."""
        return _FINAL_SHARE * self.limits.window_s

    def book(self, *, now_s: float, n_tokens: int) -> ScheduledCall:
        """Return a call at the earliest time that is not before the last one's.

        Raises
        ------
        CallTooLargeError
            If one call holds more tokens than a window may.
        """
        limit = self._all.tokens.limit
        if n_tokens > limit:
            raise CallTooLargeError(
                f"a call of {n_tokens:,} tokens can never be sent: tokens_per_minute is {limit:,} "
                "[QA0605]"
            )
        call = ScheduledCall(now_s, n_tokens)
        self._place(call, not_before_s=now_s)
        call.asks_s = call.at_s
        self._queue.append(call)
        while not self._is_waiting(self._queue[0], now_s):
            self._queue.popleft()
        return call

    def _place(self, call: ScheduledCall, *, not_before_s: float) -> None:
        """Put a call behind all others."""
        not_before_s = max(not_before_s, self._paused_until_s)
        call.at_s = self._all.earliest_s(call.n_tokens, not_before_s=not_before_s)
        self._all.add(call, factor=self.throttle.pace(call.at_s))

    def promise(self, call: ScheduledCall, *, now_s: float) -> float:
        """Return how long its caller is to wait: to send, if the call is final then, or to ask."""
        wait_s = max(call.at_s - now_s, 0.0)
        if call.is_final:
            return wait_s
        if self.throttle.probe_s is not None:
            wait_s = self._await_probe(call, self.throttle.probe_s, now_s=now_s)
        if wait_s <= self.final_s:
            call.is_final = True
            self._sent.forget(call.at_s - self.limits.span_s)
            call.sent = self.throttle.sent(call.at_s)
            self._sent.add(call, factor=self.throttle.pace(call.at_s))
        elif self.limits.tokens_per_minute is not None:
            wait_s *= max(self._truth - _EARLY_SHARE, 0.2)  # By then credit may have moved it.
        if not call.is_final and not self.throttle.is_open:
            wait_s = min(wait_s, _LISTEN_SHARE * self.limits.window_s)
        call.asks_s = now_s + wait_s
        return wait_s

    def _await_probe(self, call: ScheduledCall, probe_s: float, *, now_s: float) -> float:
        """Make a call the next probe, if it asks at its time; the others get times afterwards."""
        not_before_s = max(now_s, probe_s, self._paused_until_s)
        # In a copy: until this call is final, what its wait would forget still counts for others.
        window = self._sent.copy()
        at_s = window.earliest_s(call.n_tokens, not_before_s=not_before_s)
        call.at_s = at_s if at_s - now_s <= self.final_s else math.inf
        return at_s - now_s

    def drop(self, call: ScheduledCall) -> None:
        """Take notice that a call will not be sent then; one that is final keeps its place."""
        call.is_dropped = True

    def correct(self, call: ScheduledCall, *, n_tokens: int, now_s: float) -> None:
        """Learn what the server counted for a call that was sent, more or less."""
        n_too_many = call.n_tokens - n_tokens
        if not call.is_final or call.n_tokens < 1:
            return
        told = min(n_tokens / call.n_tokens, 1.0)
        self._truth += _LEARN_SHARE * (told - self._truth)
        if n_too_many == 0:
            return
        factor = self.throttle.pace(call.at_s)
        self._sent.give_back(n_too_many, call, factor=factor)
        self._all.give_back(n_too_many, call, factor=factor)
        call.n_tokens = n_tokens
        self._n_credit_tokens += abs(n_too_many)
        if self._n_credit_tokens > _REPLAN_SHARE * self._all.tokens.limit:
            self._replan(now_s)

    def change(self, limits: Limits, *, now_s: float) -> None:
        """Go on with other limits of the same window, for calls that wait as well."""
        self.limits = limits
        sent = self._sent
        sent.set_limits(limits, next_s=(sent.requests.next_s, sent.tokens.next_s))
        self._replan(now_s)

    def pause(self, *, now_s: float, until_s: float) -> None:
        """Send nothing until then: who still waits moves back, in order."""
        if until_s <= self._paused_until_s:
            return
        self.throttle.excuse(until_s - max(now_s, self._paused_until_s))
        self._paused_until_s = until_s
        for window in (self._sent, self._all):
            window.hold(until_s)
        if any(call.at_s < until_s and self._is_waiting(call, now_s) for call in self._queue):
            self._replan(now_s)

    def heard(self, call: ScheduledCall, end: End, *, now_s: float) -> bool:
        """Learn how a call that was sent ended; return whether the pace is another one now."""
        is_changed = call.sent is not None and self.throttle.heard(call.sent, end, now_s=now_s)
        if is_changed:
            self._replan(now_s)
        return is_changed

    def paused_s(self, now_s: float) -> float:
        """Return for how many more seconds nothing is sent."""
        return max(self._paused_until_s - now_s, 0.0)

    def in_use(self, now_s: float) -> tuple[int, int]:
        """Return requests and tokens of calls sent in the last window."""
        since_s = now_s - self.limits.window_s
        sent = [call for call in self._sent.calls if since_s < call.at_s <= now_s]
        return len(sent), sum(call.n_tokens for call in sent)

    def _is_waiting(self, call: ScheduledCall, now_s: float) -> bool:
        """Whether the call's caller will ask again before it sends."""
        lapsed_s = now_s - _LAPSE_SHARE * self.limits.window_s
        return not call.is_final and not call.is_dropped and call.asks_s >= lapsed_s

    def _replan(self, now_s: float) -> None:
        """Give all calls that wait the earliest times that are now possible, in their order."""
        self._n_credit_tokens = 0
        self._all = self._sent.copy()
        waiting: deque[ScheduledCall] = deque()
        for call in self._queue:
            if self._is_waiting(call, now_s):
                self._place(call, not_before_s=max(now_s, call.asks_s))
                waiting.append(call)
            elif not call.is_final:
                call.is_dropped = True
        self._queue = waiting
