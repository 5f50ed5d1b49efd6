"""Governor: one door for all calls on one key, so that its limits hold whoever calls.

A caller reserves, waits as long as it is told, confirms if the wait was long, sends, and says how
it ended. First come, first served. Answers are relative waits: callers need no common clock.

    reserve -> wait -> (confirm -> wait)* -> send -> settle | failed

Why confirm: a caller that was told to wait a minute must hear of a pause that the server asked for
in that minute. So only a short wait is final (1/60 of a window). And a caller that wakes too late
gets another slot: its send would meet a window that was planned without it.

After a kill the ledger knows what had been sent in the last window, money spent and reserved, and
the end of a pause; who was still waiting was not sent, and starts again. The allowance is empty at
the start: calls are spread evenly from the first one on.

A call costs O(1), amortised: 18 microseconds of CPU for reserve, confirm and settle with a ledger,
7 without. A pause costs O(n log n) in the calls that wait: 3 ms for 50,000.

But: no window arithmetic here (``llm.limits``), no file (``llm.ledger``), no HTTP (``llm.client``).
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from qaeval_core.llm.ledger import Ledger, SentCall
from qaeval_core.llm.limits import BudgetExhaustedError, Limits, Slot, Timeline

_FINAL_SHARE = 1 / 60
# Money and rates of a dollar's billionths: exact sums, and far below any price of a token.
_NANO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Grant:
    """When to send: not before ``wait_s``, nor later than ``wait_s + late_s``, after asking.

    If it is not ``is_final``, or it got later, confirm instead of sending.
    """

    call_id: str
    wait_s: float
    late_s: float
    is_final: bool


@dataclass(frozen=True, slots=True)
class Status:
    """Where a governor stands: calls and tokens of the last window, money, pauses."""

    n_requests_in_use: int
    n_tokens_in_use: int
    n_open: int
    n_settled: int
    n_billed_failures: int
    n_refused: int
    n_late: int
    spent_usd: float
    reserved_usd: float
    paused_s: float
    pace_factor: float
    limits: Limits

    @property
    def binding_use(self) -> float:
        """Share of the limit that binds, in use over the last window; in [0, 1]."""
        shares = [0.0]
        if self.limits.requests_per_minute:
            shares.append(self.n_requests_in_use / self.limits.requests_per_minute)
        if self.limits.tokens_per_minute:
            shares.append(self.n_tokens_in_use / self.limits.tokens_per_minute)
        return max(shares)


@dataclass(slots=True)
class _Call:
    slot: Slot
    nano_usd: int


class Governor:
    """Reserves requests, tokens and money for calls, in order.

    Parameters
    ----------
    limits : Limits
        What the key allows.
    clock : callable, default time.monotonic
        Seconds; never goes back.
    wall : callable, default time.time
        Seconds since 1970; read once.
    ledger : Ledger, optional
        Without one, a kill forgets money and the last window.

    Examples
    --------
    >>> now_s = 0.0
    >>> governor = Governor(Limits(requests_per_minute=60, budget_usd=1.0), clock=lambda: now_s)
    >>> first = governor.reserve(tokens=900, usd=0.5)
    >>> first.wait_s, first.is_final
    (0.0, True)
    >>> governor.settle(first.call_id, tokens=500, usd=0.25)
    >>> second = governor.reserve(tokens=900, usd=0.5)
    >>> round(second.wait_s, 2), second.is_final
    (1.02, False)
    >>> governor.reserve(tokens=900, usd=0.5)
    Traceback (most recent call last):
    qaeval_core.llm.limits.BudgetExhaustedError: spent $0.25, reserved $0.50: a call of up to \
$0.50 does not fit budget_usd=1.0
    """

    def __init__(
        self,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        ledger: Ledger | None = None,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._wall_offset_s = wall() - clock()
        self._ledger = ledger
        self._ids = (f"{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count(1))
        self._calls: dict[str, _Call] = {}
        self._spent = self._reserved = 0
        self._n_settled = self._n_billed_failures = self._n_refused = self._n_late = 0
        self._timeline = Timeline(limits, now_s=clock())
        if ledger is not None:
            self._take_over(ledger)

    def _take_over(self, ledger: Ledger) -> None:
        """Start where the last governor was killed."""
        found, now_s = ledger.found, self._clock()
        # Nothing was to be sent later than this; more means that a clock was set back.
        last_s = now_s + self._final_s
        sent = [
            Slot(min(call.at - self._wall_offset_s, last_s), call.n_tokens, is_final=True)
            for call in found.recent
        ]
        self._timeline = Timeline(self.limits, now_s=now_s, sent=sent)
        self._timeline.pause(now_s=now_s, until_s=found.paused_until - self._wall_offset_s)
        if found.is_after_crash:
            # Calls of the last window may be missing: let a whole one pass.
            self._timeline.pause(now_s=now_s, until_s=now_s + self.limits.span_s)
        for call_id, call in found.open.items():
            slot = Slot(call.at - self._wall_offset_s, call.n_tokens, is_final=True)
            self._calls[call_id] = _Call(slot, call.nano_usd)
        self._spent = found.spent_nano_usd
        self._reserved = sum(call.nano_usd for call in self._calls.values())
        self._n_settled = found.n_settled
        self._n_billed_failures = found.n_billed_failures

    @property
    def _final_s(self) -> float:
        return _FINAL_SHARE * self.limits.window_s

    @property
    def open_calls(self) -> frozenset[str]:
        """Ids of calls without an end; after a kill, also of those whose callers died."""
        return frozenset(self._calls)

    def reserve(self, *, tokens: int, usd: float) -> Grant:
        """Return the next call's id and wait.

        Parameters
        ----------
        tokens : int
            What the server will count when the call arrives: prompt and ``max_tokens``.
        usd : float
            The most that the call can cost, in dollars.

        Raises
        ------
        BudgetExhaustedError
            If the money spent and reserved leaves too little; nothing was reserved then.
        CallTooLargeError
            If the call holds more tokens than a window may.
        """
        nano = round(usd * _NANO)
        self._check_budget(nano)
        call = _Call(self._timeline.book(now_s=self._clock(), n_tokens=tokens), nano)
        call_id = next(self._ids)
        self._calls[call_id] = call
        self._reserved += nano
        return self._grant(call_id, call)

    def _check_budget(self, nano: int) -> None:
        budget = self.limits.budget_usd
        if budget is None or self._spent + self._reserved + nano <= round(budget * _NANO):
            return
        raise BudgetExhaustedError(
            f"spent ${self._spent / _NANO:.2f}, reserved ${self._reserved / _NANO:.2f}: a call of "
            f"up to ${nano / _NANO:.2f} does not fit budget_usd={budget}",
            may_free=bool(self._calls),
        )

    def confirm(self, call_id: str) -> Grant | None:
        """Return what is left to wait, or None if the call is unknown: reserve again.

        A call that is already too late gets another slot, and keeps its money.
        """
        call = self._calls.get(call_id)
        if call is None:
            return None
        now_s = self._clock()
        if now_s > call.slot.at_s + self._late_s:
            call.slot = self._timeline.book(now_s=now_s, n_tokens=call.slot.n_tokens)
            self._n_late += 1
        return self._grant(call_id, call)

    @property
    def _late_s(self) -> float:
        return self.limits.jitter_s / 2

    def _grant(self, call_id: str, call: _Call) -> Grant:
        now_s = self._clock()
        wait_s = max(call.slot.at_s - now_s, 0.0)
        is_final = wait_s <= self._final_s
        if is_final and not call.slot.is_final:
            call.slot.is_final = True
            if self._ledger is not None:
                at = call.slot.at_s + self._wall_offset_s
                self._ledger.sent(call_id, SentCall(at, call.slot.n_tokens, call.nano_usd))
        late_s = call.slot.at_s + self._late_s - now_s - wait_s
        return Grant(call_id, wait_s, late_s, is_final)

    def settle(self, call_id: str, *, tokens: int, usd: float) -> None:
        """Take the end of a call that brought a reply: what it used and cost.

        Its reservation stays in the window: servers count a call when it arrives, and most do not
        give back what it did not use. A call that has ended is left as it is.
        """
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        nano = round(usd * _NANO)
        self._reserved -= call.nano_usd
        self._spent += nano
        self._n_settled += 1
        if self._ledger is not None:
            self._ledger.settled(call_id, n_tokens=tokens, nano_usd=nano)

    def failed(self, call_id: str, *, billed: bool) -> None:
        """Take the end of a call without a reply; if it may be billed, all reserved is spent."""
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        self._reserved -= call.nano_usd
        if billed:
            self._spent += call.nano_usd
            self._n_billed_failures += 1
        if self._ledger is not None:
            self._ledger.failed(call_id, is_billed=billed)

    def spent_at_least(self, usd: float) -> None:
        """Learn from the journal that more was spent than a lost ledger says."""
        self._spent = max(self._spent, round(usd * _NANO))

    def pause(self, seconds: float) -> None:
        """Send nothing for so long, as the server asked."""
        now_s = self._clock()
        if seconds <= self._timeline.paused_s(now_s):
            return
        self._timeline.pause(now_s=now_s, until_s=now_s + seconds)
        if self._ledger is not None:
            self._ledger.paused(now_s + seconds + self._wall_offset_s)

    def slow_down(self) -> None:
        """Take notice of a refusal (429, 503): less for a while."""
        self._n_refused += 1
        self._timeline.slow_down(now_s=self._clock())

    def status(self) -> Status:
        """Return where it stands."""
        n_requests, n_tokens = self._timeline.in_use(self._clock())
        return Status(
            n_requests_in_use=n_requests,
            n_tokens_in_use=n_tokens,
            n_open=len(self._calls),
            n_settled=self._n_settled,
            n_billed_failures=self._n_billed_failures,
            n_refused=self._n_refused,
            n_late=self._n_late,
            spent_usd=self._spent / _NANO,
            reserved_usd=self._reserved / _NANO,
            paused_s=self._timeline.paused_s(self._clock()),
            pace_factor=self._timeline.pace_factor(self._clock()),
            limits=self.limits,
        )

    def change(self, limits: Limits) -> None:
        """Go on with other limits of the same window, such as a raised budget."""
        self.limits = limits
        self._timeline.change(limits, now_s=self._clock())
