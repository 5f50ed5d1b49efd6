"""Exact match: 1 where candidate and reference are equal after normalization.

Equality of normalized texts in, scores out; the normalization is the tokenizer's
(``text.tokenize``, rule ``squad``).

Source
------
Rajpurkar et al. SQuAD. EMNLP 2016, arXiv:1606.05250, section 6.1, and the evaluation script v1.1.
Several references: the best one. With another tokenizer than the script's, two texts of which it
leaves no words are undefined: they may be any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Scores
from qaeval_core.metrics.targets import FloatArray, Targets
from qaeval_core.metrics.words import WordMetric, WordSettings, scored, without_words
from qaeval_core.schema import TokenizerName

SQUAD = "Rajpurkar et al. SQuAD. EMNLP 2016, arXiv:1606.05250, section 6.1; evaluation script v1.1"

# Rules that may leave no words of a text; what SQuAD's own leaves is the script's business.
_DROPPING = ("words", "rouge", "coco")


def exact_match(*, is_equal: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return 1 for equal pairs and 0 for others.

    Parameters
    ----------
    is_equal : bool ndarray of shape (n_pairs,)

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In {0, 1}, higher is better.

    Examples
    --------
    >>> exact_match(is_equal=np.array([True, False]))
    array([1., 0.])
    """
    return is_equal.astype(np.float64)


class OverlapSettings(WordSettings):
    """Settings of ``exact_match`` and ``f1``."""

    tokenizer: TokenizerName = Field("squad", description="tokenizer that splits texts into words")


class OverlapMetric(WordMetric[OverlapSettings]):
    """A metric of SQuAD's evaluation script."""

    source = SQUAD
    settings = OverlapSettings
    statistic = "overlap"
    is_symmetric = True

    def pass_options(self, settings: OverlapSettings) -> dict[str, object]:
        """Return what texts without words are; the script calls any two of them equal."""
        return {"wordless": "undefined"} if settings.tokenizer in _DROPPING else {}

    def defined(self, settings: OverlapSettings, words: Targets, each: FloatArray) -> FloatArray:
        """Return scores of targets, undefined where another rule than the script's has no words."""
        return without_words(words, each) if self.pass_options(settings) else each


class ExactMatch(OverlapMetric):
    """Exact match of normalized texts."""

    name = "exact_match"
    title = "1 where the normalized texts are equal"

    def score_words(self, settings: OverlapSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        each = exact_match(is_equal=words["is_equal"] > 0)
        return scored(words, {"": words.best(self.defined(settings, words, each))})
