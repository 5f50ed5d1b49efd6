"""ROUGE-L: F-score of the longest common subsequence of words.

Lengths in, scores out. Tokenizes nothing.

Source
------
Lin. ROUGE: A Package for Automatic Evaluation of Summaries. ACL 2004 workshop, section 3. With the
length l of the longest common subsequence::

    P = l / |candidate|
    R = l / |reference|
    ROUGE-L = (1 + beta^2) P R / (R + beta^2 P)
            = (1 + beta^2) l / (|candidate| + beta^2 |reference|)

A text without words scores 1 against another without words, and 0 against any other. Several
references: the largest P and the largest R, each on its own (coco-caption, MS-MARCO, DuReader), or
with ``over_references=max`` the best F-score with its P and R (rouge-score).

Differs from rouge-score 0.1.2
------------------------------
- Two texts without words score 1; there 0.

But: no ROUGE-Lsum; a text is one sequence.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from math import isnan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Scores, columns
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import WordMetric, WordSettings, lengths, scored, without_words
from qaeval_core.schema import TokenizerName

FloatArray = NDArray[np.float64]


class RougeLScores(NamedTuple):
    """Scores of each pair; float ndarrays of shape (n_pairs,), in [0, 1], higher is better."""

    precision: FloatArray
    recall: FloatArray
    rouge_l: FloatArray


def rouge_l(
    *, lcs: FloatArray, n_candidate: FloatArray, n_reference: FloatArray, beta: float = 1.0
) -> RougeLScores:
    """Return P, R and ROUGE-L of pairs.

    Parameters
    ----------
    lcs, n_candidate, n_reference : ndarray of shape (n_pairs,)
        Words of the longest common subsequence, of the candidate, of the reference.
    beta : float, default 1.0
        Weight of recall.

    Examples
    --------
    >>> scores = rouge_l(lcs=np.array([6]), n_candidate=np.array([7]), n_reference=np.array([12]))
    >>> scores.rouge_l.round(3)
    array([0.632])
    """
    both_empty = (n_candidate == 0) & (n_reference == 0)
    precision = np.where(both_empty, 1.0, lcs / np.maximum(n_candidate, 1))  # P
    recall = np.where(both_empty, 1.0, lcs / np.maximum(n_reference, 1))  # R
    # As one fraction: scores that are equal tie to the last bit, which rank correlations see.
    below = n_candidate + beta**2 * n_reference
    score = (1 + beta**2) * lcs / np.where(below > 0, below, 1.0)  # ROUGE-L
    return RougeLScores(precision, recall, np.where(both_empty, 1.0, score))


def f_score(precision: FloatArray, recall: FloatArray, *, beta: float) -> FloatArray:
    """Return (1 + beta^2) P R / (R + beta^2 P); 0 where both are 0.

    Examples
    --------
    >>> f_score(np.array([0.5, 0.0]), np.array([1.0, 0.0]), beta=1.0).round(3)
    array([0.667, 0.   ])
    """
    below = recall + beta**2 * precision
    return (1 + beta**2) * precision * recall / np.where(below == 0, 1.0, below)


def cut(scores: FloatArray, *, decimals: int) -> FloatArray:
    """Return scores without the digits after some decimals; NaN stays.

    Rank correlations see the last bit: columns that were printed and cut have other ties than the
    fractions they stand for.

    Examples
    --------
    >>> cut(np.array([2 / 3, 0.25, np.nan]), decimals=3)
    array([0.666, 0.25 ,   nan])
    """
    step = Decimal(1).scaleb(-decimals)
    shortened = [
        value if isnan(value) else float(Decimal(repr(value)).quantize(step, rounding=ROUND_DOWN))
        for value in scores.tolist()
    ]
    return np.array(shortened, dtype=np.float64)


class RougeSettings(WordSettings):
    """Settings of ``rouge_l``."""

    tokenizer: TokenizerName = Field("rouge", description="tokenizer that splits texts into words")
    beta: float = Field(1.0, gt=0.0, description="weight of recall; 1.2 in coco-caption")
    cut_decimals: int | None = Field(
        None,
        ge=1,
        le=17,
        description="combine P and R as rouge-score does, and truncate to N decimals, to reproduce "
        "ties of a published column",
    )


class RougeL(WordMetric[RougeSettings]):
    """ROUGE-L."""

    name = "rouge_l"
    title = "F-score of the longest common subsequence"
    source = "Lin. ROUGE. ACL 2004 workshop, section 3"
    settings = RougeSettings
    statistic = "lcs"
    columns = columns("", "precision", "recall", kind="exact")
    is_symmetric = True
    over_references = "max of each part"

    def score_words(self, settings: RougeSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        each = rouge_l(lcs=words["lcs"], beta=settings.beta, **lengths(words))
        precision = without_words(words, each.precision)
        recall = without_words(words, each.recall)
        score = without_words(words, each.rouge_l)
        if settings.cut_decimals is not None:
            score = f_score(precision, recall, beta=settings.beta)
        best = words.first_best(score)
        found = best(score), best(precision), best(recall)
        if settings.over_references == "standard":
            best_p, best_r = words.best(precision), words.best(recall)
            combined = f_score(best_p, best_r, beta=settings.beta)
            found = np.where(words.per_row > 1, combined, found[0]), best_p, best_r
        if settings.cut_decimals is not None:
            found = cut(found[0], decimals=settings.cut_decimals), *found[1:]
        return scored(words, dict(zip(("", "precision", "recall"), found, strict=True)))
