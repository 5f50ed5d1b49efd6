"""Mean interval: of a mean whose rows share clusters, from sums by bucket alone.

Rows of one context are alike: as independent ones they give an interval that is two or three times
too narrow. Whole clusters are independent, so each bucket of clusters is one observation here.

Many values: the sandwich variance of a ratio over B occupied buckets, of n_b rows and sum S_b,

    Var = B / (B - 1) * sum_b (S_b - mean * n_b)^2 / n^2,

and Student's t with (sum n_b)^2 / sum n_b^2 - 1 degrees of freedom: as many as there would be
buckets of one size. Cochran, Sampling Techniques, 1977, 9A; Satterthwaite 1946.

Two values at both ends of the range, as of exact match: Wilson's interval of the share, with
n / deff rows, deff the variance above over that of independent rows. Where few rows differ from the
others the former is far too narrow. Wilson, JASA 1927; Korn, Graubard, Survey Methodology 1998.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LEVEL = 0.95
SANDWICH, WILSON = "clusters, student", "clusters, wilson"
ONE_VALUE, ONE_CLUSTER = "one value, wilson", "none: all rows are of one cluster"
NO_BOUND = "none: one value, of no known range"
NOT_FINITE = "none: some values are not finite"
TOO_LARGE = "none: values are too large to be squared"


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Which values there are of a column, and could be.

    Attributes
    ----------
    lowest, highest : float
        Of the values there are.
    low, high : float
        That there could be; infinite where that is not known.
    has_ends_alone : bool
        Whether each value is ``low`` or ``high``.
    """

    lowest: float
    highest: float
    low: float = -math.inf
    high: float = math.inf
    has_ends_alone: bool = False


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean with its 95 % interval, None where there is none, and how that was made."""

    mean: float | None
    interval: list[float] | None
    method: str | None


def mean_interval(
    n: FloatArray, sums: FloatArray, values: ValueRange, *, n_clusters: int = 0
) -> MeanInterval:
    """Return a mean and its 95 % interval.

    Parameters
    ----------
    n, sums : float ndarray of shape (n_buckets,)
        Rows of each bucket, and the sum of their values; a cluster's rows are in one bucket.
    values : ValueRange
    n_clusters : int
        How many clusters there are, if that is known: buckets tell the least.

    Returns
    -------
    MeanInterval
        Within the range, and without an interval where all rows are of one cluster.

    Examples
    --------
    >>> rows = np.ones(100)
    >>> none_right = mean_interval(rows, 0 * rows, ValueRange(0, 0, 0, 1))
    >>> [round(edge, 3) for edge in none_right.interval]
    [0.0, 0.038]
    >>> apart = mean_interval(np.array([2.0, 2.0]), np.array([0.5, 1.5]), ValueRange(0, 1))
    >>> apart.mean, [round(edge, 2) for edge in apart.interval]
    (0.5, [-2.68, 3.68])
    """
    n_all, n_buckets = len(n), int(np.count_nonzero(n))
    n, sums = n[n > 0], sums[n > 0]
    total = float(n.sum())
    if not total:
        return MeanInterval(None, None, None)
    with np.errstate(invalid="ignore"):  # Infinities of both signs.
        mean = float(sums.sum() / total)
    if not math.isfinite(mean):
        return MeanInterval(None, None, NOT_FINITE)
    if n_buckets < 2:
        return MeanInterval(mean, None, ONE_CLUSTER)
    if values.lowest == values.highest:
        n_least = _n_clusters(n_buckets, n_all)
        return _of_one_value(values, min(max(n_clusters, n_least), total), n_buckets)
    return _of_many_values(n, sums, mean, values)


def _of_many_values(
    n: FloatArray, sums: FloatArray, mean: float, values: ValueRange
) -> MeanInterval:
    """Return the interval where clusters have several values, and all buckets have rows."""
    total, n_buckets = float(n.sum()), len(n)
    with np.errstate(over="ignore"):
        variance = n_buckets / (n_buckets - 1) * float(((sums - mean * n) ** 2).sum()) / total**2
    if not math.isfinite(variance):
        return MeanInterval(mean, None, TOO_LARGE)
    if values.has_ends_alone:
        width = values.high - values.low
        # One row at least has each value: a mean that is rounded may say otherwise.
        share = min(max((mean - values.low) / width, 1 / total), 1 - 1 / total)
        of_rows = share * (1 - share) / total
        deff = max(1.0, variance / width**2 / of_rows)
        edges = [values.low + width * one for one in _wilson(share, total / deff, n_buckets)]
        return MeanInterval(mean, edges, WILSON)
    freedom = max(total**2 / float((n**2).sum()) - 1, 1.0)
    half = _t(freedom) * math.sqrt(variance)
    return MeanInterval(
        mean, [max(mean - half, values.low), min(mean + half, values.high)], SANDWICH
    )


def _of_one_value(values: ValueRange, n_clusters: float, n_buckets: int) -> MeanInterval:
    """Return the interval where clusters have one value: some that were not drawn may not.

    At most a share of them, by Wilson, has others, which lie at an end of the range at most.
    """
    value = values.lowest
    if not (math.isfinite(values.low) and math.isfinite(values.high)):
        return MeanInterval(value, None, NO_BOUND)
    _, share = _wilson(0.0, n_clusters, n_buckets)
    edges = [value - share * (value - values.low), value + share * (values.high - value)]
    return MeanInterval(value, edges, ONE_VALUE)


def _n_clusters(n_occupied: int, n_buckets: int) -> float:
    """Return about how many clusters occupy so many buckets; where all are occupied, the least.

    Linear counting: Whang, Vander-Zanden, Taylor, ACM TODS 1990.
    """
    if n_occupied == n_buckets:
        return n_occupied
    return n_buckets * math.log(n_buckets / (n_buckets - n_occupied))


def _wilson(share: float, n: float, n_buckets: int) -> tuple[float, float]:
    z2 = _t(max(n_buckets - 1, 1)) ** 2
    middle = (share + z2 / 2 / n) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / 4 / n**2)) / (1 + z2 / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _t(freedom: float) -> float:
    from scipy import special  # Imported here: it takes time that few commands need.

    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
