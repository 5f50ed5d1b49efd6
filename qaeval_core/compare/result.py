"""Result: means, ranks and paired differences of systems, from what was counted.

Differences are of means over the units that every system has, with a value of every system. Whole
clusters are drawn again, by buckets of their hashes (`stats.paired_tests`). The p values are
corrected for all comparisons of all metrics: those of the baseline with each system, or, where the
best system of each metric is found first, those of all pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qaeval_core.compare.counts import FarUnit, MeanSums, UnitCounts
from qaeval_core.compare.request import ALPHA, CompareRequest
from qaeval_core.errors import ConfigError, nearest
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.stats.bootstrap import Comparison
from qaeval_core.stats.mean_interval import MeanInterval, ValueRange, mean_interval
from qaeval_core.stats.paired_tests import PairedTests
from qaeval_core.tables.score_tables import ScoreColumn

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SystemMean:
    """One system by one metric; NaN where undefined.

    Attributes
    ----------
    low, high : float
        Of the 95 % interval of the mean.
    rank : int
        1 is best; systems of one mean share it.
    difference, difference_low, difference_high : float
        From the mean of the reference, and its 95 % interval; NaN of the reference itself.
    p : float
        Of that difference, corrected.
    wins, ties, losses : int
        Units at which the system is better than, as good as and worse than the reference.
    n_undefined : int
        Units without a value of this system.
    """

    system: str
    mean: float
    low: float
    high: float
    rank: int
    difference: float = math.nan
    difference_low: float = math.nan
    difference_high: float = math.nan
    p: float = math.nan
    wins: int = 0
    ties: int = 0
    losses: int = 0
    n_undefined: int = 0

    @property
    def holds(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p <= ALPHA


@dataclass(frozen=True, slots=True)
class MetricResult:
    """Systems by one metric, the best first.

    Attributes
    ----------
    signature : str
        How its scores were made, as people read it.
    n : int
        Units with a value of every system.
    reference : str
        The best system, or the baseline.
    groups : mapping of column to mapping of value to means
        None of a column of too many values.
    far : sequence of FarUnit
        Those that differ most.
    """

    metric: str
    signature: str
    column: ScoreColumn
    n: int
    reference: str
    systems: Sequence[SystemMean]
    groups: Mapping[str, Mapping[str | None, Sequence[SystemMean]] | None]
    far: Sequence[FarUnit]

    @property
    def is_share(self) -> bool:
        """Whether scores lie between 0, or -1, and 1."""
        column = self.column
        if column.metric not in METRICS:
            return column.high == 1
        metric = METRICS[column.metric]
        own = next((one for one in metric.columns if one.name == column.output), None)
        return own is not None and own.is_share and metric.low >= -1 and metric.high <= 1

    def without_keys(self) -> MetricResult:
        """Return it without texts: rows that differ are called by their number."""
        far = [replace(own, key=f"row {own.rows[0]}") for own in self.far]
        return replace(self, far=far)


def metric_results(
    request: CompareRequest,
    systems: Sequence[str],
    metrics: Mapping[str, ScoreColumn],
    counts: UnitCounts,
    *,
    signatures: Mapping[str, str],
) -> list[MetricResult]:
    """Return what the counts say of each metric.

    Raises
    ------
    ConfigError
        If the baseline is no system.
    """
    if request.baseline is not None and request.baseline not in systems:
        raise ConfigError(
            f"--baseline: no system {request.baseline!r}{nearest(request.baseline, systems)} "
            "[QA0105]"
        )
    means = _means(counts.whole)
    references = [
        systems.index(request.baseline)
        if request.baseline is not None
        else _best(means[i], higher=column.higher_is_better)
        for i, column in enumerate(metrics.values())
    ]
    compared = _compared(request, counts, references, len(systems))
    return [
        MetricResult(
            metric=name,
            signature=signatures[name],
            column=column,
            n=int(counts.whole.n[i].sum()),
            reference=systems[references[i]],
            systems=[
                _against(
                    own,
                    (i, systems.index(own.system), references[i]),
                    counts,
                    compared,
                    higher=column.higher_is_better,
                )
                for own in _plain_means(i, systems, column, counts.whole, counts.has_others)
            ],
            groups=_means_of_groups(i, systems, column, counts),
            far=counts.far[i],
        )
        for i, (name, column) in enumerate(metrics.items())
    ]


def _means_of_groups(
    metric: int, systems: Sequence[str], column: ScoreColumn, counts: UnitCounts
) -> dict[str, Mapping[str | None, Sequence[SystemMean]] | None]:
    """Return means by value of each column of groups; None for one of too many values."""
    found: dict[str, Mapping[str | None, Sequence[SystemMean]] | None] = {}
    for by, own in counts.groups.items():
        found[by] = (
            own
            if own is None
            else {
                value: _plain_means(metric, systems, column, own[value], counts.has_others)
                for value in _order(own)
            }
        )
    return found


def _order(groups: Mapping[str | None, MeanSums]) -> list[str | None]:
    return sorted(groups, key=lambda value: (value is None, value or ""))


def _means(sums: MeanSums) -> FloatArray:
    """Return means of shape (n_metrics, n_systems); NaN without a unit."""
    n = sums.n.sum(axis=1)[:, None]
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.where(n > 0, sums.sums.sum(axis=2) / n, np.nan)
    return found


def _best(means: FloatArray, *, higher: bool) -> int:
    if np.isnan(means).all():
        return 0
    return int(np.nanargmax(means if higher else -means))


_Compared = Mapping[tuple[int, int, int], Comparison]  # by metric, system and reference


def _compared(
    request: CompareRequest, counts: UnitCounts, references: Sequence[int], n_systems: int
) -> _Compared:
    """Return the differences of all comparisons, with their corrected p values."""
    occupied = counts.whole.n.any(axis=0)
    keys, found = [], []
    tests = PairedTests(n_resamples=request.n_resamples, seed=request.seed)
    for i, reference in enumerate(references):
        pairs = list(_pairs(request, reference, n_systems))
        keys += [(i, *pair) for pair in pairs]
        sums, (first, second) = counts.whole.sums[i][:, occupied], np.array(pairs).T
        found += tests.add(sums[first] - sums[second], counts.whole.n[i, occupied])
    p_values = tests.corrected()
    return {key: replace(own, p_value=p) for key, own, p in zip(keys, found, p_values, strict=True)}


def _pairs(request: CompareRequest, reference: int, n_systems: int) -> Iterator[tuple[int, int]]:
    """Yield which systems are compared: the first less the second."""
    for first, second in itertools.combinations(range(n_systems), 2):
        if reference in (first, second):
            yield first + second - reference, reference
        elif request.baseline is None:
            yield first, second


def _against(
    own: SystemMean,
    key: tuple[int, int, int],
    counts: UnitCounts,
    compared: _Compared,
    *,
    higher: bool,
) -> SystemMean:
    """Return a system with what is known of it against another one."""
    metric, system, reference = key
    own = replace(own, n_undefined=int(counts.undefined[metric, system]))
    if system == reference:
        return own
    more, less = counts.wins[metric, system, reference], counts.wins[metric, reference, system]
    wins, losses = (more, less) if higher else (less, more)
    found = compared[key]
    return replace(
        own,
        difference=found.difference,
        difference_low=found.interval.low,
        difference_high=found.interval.high,
        p=found.p_value,
        wins=int(wins),
        ties=int(counts.whole.n[metric].sum()) - int(wins) - int(losses),
        losses=int(losses),
    )


def _plain_means(
    metric: int,
    systems: Sequence[str],
    column: ScoreColumn,
    sums: MeanSums,
    has_others: NDArray[np.bool_],
) -> list[SystemMean]:
    """Return the mean of each system with its interval and rank, the best first."""
    found = []
    for i, system in enumerate(systems):
        own = _mean(metric, i, column, sums, has_others)
        low, high = own.interval if own.interval is not None else (math.nan, math.nan)
        mean = math.nan if own.mean is None else own.mean
        found.append(SystemMean(system, mean, low, high, 0))
    sign = 1 if column.higher_is_better else -1
    ranked = [
        replace(own, rank=1 + sum(sign * (other.mean - own.mean) > 0 for other in found))
        for own in found
    ]
    return sorted(ranked, key=lambda own: own.rank)


def _mean(
    metric: int, system: int, column: ScoreColumn, sums: MeanSums, has_others: NDArray[np.bool_]
) -> MeanInterval:
    low = -math.inf if column.low is None else column.low
    high = math.inf if column.high is None else column.high
    lowest, highest = sums.lowest[metric, system], sums.highest[metric, system]
    are_ends = math.isfinite(low) and math.isfinite(high) and not has_others[metric]
    values = ValueRange(float(lowest), float(highest), low, high, has_ends_alone=bool(are_ends))
    return mean_interval(sums.n[metric], sums.sums[metric, system], values)
