"""Roundtrip: whether a reader, asked the question, finds the answer that it was made for.

Scores of spans and words in common in, scores out. Loads no model and reads no text.

Source
------
Alberti, Andor, Pitler, Devlin, Collins. Synthetic QA Corpora Generation with Roundtrip Consistency.
ACL 2019, arXiv:1906.05416, section 2: keep what a reader answers as given. With a* the span of the
context, of at most 30 tokens, whose first and last tokens have the largest sum of logits s(a)::

    roundtrip  = F1(a*, given answer)              words by the rule of SQuAD
    confidence = exp(s(a*) - log sum_a exp s(a))   over all spans a of the context
    margin     = s(a*) - s(no answer)

A long context is read in windows; each span is in one of them, and "no answer" is that of the
window that says so least.

Differs from the paper
----------------------
- F1 is the score, and exact match stands beside it.
- The reader may not abstain: its best span is always compared, and what it thinks of "no answer"
  is the margin alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from qaeval_core.metrics.base import Column, Metric, Read, Scores, Settings
from qaeval_core.metrics.exact_match import exact_match
from qaeval_core.metrics.f1 import f1
from qaeval_core.metrics.targets import Targets


class RoundtripSettings(Settings):
    """Settings of ``roundtrip``."""

    reader: str = Field(
        "reader-minilm", description="bundled model, folder or hub id of the extractive reader"
    )


class Roundtrip(Metric[RoundtripSettings]):
    """Roundtrip consistency."""

    name = "roundtrip"
    title = "whether a reader finds the given answer when it is asked the question"
    source = "Alberti et al. Roundtrip Consistency. ACL 2019, arXiv:1906.05416, section 2"
    settings = RoundtripSettings
    needs = ("reader",)
    roles = ("candidate", "context", "answer")
    columns = (
        Column("", "exact"),
        Column("exact", "exact"),
        Column("confidence"),
        Column("null_margin", is_share=False),
        Column("answer", "text"),
        Column("windows", "count"),
    )
    over_references = "none"

    def reads(self, settings: RoundtripSettings) -> tuple[Read, ...]:
        """Return the spans."""
        return (Read(family="answer_span", model=settings.reader),)

    def score(self, settings: RoundtripSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        found = read["answer_span"]
        reasons = found.own_reasons()
        is_scored = np.array([reason is None for reason in reasons], dtype=bool)
        score = found["score"]
        answers = [own[0] for own in found.lists("answer")]

        def scored(values: np.ndarray) -> np.ndarray:
            return np.where(is_scored, values, np.nan)

        token_f1 = f1(
            n_common=found.ints("n_common"),
            n_candidate=found.ints("n_found"),
            n_reference=found.ints("n_given"),
        ).f1
        best = scored(token_f1)
        return Scores(
            {
                "": best,
                "exact": scored(exact_match(is_equal=found["is_equal"] > 0)),
                "confidence": np.exp(score - found["log_sum"]),
                "null_margin": score - found["null_score"],
                "answer": answers,
                "windows": found.ints("n_windows"),
            },
            found.reasons(best, empty_target="empty_context"),
        )
