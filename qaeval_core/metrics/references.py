"""References: reduce what each reference of a row scores to one value per row.

Values of all references of all rows lie in one array, rows in order; ``n_references`` says how
many each row has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def best_over_references(scores: FloatArray, n_references: IntArray) -> FloatArray:
    """Return max_r over each row's references, undefined ones left out; NaN where none is left.

    Examples
    --------
    >>> best_over_references(np.array([0.2, 0.4, np.nan]), np.array([2, 1, 0]))
    array([0.4, nan, nan])
    """
    best = np.full(len(n_references), -np.inf)
    np.maximum.at(best, _owner(n_references), np.where(np.isnan(scores), -np.inf, scores))
    return np.where(np.isneginf(best), np.nan, best)


def first_best(scores: FloatArray, n_references: IntArray) -> IntArray:
    """Return the index in ``scores`` of each row's best reference, ties the first; -1 for none.

    Examples
    --------
    >>> first_best(np.array([0.2, 0.4, 0.4, np.nan]), np.array([3, 1, 0]))
    array([ 1, -1, -1])
    """
    owner = _owner(n_references)
    best = best_over_references(scores, n_references)
    at = np.flatnonzero(scores == best[owner])
    found = np.full(len(n_references), -1, dtype=np.int64)
    found[owner[at][::-1]] = at[::-1]  # The last write wins: the first of each row.
    return found


def mean_over_references(scores: FloatArray, n_references: IntArray) -> FloatArray:
    """Return the mean over each row's references, undefined ones left out; NaN where none is left.

    Examples
    --------
    >>> mean_over_references(np.array([0.2, 0.4, np.nan]), np.array([3, 0])).round(2)
    array([0.3, nan])
    """
    is_defined = ~np.isnan(scores)
    owner = _owner(n_references)[is_defined]
    total = np.bincount(owner, weights=scores[is_defined], minlength=len(n_references))
    n_defined = np.bincount(owner, minlength=len(n_references))
    return np.where(n_defined > 0, total / np.maximum(n_defined, 1), np.nan)


def take(values: NDArray[np.float64], at: IntArray) -> FloatArray:
    """Return values at indices; NaN where the index is -1.

    Examples
    --------
    >>> take(np.array([0.5, 0.7]), np.array([1, -1]))
    array([0.7, nan])
    """
    if len(values) == 0:
        return np.full(len(at), np.nan)
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def _owner(n_references: IntArray) -> IntArray:
    return np.repeat(np.arange(len(n_references)), n_references)
