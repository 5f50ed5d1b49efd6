"""Family naco: questions with passages to what a language model says of them.

Good rows in, requests out; readings of replies in, one row of statistics per row out. Equal
(question, passages) of a shard are one request. Verdicts, steps and answers are stored for every
run; profiles, weights and the expected complexity are applied at join.

But: requests are sent by ``scoring.asking``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from qaeval_core.metrics.f1 import f1
from qaeval_core.scoring.families.base import EMPTY_CANDIDATE
from qaeval_core.scoring.families.chat.naco_prompt import Message, make_prompt
from qaeval_core.scoring.families.chat.naco_reply import Reply
from qaeval_core.text.tokenise import make_tokeniser

EMPTY_CONTEXT = "empty_context"
EMPTY_ANSWER = "empty_answer"
UNPARSABLE = "unparsable_reply"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """What came of one run of one request.

    Attributes
    ----------
    reply : Reply or None
        What its reply says; None where there is none.
    problem : str or None
        Why the run does not count; None where it counts.
    message : str or None
        The same, for people.
    key : str or None
        Name of the reply in the journal.
    """

    reply: Reply | None
    problem: str | None = None
    message: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One distinct prompt of a shard; all rows of it get the same readings."""

    messages: Sequence[Message]
    rows: list[int]


class NacoWork:
    """The questions of one shard.

    Parameters
    ----------
    values : mapping of role to values
        Of good rows: ``candidate`` a text, ``context`` a list of passages, ``answer`` a text; the
        last is missing where only steps matter.
    one_shot : bool
        Whether prompts show an example.
    n_runs : int
        Replies asked for each request.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]], *, one_shot: bool, n_runs: int) -> None:
        self.n_runs = n_runs
        self._answers: Sequence[str] | None = values.get("answer")
        self._reasons: list[str | None] = []
        rows: dict[tuple[str, ...], list[int]] = {}
        for i, (question, passages) in enumerate(
            zip(values["candidate"], values["context"], strict=True)
        ):
            # An empty passage says nothing and would only shift the numbers of the others.
            given = tuple(passage for passage in passages if passage.strip())
            gold = self._answers[i] if self._answers is not None else None
            reason = _why_not(question, given, gold)
            self._reasons.append(reason)
            if reason is None:
                rows.setdefault((question, *given), []).append(i)
        self.requests = [
            Request(make_prompt(question=question, passages=passages, one_shot=one_shot), own)
            for (question, *passages), own in rows.items()
        ]
        self._readings: dict[int, list[RunReading]] = {}

    @property
    def n_units(self) -> int:
        """Requests, each run counted."""
        return self.n_runs * len(self.requests)

    @property
    def n_units_unshared(self) -> int:
        """Requests, had none been shared."""
        return self.n_runs * sum(len(request.rows) for request in self.requests)

    def take(self, request: Request, readings: Sequence[RunReading]) -> None:
        """Keep what came of all runs of a request."""
        for row in request.rows:
            self._readings[row] = list(readings)

    def statistics(self) -> dict[str, pa.Array]:
        """Return the raw statistics of every row, in row order.

        Raises
        ------
        KeyError
            If a row that was to be asked has no reading.
        """
        per_row = [
            self._readings[i] if reason is None else [] for i, reason in enumerate(self._reasons)
        ]
        scores = self._answer_scores(per_row)
        columns: dict[str, list[Any]] = {
            "reason": self._reasons,
            "answer_f1": scores,
            **{
                name: [[getattr(reading, name) for reading in own] for own in per_row]
                for name in ("problem", "message", "key")
            },
            **{
                name: [[getattr(reading.reply, name, None) for reading in own] for own in per_row]
                for name in ("is_question", "is_natural", "n_steps", "answer", "says_unanswerable")
            },
        }
        return {
            field.name: pa.array(columns[field.name], field.type) for field in STATISTICS_SCHEMA
        }

    def _answer_scores(self, per_row: Sequence[Sequence[RunReading]]) -> list[list[float]]:
        """Return the F1 of each run's answer and the gold answer; 0 where it gave none."""
        golds = self._answers if self._answers is not None else [None] * len(per_row)
        return [
            [_answer_score(reading.reply, gold) for reading in own]
            for gold, own in zip(golds, per_row, strict=True)
        ]


def _answer_score(reply: Reply | None, gold: str | None) -> float:
    if reply is None or reply.answer is None or gold is None:
        return 0.0
    return answer_f1(reply.answer, gold=gold)


_SQUAD_WORDS = make_tokeniser("squad")


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
