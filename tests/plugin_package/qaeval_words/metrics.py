"""Capped ratio: words of the shorter text over those of the longer, at most a cap."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from qaeval import metric
from qaeval_core.metrics.base import Metric, Read, Scores, Settings
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import WordMetric, WordSettings, lengths, scored


@metric(low=0, high=1)
def coverage(candidate: str, references: list[str]) -> float | None:
    """Share of the first reference's words that the candidate has."""
    words = references[0].lower().split() if references else []
    if not words:
        return None
    return sum(word in candidate.lower().split() for word in words) / len(words)


class CappedSettings(WordSettings):
    """Settings of ``capped_ratio``."""

    cap: float = Field(1.0, gt=0.0, le=1.0, description="largest score")


class CappedRatio(WordMetric[CappedSettings]):
    """Words of the shorter text over those of the longer."""

    name, title = "capped_ratio", "words of the shorter text over those of the longer"
    source = "a test"
    settings = CappedSettings
    statistic = "lcs"
    is_symmetric = True

    def score_words(self, settings: CappedSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        candidate, reference = lengths(words).values()
        longer = np.maximum(candidate, reference)
        each = np.where(longer > 0, np.minimum(candidate, reference) / np.maximum(longer, 1), 1.0)
        return scored(words, {"": np.minimum(words.best(each), settings.cap)})


class FirstSettings(Settings):
    """Settings of ``first_cosine``."""

    encoder: str = Field("minilm", description="folder of the encoder")


class FirstCosine(Metric[FirstSettings]):
    """Cosine of the first tokens' vectors."""

    name, title = "first_cosine", "cosine of the first tokens' vectors"
    source = "a test"
    settings = FirstSettings
    needs = ("first_encoder",)
    low = -1.0
    columns = CappedRatio.columns

    def reads(self, settings: FirstSettings) -> tuple[Read, ...]:
        """Return the cosines."""
        return (Read(family="first_tokens", model=settings.encoder),)

    def score(self, settings: FirstSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        pairs = read["first_tokens"]
        best = pairs.best(np.clip(pairs["cosine"], -1.0, 1.0))
        return Scores({"": best}, pairs.reasons(best))
