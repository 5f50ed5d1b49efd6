"""Paired tests: differences of means over the same rows, whole clusters of which are drawn again.

Audits compare a run with an earlier one, column by column, and comparisons compare systems. Sums by
bucket of clusters are enough, and all differences share the draws (`bootstrap.scaled_bootstrap`).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats import bootstrap

FloatArray = NDArray[np.float64]
_ROUNDED = 1e-12


class PairedTests:
    """Differences that are tested together: by max-T, or by sign tests where draws do not vary.

    Parameters
    ----------
    level : float, default 0.95
        1 less the p value that counts: draws of few clusters are moved as far as that needs.

    Examples
    --------
    >>> tests = PairedTests(n_resamples=199, seed=0)
    >>> apart = np.array([[1.0, 3.0, 2.0, 3.0, 1.0], [2.0] * 5])
    >>> [(own.difference, own.p_value) for own in tests.add(apart, np.full(5, 10.0))]
    [(0.2, 0.005), (0.2, 0.0625)]
    >>> tests.corrected()
    [0.005, 0.125]
    """

    def __init__(self, *, n_resamples: int, seed: int, level: float = bootstrap.LEVEL) -> None:
        self._draw = partial(
            bootstrap.scaled_bootstrap, n_resamples=n_resamples, seed=seed, level=level
        )
        self._together = bootstrap.MaxT(n_resamples)
        self._by_signs: list[float] = []

    def add(self, apart: NDArray[np.number], n: NDArray[np.number]) -> list[bootstrap.Comparison]:
        """Return differences of the same rows; their p values are not corrected.

        Of a difference that all clusters have alike there is no interval.

        Parameters
        ----------
        apart : ndarray of shape (n_differences, n_buckets)
            Sums of the differences of rows. Buckets are the same for all that is added.
        n : ndarray of shape (n_buckets,)
            Rows.
        """

        @np.errstate(invalid="ignore", divide="ignore")
        def differences(weights: FloatArray) -> FloatArray:
            means: FloatArray = np.divide(apart @ weights, n @ weights)
            return means

        value = differences(np.ones((len(n), 1)))[:, 0]
        resampled = self._draw(differences, value, len(n)) if len(n) else value[:, None]
        n_units, found = int(np.count_nonzero(n)), []
        for difference, own in zip(value.tolist(), resampled, strict=True):
            self._by_signs.append(math.nan)
            if not _has_spread(own, difference):
                self._by_signs[-1] = _sign_test(difference, n_units)
                own[:] = np.nan
            p = self._together.add(difference, own)
            p = self._by_signs[-1] if math.isnan(p) else p
            found.append(bootstrap.Comparison(difference, bootstrap.percentile_interval(own), p))
        return found

    def corrected(self) -> list[float]:
        """Return the p values of all that was added, corrected for it."""
        return [
            min(by_signs * len(self._by_signs), 1.0) if math.isnan(p) else p
            for by_signs, p in zip(self._by_signs, self._together.p_values(), strict=True)
        ]


def _has_spread(drawn: FloatArray, difference: float) -> bool:
    """Return whether draws of a difference differ by more than rounding."""
    return bool(np.isfinite(drawn).any()) and float(np.nanstd(drawn)) > _ROUNDED * max(
        abs(difference), 1.0
    )


def _sign_test(difference: float, n_units: int) -> float:
    """Return the p of a difference that all clusters have alike; NaN of one cluster.

    Where nothing differs, a cluster has the better value on either side with a chance of one half.
    """
    if n_units < 2 or math.isnan(difference):
        return math.nan
    return 2.0 ** (1 - n_units) if abs(difference) > _ROUNDED else 1.0
