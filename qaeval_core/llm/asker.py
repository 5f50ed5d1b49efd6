"""Asker: one reply for one request, whatever it takes within the rules, and never paid twice.

    journal? -> claim -> journal? -> reserve -> wait -> send -> journal -> settle -> release

with retries in between. Who claims a request is the only one that asks it, in all processes and
runs under the governor; the second look finds what others had journaled before they released it.
A row that cannot be answered comes back with a reason, not as an error; what stops all rows alike
(a refused key, no budget) is raised, by those that wait at once, while calls in flight end.

But: what a request asks and what a reply means is a chat family's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from qaeval_core.errors import CallTooLargeError, EndpointRefusedError, QAEvalError
from qaeval_core.llm.client import ChatClient
from qaeval_core.llm.governor_client import GovernorClient, LeaseHolder
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import Asked, JournalEntry
from qaeval_core.llm.leases import LEASE_S
from qaeval_core.llm.limits import Estimates, Message, Prices, most_prompt_tokens
from qaeval_core.llm.reply_body import ChatReply
from qaeval_core.llm.responses import ChatFailure
from qaeval_core.llm.retry import CircuitBreaker, RetryRule
from qaeval_core.llm.send_slot import BudgetQueue, NotYetError, SendSlot

# What there is to say of replies, by the names under which the report counts them.
USAGE_OVER_BOUND = "usage_over_bound"
UNREAD_BY_ERROR = "unread_by_error"
_CLAIM_POLL_S = 0.5
_MAX_OWN_WAIT_S = 300.0  # A server that is back sooner than it said is used.


@dataclass(frozen=True, slots=True)
class Answer:
    """The journaled reply, or the reason why there is none; and the failures on the way.

    ``notes`` name what is odd about a reply that was paid for now (``CallAccounting``). Of one that
    ``is_new``, what is ``parsed`` was read by this very program.
    """

    entry: JournalEntry | None
    reason: str | None = None
    message: str | None = None
    failures: tuple[str, ...] = ()
    is_from_journal: bool = False
    notes: tuple[str, ...] = ()
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, under the name that the journal knows it by; failures and notes so far."""

    key: str
    messages: Sequence[Message]
    n_prompt_tokens: int
    run_index: int
    place: int = 0  # among all requests, in the order in which they came
    failures: list[ChatFailure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The failures' reasons, in order."""
        return tuple(failure.reason for failure in self.failures)


class CallAccounting:
    """Estimates calls, and journals and settles what came of them.

    Limits go by an estimate of the prompt, for what is reserved too much is throughput lost. Money
    goes by a bound that cannot be too low, for what is reserved too little breaks the budget.

    A reply is journaled before anything is learned or settled by it. What a server counts is
    believed up to the bound: a count above it would be money that cannot have been spent, and empty
    the budget.

    Parameters
    ----------
    client : ChatClient
        The endpoint.
    governor : GovernorClient
        Who is told how calls ended.
    journal : Journal
        Where replies are kept.
    prices : Prices
        For reservations and for what the journal says.
    parse : callable or None
        Reads a reply's text into fields that are journaled with it.
    """

    def __init__(
        self,
        client: ChatClient,
        governor: GovernorClient,
        journal: Journal,
        *,
        prices: Prices,
        parse: Callable[[str], Mapping[str, Any]] | None,
    ) -> None:
        self._client = client
        self._governor = governor
        self._journal = journal
        self._prices = prices
        self._parse = parse
        self._estimates = Estimates()

    def n_tokens(self, request: Request) -> int:
        """Return what a server will likely count when the call arrives."""
        return self._n_estimated(request) + self._client.endpoint.max_completion_tokens

    def most_usd(self, request: Request) -> float:
        """Return the most that the call can cost."""
        return self._prices.cost_usd(
            n_prompt_tokens=self._n_most(request),
            n_completion_tokens=self._client.endpoint.max_completion_tokens,
        )

    async def keep(
        self, call_id: str, request: Request, outcome: ChatReply | ChatFailure
    ) -> JournalEntry | ChatFailure:
        """Journal and settle what came of a call, and heed what the server asks for.

        Raises
        ------
        RunError
            If the disk or the governor refuses.
        """
        if isinstance(outcome, ChatFailure):
            await self._heed(outcome)
            silent_s = await self._governor.failed(
                call_id, billed=outcome.may_be_billed, end=outcome.end
            )
            return replace(outcome, silent_s=silent_s)
        reply = self._bounded(outcome, request)
        entry = self._entry(reply, request, call_id=call_id)
        try:
            # First of all: whatever becomes of the governor, the reply is paid for.
            entry, stored = await asyncio.to_thread(self._store, entry, request)
            await asyncio.wrap_future(stored)
            return entry
        finally:  # Also where it cannot be kept.
            n_prompt = reply.n_prompt_tokens
            most = self._client.endpoint.max_completion_tokens
            n_admitted = None if n_prompt is None else n_prompt + most
            await self._heed(reply)
            await self._governor.settle(
                entry.call_id,
                tokens=entry.n_prompt_tokens + entry.n_completion_tokens,
                usd=entry.usd,
                n_admitted=n_admitted,
            )
            if n_prompt is not None:
                self._estimates.learn(request.n_prompt_tokens, counted=n_prompt)

    def _store(self, entry: JournalEntry, request: Request) -> tuple[JournalEntry, Future[None]]:
        """Journal a reply with what is read of it, or without; runs in a thread.

        Texts are long, and disks slow. An object store gets it with others, and then says so.
        """
        try:
            if self._parse is not None and entry.text is not None:
                entry = replace(entry, parsed=self._parse(entry.text))
        except Exception:  # An error of this program; who reads the entry meets it, and names it.
            request.notes.append(UNREAD_BY_ERROR)
        return entry, self._journal.put_soon(entry)

    def _bounded(self, reply: ChatReply, request: Request) -> ChatReply:
        """Return a reply with the counts that it can have; None stands for those it cannot.

        None of a text's tokens is as impossible as a million of them. A completion is as long as it
        was allowed to be, or as its text, in bytes, where a server heeds no ``max_tokens``.
        """
        n_text = len(reply.text.encode("utf-8", "surrogatepass"))
        n_prompt, n_completion = reply.n_prompt_tokens, reply.n_completion_tokens
        most_prompt = most_prompt_tokens(request.messages)
        most_completion = max(self._client.endpoint.max_completion_tokens, n_text)
        n_prompt = n_prompt or None
        n_completion = None if n_completion == 0 and n_text > 0 else n_completion
        if (n_prompt or 0) > most_prompt or (n_completion or 0) > most_completion:
            request.notes.append(USAGE_OVER_BOUND)
        return replace(
            reply,
            n_prompt_tokens=n_prompt and min(n_prompt, most_prompt),
            n_completion_tokens=n_completion and min(n_completion, most_completion),
        )

    async def _heed(self, outcome: ChatReply | ChatFailure) -> None:
        if outcome.pause_s:
            await self._governor.pause(outcome.pause_s)

    def _entry(self, reply: ChatReply, request: Request, *, call_id: str) -> JournalEntry:
        """Return a reply as the journal keeps it, not read yet.

        Where the server tells no counts, tokens are those that were estimated, and money is what
        was reserved: no call is cheaper than it may have been.
        """
        endpoint = self._client.endpoint
        n_estimated = n_most = reply.n_prompt_tokens
        if n_estimated is None or n_most is None:
            n_estimated, n_most = self._n_estimated(request), self._n_most(request)
        n_completion_tokens = reply.n_completion_tokens
        if n_completion_tokens is None:
            n_completion_tokens = endpoint.max_completion_tokens
        return JournalEntry(
            key=request.key,
            call_id=call_id,
            account=self._client.account,
            base_url=endpoint.base_url,
            model=endpoint.model,
            run_index=request.run_index,
            text=reply.text,
            parsed=None,
            finish_reason=reply.finish_reason,
            n_prompt_tokens=n_estimated,
            n_completion_tokens=n_completion_tokens,
            usd=self._prices.cost_usd(
                n_prompt_tokens=n_most, n_completion_tokens=n_completion_tokens
            ),
            at=time.time(),
        )

    def _n_estimated(self, request: Request) -> int:
        return self._estimates.scaled(request.n_prompt_tokens)

    def _n_most(self, request: Request) -> int:
        return max(most_prompt_tokens(request.messages), self._n_estimated(request))


class Asker:
    """Asks an endpoint under a governor, with a journal.

    Parameters
    ----------
    client : ChatClient
        The endpoint.
    governor : GovernorClient
        Of the client's account.
    journal : Journal
        Where replies are kept; whoever opened it closes it.
    prices : Prices
        For reservations and for what the journal says.
    parse : callable, optional
        Reads a reply's text into fields that are journaled with it.
    rule : RetryRule
        How often to try.
    max_concurrent : int, default 32
        Calls at once, those that wait for their time included.
    lease_s : float, default 20
        The governor's: how long claims last after a word from here.
    """

    def __init__(
        self,
        client: ChatClient,
        governor: GovernorClient,
        journal: Journal,
        *,
        prices: Prices,
        parse: Callable[[str], Mapping[str, Any]] | None = None,
        rule: RetryRule | None = None,
        max_concurrent: int = 32,
        lease_s: float = LEASE_S,
    ) -> None:
        self._client = client
        self._governor = governor
        self.journal = journal
        self._accounting = CallAccounting(client, governor, journal, prices=prices, parse=parse)
        self._rule = rule or RetryRule()
        self._turn = asyncio.Semaphore(max_concurrent)
        self._queue = BudgetQueue()
        self._n_in_flight = 0
        self._breaker = CircuitBreaker(self._rule)
        self._claims = LeaseHolder(governor, journal, lease_s=lease_s)
        self._in_flight: dict[str, asyncio.Task[Answer]] = {}
        self._ending: set[asyncio.Task[JournalEntry | ChatFailure]] = set()
        self._rng = random.Random()
        self._stopped = asyncio.Event()
        self._stop_error: QAEvalError | None = None

    @property
    def n_in_flight(self) -> int:
        """Calls that have a turn: those that are sent, and those that wait for their time."""
        return self._n_in_flight

    async def ask(
        self, messages: Sequence[Message], *, n_prompt_tokens: int, run_index: int = 0
    ) -> Answer:
        """Return the reply to a request; equal requests in flight are sent once.

        Parameters
        ----------
        messages : sequence of mapping
            The prompt.
        n_prompt_tokens : int
            At least as many as the server will count, or its limits do not hold; scaled up once
            the server counted more for another call. Money is reserved by the prompt's bytes.
        run_index : int, default 0
            Tells runs of one prompt apart.

        Raises
        ------
        EndpointRefusedError
            If no call will be answered.
        BudgetExhaustedError
            If the call might cost more than is left, and no open call can change that.
        QAEvalError
            What ``stop`` was given, the disk or the governor refused; every later call raises it.
        """
        key = self._client.endpoint.request_key(messages, run_index=run_index)
        request = Request(key, messages, n_prompt_tokens, run_index, self._queue.next_place())
        known = await self._known(key, run_index)
        if known is not None:
            self._breaker.replied()
            return Answer(known, is_from_journal=True)
        task = self._in_flight.get(key)
        # Shielded: a caller that is cancelled must not cancel the others' call.
        if task is not None:
            # As if from the journal: the call and its failures are the first caller's.
            answer = await asyncio.shield(task)
            return replace(answer, failures=(), notes=(), is_from_journal=True)
        self._in_flight[key] = task = asyncio.create_task(self._ask_until_done(request))
        task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def stop(self, error: QAEvalError) -> None:
        """Raise the error from all calls that wait, and from later ones; the first one counts.

        Calls in flight complete, and are journaled.
        """
        if self._stop_error is None:
            self._stop_error = error
            self._stopped.set()
            self._queue.free()
            for _ in self._in_flight:  # Who waits for a turn gets one, to find that it is over.
                self._turn.release()

    async def aclose(self) -> None:
        """Give up what is still asked; a call in flight counts as billed."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._claims.aclose()
        await self._client.aclose()

    async def _known(self, key: str, run_index: int) -> JournalEntry | None:
        endpoint = self._client.endpoint
        return await self.journal.find(key, Asked(endpoint.base_url, endpoint.model, run_index))

    def _forget(self, key: str, task: asyncio.Task[Answer]) -> None:
        self._in_flight.pop(key, None)
        if not task.cancelled():
            task.exception()  # Looked at: its callers may all have been cancelled.

    def _check_stop(self) -> None:
        if self._stop_error is not None:
            # One error for many rows: its trace would grow with each of them.
            raise self._stop_error.with_traceback(None)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or raise as soon as all is stopped."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopped.wait()
        self._check_stop()

    async def _ask_until_done(self, request: Request) -> Answer:
        try:
            return await self._retry(request)
        except CallTooLargeError as error:
            return Answer(None, "llm_call_over_limit", str(error), request.reasons)
        except QAEvalError as error:
            # No row's own fault: no money, no disk, no governor. The others would be lost alike.
            self.stop(error)
            raise
        finally:
            if self._claims.holds(request.key):
                await asyncio.shield(self._claims.release(request.key))

    async def _retry(self, request: Request) -> Answer:
        own: list[bool] = []  # failures but those of outages: whether each was a refusal
        while True:
            self._check_stop()
            async with self._turn:
                self._check_stop()
                # In a turn: rows that cannot be sent yet must not keep others from asking.
                is_claimed = await self._claims.claim(request.key)
                known = await self._known(request.key, request.run_index) if is_claimed else None
                if known is not None:
                    self._breaker.replied()
                    return Answer(known, failures=request.reasons, is_from_journal=True)
                if is_claimed:
                    outcome = await self._ask_once_safely(request)
            if not is_claimed:
                await self._sleep(_CLAIM_POLL_S * self._rng.uniform(0.8, 1.2))
                continue
            if isinstance(outcome, JournalEntry):
                self._breaker.replied()
                notes = tuple(request.notes)
                return Answer(outcome, failures=request.reasons, notes=notes, is_new=True)
            request.failures.append(outcome)
            is_outage = self._breaker.is_outage(request.key, outcome)
            if not is_outage:
                own.append(outcome.is_refusal)
            error = self._error_after(outcome)
            if error is not None:
                self.stop(self._breaker.with_counts(error))
            elif outcome.kind == "row_undefined" or self._rule.is_over(own):
                error = self._breaker.count(outcome)
                if error is not None:
                    self.stop(self._breaker.with_counts(error))
                    self._check_stop()
                return Answer(None, outcome.reason, outcome.message, request.reasons)
            else:
                # In an outage the governor spaces what is sent.
                wait_s = self._rule.wait_s(max(len(own), 1), rng=self._rng)
                await self._sleep(max(wait_s, min(outcome.wait_s or 0.0, _MAX_OWN_WAIT_S)))

    def _error_after(self, failure: ChatFailure) -> EndpointRefusedError | None:
        """Return the error that stops the rest, where no other request will fare better."""
        if failure.kind == "fatal_family":
            return EndpointRefusedError(f"{failure.message} [QA0603]")
        return self._breaker.check_outage(failure)

    async def _ask_once_safely(self, request: Request) -> JournalEntry | ChatFailure:
        """Ask once; an error of this program is one call's failure, and ends no other's.

        What the disk, the governor or ``stop`` say is no such error.
        """
        try:
            return await self._ask_once(request)
        except QAEvalError:
            raise
        except Exception as error:
            return self._client.failure_of_fault(error)

    async def _ask_once(self, request: Request) -> JournalEntry | ChatFailure:
        slot = SendSlot(
            self._governor,
            tokens=self._accounting.n_tokens(request),
            usd=self._accounting.most_usd(request),
            sleep=self._sleep,
            patience_s=2 * self._client.endpoint.timeout_s,
            queue=self._queue,
            place=request.place,
        )
        self._n_in_flight += 1
        try:
            outcome = await self._send(request, slot)
        except BaseException:
            if slot.call_id is not None:
                failed = self._governor.failed(slot.call_id, billed=slot.is_passed)
                await asyncio.shield(failed)
                self._queue.free()
            raise
        finally:
            self._n_in_flight -= 1
        # Shielded: a paid reply is kept, whatever becomes of who asked.
        end = asyncio.create_task(self._end(slot.call_id or "", request, outcome))
        self._ending.add(end)
        end.add_done_callback(self._ending.discard)
        try:
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            await asyncio.wait([end])  # Its claim is released then, and others look for it.
            raise

    async def _send(self, request: Request, slot: SendSlot) -> ChatReply | ChatFailure:
        await self._client.open()
        while True:
            await slot.approach()
            with contextlib.suppress(NotYetError):
                return await self._client.complete(
                    request.messages, request_id=request.key, before_send=slot.wait
                )

    async def _end(
        self, call_id: str, request: Request, outcome: ChatReply | ChatFailure
    ) -> JournalEntry | ChatFailure:
        try:
            return await self._accounting.keep(call_id, request, outcome)
        except QAEvalError as error:
            # A full disk: what else is sent would be paid for and lost, one by one.
            self.stop(error)
            raise
        finally:
            self._queue.free()
