"""Ask: one reply for one request, whatever it takes within the rules, and never paid twice.

    journal? -> reserve -> wait -> send -> journal -> settle

with retries in between. A row that cannot be answered comes back with a reason, not as an error;
what stops all rows alike (a refused key, no budget) is raised.

But: what a request asks and what a reply means is ``llm.prompt``'s and ``llm.parse``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qaeval_core.errors import RunError
from qaeval_core.llm.client import ChatClient, Message
from qaeval_core.llm.door import AsyncGovernor
from qaeval_core.llm.gate import Gate, NotYetError
from qaeval_core.llm.journal import Journal, JournalEntry, request_key
from qaeval_core.llm.limits import CallTooLargeError
from qaeval_core.llm.outcome import ChatFailure, ChatReply
from qaeval_core.llm.terms import Prices, RetryRule


class EndpointRefusedError(RunError):
    """The server will answer no call: wrong key, address or model."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The journalled reply, or the reason why there is none; and the failures on the way."""

    entry: JournalEntry | None
    reason: str | None = None
    message: str | None = None
    failures: tuple[str, ...] = ()
    is_from_journal: bool = False


class Asker:
    """Asks an endpoint under a governor, with a journal.

    Parameters
    ----------
    client : ChatClient
        The endpoint.
    governor : AsyncGovernor
        Of the client's account.
    journal : Journal
        Where replies are kept.
    prices : Prices
        For reservations and for what the journal says.
    parse : callable, optional
        Reads a reply's text into fields that are journalled with it.
    rule : RetryRule
        How often to try.
    max_concurrent : int, default 32
        Calls at once, those that wait for their time included.
    """

    def __init__(
        self,
        client: ChatClient,
        governor: AsyncGovernor,
        journal: Journal,
        *,
        prices: Prices,
        parse: Callable[[str], Mapping[str, Any]] | None = None,
        rule: RetryRule | None = None,
        max_concurrent: int = 32,
    ) -> None:
        self._client = client
        self._governor = governor
        self._journal = journal
        self._prices = prices
        self._parse = parse
        self._rule = rule or RetryRule()
        self._turn = asyncio.Semaphore(max_concurrent)
        self._in_flight: dict[str, asyncio.Task[Answer]] = {}
        self._ending: set[asyncio.Task[JournalEntry | ChatFailure]] = set()
        self._rng = random.Random()
        self._stopped = asyncio.Event()
        self._stop_message = ""

    async def ask(
        self, messages: Sequence[Message], *, n_prompt_tokens: int, run_index: int = 0
    ) -> Answer:
        """Return the reply to a request; equal requests in flight are sent once.

        Parameters
        ----------
        messages : sequence of mapping
            The prompt.
        n_prompt_tokens : int
            At least as many as the server will count, or its limits do not hold.
        run_index : int, default 0
            Tells runs of one prompt apart.

        Raises
        ------
        EndpointRefusedError
            If no call will be answered; every later call raises it too.
        BudgetExhaustedError
            If the call might cost more than is left.
        """
        endpoint = self._client.endpoint
        key = request_key(
            base_url=endpoint.base_url,
            model=endpoint.model,
            parameters=endpoint.parameters,
            messages=messages,
            run_index=run_index,
        )
        known = self._journal.get(key)
        if known is not None:
            return Answer(known, is_from_journal=True)
        task = self._in_flight.get(key)
        if task is None:
            request = _Request(key, messages, n_prompt_tokens, run_index)
            task = asyncio.create_task(self._ask_until_done(request))
            self._in_flight[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # Shielded: one of several callers that is cancelled must not cancel the others' call.
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Give up what is still asked; a call in flight counts as billed."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._client.aclose()

    def _forget(self, key: str, task: asyncio.Task[Answer]) -> None:
        self._in_flight.pop(key, None)
        if not task.cancelled():
            task.exception()  # Looked at: its callers may all have been cancelled.

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise EndpointRefusedError(self._stop_message)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or raise as soon as no call will be answered."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopped.wait()
        self._check_stop()

    async def _ask_until_done(self, request: _Request) -> Answer:
        failures: list[ChatFailure] = []
        while True:
            self._check_stop()
            try:
                async with self._turn:
                    outcome = await self._ask_once(request)
            except CallTooLargeError as error:
                return _no_answer("llm_call_over_limit", str(error), failures)
            if isinstance(outcome, JournalEntry):
                return Answer(outcome, failures=_reasons(failures))
            failures.append(outcome)
            if outcome.kind == "fatal_family":
                self._stop_message = outcome.message
                self._stopped.set()
            elif outcome.kind == "row_undefined" or self._is_given_up(failures):
                return _no_answer(outcome.reason, outcome.message, failures)
            else:
                await self._sleep(self._rule.wait_s(len(failures), rng=self._rng))

    def _is_given_up(self, failures: Sequence[ChatFailure]) -> bool:
        n_refusals = sum(failure.is_refusal for failure in failures)
        n_faults = len(failures) - n_refusals
        return n_faults >= self._rule.max_faults or n_refusals >= self._rule.max_refusals

    async def _ask_once(self, request: _Request) -> JournalEntry | ChatFailure:
        endpoint = self._client.endpoint
        most = {
            "n_prompt_tokens": request.n_prompt_tokens,
            "n_completion_tokens": endpoint.max_completion_tokens,
        }
        gate = Gate(
            self._governor,
            tokens=sum(most.values()),
            usd=self._prices.cost_usd(**most),
            sleep=self._sleep,
            patience_s=2 * endpoint.timeout_s,
        )
        try:
            outcome = await self._send(request, gate)
        except BaseException:
            if gate.call_id is not None:
                failed = self._governor.failed(gate.call_id, billed=gate.is_passed)
                await asyncio.shield(failed)
            raise
        # Shielded: a reply that was paid for is kept, whatever becomes of who asked.
        end = asyncio.create_task(self._end(gate.call_id or "", request, outcome))
        self._ending.add(end)
        end.add_done_callback(self._ending.discard)
        return await asyncio.shield(end)

    async def _send(self, request: _Request, gate: Gate) -> ChatReply | ChatFailure:
        await self._client.open()
        while True:
            await gate.approach()
            with contextlib.suppress(NotYetError):
                return await self._client.complete(
                    request.messages, request_id=request.key, gate=gate.wait
                )

    async def _end(
        self, call_id: str, request: _Request, outcome: ChatReply | ChatFailure
    ) -> JournalEntry | ChatFailure:
        """Journal and settle what came of a call, and heed what the server asks for."""
        if outcome.pause_s:
            await self._governor.pause(outcome.pause_s)
        if isinstance(outcome, ChatFailure):
            await self._governor.failed(call_id, billed=outcome.may_be_billed)
            if outcome.is_refusal:
                await self._governor.slow_down()
            return outcome
        entry = self._entry(call_id, request, outcome)
        try:
            if self._parse is not None:
                entry = replace(entry, parsed=self._parse(outcome.text))
        finally:  # Also where the parser fails: the reply was paid for.
            await asyncio.to_thread(self._journal.put, entry)
            n_tokens = entry.n_prompt_tokens + entry.n_completion_tokens
            await self._governor.settle(call_id, tokens=n_tokens, usd=entry.usd)
        return entry

    def _entry(self, call_id: str, request: _Request, reply: ChatReply) -> JournalEntry:
        endpoint = self._client.endpoint
        counts = {
            # Untold counts are those that were reserved: no call is cheaper than it may have been.
            "n_prompt_tokens": _or(reply.n_prompt_tokens, request.n_prompt_tokens),
            "n_completion_tokens": _or(reply.n_completion_tokens, endpoint.max_completion_tokens),
        }
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
            usd=self._prices.cost_usd(**counts),
            at=time.time(),
            **counts,
        )


@dataclass(frozen=True, slots=True)
class _Request:
    key: str
    messages: Sequence[Message]
    n_prompt_tokens: int
    run_index: int


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _reasons(failures: Sequence[ChatFailure]) -> tuple[str, ...]:
    return tuple(failure.reason for failure in failures)


def _no_answer(reason: str, message: str, failures: Sequence[ChatFailure]) -> Answer:
    return Answer(None, reason, message, _reasons(failures))
