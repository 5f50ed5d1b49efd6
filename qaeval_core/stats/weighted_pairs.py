"""Weighted pairs: Pearson, Spearman and tau-b of many resamples of the same rows at once.

A resample is a column of weights. Values are sorted once, and not once for each resample; rows
that are equal on both sides are one.

Source
------
Kendall. The Treatment of Ties in Ranking Problems. Biometrika 1945 (tau-b).
Knight. A Computer Method for Calculating Kendall's Tau with Ungrouped Data. JASA 1966: discordant
pairs are counted level by level; here a level is a bit in which the numbers of two values differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


class WeightedPairs:
    """Pairs of values, each with a weight in each resample.

    Parameters
    ----------
    x, y : float ndarray of shape (n_rows,)
        Finite, and at least one.
    weights : float ndarray of shape (n_rows, n_resamples)
        Whole numbers >= 0.

    Attributes
    ----------
    n : float ndarray of shape (n_resamples,)
        Rows, as often as they were drawn.
    varies : bool ndarray of shape (n_resamples,)
        Whether more than one value was drawn, on both sides.

    Examples
    --------
    >>> x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    >>> weights = np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    >>> found = WeightedPairs(x, y, weights)
    >>> found.n.tolist(), found.varies.tolist()
    ([4.0, 3.0, 3.0], [True, True, False])
    >>> found.coefficients(found.varies).round(2).tolist()
    [[0.8, 1.0], [0.8, 1.0], [0.67, 1.0]]
    """

    def __init__(self, x: FloatArray, y: FloatArray, weights: FloatArray) -> None:
        (x, in_x), (y, in_y) = (np.unique(side, return_inverse=True) for side in (x, y))
        cells, in_cells = np.unique(in_x * len(y) + in_y, return_inverse=True)
        self._weights = _sums(in_cells, weights)
        self._sides = [(x, cells // len(y)), (y, cells % len(y))]
        self._sums = [_sums(codes, self._weights) for _, codes in self._sides]
        self.n: FloatArray = self._weights.sum(axis=0)
        self.varies: BoolArray = np.logical_and(*((own < self.n).all(axis=0) for own in self._sums))

    def coefficients(self, chosen: BoolArray) -> FloatArray:
        """Return Pearson, Spearman and tau-b of some resamples, of which both sides vary.

        Parameters
        ----------
        chosen : bool ndarray of shape (n_resamples,)

        Returns
        -------
        float ndarray of shape (3, n_chosen)
        """
        weights, n = self._weights[:, chosen], self.n[chosen]
        sums = [own[:, chosen] for own in self._sums]
        ranks = [own.cumsum(axis=0) - (own - 1) / 2 for own in sums]
        (x, in_x), (y, in_y) = self._sides
        found = [
            _pearson(x[in_x, None], y[in_y, None], weights, n),
            _pearson(ranks[0][in_x], ranks[1][in_y], weights, n),
            _tau(in_x, in_y, weights, [_pairs(n[None]), *map(_pairs, (*sums, weights))]),
        ]
        return np.stack(found)


def _sums(codes: IntArray, weights: FloatArray) -> FloatArray:
    """Return the weights of each number from 0, all of which occur."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sums: FloatArray = np.add.reduceat(weights[order], starts, axis=0)
    return sums


def _pairs(counts: FloatArray) -> FloatArray:
    """Return how many pairs are of the same group, from the groups' counts."""
    pairs: FloatArray = (counts * (counts - 1)).sum(axis=0) / 2
    return pairs


def _pearson(x: FloatArray, y: FloatArray, weights: FloatArray, n: FloatArray) -> FloatArray:
    x, y = (_unit(side, weights, n) for side in (x, y))
    own = weights * x
    both = np.einsum("ij,ij->j", own, y)
    squares = np.einsum("ij,ij->j", own, x) * np.einsum("ij,ij->j", weights * y, y)
    result: FloatArray = both / np.sqrt(squares)
    return result


def _unit(values: FloatArray, weights: FloatArray, n: FloatArray) -> FloatArray:
    centered: FloatArray = values - (weights * values).sum(axis=0) / n
    centered *= weights > 0
    centered /= np.abs(centered).max(axis=0)
    return centered


def _tau(x: IntArray, y: IntArray, weights: FloatArray, pairs: list[FloatArray]) -> FloatArray:
    """Return tau-b; ``pairs`` are all, those equal in x, in y, and in both."""
    all_pairs, x_equal, y_equal, equal = pairs
    # Pairs that differ in x are each counted at one bit: fewer values have fewer bits.
    discordant = _discordant(*((x, y) if x.max() < y.max() else (y, x)), weights)
    difference = all_pairs - x_equal - y_equal + equal - 2 * discordant
    tau: FloatArray = difference / np.sqrt(all_pairs - x_equal) / np.sqrt(all_pairs - y_equal)
    return tau


def _discordant(few: IntArray, many: IntArray, weights: FloatArray) -> FloatArray:
    """Return how many pairs are in one order on one side and in the other on the other."""
    total = np.zeros(weights.shape[1])
    width = int(many.max()) + 1
    for bit in range(int(few.max()).bit_length()):
        # Of numbers that are equal above the bit, those with it are the larger ones.
        block, is_larger = few >> (bit + 1), (few >> bit) & 1 == 1
        keys = block * width + many
        larger = np.flatnonzero(is_larger)
        larger = larger[np.argsort(keys[larger], kind="stable")]
        below = np.zeros((len(larger) + 1, weights.shape[1]))
        np.cumsum(weights[larger], axis=0, out=below[1:])
        smaller = np.flatnonzero(~is_larger)
        start, end = (
            np.searchsorted(keys[larger], own) for own in ((block * width)[smaller], keys[smaller])
        )
        total += np.einsum("ij,ij->j", weights[smaller], below[end] - below[start])
    return total
