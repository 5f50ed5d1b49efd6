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
    k = np.arange(first, last, dtype=np.float64)
    steps = np.log((n_good - k) * (n - k)) - np.log((k + 1.0) * (n_bad - n + k + 1.0))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
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


_STEPS = 1 << 14


def least_good(
    n: int, k: int, *, n_rows: int, level: float, least: int = 0, most: int | None = None
) -> int:
    """Return the fewest good rows of a corpus for which ``k`` good ones of ``n`` are no surprise.

    With G good rows, ``k`` or more are drawn with a chance above ``level`` for that G and all
    higher ones: a lower bound of G at confidence 1 - ``level``.

    Parameters
    ----------
    least, most : int, optional
        What is known of the result before.

    Returns
    -------
    int
        Of more than 16,384 rows, the result less one in so many at the most.

    Examples
    --------
    >>> least_good(29, 29, n_rows=1000, level=0.05)
    904
    """
    bad = n - k
    low, high = max(k, least), n_rows - bad  # As many rows as were drawn good and bad are there.
    high = max(low, high if most is None else min(high, most))
    while high - low > n_rows // _STEPS:
        middle = (low + high) // 2
        if tails(n, n_good=middle, n_rows=n_rows)[k] > level:
            high = middle
        else:
            low = middle + 1
    return low
