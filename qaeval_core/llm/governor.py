"""Governor: one place for all calls on one key, so that its limits hold whoever calls.

A caller reserves, waits as long as it is told, confirms if the wait was long, sends, and says how
it ended. First come, first served. Answers are relative waits: callers need no common clock.

    reserve -> wait -> (confirm -> wait)* -> send -> settle | failed

Why confirm: a caller that was told to wait a minute must hear of a pause that the server asked for
in that minute, and of credit that moved it forward. So only a short wait is final (1/60 of a
window). And a caller that wakes too late gets another time: its send would meet a window that was
planned without it.

Limits are the account's, money is a budget's. Runs on one account share the governor: each brings
its budget and its limits, and the smallest of each limit holds for all.

After a kill the ledger knows what had been sent in the last window, money spent and reserved, the
end of a pause, and the pace, and the log of leases who asks what; who was still waiting was not
sent, and starts again. The allowance is empty at the start: calls are spread evenly from the first
one on.

A call costs O(1), amortized: 28 microseconds of CPU for claim, reserve, confirm, settle and
release with a ledger, 12 without. A pause, new limits, and credit of each 0.5 % of the token limit
cost O(n) in the calls that wait: 70 ms for 50,000.

But: no window arithmetic here (``llm.schedule``), no sums of money (``llm.budget``), no file
(``llm.ledger``), no HTTP (``llm.client``).
"""

from __future__ import annotations

import itertools
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from qaeval_core.llm.budget import MAIN_BUDGET, SILENT_S, Budget, Budgets
from qaeval_core.llm.leases import LEASE_S, Claim, LeaseLog, LeaseTable, Releases
from qaeval_core.llm.ledger import Ledger, LedgerState, SentCall
from qaeval_core.llm.limits import NANO, Limits
from qaeval_core.llm.schedule import Schedule, ScheduledCall
from qaeval_core.llm.throttle import REFUSALS, End

# A caller that is so much later than it was told to come is dead; its money is another's.
_LAPSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """When to send: not before ``wait_s``, nor later than ``wait_s + late_s``, after asking.

    If it is not ``is_final``, or it got later, confirm instead of sending. ``wait_s`` of one that
    is not final may end before the call's time, which may have moved forward until then.
    """

    call_id: str
    wait_s: float
    late_s: float
    is_final: bool


@dataclass(frozen=True, slots=True)
class Status:
    """Where a governor stands: use, pauses and counts of all, money and calls of one budget."""

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
    silent_s: float = 0.0  # for so long the server has answered nobody
    n_sent: int = 0  # told to send, by this governor, of all budgets

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
class OpenCall:
    """When a call is to be sent, and what is reserved for it, from which budget."""

    scheduled: ScheduledCall
    nano_usd: int
    budget: str


class OpenCalls(dict[str, OpenCall]):
    """Open calls by their ids."""

    @classmethod
    def taken_over(
        cls, found: LedgerState, *, last_s: float, wall_offset_s: float
    ) -> tuple[list[ScheduledCall], OpenCalls]:
        """Return what a predecessor sent in the last span, and its calls without an end.

        Parameters
        ----------
        found : LedgerState
            What it left.
        last_s : float
            No call was sent later.
        wall_offset_s : float
            What the ledger's clock is ahead of the governor's.
        """

        def scheduled(call: SentCall) -> ScheduledCall:
            return ScheduledCall(min(call.at - wall_offset_s, last_s), call.n_tokens, is_final=True)

        sent = [(call, scheduled(call)) for call in found.recent]
        # The same call: what the server counted for an open call corrects the window.
        by_fact = dict(sent)
        calls = {
            call_id: OpenCall(by_fact.get(call) or scheduled(call), call.nano_usd, call.budget)
            for call_id, call in found.open.items()
        }
        return [one for _, one in sent], cls(calls)

    @property
    def _waiting(self) -> dict[str, OpenCall]:
        """Those that were not sent yet."""
        return {call_id: call for call_id, call in self.items() if not call.scheduled.is_final}

    def n_waiting(self, budget: str) -> int:
        """Return how many calls of a budget were not sent yet."""
        return sum(call.budget == budget for call in self._waiting.values())

    def lapsed(self, budget: str, *, now_s: float) -> list[str]:
        """Return the calls of a budget whose callers died while they waited."""
        dead_s = now_s - _LAPSE_S
        return [
            call_id
            for call_id, call in self._waiting.items()
            if call.budget == budget and call.scheduled.asks_s < dead_s
        ]

    def too_large(self, limits: Limits) -> list[str]:
        """Return calls that wait and that no window can hold."""
        most = limits.tokens_per_minute or math.inf
        return [
            call_id for call_id, call in self._waiting.items() if call.scheduled.n_tokens > most
        ]


class Governor:
    """Reserves requests, tokens and money for calls, in order.

    Parameters
    ----------
    limits : Limits
        What the key allows, for callers that bring no limits.
    clock : callable, default time.monotonic
        Seconds; never goes back.
    wall : callable, default time.time
        Seconds since 1970; read once.
    ledger : Ledger, optional
        Without one, a kill forgets money and the last window.
    lease_s : float, default 20
        How long claims last after their owner's last word.
    lease_log : LeaseLog, optional
        Without one, a kill forgets claims.
    silent_s : float, default 900
        Seconds after which a run that was not heard has left.

    Examples
    --------
    >>> now_s = 0.0
    >>> budget = Budget("audit", budget_usd=1.0)
    >>> governor = Governor(Limits(requests_per_minute=60), clock=lambda: now_s)
    >>> first = governor.reserve(tokens=900, usd=0.5, budget=budget)
    >>> first.wait_s, first.is_final
    (0.0, True)
    >>> governor.settle(first.call_id, tokens=500, usd=0.25)
    >>> second = governor.reserve(tokens=900, usd=0.5, budget=budget)
    >>> round(second.wait_s, 2), second.is_final
    (1.02, False)
    >>> governor.reserve(tokens=900, usd=0.5, budget=budget)
    Traceback (most recent call last):
    qaeval_core.errors.BudgetExhaustedError: spent $0.25, reserved $0.50: a call of up to \
$0.50 does not fit budget_usd=1.0; raise it and run the same command again [QA0604]
    """

    def __init__(
        self,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        ledger: Ledger | None = None,
        lease_s: float = LEASE_S,
        lease_log: LeaseLog | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._wall_offset_s = wall() - clock()
        self._ledger = ledger
        self._ids = (f"{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count(1))
        self._calls = OpenCalls()
        money = None if ledger is None else ledger.found.money
        self._budgets = Budgets(limits, money=money, silent_s=silent_s)
        self._look_s = -math.inf
        self._look_every_s = silent_s / 10
        self._leases = LeaseTable(lease_s=lease_s, log=lease_log, now_s=clock())
        self._n_refused = self._n_late = self._n_sent = 0
        self._schedule = Schedule(limits, now_s=clock())
        if ledger is not None:
            self._take_over(ledger)

    def _take_over(self, ledger: Ledger) -> None:
        """Start where the last governor was killed."""
        found, now_s = ledger.found, self._clock()
        sent, self._calls = OpenCalls.taken_over(
            found,
            # Nothing was to be sent later than this; more means that a clock was set back.
            last_s=now_s + self._schedule.final_s,
            wall_offset_s=self._wall_offset_s,
        )
        self._schedule = Schedule(self.limits, now_s=now_s, sent=sent)
        self._schedule.pause(now_s=now_s, until_s=found.paused_until - self._wall_offset_s)
        if found.is_after_crash:
            # Calls of the last window may be missing: let a whole one pass.
            self._schedule.pause(now_s=now_s, until_s=now_s + self.limits.span_s)
        if found.pace is not None:
            since_s = found.pace.since_s - self._wall_offset_s
            self._schedule.throttle.take_over(replace(found.pace, since_s=since_s), now_s=now_s)

    def open_calls(self) -> frozenset[str]:
        """Ids of calls without an end; after a kill, also of those whose callers died."""
        return frozenset(self._calls)

    def reserve(
        self,
        *,
        tokens: int,
        usd: float,
        call_id: str | None = None,
        budget: Budget = MAIN_BUDGET,
        limits: Limits | None = None,
        run: str | None = None,
    ) -> Reservation:
        """Return the next call's id and wait.

        Parameters
        ----------
        tokens : int
            What the server will count when the call arrives: prompt and ``max_tokens``.
        usd : float
            The most that the call can cost, in dollars.
        call_id : str, optional
            The caller's own name for the call, so that to ask again reserves nothing.
        budget : Budget
            Whose money; its bound holds from now on.
        limits : Limits, optional
            Of the caller's run; default: the governor's.
        run : str, optional
            Names the run, if several with limits of their own pay from one budget.

        Raises
        ------
        BudgetExhaustedError
            If the money spent and reserved leaves too little; nothing was reserved then.
        CallTooLargeError
            If the call holds more tokens than a window may.
        ConfigError
            If the limits count in windows of another length.
        """
        if call_id is not None and (known := self.confirm(call_id)) is not None:
            return known
        now_s = self._clock()
        self._register(run or budget.name, budget.name, limits, now_s)
        nano = round(usd * NANO)
        money = self._budgets.money(budget.name)
        if not money.fits(nano, budget):
            for lapsed_id in self._calls.lapsed(budget.name, now_s=now_s):
                self.failed(lapsed_id, billed=False)
            if not money.fits(nano, budget):
                n_waiting = self._calls.n_waiting(budget.name)
                raise money.refusal(nano, budget, n_waiting=n_waiting)
        scheduled = self._schedule.book(now_s=now_s, n_tokens=tokens)
        call = OpenCall(scheduled, nano, budget.name)
        call_id = next(self._ids) if call_id is None else call_id
        self._calls[call_id] = call
        money.reserve(nano)
        return self._reservation(call_id, call, now_s)

    def register(self, run: str, *, budget_name: str, limits: Limits | None) -> None:
        """Hear of a run: its limits hold from now on, beside those of the others.

        Raises
        ------
        ConfigError
            If the limits count in windows of another length.
        """
        self._register(run, budget_name, limits, self._clock())

    def _register(self, run: str, budget_name: str, limits: Limits | None, now_s: float) -> None:
        if self._budgets.register(run, budget_name, limits, now_s=now_s):
            self._set_limits(now_s)
        if now_s - self._look_s > self._look_every_s:
            self.forget_silent()

    def _set_limits(self, now_s: float) -> None:
        """Work with the smallest limits of all runs."""
        limits = self._budgets.smallest_limits()
        if limits == self.limits:
            return
        self.limits = limits
        for call_id in self._calls.too_large(limits):
            self.failed(call_id, billed=False)  # Its caller is told when it asks again.
        self._schedule.change(limits, now_s=now_s)

    def unregister(self, run: str) -> bool:
        """Forget the limits of a run; return whether no run is left."""
        left = self._budgets.unregister(run)
        self._set_limits(self._clock())
        if left is not None and self._ledger is not None:
            self._ledger.left(left)
        return not self._budgets.has_runs

    def forget_silent(self) -> bool:
        """Forget runs that were not heard for long; return whether no run is left."""
        self._look_s = self._clock()
        for run in self._budgets.silent(self._look_s):
            self.unregister(run)
        return not self._budgets.has_runs

    def confirm(self, call_id: str) -> Reservation | None:
        """Return what is left to wait, or None if the call is unknown: reserve again.

        A call that is already too late gets another time, and keeps its money.
        """
        call = self._calls.get(call_id)
        if call is None:
            return None
        now_s = self._clock()
        if call.scheduled.is_dropped or now_s > call.scheduled.at_s + self._late_s:
            self._schedule.drop(call.scheduled)
            call.scheduled = self._schedule.book(now_s=now_s, n_tokens=call.scheduled.n_tokens)
            self._n_late += 1
        return self._reservation(call_id, call, now_s)

    @property
    def _late_s(self) -> float:
        return self.limits.jitter_s / 2

    def _reservation(self, call_id: str, call: OpenCall, now_s: float) -> Reservation:
        scheduled = call.scheduled
        was_final = scheduled.is_final
        wait_s = self._schedule.promise(scheduled, now_s=now_s)
        if scheduled.is_final and not was_final:
            self._n_sent += 1
            if self._ledger is not None:
                at = scheduled.at_s + self._wall_offset_s
                sent = SentCall(at, scheduled.n_tokens, call.nano_usd, call.budget)
                self._ledger.sent(call_id, sent)
        late_s = scheduled.at_s + self._late_s - now_s - wait_s
        return Reservation(call_id, wait_s, late_s, scheduled.is_final)

    def settle(
        self, call_id: str, *, tokens: int, usd: float, n_admitted: int | None = None
    ) -> None:
        """Take the end of a call that brought a reply: what it used and cost.

        Parameters
        ----------
        tokens, usd : int, float
            Tokens of prompt and reply, and dollars; they end up in the budget's sums.
        n_admitted : int, optional
            What the server counted when the call arrived: prompt and ``max_tokens``. Servers do
            not give back what a reply did not use, so this, not ``tokens``, corrects the window.

        A call that has ended is left as it is.
        """
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        nano = round(usd * NANO)
        self._budgets.money(call.budget).settle(call.nano_usd, cost=nano, n_tokens=tokens)
        self._heard(call.scheduled, "answered")
        if n_admitted is not None:
            self._schedule.correct(call.scheduled, n_tokens=n_admitted, now_s=self._clock())
        if self._ledger is not None:
            self._ledger.settled(call_id, n_tokens=tokens, nano_usd=nano)

    def failed(self, call_id: str, *, billed: bool, end: End | None = None) -> float:
        """Take the end of a call without a reply; if it may be billed, all reserved is spent.

        Parameters
        ----------
        end : {"answered", "refused", "told", "overloaded", "faulty"}, optional
            What the server did, which the pace follows (``llm.throttle``); None if that is unknown.

        Returns
        -------
        float
            For how many seconds the server has answered nobody; 0 where it answers.
        """
        call = self._calls.pop(call_id, None)
        if call is not None:
            if end is not None:
                self._heard(call.scheduled, end)
            self._schedule.drop(call.scheduled)
            self._budgets.money(call.budget).fail(call.nano_usd, is_billed=billed)
            if self._ledger is not None:
                self._ledger.failed(call_id, is_billed=billed)
        return self._schedule.throttle.silent_s(self._clock())

    def _heard(self, scheduled: ScheduledCall, end: End) -> None:
        self._n_refused += end in REFUSALS
        if self._schedule.heard(scheduled, end, now_s=self._clock()) and self._ledger is not None:
            kept = self._schedule.throttle.kept()
            self._ledger.paced(replace(kept, since_s=kept.since_s + self._wall_offset_s))

    def spent_at_least(self, usd: float, *, budget_name: str = MAIN_BUDGET.name) -> None:
        """Learn from the journal that more was spent than a lost ledger says.

        What is reserved for open calls may be in the journal's sum already.
        """
        money = self._budgets.money(budget_name)
        missing = round(usd * NANO) - money.committed
        if missing > 0:
            money.spent += missing
            if self._ledger is not None:
                self._ledger.spent(budget_name, nano_usd=missing)

    def claim(self, key: str, *, owner: str, since: Releases | None = None) -> Claim:
        """Return whether a request is the owner's to ask; all its claims last longer then.

        Parameters
        ----------
        since : Releases, optional
            Those that were known when the owner last looked for replies of others; the answer has
            who let a key go after that.
        """
        is_own = self._leases.claim(key, owner=owner, now_s=self._clock())
        return self._leases.releases(owner, since)._replace(is_own=is_own)

    def renew(self, owner: str) -> None:
        """Make all of an owner's claims last longer."""
        self._leases.renew(owner, now_s=self._clock())

    def release(self, key: str, *, owner: str) -> None:
        """Let others ask a request, if it is the owner's."""
        self._leases.release(key, owner=owner)

    def pause(self, seconds: float) -> None:
        """Send nothing for so long, as the server asked."""
        now_s = self._clock()
        if seconds <= self._schedule.paused_s(now_s):
            return
        self._schedule.pause(now_s=now_s, until_s=now_s + seconds)
        if self._ledger is not None:
            self._ledger.paused(now_s + seconds + self._wall_offset_s)

    def status(self, budget_name: str = MAIN_BUDGET.name, *, run: str | None = None) -> Status:
        """Return where it stands, with the money of a budget; the run that asks lives."""
        now_s = self._clock()
        self._budgets.heartbeat(run or budget_name, now_s=now_s)
        n_requests, n_tokens = self._schedule.in_use(now_s)
        money = self._budgets.money(budget_name)
        return Status(
            n_requests_in_use=n_requests,
            n_tokens_in_use=n_tokens,
            n_open=money.n_open,
            n_settled=money.n_settled,
            n_billed_failures=money.n_billed_failures,
            n_refused=self._n_refused,
            n_late=self._n_late,
            spent_usd=money.spent / NANO,
            reserved_usd=money.reserved / NANO,
            paused_s=self._schedule.paused_s(now_s),
            pace_factor=self._schedule.throttle.pace(now_s),
            silent_s=self._schedule.throttle.silent_s(now_s),
            limits=self.limits,
            n_sent=self._n_sent,
        )
