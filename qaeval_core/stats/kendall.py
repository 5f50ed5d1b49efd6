"""Kendall: concordant less discordant pairs, for many resamples at once.

Source
------
Kendall. The Treatment of Ties in Ranking Problems. Biometrika 1945. tau-b is::

    tau_b = (C - D) / sqrt((P - T_x) (P - T_y))

with C and D the concordant and discordant pairs, P all pairs, and T the pairs tied on one side.

A pair that differs in y differs first in exactly one binary digit of the number of its y value.
So C - D is a sum over digits; in each, a running sum in the order of x counts the pairs. Orders
depend on the rows alone: they are found once, and each resample costs O(n log L) for L distinct
values of the side that has fewer. With all values distinct, 1,000 resamples
take about 0.1 s for 1,000 rows, 1 s for 10,000 and 25 s for 100,000 on one CPU core; less than
half of it where a side has ten values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.ordered import Ordered


class Digit(NamedTuple):
    """Where to read the running sum for one binary digit; indices, one per row with digit 1."""

    order: NDArray[np.intp]  # of all rows: by group, then by x
    is_low: NDArray[np.float64]  # 1.0 where the digit is 0, in that order
    high: NDArray[np.intp]  # rows with digit 1
    run_start: NDArray[np.intp]  # rows of the group with a smaller x end here
    run_stop: NDArray[np.intp]  # rows of the group with an equal x end here
    group_start: NDArray[np.intp]
    group_stop: NDArray[np.intp]


def make_digits(x: Ordered, y: Ordered) -> list[Digit]:
    """Return what `concordance` needs of two sides, whatever the weights."""
    if x.n_distinct < y.n_distinct:
        x, y = y, x
    n_digits = max(y.n_distinct - 1, 0).bit_length()
    return [_make_digit(x.codes, y.codes, position) for position in range(n_digits)]


def _make_digit(x: NDArray[np.intp], y: NDArray[np.intp], position: int) -> Digit:
    # Rows whose higher digits agree form a group: they differ in y first here, or later.
    group = y >> (position + 1)
    order = np.lexsort((x, group))
    group, x = group[order], x[order]
    is_high = ((y[order] >> position) & 1).astype(bool)
    high = np.flatnonzero(is_high)
    new_group = np.ones(len(order), dtype=bool)
    new_group[1:] = group[1:] != group[:-1]
    new_run = new_group.copy()
    new_run[1:] |= x[1:] != x[:-1]
    run_start, run_stop = _bounds(new_run)
    group_start, group_stop = _bounds(new_group)
    return Digit(
        order=order,
        is_low=(~is_high).astype(np.float64),
        high=order[high],
        run_start=run_start[high],
        run_stop=run_stop[high],
        group_start=group_start[high],
        group_stop=group_stop[high],
    )


def _bounds(is_new: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return, for each position, where its stretch starts and stops."""
    starts = np.flatnonzero(is_new)
    stops = np.append(starts[1:], len(is_new))
    which = np.cumsum(is_new) - 1
    return starts[which], stops[which]


def concordance(digits: list[Digit], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return concordant less discordant pairs of each resample; exact for whole weights.

    Parameters
    ----------
    digits : list of Digit
    weights : float ndarray of shape (n_rows, n_resamples)

    Returns
    -------
    float ndarray of shape (n_resamples,)
    """
    n_rows, n_resamples = weights.shape
    total = np.zeros(n_resamples)
    below = np.zeros((n_rows + 1, n_resamples))
    for digit in digits:
        low = weights[digit.order]
        low *= digit.is_low[:, None]
        np.cumsum(low, axis=0, out=below[1:])
        smaller_x = below[digit.run_start] - below[digit.group_start]
        larger_x = below[digit.group_stop] - below[digit.run_stop]
        total += np.einsum("ij,ij->j", weights[digit.high], smaller_x - larger_x)
    return total


def tied_pairs(weight_of_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many pairs share a value; float ndarray of shape (n_resamples,)."""
    pairs: NDArray[np.float64] = (weight_of_values * (weight_of_values - 1) / 2).sum(axis=0)
    return pairs
