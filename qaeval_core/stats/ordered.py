"""Ordered: values sorted once, equal values as one, so that resamples need no sort of their own.

A resample is a column of weights: how often each row was drawn. Ranks, ties and the area under a
ROC curve follow from the weight of each distinct value, so one sort serves all resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ordered:
    """Defined values of rows, with their order and their distinct values.

    ``values`` has shape (n_rows,); ``order`` sorts it; ``starts``, one per distinct value, says
    where that value starts in sorted order; ``codes`` numbers each row's distinct value from 0.
    """

    values: NDArray[np.float64]
    order: NDArray[np.intp]
    starts: NDArray[np.intp]
    codes: NDArray[np.intp]

    @property
    def n_distinct(self) -> int:
        """How many different values there are."""
        return len(self.starts)


def make_ordered(values: NDArray[np.floating]) -> Ordered:
    """Return values with their order; none may be NaN.

    Examples
    --------
    >>> make_ordered(np.array([0.5, 0.1, 0.5])).codes.tolist()
    [1, 0, 1]
    """
    exact = values.astype(np.float64)
    order = np.argsort(exact, kind="stable")
    ascending = exact[order]
    is_new = np.ones(len(exact), dtype=bool)
    is_new[1:] = ascending[1:] != ascending[:-1]
    codes = np.empty(len(exact), dtype=np.intp)
    codes[order] = np.cumsum(is_new) - 1
    return Ordered(exact, order, np.flatnonzero(is_new), codes)


def weight_by_value(ordered: Ordered, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each distinct value, ascending.

    Parameters
    ----------
    ordered : Ordered
    weights : float ndarray of shape (n_rows, n_resamples)

    Returns
    -------
    float ndarray of shape (n_distinct, n_resamples)

    Examples
    --------
    >>> weight_by_value(make_ordered(np.array([2.0, 1.0, 2.0])), np.ones((3, 1))).ravel().tolist()
    [1.0, 2.0]
    """
    ascending = weights[ordered.order]
    if ordered.n_distinct == len(ordered.values):
        return ascending
    return np.add.reduceat(ascending, ordered.starts, axis=0)
