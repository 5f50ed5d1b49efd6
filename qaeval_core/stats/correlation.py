"""Correlation: Pearson, Spearman and Kendall's tau-b, undefined where they say nothing.

One formula serves the value and its resamples: a resample is a column of weights, how often each
row was drawn, and the value itself has weight 1 everywhere.

Source
------
Pearson's r, with means weighted; Spearman's rho: Pearson's r of average ranks; Kendall's tau-b:
see `qaeval_core.stats.kendall`.

Differs from scipy.stats
------------------------
- A constant side is NaN with a reason. Theirs is NaN with a printed warning.
- Fewer than three pairs are NaN: two points always lie on a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.kendall import Digit, concordance, make_digits, tied_pairs
from qaeval_core.stats.ordered import Ordered, make_ordered, weight_by_value

COEFFICIENTS = ("pearson", "spearman", "kendall")
MIN_PAIRS = 3

TOO_FEW = "too_few"
CONSTANT_METRIC = "constant_metric"
CONSTANT_HUMAN = "constant_human"


@dataclass(frozen=True, slots=True)
class Correlation:
    """A coefficient in [-1, 1], NaN with a reason; ``n`` pairs used, ``n_undefined`` left out."""

    value: float
    n: int
    n_undefined: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows with both sides defined, sorted once for any number of resamples."""

    metric: Ordered
    human: Ordered
    digits: list[Digit]

    @property
    def n(self) -> int:
        """How many pairs there are."""
        return len(self.metric.values)


def make_pairs(*, metric: NDArray[np.floating], human: NDArray[np.floating]) -> Pairs:
    """Return pairs ready for `weighted_correlations`; neither side may hold NaN."""
    sides = make_ordered(metric), make_ordered(human)
    return Pairs(*sides, make_digits(*sides))


def correlation(
    coefficient: str, *, metric: NDArray[np.floating], human: NDArray[np.floating]
) -> Correlation:
    """Return one coefficient over the rows where both sides are defined.

    Parameters
    ----------
    coefficient : str
        One of ``COEFFICIENTS``.
    metric, human : float ndarray of shape (n_rows,)
        NaN where undefined.

    Returns
    -------
    Correlation
        In [-1, 1]. NaN with reason ``too_few`` below three pairs, ``constant_human`` or
        ``constant_metric`` where a side has one value.

    Examples
    --------
    >>> human = np.array([1.0, 2.0, 3.0, 3.0, np.nan])
    >>> found = correlation("kendall", metric=np.array([0.1, 0.2, 0.2, 0.4, 0.5]), human=human)
    >>> round(found.value, 3), found.n, found.n_undefined
    (0.8, 4, 1)
    >>> correlation("pearson", metric=np.zeros(5), human=human).reason
    'constant_metric'
    """
    both = ~(np.isnan(metric) | np.isnan(human))
    pairs = make_pairs(metric=metric[both], human=human[both])
    reason = why_undefined(pairs)
    value = float("nan") if reason else observed(pairs)[coefficient]
    return Correlation(value, pairs.n, int((~both).sum()), reason)


def why_undefined(pairs: Pairs) -> str | None:
    """Return the reason why pairs have no correlation, or None if they have one."""
    if pairs.n < MIN_PAIRS:
        return TOO_FEW
    if pairs.human.n_distinct == 1:
        return CONSTANT_HUMAN
    if pairs.metric.n_distinct == 1:
        return CONSTANT_METRIC
    return None


def observed(pairs: Pairs) -> dict[str, float]:
    """Return each coefficient of the pairs as they are."""
    found = weighted_correlations(pairs, np.ones((pairs.n, 1)))
    return {name: float(values[0]) for name, values in found.items()}


def weighted_correlations(
    pairs: Pairs, weights: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return all coefficients of each resample.

    Parameters
    ----------
    pairs : Pairs
    weights : float ndarray of shape (n_rows, n_resamples)
        How often a row was drawn; whole numbers >= 0.

    Returns
    -------
    dict of coefficient to float ndarray of shape (n_resamples,)
        In [-1, 1]. NaN where fewer than three rows were drawn, or a side is constant.

    Notes
    -----
    O(n_rows) a resample for Pearson and Spearman, O(n_rows log L) for Kendall, where L is the
    smaller number of distinct values. Memory: a few arrays of the shape of ``weights``.
    """
    n_resamples = weights.shape[1]
    if pairs.n == 0:
        return {name: np.full(n_resamples, np.nan) for name in COEFFICIENTS}
    total = weights.sum(axis=0)
    by_metric = weight_by_value(pairs.metric, weights)
    by_human = weight_by_value(pairs.human, weights)
    # Subtle: a variance of rounding errors is not 0, so constancy is read from the weights.
    is_undefined = (
        (total < MIN_PAIRS) | (by_metric.max(axis=0) == total) | (by_human.max(axis=0) == total)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "pearson": _pearson(pairs, weights, total),
            "spearman": _spearman(pairs, weights, by_metric=by_metric, by_human=by_human),
            "kendall": _kendall(pairs, weights, by_metric=by_metric, by_human=by_human),
        }
    # Rounding may leave 1 + 1e-16.
    return {
        name: np.where(is_undefined, np.nan, np.clip(values, -1.0, 1.0))
        for name, values in found.items()
    }


def _pearson(
    pairs: Pairs, weights: NDArray[np.float64], total: NDArray[np.float64]
) -> NDArray[np.float64]:
    # Centred first: a mean far from 0 would cost digits in the difference below.
    x = _unit(pairs.metric.values)
    y = _unit(pairs.human.values)
    x_mean, y_mean, xx, yy, xy = (np.stack([x, y, x * x, y * y, x * y]) @ weights) / total
    covariance = xy - x_mean * y_mean
    result: NDArray[np.float64] = covariance / np.sqrt((xx - x_mean**2) * (yy - y_mean**2))
    return result


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = values - values.mean()
    scale = float(np.abs(centred).max())
    return centred / scale if scale > 0 else centred


def _spearman(
    pairs: Pairs,
    weights: NDArray[np.float64],
    *,
    by_metric: NDArray[np.float64],
    by_human: NDArray[np.float64],
) -> NDArray[np.float64]:
    x = _centred_ranks(by_metric)
    y = _centred_ranks(by_human)
    covariance = np.einsum(
        "ij,ij,ij->j", weights, x[pairs.metric.codes], y[pairs.human.codes], optimize=False
    )
    x_variance = np.einsum("ij,ij,ij->j", by_metric, x, x)
    y_variance = np.einsum("ij,ij,ij->j", by_human, y, y)
    result: NDArray[np.float64] = covariance / np.sqrt(x_variance * y_variance)
    return result


def _centred_ranks(by_value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the average rank of each distinct value, less the mean of all ranks."""
    up_to = np.cumsum(by_value, axis=0)
    # Rank of a value: those below it, and half of its own. The mean rank is (n + 1) / 2.
    ranks: NDArray[np.float64] = up_to - by_value / 2 - up_to[-1] / 2
    return ranks


def _kendall(
    pairs: Pairs,
    weights: NDArray[np.float64],
    *,
    by_metric: NDArray[np.float64],
    by_human: NDArray[np.float64],
) -> NDArray[np.float64]:
    total = weights.sum(axis=0)
    all_pairs = total * (total - 1) / 2  # P
    untied = (all_pairs - tied_pairs(by_metric)) * (all_pairs - tied_pairs(by_human))
    result: NDArray[np.float64] = concordance(pairs.digits, weights) / np.sqrt(untied)
    return result
