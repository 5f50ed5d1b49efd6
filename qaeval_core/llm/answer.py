"""Answer: one request, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qaeval_core.llm.client import Message
from qaeval_core.llm.journal import JournalEntry
from qaeval_core.llm.outcome import ChatFailure


@dataclass(frozen=True, slots=True)
class Answer:
    """The journalled reply, or the reason why there is none; and the failures on the way.

    ``notes`` name what is odd about a reply that was paid for now (``llm.keeper``).
    """

    entry: JournalEntry | None
    reason: str | None = None
    message: str | None = None
    failures: tuple[str, ...] = ()
    is_from_journal: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, under the name that the journal knows it by; failures and notes so far."""

    key: str
    messages: Sequence[Message]
    n_prompt_tokens: int
    run_index: int
    failures: list[ChatFailure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def no_answer(reason: str, message: str, failures: Sequence[ChatFailure]) -> Answer:
    """Return why there is no reply."""
    return Answer(None, reason, message, reasons(failures))


def reasons(failures: Sequence[ChatFailure]) -> tuple[str, ...]:
    """Return the reasons of failures, in order."""
    return tuple(failure.reason for failure in failures)
