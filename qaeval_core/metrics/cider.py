"""CIDEr: cosine of tf-idf weighted n-grams of candidate and reference (the variant CIDEr-D).

Document frequencies and sums over matched n-grams in, scores out. Counts no n-gram.

Source
------
Vedantam, Zitnick, Parikh. CIDEr: Consensus-based Image Description Evaluation. CVPR 2015,
arXiv:1411.5726, sections 3 and 5. With the count h_k of n-gram k in a text, N rows in the corpus
and d_k rows with k in one of their references::

    g_k = h_k (log N - log max(1, d_k))
    sim_i = sum_k min(g_k(c), g_k(r)) g_k(r) / (|g(c)| |g(r)|)          over n-grams of i words
    CIDEr-D(c, r) = 10 exp(-(l(c) - l(r))^2 / (2 sigma^2)) mean_i sim_i     i = 1..4

Several references: the mean, or with ``over_references=max`` the best. The corpus's value is the
mean over rows. Document frequencies are counted over the references of all input rows, in a pass
of its own; that of other corpora can be given.

Differs from coco-caption
-------------------------
- l is its number of bigrams, as there: two texts of one word have equal length.
- Both texts without words score 10 here, 0 there.
- N counts the rows whose references have words; there all rows.

But: no stemming (the paper stems, coco-caption does not); ``stemming=porter`` does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
SCALE = 10.0


def idf(document_frequencies: NDArray[np.int64], *, n_documents: int) -> FloatArray:
    """Return log N - log max(1, d).

    Examples
    --------
    >>> idf(np.array([0, 1, 10]), n_documents=10).round(4)
    array([2.3026, 2.3026, 0.    ])
    """
    found = np.log(max(n_documents, 1)) - np.log(np.maximum(document_frequencies, 1))
    return np.asarray(found, dtype=np.float64)


def similarity(
    *, products: FloatArray, candidate_norms: FloatArray, reference_norms: FloatArray
) -> FloatArray:
    """Return sim_i of pairs, for one order; 0 where a side has no weight.

    Parameters
    ----------
    products : float ndarray of shape (n_pairs,)
        sum_k min(g_k(c), g_k(r)) g_k(r).
    candidate_norms, reference_norms : float ndarray of shape (n_pairs,)
        |g(c)| and |g(r)|.

    Examples
    --------
    >>> one = np.array([1.0])
    >>> similarity(products=one, candidate_norms=one * 2, reference_norms=one)
    array([0.5])
    """
    norms = candidate_norms * reference_norms
    return np.where(norms > 0, products / np.where(norms > 0, norms, 1.0), 0.0)


def cider(
    *,
    mean_similarity: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    sigma: float = 6.0,
) -> FloatArray:
    """Return CIDEr-D of pairs.

    Parameters
    ----------
    mean_similarity : float ndarray of shape (n_pairs,)
        mean_i sim_i.
    n_candidate, n_reference : ndarray of shape (n_pairs,)
        Words.
    sigma : float, default 6.0
        Width of the length penalty, in words.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [0, 10], higher is better.

    Examples
    --------
    >>> cider(mean_similarity=np.array([1.0]), n_candidate=np.array([4]), n_reference=np.array([4]))
    array([10.])
    """
    gap = np.maximum(n_candidate - 1, 0) - np.maximum(n_reference - 1, 0)  # l(c) - l(r)
    score = SCALE * np.exp(-(gap**2) / (2 * sigma**2)) * mean_similarity
    return np.where((n_candidate == 0) & (n_reference == 0), SCALE, score)
