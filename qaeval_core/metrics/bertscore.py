"""BERTScore: match candidate and reference tokens greedily by cosine.

Best cosines and weights of tokens in, scores out. Matches nothing itself, loads no model.

Source
------
Zhang, Kishore, Wu, Weinberger, Artzi. BERTScore: Evaluating Text Generation with BERT. ICLR 2020,
arXiv:1904.09675, section 3. With reference tokens x_i of weight v_i and candidate tokens y_j of
weight w_j, vectors of unit length::

    P = sum_j w_j max_i x_i . y_j / sum_j w_j
    R = sum_i v_i max_j x_i . y_j / sum_i v_i
    F = 2 P R / (P + R)
    rescaled = (score - b) / (1 - b)
    idf(token) = log((N + 1) / (n + 1)), n of N reference texts having the token

Differs from the authors' program (bert_score 0.3.13, ``greedy_cos_idf``)
-------------------------------------------------------------------------
- Best cosines come from allowed tokens alone. Theirs multiplies padding by 0, so a negative best
  cosine becomes 0 beside a longer batch mate.
- A text without weight is NaN, and so are all three scores. Theirs prints a warning and scores 0.
- Whether special tokens may be matched is the caller's choice. Theirs lets them, at weight 0.

P and R lie in [-1, 1], where cosines do. Subtle: F is a harmonic mean only where both are
positive; with P = .5 and R = -.4 it is -4. Rescaled scores have no lower bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TokenArray = NDArray[np.float32] | NDArray[np.float64]


class BertScore(NamedTuple):
    """Scores of each pair; float ndarrays of shape (n_pairs,), unitless, higher is better."""

    precision: FloatArray
    recall: FloatArray
    f1: FloatArray


def bertscore(
    *,
    best_candidate: TokenArray,
    candidate_weights: TokenArray,
    n_candidate: IntArray,
    best_reference: TokenArray,
    reference_weights: TokenArray,
    n_reference: IntArray,
) -> BertScore:
    """Return P, R and F of pairs.

    Parameters
    ----------
    best_candidate : float ndarray of shape (sum of n_candidate,)
        max_i x_i . y_j of each candidate token, pairs one after another; in [-1, 1], or NaN where
        there was none to match.
    candidate_weights : float ndarray of shape (sum of n_candidate,)
        w_j >= 0; a token of weight 0 takes no part.
    n_candidate : int ndarray of shape (n_pairs,)
        Candidate tokens of each pair; may be 0.
    best_reference, reference_weights, n_reference
        The same for the references.

    Returns
    -------
    BertScore
        All three are NaN where either side's weights sum to 0, or where a token that has weight
        has no best cosine. F is 0 where P + R is 0.

    Examples
    --------
    >>> scores = bertscore(
    ...     best_candidate=np.array([1.0, 0.4]), candidate_weights=np.array([1.0, 1.0]),
    ...     n_candidate=np.array([2]), best_reference=np.array([1.0]),
    ...     reference_weights=np.array([1.0]), n_reference=np.array([1]),
    ... )
    >>> [round(score.item(), 4) for score in scores]
    [0.7, 1.0, 0.8235]
    """
    precision = _weighted_mean(best_candidate, candidate_weights, n_candidate)  # P
    recall = _weighted_mean(best_reference, reference_weights, n_reference)  # R
    total = precision + recall
    f1 = np.where(total == 0, 0.0, 2 * precision * recall / np.where(total == 0, 1.0, total))  # F
    undefined = np.isnan(total)
    return BertScore(*(np.where(undefined, np.nan, score) for score in (precision, recall, f1)))


def _weighted_mean(best: TokenArray, weights: TokenArray, counts: IntArray) -> FloatArray:
    """Return each pair's mean by weight; NaN where the weights sum to 0."""
    owner = np.repeat(np.arange(len(counts)), counts)
    products = np.where(weights > 0, best, 0.0) * weights.astype(np.float64)
    total = np.bincount(owner, weights=products, minlength=len(counts))
    weight = np.bincount(owner, weights=weights, minlength=len(counts))
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def rescale(score: FloatArray, *, baseline: float) -> FloatArray:
    """Return (score - b) / (1 - b): 0 for texts no nearer than random ones, 1 for equal ones.

    Parameters
    ----------
    score : float ndarray
        P, R or F; each has a baseline of its own.
    baseline : float
        b < 1: the mean score of pairs of random texts, by the same model and layer.

    Examples
    --------
    >>> rescale(np.array([0.9, 0.7]), baseline=0.8).round(4)
    array([ 0.5, -0.5])
    """
    return (score - baseline) / (1 - baseline)


def inverse_document_frequencies(n_documents_with: IntArray, *, n_documents: int) -> FloatArray:
    """Return log((N + 1) / (n + 1)) of tokens that n of N documents have.

    Parameters
    ----------
    n_documents_with : int ndarray of shape (n_tokens,)
        n, from 0 to N; 0 for a token that no document has.
    n_documents : int
        N: reference texts of the corpus.

    Returns
    -------
    float ndarray of shape (n_tokens,)
        In nats, from 0 (in every document) to log(N + 1).

    Examples
    --------
    >>> inverse_document_frequencies(np.array([0, 1, 3]), n_documents=3).round(4)
    array([1.3863, 0.6931, 0.    ])
    """
    return np.log((n_documents + 1) / (n_documents_with + 1))
