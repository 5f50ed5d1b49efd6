"""Answer: what becomes of one request, and the journal's entry of its reply."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from qaeval_core.llm.client import ChatClient, Message
from qaeval_core.llm.journal import JournalEntry
from qaeval_core.llm.outcome import ChatFailure, ChatReply
from qaeval_core.llm.terms import Prices


@dataclass(frozen=True, slots=True)
class Answer:
    """The journalled reply, or the reason why there is none; and the failures on the way."""

    entry: JournalEntry | None
    reason: str | None = None
    message: str | None = None
    failures: tuple[str, ...] = ()
    is_from_journal: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, under the name that the journal knows it by; and the failures so far."""

    key: str
    messages: Sequence[Message]
    n_prompt_tokens: int
    run_index: int
    failures: list[ChatFailure] = field(default_factory=list)


def no_answer(reason: str, message: str, failures: Sequence[ChatFailure]) -> Answer:
    """Return why there is no reply."""
    return Answer(None, reason, message, reasons(failures))


def reasons(failures: Sequence[ChatFailure]) -> tuple[str, ...]:
    """Return the reasons of failures, in order."""
    return tuple(failure.reason for failure in failures)


def make_entry(
    reply: ChatReply,
    request: Request,
    *,
    call_id: str,
    client: ChatClient,
    prices: Prices,
    n_estimated: int,
) -> JournalEntry:
    """Return a reply as the journal keeps it; its text is not parsed yet.

    Counts that the server does not tell are those that were reserved: no call is cheaper than it
    may have been.
    """
    endpoint = client.endpoint
    counts = {
        "n_prompt_tokens": _or(reply.n_prompt_tokens, n_estimated),
        "n_completion_tokens": _or(reply.n_completion_tokens, endpoint.max_completion_tokens),
    }
    return JournalEntry(
        key=request.key,
        call_id=call_id,
        account=client.account,
        base_url=endpoint.base_url,
        model=endpoint.model,
        run_index=request.run_index,
        text=reply.text,
        parsed=None,
        finish_reason=reply.finish_reason,
        usd=prices.cost_usd(**counts),
        at=time.time(),
        **counts,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
