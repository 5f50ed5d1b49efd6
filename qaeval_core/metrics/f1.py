"""F1: F-score of the words that candidate and reference have in common.

Counts in, scores out; the words are the tokenizer's (``text.tokenize``, rule ``squad``).

Source
------
Rajpurkar et al. SQuAD. EMNLP 2016, arXiv:1606.05250, section 6.1, and the evaluation script v1.1.
With n words in common, each counted as often as both texts have it::

    P = n / |candidate|
    R = n / |reference|
    F1 = 2 P R / (P + R) = 2 n / (|candidate| + |reference|)

A text without words scores 1 against another without words, and 0 against any other; with another
tokenizer than the script's, two texts of which it leaves no words are undefined: they may be any.
Several references: the best F1, with its P and R.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.metrics.base import Scores, columns
from qaeval_core.metrics.exact_match import OverlapMetric, OverlapSettings
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import scored


class F1Scores(NamedTuple):
    """Scores of each pair; float ndarrays of shape (n_pairs,), in [0, 1], higher is better."""

    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]


def f1(
    *, n_common: NDArray[np.int64], n_candidate: NDArray[np.int64], n_reference: NDArray[np.int64]
) -> F1Scores:
    """Return P, R and F1 of pairs.

    Parameters
    ----------
    n_common, n_candidate, n_reference : int ndarray of shape (n_pairs,)
        Words in common, of the candidate, of the reference.

    Examples
    --------
    >>> one, two = np.array([1, 0]), np.array([2, 0])
    >>> f1(n_common=one, n_candidate=one, n_reference=two).f1.round(4)
    array([0.6667, 1.    ])
    """
    both_empty = (n_candidate == 0) & (n_reference == 0)
    precision = np.where(both_empty, 1.0, n_common / np.maximum(n_candidate, 1))  # P
    recall = np.where(both_empty, 1.0, n_common / np.maximum(n_reference, 1))  # R
    # As one fraction: scores that are equal tie to the last bit, which rank correlations see.
    score = 2 * n_common / np.maximum(n_candidate + n_reference, 1)  # F1
    return F1Scores(precision, recall, np.where(both_empty, 1.0, score))


class F1(OverlapMetric):
    """F1 of words."""

    name = "f1"
    title = "F-score of the words that both texts have"
    columns = columns("", "precision", "recall", kind="exact")

    def score_words(self, settings: OverlapSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        each = f1(
            n_common=words.ints("n_common"),
            n_candidate=words.per_target("n_candidate").astype(np.int64),
            n_reference=words.ints("n_reference"),
        )
        score = self.defined(settings, words, each.f1)
        best = words.first_best(score)
        return scored(
            words,
            {"": best(score), "precision": best(each.precision), "recall": best(each.recall)},
        )
