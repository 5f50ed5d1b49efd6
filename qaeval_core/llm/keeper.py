"""Keeper: what a call may hold and cost before it is sent, and what is kept of it after.

Limits go by an estimate of the prompt, for what is reserved too much is throughput lost. Money
goes by a bound that cannot be too low, for what is reserved too little breaks the budget.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qaeval_core.llm.answer import Request
from qaeval_core.llm.client import ChatClient
from qaeval_core.llm.door import AsyncGovernor
from qaeval_core.llm.journal import Journal, JournalEntry
from qaeval_core.llm.outcome import ChatFailure, ChatReply
from qaeval_core.llm.terms import Estimates, Prices, most_prompt_tokens


class Keeper:
    """Estimates calls, and journals and settles what came of them.

    Parameters
    ----------
    client : ChatClient
        The endpoint.
    governor : AsyncGovernor
        Who is told how calls ended.
    journal : Journal
        Where replies are kept.
    prices : Prices
        For reservations and for what the journal says.
    parse : callable or None
        Reads a reply's text into fields that are journalled with it.
    """

    def __init__(
        self,
        client: ChatClient,
        governor: AsyncGovernor,
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
        parsed = None
        try:
            if self._parse is not None:
                parsed = self._parse(outcome.text)
        finally:  # Also where the parser fails: the reply was paid for.
            entry = self._entry(outcome, request, call_id=call_id, parsed=parsed)
            await self._store(entry, request, outcome)
        return entry

    async def _store(self, entry: JournalEntry, request: Request, reply: ChatReply) -> None:
        n_admitted = None
        if reply.n_prompt_tokens is not None:
            self._estimates.learn(request.n_prompt_tokens, counted=reply.n_prompt_tokens)
            most = self._client.endpoint.max_completion_tokens
            n_admitted = reply.n_prompt_tokens + most
        try:
            # First of all: whatever becomes of the governor, the reply is paid for.
            await asyncio.to_thread(self._journal.put, entry)
        finally:  # Also where it cannot be kept.
            await self._heed(reply)
            await self._governor.settle(
                entry.call_id,
                tokens=entry.n_prompt_tokens + entry.n_completion_tokens,
                usd=entry.usd,
                n_admitted=n_admitted,
            )

    async def _heed(self, outcome: ChatReply | ChatFailure) -> None:
        if outcome.pause_s:
            await self._governor.pause(outcome.pause_s)

    def _entry(
        self,
        reply: ChatReply,
        request: Request,
        *,
        call_id: str,
        parsed: Mapping[str, Any] | None,
    ) -> JournalEntry:
        """Return a reply as the journal keeps it.

        Where the server tells no counts, tokens are those that were estimated, and money is what
        was reserved: no call is cheaper than it may have been.
        """
        endpoint = self._client.endpoint
        n_completion_tokens = _or(reply.n_completion_tokens, endpoint.max_completion_tokens)
        return JournalEntry(
            key=request.key,
            call_id=call_id,
            account=self._client.account,
            base_url=endpoint.base_url,
            model=endpoint.model,
            run_index=request.run_index,
            text=reply.text,
            parsed=parsed,
            finish_reason=reply.finish_reason,
            n_prompt_tokens=_or(reply.n_prompt_tokens, self._n_estimated(request)),
            n_completion_tokens=n_completion_tokens,
            usd=self._prices.cost_usd(
                n_prompt_tokens=_or(reply.n_prompt_tokens, self._n_most(request)),
                n_completion_tokens=n_completion_tokens,
            ),
            at=time.time(),
        )

    def _n_estimated(self, request: Request) -> int:
        return self._estimates.scaled(request.n_prompt_tokens)

    def _n_most(self, request: Request) -> int:
        # A server that counts a long text of its own may exceed even the bound: it told so then.
        return max(most_prompt_tokens(request.messages), self._n_estimated(request))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
