"""Correlation: Pearson, Spearman and Kendall's tau-b, undefined where they say nothing.

Source
------
Pearson's r; Spearman's rho: Pearson's r of average ranks; tau-b: Kendall. The Treatment of Ties in
Ranking Problems. Biometrika 1945, by scipy.

Differs from scipy.stats
------------------------
- A constant side is NaN with a reason. Theirs is NaN with a printed warning.
- Fewer than three pairs are NaN: two points always lie on a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.bootstrap import drawn_rows
from qaeval_core.stats.weighted_pairs import WeightedPairs

COEFFICIENTS = ("pearson", "spearman", "kendall")
MIN_PAIRS = 3
# Of more rows few resamples fit into a cache together, and each is as quick alone.
_MAX_AT_ONCE = 10_000

TOO_FEW = "too_few"
CONSTANT_METRIC = "constant_metric"
CONSTANT_HUMAN = "constant_human"

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Correlations:
    """Coefficients in [-1, 1], NaN with a reason; ``n`` pairs used, ``n_undefined`` left out."""

    values: FloatArray  # (3,), in the order of ``COEFFICIENTS``
    n: int
    n_undefined: int
    reason: str | None


def correlate(*, metric: NDArray[np.floating], human: NDArray[np.floating]) -> Correlations:
    """Return all coefficients over the rows where both sides are defined.

    Parameters
    ----------
    metric, human : float ndarray of shape (n_rows,)
        NaN where undefined.

    Returns
    -------
    Correlations
        NaN with reason ``too_few`` below three pairs, ``constant_human`` or ``constant_metric``
        where a side has one value.

    Examples
    --------
    >>> human = np.array([1.0, 2.0, 3.0, 3.0, np.nan])
    >>> found = correlate(metric=np.array([0.1, 0.2, 0.2, 0.4, 0.5]), human=human)
    >>> found.values.round(3).tolist(), found.n, found.n_undefined
    ([0.761, 0.833, 0.8], 4, 1)
    >>> correlate(metric=np.zeros(5), human=human).reason
    'constant_metric'
    """
    both = ~(np.isnan(metric) | np.isnan(human))
    x, y = metric[both].astype(np.float64), human[both].astype(np.float64)
    values = row_correlations(metric=x[None], human=y[None])[:, 0]
    return Correlations(values, len(x), int((~both).sum()), _why_undefined(x, y))


def weighted_correlations(
    *, metric: FloatArray, human: FloatArray, weights: FloatArray
) -> FloatArray:
    """Return all coefficients of each resample of rows.

    Parameters
    ----------
    metric, human : float ndarray of shape (n_rows,)
        No NaN.
    weights : float ndarray of shape (n_rows, n_resamples)
        How often a row was drawn; whole numbers >= 0.

    Returns
    -------
    float ndarray of shape (3, n_resamples)
        NaN where fewer than three rows were drawn, or a side is constant.
    """
    if not 0 < len(metric) <= _MAX_AT_ONCE:
        drawn = (rows[None] for rows in drawn_rows(weights))
        each = [row_correlations(metric=metric[rows], human=human[rows]) for rows in drawn]
        return np.concatenate(each, axis=1)
    pairs = WeightedPairs(metric, human, weights)
    is_defined = (pairs.n >= MIN_PAIRS) & pairs.varies
    found = np.full((len(COEFFICIENTS), weights.shape[1]), np.nan)
    found[:, is_defined] = np.clip(pairs.coefficients(is_defined), -1.0, 1.0)
    return found


def row_correlations(*, metric: FloatArray, human: FloatArray) -> FloatArray:
    """Return all coefficients of each row of points, as systems in resamples.

    Parameters
    ----------
    metric, human : float ndarray of shape (n_resamples, n_points)

    Returns
    -------
    float ndarray of shape (3, n_resamples)
        NaN where a row holds NaN on either side, a constant side, or fewer than three points.

    Examples
    --------
    >>> points = np.array([[0.1, 0.2, 0.4], [1.0, 1.0, 1.0]])
    >>> row_correlations(metric=points, human=np.arange(3.0) + 0 * points)[2].tolist()
    [1.0, nan]
    """
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    found = np.full((len(COEFFICIENTS), len(metric)), np.nan)
    # Subtle: a variance of rounding errors is not 0, so constancy is read from the values.
    varies = ((side != side[:, :1]).any(axis=1) for side in (metric, human))
    is_defined = ~np.isnan(metric + human).any(axis=1) & np.logical_and(*varies)
    if metric.shape[1] < MIN_PAIRS or not is_defined.any():
        return found
    x, y = metric[is_defined], human[is_defined]
    ranks = stats.rankdata(x, axis=1), stats.rankdata(y, axis=1)
    # The p-value of tau is not used; this one is cheap.
    pairs = zip(x, y, strict=True)
    taus = [stats.kendalltau(*own, method="asymptotic").statistic for own in pairs]
    # Rounding may leave 1 + 1e-16.
    found[:, is_defined] = np.clip(np.stack([_pearson(x, y), _pearson(*ranks), taus]), -1.0, 1.0)
    return found


def _why_undefined(x: FloatArray, y: FloatArray) -> str | None:
    if len(x) < MIN_PAIRS:
        return TOO_FEW
    if (y == y[0]).all():
        return CONSTANT_HUMAN
    if (x == x[0]).all():
        return CONSTANT_METRIC
    return None


def _pearson(x: FloatArray, y: FloatArray) -> FloatArray:
    x, y = _unit(x), _unit(y)
    result: FloatArray = (x * y).sum(axis=1) / np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    return result


def _unit(values: FloatArray) -> FloatArray:
    centered: FloatArray = values - values.mean(axis=1, keepdims=True)
    unit: FloatArray = centered / np.abs(centered).max(axis=1, keepdims=True)
    return unit
