"""BLEU: precision of n-grams up to an order, with a penalty for brevity.

Counts in, scores out: of one row, or summed over rows for a corpus. Tokenizes nothing.

Source
------
Papineni et al. BLEU. ACL 2002. With c candidate words, r words of the reference closest in length
(ties: the shorter), m_i candidate n-grams of order i, clipped at their largest count in any
reference, and t_i = max(c - i + 1, 0) candidate n-grams::

    P_i = m_i / t_i
    BP = exp(min(0, 1 - r / c))
    BLEU-n = BP (P_1 ... P_n)^(1/n)

A corpus's BLEU takes sums of m_i, t_i, c and r over its rows, never a mean of rows.

Smoothing of an order without a match
-------------------------------------
- ``none``: BLEU is 0.
- ``floor``: m_i = 0.1 (NLTK's method1).
- ``add_one``: m_i + 1 and t_i + 1 for i > 1 (NLTK's method2; Lin, Och. COLING 2004).
- ``exponential``: P_i = 1 / (2^k t_i) at the k-th such order, and orders longer than the candidate
  are left out (sacrebleu's sentence BLEU with effective order).
- ``coco``: (m_i + 1e-15) / (t_i + 1e-9), and the same in r / c (coco-caption).

NLTK's corpus_bleu counts t_i of a row shorter than i words as 1; here, as in sacrebleu, it is 0.
sacrebleu gives 0 to a corpus whose rows are all shorter than n; here ``exponential`` leaves such
orders out, as in a sentence. Two blank texts score 1 here, 0 in both.

A candidate without words scores 1 against references without words, else 0; where no word
matches, BLEU is 0, but for ``coco``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Scores
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import (
    MAX_ORDER,
    WordMetric,
    WordSettings,
    by_order,
    lengths,
    scored,
    totals,
    without_words,
)
from qaeval_core.schema import Smoothing

FloatArray = NDArray[np.float64]

_FLOOR = 0.1
_COCO_TINY = 1e-15
_COCO_SMALL = 1e-9


def bleu(
    *,
    matches: FloatArray,
    totals: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    order: int,
    smoothing: str = "none",
) -> FloatArray:
    """Return BLEU of rows, or of corpora from their sums.

    Parameters
    ----------
    matches, totals : float ndarray of shape (..., max_order)
        m_i and t_i; max_order is at least ``order``.
    n_candidate, n_reference : float ndarray of shape (...)
        c and r, in words.
    order : int
        n; 1 to 4.
    smoothing : {"none", "floor", "add_one", "exponential", "coco"}, default "none"

    Returns
    -------
    float ndarray of shape (...)
        In [0, 1], higher is better.

    Examples
    --------
    >>> counts = {"matches": np.array([2.0, 1.0]), "totals": np.array([3.0, 2.0])}
    >>> lengths = {"n_candidate": np.array(3.0), "n_reference": np.array(4.0)}
    >>> round(float(bleu(**counts, **lengths, order=2)), 4)
    0.4137
    """
    matches, totals = matches[..., :order], totals[..., :order]
    if smoothing == "coco":
        return _coco(matches, totals, n_candidate, n_reference)
    precision, is_counted = _precisions(matches, totals, smoothing)
    with np.errstate(divide="ignore"):
        logs = np.where(is_counted, np.log(precision), 0.0).sum(axis=-1)
    mean = np.exp(logs / np.maximum(is_counted.sum(axis=-1), 1))  # (P_1 ... P_n)^(1/n)
    brevity = np.exp(np.minimum(0.0, 1 - n_reference / np.maximum(n_candidate, 1)))  # BP
    score = np.where(matches[..., 0] > 0, brevity * mean, 0.0)
    return np.where((n_candidate == 0) & (n_reference == 0), 1.0, score)


def _precisions(
    matches: FloatArray, totals: FloatArray, smoothing: str
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return P_i, smoothed, and which orders count."""
    is_counted = np.ones(matches.shape, dtype=bool)
    missing = matches == 0
    denominators = np.maximum(totals, 1.0)
    if smoothing == "floor":
        matches = np.where(missing, _FLOOR, matches)
    elif smoothing == "add_one":
        later = np.arange(matches.shape[-1]) > 0
        matches, denominators = matches + later, denominators + later
    elif smoothing == "exponential":
        is_counted = totals > 0
        nth = np.cumsum(missing, axis=-1)  # Orders that do not count come last.
        matches = np.where(missing, 0.5**nth, matches)
    return matches / denominators, is_counted


def _coco(
    matches: FloatArray, totals: FloatArray, n_candidate: FloatArray, n_reference: FloatArray
) -> FloatArray:
    ratio = (n_candidate + _COCO_TINY) / (n_reference + _COCO_SMALL)
    precision = (matches + _COCO_TINY) / (totals + _COCO_SMALL)
    mean = np.exp(np.log(precision).mean(axis=-1))
    brevity = np.exp(np.minimum(0.0, 1 - 1 / ratio))
    empty = np.where(n_reference == 0, 1.0, 0.0)
    return np.where(n_candidate == 0, empty, mean * brevity)


def bleu_1(*, candidate: Sequence[str], reference: Sequence[str]) -> float:
    """Return BLEU-1 of words against one reference, in [0, 1]; 0 where either is empty.

    It serves the overlap filter of ``qaeval calibrate``.

    Examples
    --------
    >>> round(bleu_1(candidate=["a", "b"], reference=["a", "c", "d"]), 4)
    0.3033
    """
    if not candidate or not reference:
        return 0.0
    clipped = Counter(candidate) & Counter(reference)
    precision = clipped.total() / len(candidate)  # m / c
    return precision * math.exp(min(0.0, 1 - len(reference) / len(candidate)))


class BleuSettings(WordSettings):
    """Settings of ``bleu_1`` to ``bleu_4``."""

    @property
    def expected(self) -> tuple[str, ...]:
        """As of all lexical metrics, and the smoothing."""
        return (*super().expected, "smoothing")

    smoothing: Smoothing = Field(
        "none",
        description="smoothing of orders without a match, per row; floor: NLTK method1, add_one: "
        "NLTK method2, exponential: sacrebleu, coco: coco-caption",
    )


class Bleu(WordMetric[BleuSettings]):
    """BLEU up to an order.

    Parameters
    ----------
    order : int
        Longest n-grams that count, 1 to 4.
    """

    source = "Papineni et al. BLEU. ACL 2002"
    settings = BleuSettings
    statistic = "ngrams"
    over_references = "clip"
    over_examples = "sum_of_statistics"

    def __init__(self, order: int) -> None:
        self.order = order
        self.name = f"bleu_{order}"
        self.title = f"n-gram precision up to {order} words, with a penalty for brevity"

    def pass_options(self, settings: BleuSettings) -> dict[str, object]:
        """Return how n-grams are clipped."""
        return {"over_references": settings.over_references}

    def score_words(self, settings: BleuSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        return best_bleu(
            words,
            matches=by_order(words, "matches"),
            totals=totals(words),
            order=self.order,
            smoothing=settings.smoothing,
        )

    def corpus(self, settings: BleuSettings, sums: FloatArray) -> FloatArray:
        """Return BLEU of corpora."""
        return corpus_bleu(sums, order=self.order, smoothing=settings.smoothing)


def best_bleu(
    words: Targets, *, matches: FloatArray, totals: FloatArray, order: int, smoothing: str
) -> Scores:
    """Return BLEU of the best target of each row, and the statistics of `corpus_bleu`.

    Parameters
    ----------
    matches, totals : float ndarray of shape (n_targets, max_order)
    """
    n_words = lengths(words)
    scores = bleu(matches=matches, totals=totals, order=order, smoothing=smoothing, **n_words)
    scores = without_words(words, scores)
    best = words.first_best(scores)
    columns = [n_words["n_candidate"], n_words["n_reference"], *matches.T, *totals.T]
    sums = np.stack([best(column) for column in columns], axis=1)
    return scored(words, {"": best(scores)}, sums=sums)


def corpus_bleu(sums: FloatArray, *, order: int, smoothing: str) -> FloatArray:
    """Return BLEU of corpora; NaN where there is no row to sum.

    Parameters
    ----------
    sums : float ndarray of shape (..., 2 + 2 max_order)
        Words of candidate and reference, then m_i, then t_i, summed over rows.
    """
    score = bleu(
        matches=sums[..., 2 : 2 + MAX_ORDER],
        totals=sums[..., 2 + MAX_ORDER : 2 + 2 * MAX_ORDER],
        n_candidate=sums[..., 0],
        n_reference=sums[..., 1],
        order=order,
        smoothing=smoothing,
    )
    has_words = (sums[..., 0] > 0) | (sums[..., 1] > 0)
    return np.where(has_words, score, np.nan)
