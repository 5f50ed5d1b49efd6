"""Summary: mean with a confidence interval, and quantiles, of one column of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_N_RESAMPLES = 1000
# Above this the percentile bootstrap of a mean and Student's interval agree to three digits.
_MAX_BOOTSTRAP_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report says of one column; None where nothing is defined."""

    n: int
    n_undefined: int
    mean: float | None
    interval_95: list[float] | None
    interval_method: str | None
    standard_deviation: float | None
    quantiles: dict[str, float]


def summarise(
    values: NDArray[np.floating], *, seed: int = 0, quantiles: Sequence[float] = QUANTILES
) -> Summary:
    """Return mean, 95 % interval of the mean and quantiles; NaN counts as undefined.

    Parameters
    ----------
    values : float ndarray of shape (n_rows,)
    seed : int, default 0
        Of the bootstrap, so that a report can be repeated.
    quantiles : sequence of float

    Examples
    --------
    >>> summary = summarise(np.array([0.0, 1.0, np.nan]))
    >>> summary.n, summary.n_undefined, summary.mean
    (2, 1, 0.5)
    """
    defined = values[~np.isnan(values)].astype(np.float64, copy=False)
    n_undefined = len(values) - len(defined)
    if len(defined) == 0:
        return Summary(0, n_undefined, None, None, None, None, {})
    interval, method = _interval(defined, seed)
    # In place: its own copy, and the last use of it in this order.
    points = np.quantile(defined, quantiles, overwrite_input=True)
    return Summary(
        n=len(defined),
        n_undefined=n_undefined,
        mean=float(defined.mean()),
        interval_95=interval,
        interval_method=method,
        standard_deviation=float(defined.std(ddof=1)) if len(defined) > 1 else None,
        quantiles={f"{q:g}": float(value) for q, value in zip(quantiles, points, strict=True)},
    )


def _interval(values: NDArray[np.float64], seed: int) -> tuple[list[float] | None, str]:
    if len(values) < 2 or float(np.ptp(values)) == 0.0:
        return None, "none: fewer than two different values"
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    if len(values) > _MAX_BOOTSTRAP_ROWS:
        half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        mean = float(values.mean())
        return [mean - half, mean + half], "student"
    result = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=_N_RESAMPLES,
        batch=max(1, 2_000_000 // len(values)),
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    low, high = (float(edge) for edge in result.confidence_interval)
    if math.isnan(low):
        return None, "none: bootstrap undefined"
    return [low, high], f"bootstrap, {_N_RESAMPLES} resamples"
