"""What lexical metrics have in common: how texts become words, and which statistic they read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from qaeval_core.metrics.base import Metric, Read, Scores, Settings, Values, columns
from qaeval_core.metrics.targets import FloatArray, Targets
from qaeval_core.schema import Language, Stemming, TokenizerName

MAX_ORDER = 4  # of n-grams
ORDERS = tuple(range(1, MAX_ORDER + 1))
_NEEDS_LANGUAGE = ("squad", "spacy")


class WordSettings(Settings):
    """How texts become words; the same for every lexical metric."""

    tokenizer: TokenizerName = Field("13a", description="tokenizer that splits texts into words")
    lowercase: bool = Field(True, description="ignore case")
    stemming: Stemming = Field(
        "none", description="porter: compare Porter stems of words with four or more characters"
    )
    language: Language = Field(
        "en", description="language of articles (tokenizer=squad) and rules (tokenizer=spacy)"
    )
    over_references: Literal["standard", "max"] = Field(
        "standard",
        description="several references; standard: as the metric defines; max: the best one",
    )

    @property
    def expected(self) -> tuple[str, ...]:
        """The tokenizer, and the language where it needs one."""
        return ("tokenizer", *(["language"] if self.tokenizer in _NEEDS_LANGUAGE else []))

    @property
    def word_options(self) -> dict[str, object]:
        """How texts become words; what does not matter is left out, so that more is shared."""
        options: dict[str, object] = {
            "tokenizer": self.tokenizer,
            "lowercase": self.lowercase,
            "stemming": self.stemming,
        }
        if self.tokenizer in _NEEDS_LANGUAGE:
            options["language"] = self.language
        return options


W = TypeVar("W", bound=WordSettings)


class WordMetric(Metric[W]):
    """A metric that is computed from one statistic of words, in 64 bits: as its peers print it."""

    statistic: ClassVar[str]
    needs = ("words",)
    columns = columns("", kind="exact")

    def reads(self, settings: W) -> tuple[Read, ...]:
        """Return the statistic, of words as the settings make them."""
        options = {**settings.word_options, **self.pass_options(settings)}
        return (Read(family=self.statistic, roles=self.words_roles, options=options),)

    @property
    def words_roles(self) -> tuple[str, ...]:
        """Input roles of the statistic."""
        return (*self.roles, *self.optional_roles)

    def pass_options(self, settings: W) -> dict[str, object]:
        """Return what changes the statistic besides how texts become words."""
        return {}

    def score(self, settings: W, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        return self.score_words(settings, read[self.statistic])

    @abstractmethod
    def score_words(self, settings: W, words: Targets) -> Scores:
        """Return the columns of some rows from their statistic."""


def scored(words: Targets, values: Mapping[str, Values], sums: FloatArray | None = None) -> Scores:
    """Return columns, with the reason of each row whose column ``""`` is undefined."""
    return Scores(values, words.reasons(np.asarray(values[""])), sums)


def without_words(words: Targets, scores: FloatArray) -> FloatArray:
    """Return scores, undefined where neither text has a word; of shape (n_targets,)."""
    return np.where(words["no_words"] > 0, np.nan, scores)


def lengths(words: Targets) -> dict[str, FloatArray]:
    """Return words of candidate and reference, of every target."""
    return {"n_candidate": words.per_target("n_candidate"), "n_reference": words["n_reference"]}


def totals(words: Targets) -> FloatArray:
    """Return t_i = max(c - i + 1, 0) for each target; shape (n_targets, max_order)."""
    n_words = words.per_target("n_candidate")
    return np.stack([np.maximum(n_words - order + 1, 0.0) for order in ORDERS], axis=1)


def by_order(words: Targets, name: str) -> FloatArray:
    """Return counts of n-grams; shape (n_targets, max_order)."""
    return np.stack([words[f"{name}_{order}"] for order in ORDERS], axis=1)
