"""Keeper: what a call may hold and cost before it is sent, and what is kept of it after.

Limits go by an estimate of the prompt, for what is reserved too much is throughput lost. Money
goes by a bound that cannot be too low, for what is reserved too little breaks the budget.

A reply is journalled before anything is learnt or settled by it. What a server counts is believed
up to the bound: a count above it would be money that cannot have been spent, and empty the budget.
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

# What there is to say of replies, by the names under which the report counts them.
USAGE_OVER_BOUND = "usage_over_bound"
UNREAD_BY_ERROR = "unread_by_error"


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
        reply = self._bounded(outcome, request)
        entry = self._entry(reply, request, call_id=call_id)
        try:
            # First of all: whatever becomes of the governor, the reply is paid for.
            return await asyncio.to_thread(self._store, entry, request)
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

    def _store(self, entry: JournalEntry, request: Request) -> JournalEntry:
        """Journal a reply with what is read of it, or without; runs in a thread.

        Both take as long as the text is long, and the disk may be slow.
        """
        try:
            if self._parse is not None and entry.text is not None:
                entry = replace(entry, parsed=self._parse(entry.text))
        except Exception:  # An error of this program; who reads the entry meets it, and names it.
            request.notes.append(UNREAD_BY_ERROR)
        self._journal.put(entry)
        return entry

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
        n_completion_tokens = _or(reply.n_completion_tokens, endpoint.max_completion_tokens)
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
        return max(most_prompt_tokens(request.messages), self._n_estimated(request))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
