"""ROUGE-L: F-score of the longest common subsequence of words.

Lengths in, scores out. Tokenises nothing.

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

FloatArray = NDArray[np.float64]


class RougeL(NamedTuple):
    """Scores of each pair; float ndarrays of shape (n_pairs,), in [0, 1], higher is better."""

    precision: FloatArray
    recall: FloatArray
    rouge_l: FloatArray


def rouge_l(
    *, lcs: FloatArray, n_candidate: FloatArray, n_reference: FloatArray, beta: float = 1.0
) -> RougeL:
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
    return RougeL(precision, recall, np.where(both_empty, 1.0, score))


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
