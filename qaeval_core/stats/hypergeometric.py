"""Hypergeometric law: how many good rows a simple random sample of finitely many rows holds.

Knows counts alone. Probabilities come from ratios of neighbors, so that a corpus of a billion rows
is as exact as one of a hundred.

Source
------
For n rows drawn without replacement from N rows, G of them good::

    P[K = k + 1] / P[K = k] = (G - k) (n - k) / ((k + 1) (N - G - n + k + 1))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Probabilities(NamedTuple):
    """Of ``first``, ``first`` + 1, ... good rows; all other numbers are impossible."""

    first: int
    values: FloatArray


def probabilities(n: int, *, n_good: int, n_rows: int) -> Probabilities:
    """Return how likely each number of good rows is.

    Parameters
    ----------
    n : int
        Rows drawn, at most ``n_rows``.
    n_good, n_rows : int
        Good rows and all rows of the corpus.

    Examples
    --------
    >>> found = probabilities(2, n_good=3, n_rows=4)
    >>> found.first, found.values.round(3).tolist()
    (1, [0.5, 0.5])
    """
    n_bad = n_rows - n_good
    first, last = max(0, n - n_bad), min(n, n_good)
    i = np.arange(first, last)
    logs = np.zeros(last - first + 1)
    np.cumsum(np.log((n_good - i) * (n - i) / ((i + 1.0) * (n_bad - n + i + 1))), out=logs[1:])
    values = np.exp(logs - logs.max())
    return Probabilities(first, values / values.sum())


def tails(n: int, *, n_good: int, n_rows: int) -> FloatArray:
    """Return the chance of k good rows or more, for k from 0 to ``n``.

    Examples
    --------
    >>> tails(2, n_good=3, n_rows=4).round(3).tolist()
    [1.0, 1.0, 0.5]
    """
    first, values = probabilities(n, n_good=n_good, n_rows=n_rows)
    found = np.zeros(n + 1)
    # From the far end: small chances are added to small ones.
    found[first : first + len(values)] = np.minimum(values[::-1].cumsum()[::-1], 1.0)
    found[: first + 1] = 1.0
    return found


def tail(k: IntArray, n: IntArray, *, n_good: IntArray, n_rows: IntArray) -> FloatArray:
    """Return the chance of ``k`` good rows or more, of each corpus.

    Numbers so far from the mean that all of them together have a chance below 1e-19 are left out.

    Parameters
    ----------
    k, n, n_good, n_rows : int ndarray of shape (n_corpora,)
        As of `tails`; each ``k`` is in 0..``n``.

    Examples
    --------
    >>> k, n, n_good, n_rows = np.array([[1, 2], [2, 2], [3, 3], [4, 4]])
    >>> tail(k, n, n_good=n_good, n_rows=n_rows).tolist()
    [1.0, 0.5]
    """
    start, width = _likely(n, n_good / np.maximum(n_rows, 1))
    k, n, n_good, n_bad = (own[:, None] for own in (k, n, n_good, n_rows - n_good))
    i = start[:, None] + np.arange(width)
    first, last = np.maximum(0, n - n_bad), np.minimum(n, n_good)
    ratios = np.ones(i.shape)  # Of the chances of i + 1 and i good rows.
    np.divide(
        (n_good - i) * (n - i), (i + 1.0) * (n_bad - n + i + 1),
        out=ratios, where=(first <= i) & (i < last),
    )  # fmt: skip
    logs = np.zeros_like(ratios)
    np.cumsum(np.log(ratios[:, :-1]), axis=1, out=logs[:, 1:])
    values = np.exp(logs - logs.max(axis=1, keepdims=True))
    values[(i < first) | (i > last)] = 0
    found: FloatArray = (values * (i >= k)).sum(axis=1) / values.sum(axis=1)
    return found


def _likely(n: IntArray, share: FloatArray) -> tuple[IntArray, int]:
    """Return the first number of good rows that is not next to impossible, and how many follow.

    By Bernstein's inequality, which holds without replacement: P[|K - n p| > d] is at most
    2 exp(-d d / (2 (n p (1 - p) + d / 3))), here 2 exp(-46).
    """
    mean, spread = n * share, n * share * (1 - share)
    far = 46 / 3 + np.sqrt((46 / 3) ** 2 + 2 * 46 * spread)
    start = np.maximum(np.ceil(mean - far), 0).astype(np.int64)
    end = np.minimum(np.floor(mean + far).astype(np.int64), n)
    return start, int((end - start).max(initial=0)) + 1


_STEPS = 1 << 14


def least_good(
    n: IntArray,
    k: IntArray,
    *,
    n_rows: IntArray,
    level: FloatArray | float,
    least: IntArray | int = 0,
    most: IntArray | int | None = None,
) -> IntArray:
    """Return the fewest good rows for which ``k`` good ones of ``n`` are no surprise.

    With G good rows, ``k`` or more are drawn with a chance above ``level`` for that G and all
    higher ones: a lower bound of G at confidence 1 - ``level``.

    Parameters
    ----------
    n, k, n_rows : int ndarray of shape (n_corpora,)
    level : float, or float ndarray of shape (n_corpora,)
    least, most : int, or int ndarray of shape (n_corpora,), optional
        What is known of the result before.

    Returns
    -------
    int ndarray of shape (n_corpora,)
        Of more than 16,384 rows, the result less one in so many at the most.

    Examples
    --------
    >>> n, n_rows = np.array([29, 29]), np.array([1000, 100])
    >>> least_good(n, n, n_rows=n_rows, level=0.05).tolist()
    [904, 92]
    """
    bad = n - k
    low, high = np.maximum(k, least), n_rows - bad  # As many as were drawn good and bad are there.
    high = np.maximum(low, high if most is None else np.minimum(high, most))
    while (is_open := high - low > n_rows // _STEPS).any():
        middle = (low + high) // 2
        is_enough = tail(k, n, n_good=middle, n_rows=n_rows) > level
        high = np.where(is_open & is_enough, middle, high)
        low = np.where(is_open & ~is_enough, middle + 1, low)
    return low
