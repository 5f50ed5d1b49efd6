"""Unusual runs: whether one is unlike those before it, which differ by more than sampling says.

A prediction interval over the means of n earlier runs of the same signature::

    mean -+ t_{n-1, 1 - alpha/2} s sqrt(1 + 1/n)

Source
------
Hahn, Meeker. Statistical Intervals. Wiley 1991, section 4.6 (one future observation).

Differs from it
---------------
- alpha is shared by the values that are looked at (Bonferroni): else the more columns a run
  has, the more often chance alone would raise an alert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qaeval_core.audit.drift import moments_of
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.profile.run_profile import RunProfile

MIN_RUNS = 8


@dataclass(frozen=True, slots=True)
class RunMean:
    """What is remembered of one column of a run: over all its rows."""

    signature: str
    mean: float
    standard_deviation: float
    undefined: float


RunMeans = dict[str, RunMean]


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run before the audited one; ``name`` is what people call it."""

    run: str
    means: RunMeans
    name: str = ""


@dataclass(frozen=True, slots=True)
class Unusual:
    """One value beside those of earlier runs.

    Attributes
    ----------
    statistic : str
        mean or undefined.
    low, high : float
        Where the next run is, at 1 - alpha.
    is_alert : bool
        Whether it is not there, and the tolerance away from the earlier mean.
    """

    column: str
    statistic: str
    value: float
    low: float
    high: float
    n_runs: int
    is_alert: bool

    @property
    def text(self) -> str:
        """A sentence."""
        what = "its mean" if self.statistic == "mean" else "the share of its undefined values"
        return (
            f"{self.column}: {what} is {self.value:.4g}; after {self.n_runs} earlier runs it is "
            f"expected from {self.low:.4g} to {self.high:.4g}"
        )


def run_means(run: RunProfile) -> RunMeans:
    """Return what is remembered of a run's columns."""
    found = {}
    for name, own in run.columns.items():
        counts = own.counts[0].sum(axis=0, dtype=np.int64)
        mean, spread = moments_of(own, 0)
        undefined = float(counts[-1] / counts.sum()) if counts.sum() else float("nan")
        found[name] = RunMean(own.signature, mean, spread, undefined)
    return found


def prediction_interval(values: Sequence[float], *, alpha: float) -> tuple[float, float]:
    """Return where the next value is with a chance of 1 - alpha.

    Parameters
    ----------
    values : sequence of float
        At least two.

    Examples
    --------
    >>> low, high = prediction_interval([1.0, 2.0, 3.0], alpha=0.05)
    >>> round(low, 3), round(high, 3)  # 2 -+ 4.3027 * 1 * sqrt(4 / 3)
    (-2.968, 6.968)
    """
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    own = np.asarray(values, dtype=np.float64)
    reach = stats.t.ppf(1 - alpha / 2, len(own) - 1) * own.std(ddof=1) * np.sqrt(1 + 1 / len(own))
    return float(own.mean() - reach), float(own.mean() + reach)


def unusual(
    history: Sequence[RunMeans], current: RunProfile, settings: AuditSettings
) -> list[Unusual]:
    """Return each column's mean and undefined share beside those of at least 8 earlier runs."""
    now = run_means(current)
    looked_at = []
    for name, own in now.items():
        earlier = [run[name] for run in history if name in run]
        earlier = [run for run in earlier if run.signature == own.signature]
        for statistic in ("mean", "undefined"):
            values = [getattr(run, statistic) for run in earlier]
            defined = [value for value in values if np.isfinite(value)]
            if len(defined) >= MIN_RUNS and np.isfinite(getattr(own, statistic)):
                looked_at.append((name, statistic, defined, earlier))
    found = []
    for name, statistic, values, earlier in looked_at:
        low, high = prediction_interval(values, alpha=settings.alpha / len(looked_at))
        value = getattr(now[name], statistic)
        away = abs(value - float(np.mean(values)))
        if statistic == "mean":
            spreads = [run.standard_deviation for run in earlier if run.standard_deviation > 0]
            away = away / float(np.mean(spreads)) if spreads else float(away > 0)
        is_outside = not low <= value <= high
        is_alert = is_outside and away >= (settings.tolerance(name, statistic) or 0.0)
        found.append(Unusual(name, statistic, value, low, high, len(values), is_alert))
    return found
