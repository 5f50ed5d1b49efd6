"""Family naco: questions with passages to what a language model says of them.

Readings of replies in, one row of statistics per row out. Equal (question, passages) of a shard are
one request. Verdicts, steps and answers are stored for every run; profiles, weights and the
expected complexity are applied at join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import Any

import numpy as np
import pyarrow as pa

from qaeval_core.families.chat.family import ChatFamily, ChatWork, PromptRequest, Reading
from qaeval_core.families.chat.naco_prompt import make_prompt, prompt_name, reminder_prompt
from qaeval_core.families.chat.naco_reply import Reply, parse_reply
from qaeval_core.families.model_units import EMPTY_CANDIDATE
from qaeval_core.llm.limits import Message
from qaeval_core.metrics.chat import ChatSettings
from qaeval_core.metrics.f1 import f1
from qaeval_core.metrics.naco import NacoSettings
from qaeval_core.text.tokenize import make_tokenizer

EMPTY_CONTEXT = "empty_context"
EMPTY_ANSWER = "empty_answer"

# Lists hold one value a run. ``problem`` is null for a run that counts; ``reason`` says why a row
# was not asked at all; ``key`` names the reply in the journal.
STATISTICS_SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),
        pa.field("problem", pa.list_(pa.string())),
        pa.field("message", pa.list_(pa.string())),
        pa.field("is_question", pa.list_(pa.bool_())),
        pa.field("is_natural", pa.list_(pa.bool_())),
        pa.field("n_steps", pa.list_(pa.int32())),
        pa.field("answer", pa.list_(pa.string())),
        pa.field("answer_f1", pa.list_(pa.float64())),
        pa.field("says_unanswerable", pa.list_(pa.bool_())),
        pa.field("key", pa.list_(pa.string())),
    ]
)


# Columns of what is read of a reply.
READINGS = ("is_question", "is_natural", "n_steps", "answer", "says_unanswerable")

# What a journal may say of a reply whose text is gone.
_PARSED: Mapping[str, type | UnionType] = {
    "is_readable": bool,
    "is_question": bool | None,
    "is_natural": bool | None,
    "n_steps": int,
    "answer": str | None,
    "says_unanswerable": bool,
    "problem": str | None,
}
_MAX_STEPS = 1_000_000


class NacoFamily(ChatFamily):
    """Verdicts, steps and answers."""

    name = "naco"
    version = "1"
    roles = ("candidate", "context", "answer")
    schema = STATISTICS_SCHEMA

    def asked(self, settings: ChatSettings) -> dict[str, object]:
        """Return what is asked besides model and parameters."""
        own = _own(settings)
        return {
            "one_shot": own.one_shot,
            "prompt": prompt_name(one_shot=own.one_shot),
            "runs": own.runs,
        }

    def lay_out(self, values: Mapping[str, Sequence[Any]], settings: ChatSettings) -> ChatWork:
        """Return the requests of good rows.

        Parameters
        ----------
        values : mapping of role to values
            ``candidate`` a text, ``context`` a list of passages, ``answer`` a text; the last is
            missing where only steps matter.
        """
        own = _own(settings)
        answers: Sequence[str] | None = values.get("answer")
        reasons: list[str | None] = []
        rows: dict[tuple[str, ...], list[int]] = {}
        for i, (question, passages) in enumerate(
            zip(values["candidate"], values["context"], strict=True)
        ):
            # An empty passage says nothing and would only shift the numbers of the others.
            given = tuple(passage for passage in passages if passage.strip())
            reasons.append(_why_not(question, given, answers[i] if answers is not None else None))
            if reasons[-1] is None:
                rows.setdefault((question, *given), []).append(i)
        requests = [
            PromptRequest(
                make_prompt(question=question, passages=passages, one_shot=own.one_shot), of
            )
            for (question, *passages), of in rows.items()
        ]
        return ChatWork(self, requests, reasons, n_runs=own.runs, values=values)

    def read_reply(self, text: str) -> Reply:
        """Return what a reply says."""
        return parse_reply(text)

    def reply_of(self, parsed: Mapping[str, Any]) -> Reply:
        """Return what was read of a reply; one that says what cannot be is unreadable."""
        fits = parsed.keys() <= _PARSED.keys() and "is_readable" in parsed
        if fits and all(isinstance(value, _PARSED[name]) for name, value in parsed.items()):
            reply = Reply(**parsed)
            if 0 <= reply.n_steps <= _MAX_STEPS and not isinstance(reply.n_steps, bool):
                return reply
        return Reply(is_readable=False, problem="no_answer")

    def remind(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a prompt that reminds of the form of replies."""
        return reminder_prompt(messages)

    def statistics(
        self, work: ChatWork, readings: Sequence[Sequence[Reading]]
    ) -> dict[str, pa.Array]:
        """Return the statistics of every row, in row order."""
        golds = work.values.get("answer") or [None] * len(readings)
        scores = [
            [_answer_score(reading.reply, gold) for reading in own]
            for gold, own in zip(golds, readings, strict=True)
        ]
        columns: dict[str, list[Any]] = {
            "reason": work.reasons,
            "answer_f1": scores,
            **{
                name: [[getattr(reading, name) for reading in own] for own in readings]
                for name in ("problem", "message", "key")
            },
            **{
                name: [[getattr(reading.reply, name, None) for reading in own] for own in readings]
                for name in READINGS
            },
        }
        return {
            field.name: pa.array(columns[field.name], field.type) for field in STATISTICS_SCHEMA
        }


def _own(settings: ChatSettings) -> NacoSettings:
    assert isinstance(settings, NacoSettings)
    return settings


def _answer_score(reply: Any, gold: str | None) -> float:
    if reply is None or reply.answer is None or gold is None:
        return 0.0
    return answer_f1(reply.answer, gold=gold)


_SQUAD_WORDS = make_tokenizer("squad")


@lru_cache(maxsize=1 << 14)  # Rows of one passage share gold answers, and runs mostly agree.
def answer_f1(answer: str, *, gold: str) -> float:
    """Return SQuAD's F1 of two answers, in [0, 1].

    Examples
    --------
    >>> answer_f1("The lighthouse on Skarn", gold="lighthouse")
    0.5
    """
    candidate, reference = Counter(_SQUAD_WORDS(answer)), Counter(_SQUAD_WORDS(gold))
    score = f1(
        n_common=np.array([(candidate & reference).total()]),
        n_candidate=np.array([candidate.total()]),
        n_reference=np.array([reference.total()]),
    )
    return float(score.f1[0])


def _why_not(question: str, passages: Sequence[str], gold: str | None) -> str | None:
    """Return why a row is not asked: what is empty cannot be judged, and costs nothing."""
    if not question.strip():
        return EMPTY_CANDIDATE
    if not passages:
        return EMPTY_CONTEXT
    if gold is not None and not gold.strip():
        return EMPTY_ANSWER
    return None
