"""Bootstrap: intervals of any statistic, and paired comparison of two, from the same resamples.

A resample is a column of weights: how often each row was drawn. Rows are drawn with replacement,
or whole clusters of rows, such as all questions about one passage, where rows are not independent.

Source
------
Efron. Bootstrap Methods: Another Look at the Jackknife. Annals of Statistics 1979 (percentile
interval). Koehn. Statistical Significance Tests for Machine Translation Evaluation. EMNLP 2004
(paired bootstrap: both systems, here both metrics, are judged on the same resamples).

Differs from Koehn 2004
-----------------------
- The p-value is two-sided and never 0: p = min(1, 2 (b + 1) / (B + 1)), where b of B resamples
  show no difference or one of the other sign. His is one-sided, b / B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_RESAMPLES = 1000
LEVEL = 0.95
# 4 MB of weights at once: they and the few arrays made from them stay in a CPU's cache.
_MAX_WEIGHTS = 2**19
_MIN_CHUNK = 8
# Rounding alone: a metric and its rescaled copy must not differ, or they would differ surely.
_NO_DIFFERENCE = 1e-12
# Above, leaving out each unit in turn takes time and says what the bootstrap says.
_MAX_JACKKNIFE = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % percentile interval; NaN edges where no resample is defined."""

    low: float
    high: float
    n_resamples: int
    n_undefined_resamples: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A difference, as of how well two metrics agree; NaN where either is undefined."""

    difference: float
    interval: Interval
    p_value: float


def resample_weights(
    n_rows: int,
    *,
    n_resamples: int,
    seed: int,
    clusters: NDArray[np.intp] | None = None,
) -> Iterator[NDArray[np.float64]]:
    """Yield how often each row is drawn in each resample, a chunk of resamples at a time.

    Parameters
    ----------
    n_rows : int
    n_resamples : int
    seed : int
        The same seed and rows give the same resamples, so that metrics can be compared in pairs.
    clusters : int ndarray of shape (n_rows,), optional
        Numbers from 0 of each row's cluster. Whole clusters are drawn, as many as there are.

    Yields
    ------
    float ndarray of shape (n_rows, n_chunk)
        Whole numbers >= 0; over all chunks, ``n_resamples`` columns.

    Examples
    --------
    >>> weights = next(resample_weights(5, n_resamples=3, seed=0))
    >>> weights.shape, weights.sum(axis=0).tolist()
    ((5, 3), [5.0, 5.0, 5.0])
    """
    if n_rows == 0:
        return
    rng = np.random.default_rng(seed)
    n_units = n_rows if clusters is None else int(clusters.max()) + 1
    chunk = max(_MIN_CHUNK, _MAX_WEIGHTS // n_rows)
    for start in range(0, n_resamples, chunk):
        n = min(chunk, n_resamples - start)
        # Resample after resample: which ones they are does not depend on the size of a chunk.
        drawn = rng.integers(n_units, size=(n, n_units)) + n_units * np.arange(n)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=n * n_units).reshape(n, n_units)
        weights = np.ascontiguousarray(counts.T, dtype=np.float64)
        yield weights if clusters is None else weights[clusters]


def drawn_rows(weights: NDArray[np.float64]) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of each resample, a row as often as it was drawn.

    Parameters
    ----------
    weights : float ndarray of shape (n_rows, n_resamples)

    Examples
    --------
    >>> [rows.tolist() for rows in drawn_rows(np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 2.0]]))]
    [[0, 0, 2], [1, 2, 2]]
    """
    rows = np.arange(len(weights))
    for counts in weights.T.astype(np.intp):
        yield np.repeat(rows, counts)


def bootstrap(
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    n_rows: int,
    *,
    n_resamples: int,
    seed: int,
    clusters: NDArray[np.intp] | None = None,
) -> NDArray[np.float64]:
    """Return a statistic of each resample, see `resample_weights`; none where there are no rows.

    Parameters
    ----------
    statistic : callable
        From weights of shape (n_rows, n_chunk) to values of shape (..., n_chunk).

    Returns
    -------
    float ndarray of shape (..., n_resamples)
    """
    chunks = resample_weights(n_rows, n_resamples=n_resamples, seed=seed, clusters=clusters)
    values = [statistic(weights) for weights in chunks]
    return np.concatenate(values, axis=-1) if values else np.empty(0)


def percentile_interval(values: NDArray[np.float64], *, level: float = LEVEL) -> Interval:
    """Return the middle share of resampled values; undefined ones are left out and counted.

    Parameters
    ----------
    values : float ndarray of shape (n_resamples,)
        NaN where a resample is undefined.
    level : float, default 0.95

    Examples
    --------
    >>> percentile_interval(np.array([0.0, 0.5, 1.0, np.nan]), level=0.5)
    Interval(low=0.25, high=0.75, n_resamples=4, n_undefined_resamples=1)
    """
    defined = values[~np.isnan(values)]
    n_undefined = len(values) - len(defined)
    if len(defined) == 0:
        return Interval(float("nan"), float("nan"), len(values), n_undefined)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), len(values), n_undefined)


def scaled_bootstrap(
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    value: NDArray[np.float64],
    n_rows: int,
    *,
    n_resamples: int,
    seed: int,
    clusters: NDArray[np.intp] | None = None,
    n_units: int | None = None,
    level: float = LEVEL,
) -> NDArray[np.float64]:
    """Return resampled values, moved away from the estimate as far as few units need it.

    Percentiles of few units are too narrow, as if their variance were known and n - 1 were n.
    Deviations from the estimate are scaled by sqrt(n / (n - 1)) t_{.975, df} / z, with z of what
    percentiles of so many resamples leave out, and up to 1,000 units by the jackknife's standard
    error over the bootstrap's, where that is larger. Up to there df is 2 n / (k - 1) and at most
    n - 1, with k the kurtosis of what single units change: a variance that few units make is known
    less well. Beyond, df is n - 1. At another level t is that one's, times z_{.975} over its z.

    Parameters
    ----------
    statistic, n_rows, n_resamples, seed, clusters
        As of `bootstrap`.
    value : float ndarray of shape (...,)
        The estimate: the statistic of all rows.
    n_units : int, optional
        What was drawn, where it is neither clusters nor rows; then nothing is left out in turn.
    level : float, default 0.95
        Where the tails must be right: 1 less the p value that counts.

    Returns
    -------
    float ndarray of shape (..., n_resamples)
        NaN where fewer than two units were drawn: there is no interval.

    Source
    ------
    Efron, Stein. The Jackknife Estimate of Variance. Annals of Statistics 1981:
    se^2 = (n - 1) / n sum_i (v_i - mean v)^2, with v_i the value without unit i.
    """
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    resampled = bootstrap(statistic, n_rows, n_resamples=n_resamples, seed=seed, clusters=clusters)
    codes = np.arange(n_rows) if clusters is None else clusters
    n = int(codes.max(initial=-1)) + 1 if n_units is None else n_units
    if n < 2 or not np.isfinite(resampled).any():
        return np.full_like(resampled, np.nan)
    degrees = np.full(np.shape(value), n - 1.0)
    # What a percentile of so many draws leaves out on average: 2.6 % of 1,000, not 2.5.
    left_out = (1 + (n_resamples - 1) * (1 - LEVEL) / 2) / (n_resamples + 1)
    scale = math.sqrt(n / (n - 1)) / -stats.norm.ppf(left_out)
    if n_units is None and n <= _MAX_JACKKNIFE:
        # Some at a time, as resamples are: rows x units would be all of memory.
        chunk = max(_MIN_CHUNK, _MAX_WEIGHTS // n_rows)
        units = np.array_split(np.arange(n), -(-n // chunk))
        parts = [statistic((codes[:, None] != own).astype(np.float64)) for own in units]
        without = np.concatenate(parts, axis=-1)
        far = without - without.mean(axis=-1, keepdims=True)
        jackknife = np.sqrt((n - 1) / n * (far**2).sum(axis=-1))
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = jackknife / (np.nanstd(resampled, axis=-1) * math.sqrt(n / (n - 1)))
            kurtosis = n * (far**4).sum(axis=-1) / (far**2).sum(axis=-1) ** 2
            known = 2 * n / (kurtosis - 1)
        scale = scale * np.where(np.isfinite(ratio), np.maximum(ratio, 1.0), 1.0)
        degrees = np.where(known < n - 1, known, degrees)
    # 1 exactly, unless another level is asked for.
    farther = stats.norm.ppf((1 + LEVEL) / 2) / stats.norm.ppf((1 + level) / 2)
    scale = scale * (stats.t.ppf((1 + level) / 2, degrees) * farther)
    middle = np.asarray(value)[..., None]
    scaled: NDArray[np.float64] = middle + (resampled - middle) * scale[..., None]
    return scaled


class MaxT:
    """p values of many comparisons together: each says how often any looks as sure by chance.

    Westfall and Young's single-step max-T over the resamples that all comparisons share: the
    largest |d* - d| / se over them, with d and its resampled values d*, and se their deviation.
    Where what is resampled is no difference, T* and another unit than se take their places.
    """

    def __init__(self, n_resamples: int) -> None:
        self._largest = np.full(n_resamples, -np.inf)
        self._found: list[float] = []

    def add(self, difference: float, resampled: NDArray[np.float64]) -> float:
        """Add a comparison, and return its p alone; one that is undefined has no part in it."""
        if math.isnan(difference) or not np.isfinite(resampled).any():
            self._found.append(float("nan"))
            return float("nan")
        spread = float(np.nanstd(resampled))
        return self.add_test(abs(difference), np.abs(resampled - difference), unit=spread)

    def add_test(self, observed: float, null: NDArray[np.float64], *, unit: float) -> float:
        """Add a T, its T* where nothing differs, and the unit of both; return its p alone."""
        self._found.append(observed / unit if unit > 0 else 0.0)
        if not unit > 0:
            return 1.0
        self._largest = np.fmax(self._largest, null / unit)
        return _p_value(self._found[-1], null / unit)

    def p_values(self) -> list[float]:
        """Return (b + 1) / (B + 1) of each, b of B resamples with something as far as it."""
        return [_p_value(own, self._largest) for own in self._found]


def _p_value(found: float, resampled: NDArray[np.float64]) -> float:
    if math.isnan(found):
        return found
    if found == 0:  # Without a difference, or a spread.
        return 1.0
    # Rounding alone must not tell a comparison from its like.
    n_as_far = int((resampled >= found * (1 - 1e-9)).sum())
    return (n_as_far + 1) / (len(resampled) + 1)


def paired_comparison(
    *,
    first: float,
    second: float,
    first_resampled: NDArray[np.float64],
    second_resampled: NDArray[np.float64],
) -> Comparison:
    """Return first less second, with interval and p-value from the same resamples of both.

    Parameters
    ----------
    first, second : float
        The agreement of each metric on all rows where both are defined, higher is better:
        negate the correlation of a metric whose lower values are better.
    first_resampled, second_resampled : float ndarray of shape (n_resamples,)
        The same of each resample; column i of both comes from the same rows.

    Returns
    -------
    Comparison
        ``p_value`` in (0, 1]: 1 where there is no difference, NaN where either is undefined.
        No correction for many comparisons.

    Examples
    --------
    >>> found = paired_comparison(
    ...     first=0.6,
    ...     second=0.5,
    ...     first_resampled=np.array([0.6, 0.7, 0.5, 0.6]),
    ...     second_resampled=np.array([0.5, 0.4, 0.5, 0.3]),
    ... )
    >>> round(found.difference, 3), found.p_value
    (0.1, 0.8)
    """
    difference = first - second
    resampled = first_resampled - second_resampled
    interval = percentile_interval(resampled)
    defined = resampled[~np.isnan(resampled)]
    if np.isnan(difference) or len(defined) == 0:
        return Comparison(difference, interval, float("nan"))
    if abs(difference) <= _NO_DIFFERENCE:
        return Comparison(difference, interval, 1.0)
    n_against = int((defined * np.sign(difference) <= _NO_DIFFERENCE).sum())  # b
    p_value = min(1.0, 2 * (n_against + 1) / (len(defined) + 1))
    return Comparison(difference, interval, p_value)
