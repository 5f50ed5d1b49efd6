"""Columns: correlations of points that differ from resample to resample, such as system scores.

Where rows are the points, a resample is a weight for each row (`qaeval_core.stats.correlation`).
Where systems are the points, a resample gives each system another score: here, one column.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.correlation import COEFFICIENTS, MIN_PAIRS

_MAX_ELEMENTS = 2**22


def column_correlations(
    *, metric: NDArray[np.float64], human: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return all coefficients of each column.

    Parameters
    ----------
    metric, human : float ndarray of shape (n_points, n_resamples)

    Returns
    -------
    dict of coefficient to float ndarray of shape (n_resamples,)
        In [-1, 1]. NaN where a column holds NaN on either side, a constant side, or fewer than
        three points.

    Notes
    -----
    O(n_points ** 2) a resample for Kendall's tau-b: systems are few.

    Examples
    --------
    >>> points = np.array([[0.1, 1.0], [0.2, 1.0], [0.4, 1.0]])
    >>> column_correlations(metric=points, human=np.arange(3.0)[:, None] + 0 * points)["kendall"]
    array([ 1., nan])
    """
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    n_points, n_resamples = metric.shape
    is_undefined = np.isnan(metric).any(axis=0) | np.isnan(human).any(axis=0)
    if n_points < MIN_PAIRS or is_undefined.all():
        return {name: np.full(n_resamples, np.nan) for name in COEFFICIENTS}
    is_undefined |= (metric == metric[:1]).all(axis=0) | (human == human[:1]).all(axis=0)
    x, y = (np.where(is_undefined, 0.0, side) for side in (metric, human))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "pearson": _pearson(x, y),
            "spearman": _pearson(stats.rankdata(x, axis=0), stats.rankdata(y, axis=0)),
            "kendall": _kendall(x, y),
        }
    return {
        name: np.where(is_undefined, np.nan, np.clip(values, -1.0, 1.0))
        for name, values in found.items()
    }


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.mean(axis=0)
    y = y - y.mean(axis=0)
    result: NDArray[np.float64] = (x * y).sum(axis=0) / np.sqrt(
        (x * x).sum(axis=0) * (y * y).sum(axis=0)
    )
    return result


def _kendall(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    first, second = np.triu_indices(len(x), k=1)
    chunk = max(1, _MAX_ELEMENTS // len(first))
    parts = []
    for start in range(0, x.shape[1], chunk):
        part = slice(start, start + chunk)
        x_sign = np.sign(x[first, part] - x[second, part])
        y_sign = np.sign(y[first, part] - y[second, part])
        untied = np.abs(x_sign).sum(axis=0) * np.abs(y_sign).sum(axis=0)
        parts.append((x_sign * y_sign).sum(axis=0) / np.sqrt(untied))
    return np.concatenate(parts)
