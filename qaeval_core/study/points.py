"""Study points: correlations of points, whether a point is a row, a system, or a draw of one.

A level says how the points of a metric and of the ratings follow from rows. What comes after that,
records and comparisons, is the same for all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.bootstrap import Interval, paired_comparison, percentile_interval
from qaeval_core.stats.correlation import COEFFICIENTS
from qaeval_core.study.inputs import ScoreColumn
from qaeval_core.study.records import ComparisonRecord, CorrelationRecord


@dataclass(frozen=True, slots=True)
class Measured:
    """Coefficients over points, as they are and in each resample; no resamples for draws."""

    n: int
    reason: str | None
    values: dict[str, float]
    resampled: dict[str, NDArray[np.float64]]


# (metric, bool rows to use) -> coefficients; rows are those with a rating
Measure = Callable[[str, NDArray[np.bool_]], Measured]


@dataclass(slots=True)
class Points:
    """The points of one level, for one human column and one subset.

    ``defined`` says, for each metric, which of the rows with a rating have a score.
    """

    level: str
    human: str
    columns: dict[str, ScoreColumn]
    aggregation: dict[str, str]
    defined: dict[str, NDArray[np.bool_]]
    n_undefined_human: int
    measure: Measure
    _seen: dict[tuple[str, bytes], Measured] = field(default_factory=dict)

    def correlations(self, subset: str) -> list[CorrelationRecord]:
        """Return a record for each metric and coefficient."""
        return [
            self._correlation(subset, metric, coefficient)
            for metric in self.columns
            for coefficient in COEFFICIENTS
        ]

    def comparisons(self, subset: str, pairs: Sequence[tuple[str, str]]) -> list[ComparisonRecord]:
        """Return a record for each pair of metrics and coefficient; none where nothing is drawn."""
        return [
            self._comparison(subset, pair, coefficient)
            for pair in pairs
            for coefficient in COEFFICIENTS
        ]

    def _measured(self, metric: str, rows: NDArray[np.bool_]) -> Measured:
        key = (metric, rows.tobytes())
        if key not in self._seen:
            self._seen[key] = self.measure(metric, rows)
        return self._seen[key]

    def _correlation(self, subset: str, metric: str, coefficient: str) -> CorrelationRecord:
        rows = self.defined[metric]
        found = self._measured(metric, rows)
        interval = _interval(found, coefficient)
        return CorrelationRecord(
            level=self.level,
            subset=subset,
            human=self.human,
            metric=metric,
            coefficient=coefficient,
            value=plain(found.values[coefficient]),
            low=plain(interval.low),
            high=plain(interval.high),
            reason=found.reason,
            n=found.n,
            n_undefined_metric=int((~rows).sum()),
            n_undefined_human=self.n_undefined_human,
            n_resamples=interval.n_resamples,
            n_undefined_resamples=interval.n_undefined,
            higher_is_better=self.columns[metric].higher_is_better,
            aggregation=self.aggregation[metric],
            signature=self.columns[metric].signature,
        )

    def _comparison(self, subset: str, pair: tuple[str, str], coefficient: str) -> ComparisonRecord:
        rows = self.defined[pair[0]] & self.defined[pair[1]]
        sides = [self._measured(metric, rows) for metric in pair]
        # A metric whose lower values are better agrees with people where it correlates with -1.
        signs = [1.0 if self.columns[metric].higher_is_better else -1.0 for metric in pair]
        a, b = (sign * side.values[coefficient] for sign, side in zip(signs, sides, strict=True))
        found = paired_comparison(
            first=a,
            second=b,
            first_resampled=signs[0] * sides[0].resampled[coefficient],
            second_resampled=signs[1] * sides[1].resampled[coefficient],
        )
        return ComparisonRecord(
            level=self.level,
            subset=subset,
            human=self.human,
            coefficient=coefficient,
            metric_a=pair[0],
            metric_b=pair[1],
            value_a=plain(a),
            value_b=plain(b),
            difference=plain(found.difference),
            low=plain(found.interval.low),
            high=plain(found.interval.high),
            p_value=plain(found.p_value),
            reason=sides[0].reason or sides[1].reason,
            n=min(side.n for side in sides),
            n_resamples=found.interval.n_resamples,
            n_undefined_resamples=found.interval.n_undefined,
        )


def _interval(found: Measured, coefficient: str) -> Interval:
    return percentile_interval(found.resampled[coefficient])


def plain(value: float) -> float | None:
    """Return a number for a record: None where it is NaN.

    Examples
    --------
    >>> plain(float("nan")) is None, plain(0.5)
    (True, 0.5)
    """
    return None if np.isnan(value) else float(value)
