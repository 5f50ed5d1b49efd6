"""Correlations: of points, whether a point is a row, a system, or a system in a draw.

A level says how the points of a metric and of the ratings follow from rows. What comes after that,
coefficients with their intervals and comparisons of two metrics, is the same for all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.metrics.catalog import METRICS, corpus_score
from qaeval_core.stats.bootstrap import (
    MaxT,
    paired_comparison,
    percentile_interval,
    scaled_bootstrap,
)
from qaeval_core.stats.correlation import (
    COEFFICIENTS,
    Correlations,
    correlate,
    row_correlations,
    weighted_correlations,
)
from qaeval_core.stats.system_scores import (
    ScoreOfSums,
    common_questions,
    complete_rows,
    draw_weights,
    group_rows,
    group_scores,
    mean_of_sums,
    mean_statistics,
)
from qaeval_core.study import inputs
from qaeval_core.study.records import DRAWS, SEGMENT, SYSTEM, Statistic, StudyRequest
from qaeval_core.tables import score_tables
from qaeval_core.tables.score_tables import ScoreColumn

# Of fewer systems a resample is often constant, and no interval is worth its name.
MIN_SYSTEMS = 8

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RatedRows:
    """The rows of a subset with a rating: scores by metric, and what rows are drawn by."""

    request: StudyRequest
    subset: str
    human: str
    frame: pl.DataFrame
    columns: dict[str, ScoreColumn]
    ratings: FloatArray  # (n_rows,)
    scores: dict[str, FloatArray]
    n_unrated: int
    clusters: NDArray[np.intp] | None

    @property
    def n_units(self) -> int:
        """What is drawn in each resample: clusters, or rows."""
        if self.clusters is None:
            return len(self.ratings)
        return int(self.clusters.max(initial=-1)) + 1

    def bootstrap(
        self,
        statistic: Callable[[FloatArray], FloatArray],
        value: FloatArray,
        *,
        n_units: int | None = None,
    ) -> FloatArray:
        """Return a statistic of weights of shape (n_rows, n_chunk) for each resample."""
        return scaled_bootstrap(
            statistic,
            value,
            len(self.ratings),
            n_resamples=self.request.n_resamples,
            seed=self.request.seed,
            clusters=self.clusters,
            n_units=n_units,
        )


def rated_rows(
    request: StudyRequest, subset: inputs.Subset, human: str, *, cluster: str | None
) -> RatedRows:
    """Return the rows with a rating.

    Parameters
    ----------
    cluster : str or None
        Column whose equal values are drawn together; None: rows are drawn one by one.
    """
    ratings = score_tables.numbers(subset.frame, human)
    is_rated = ~np.isnan(ratings)
    rated = subset.frame.filter(pl.Series(is_rated, dtype=pl.Boolean))
    return RatedRows(
        request=request,
        subset=subset.name,
        human=human,
        frame=rated,
        columns=subset.columns,
        ratings=ratings[is_rated],
        scores={name: score_tables.numbers(rated, name) for name in subset.columns},
        n_unrated=int((~is_rated).sum()),
        clusters=None if cluster is None else inputs.cluster_codes(rated, cluster),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """Coefficients over points, as they are and in each resample; no resamples for draws."""

    found: Correlations
    resampled: FloatArray  # (3, n_resamples)


@dataclass(frozen=True, slots=True)
class Level:
    """The points of one level. A metric is measured on some of the rows with a rating."""

    name: str
    rated: RatedRows
    measure: Callable[[str, BoolArray], Measured]
    defined: dict[str, BoolArray]  # metric -> rows with a score, of shape (n_rows,)
    aggregation: dict[str, str]
    _seen: dict[tuple[str, bytes], Measured] = field(default_factory=dict)

    def correlations(self) -> Iterator[Statistic]:
        """Yield each coefficient of each metric, on all rows where the metric is defined."""
        for metric, column in self.rated.columns.items():
            rows = self.defined[metric]
            measured = self._measured(metric, rows)
            for i, coefficient in enumerate(COEFFICIENTS):
                yield Statistic(
                    table="correlations",
                    level=self.name,
                    subset=self.rated.subset,
                    human=self.rated.human,
                    metric=metric,
                    coefficient=coefficient,
                    value=float(measured.found.values[i]),
                    **asdict(percentile_interval(np.clip(measured.resampled[i], -1.0, 1.0))),
                    reason=measured.found.reason,
                    n=measured.found.n,
                    n_undefined=int((~rows).sum()),
                    n_undefined_human=self.rated.n_unrated,
                    higher_is_better=column.higher_is_better,
                    aggregation=self.aggregation[metric],
                    signature=column.signature,
                )

    def comparisons(self, pairs: Sequence[tuple[str, str]]) -> list[Statistic]:
        """Return the difference of two metrics in each coefficient, where both are defined."""
        found, together = [], MaxT(self.rated.request.n_resamples)
        for pair in pairs:
            rows = self.defined[pair[0]] & self.defined[pair[1]]
            a, b = (self._measured(metric, rows) for metric in pair)
            # A metric whose lower values are better agrees with people where it correlates with -1.
            signs = [1.0 if self.rated.columns[name].higher_is_better else -1.0 for name in pair]
            for i, coefficient in enumerate(COEFFICIENTS):
                value_a = signs[0] * float(a.found.values[i])
                value_b = signs[1] * float(b.found.values[i])
                resampled = [
                    sign * own.resampled[i] for sign, own in zip(signs, (a, b), strict=True)
                ]
                compared = paired_comparison(
                    first=value_a,
                    second=value_b,
                    first_resampled=resampled[0],
                    second_resampled=resampled[1],
                )
                together.add(compared.difference, resampled[0] - resampled[1])
                one = Statistic(
                    table="comparisons",
                    level=self.name,
                    subset=self.rated.subset,
                    human=self.rated.human,
                    coefficient=coefficient,
                    metric=pair[0],
                    metric_b=pair[1],
                    value_a=value_a,
                    value_b=value_b,
                    value=compared.difference,
                    **asdict(compared.interval),
                    p_value=compared.p_value,
                    reason=a.found.reason or b.found.reason,
                    n=min(a.found.n, b.found.n),
                )
                found.append(one)
        # The raw one counts resamples on the other side: it may be the larger one. NaN stays.
        corrected = np.maximum(together.p_values(), [one.p_value for one in found])
        return [replace(one, p_corrected=float(p)) for one, p in zip(found, corrected, strict=True)]

    def _measured(self, metric: str, rows: BoolArray) -> Measured:
        key = (metric, rows.tobytes())
        if key not in self._seen:
            self._seen[key] = self.measure(metric, rows)
        return self._seen[key]


def segment_level(rated: RatedRows) -> Level:
    """Return the level whose points are rows."""

    def measure(metric: str, rows: BoolArray) -> Measured:
        scores, ratings = rated.scores[metric][rows], rated.ratings[rows]

        def resample(weights: FloatArray) -> FloatArray:
            return weighted_correlations(metric=scores, human=ratings, weights=weights[rows])

        return _with_resamples(rated, correlate(metric=scores, human=ratings), resample)

    defined = {name: ~np.isnan(scores) for name, scores in rated.scores.items()}
    return Level(SEGMENT, rated, measure, defined, dict.fromkeys(rated.columns, ""))


def _with_resamples(
    rated: RatedRows,
    found: Correlations,
    resample: Callable[[FloatArray], FloatArray],
    *,
    n_units: int | None = None,
) -> Measured:
    if found.reason is not None:
        return Measured(found, np.full((len(COEFFICIENTS), rated.request.n_resamples), np.nan))
    return Measured(found, rated.bootstrap(resample, np.asarray(found.values), n_units=n_units))


@dataclass(frozen=True, slots=True)
class Systems:
    """Points that are systems: scores over a system's rows against the mean of its ratings.

    A metric that is scored from sums over rows is, where the table holds its statistics.
    """

    rated: RatedRows
    names: NDArray[np.str_]  # (n_rows,)
    aggregation: dict[str, str]  # metric -> "mean" or "sum_of_statistics"
    statistics: dict[str, FloatArray]  # metric -> (n_rows, n_statistics), NaN where undefined
    score: dict[str, ScoreOfSums]

    def level(self, draws: FloatArray | None = None) -> Level:
        """Return systems as points, or systems in draws, given weights (n_rows, n_draws)."""
        defined = {name: complete_rows(own) for name, own in self.statistics.items()}
        if draws is None:
            return Level(SYSTEM, self.rated, self._measure, defined, self.aggregation)
        measure = partial(self._measure_draws, draws)
        return Level(DRAWS, self.rated, measure, defined, self.aggregation)

    def _measure(self, metric: str, rows: BoolArray) -> Measured:
        scores, ratings = self._points(metric, rows, np.ones((len(rows), 1)))
        request, n_systems = self.rated.request, len(scores)
        rng = np.random.default_rng([request.seed, n_systems])  # The same draws for each metric.

        def resample(weights: FloatArray) -> FloatArray:
            scores, ratings = self._points(metric, rows, weights)
            if request.draw_systems:
                drawn = rng.integers(n_systems, size=scores.shape)
                scores, ratings = (np.take_along_axis(own, drawn, 0) for own in (scores, ratings))
            return row_correlations(metric=scores.T, human=ratings.T)

        found = correlate(metric=scores.ravel(), human=ratings.ravel())
        if n_systems < MIN_SYSTEMS:
            return Measured(found, np.empty((len(COEFFICIENTS), 0)))
        n_units = min(self.rated.n_units, n_systems) if request.draw_systems else None
        return _with_resamples(self.rated, found, resample, n_units=n_units)

    def _measure_draws(self, draws: FloatArray, metric: str, rows: BoolArray) -> Measured:
        scores, ratings = self._points(metric, rows, draws)
        # Draws share rows: an interval from them as if they were independent would be too narrow.
        nothing = np.empty((len(COEFFICIENTS), 0))
        return Measured(correlate(metric=scores.ravel(), human=ratings.ravel()), nothing)

    def _points(
        self, metric: str, rows: BoolArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return scores and ratings of systems; both of shape (n_systems, n_sets)."""
        groups = group_rows(self.names[rows])
        statistics = self.statistics[metric][rows]
        ratings = mean_statistics(self.rated.ratings[rows])
        return (
            group_scores(groups, statistics, self.score[metric], weights=weights[rows]),
            group_scores(groups, ratings, mean_of_sums, weights=weights[rows]),
        )


def make_systems(rated: RatedRows, system: str) -> Systems:
    """Return the systems of some rows, by the column that names them."""
    aggregation: dict[str, str] = {}
    statistics: dict[str, FloatArray] = {}
    score: dict[str, ScoreOfSums] = {}
    for name, column in rated.columns.items():
        kept = None
        if column.over_examples == "sum_of_statistics" and column.metric in METRICS:
            kept = inputs.statistics_of(rated.frame, name)
        if kept is None:
            aggregation[name], score[name] = "mean", mean_of_sums
            statistics[name] = mean_statistics(rated.scores[name])
        else:
            aggregation[name], statistics[name] = column.over_examples, kept
            score[name] = partial(corpus_score, column.metric, column.settings)
    return Systems(rated, score_tables.texts(rated.frame, system), aggregation, statistics, score)


def make_draws(systems: Systems) -> tuple[FloatArray | None, str]:
    """Return the weights of rows in each draw of questions, and a note that says how many.

    Returns
    -------
    float ndarray of shape (n_rows, n_draws), or None
        None where fewer questions have an answer of each system than a draw needs.
    """
    request = systems.rated.request
    assert request.question is not None
    questions = score_tables.texts(systems.rated.frame, request.question)
    usable = questions != score_tables.NO_KEY
    common = common_questions(systems=systems.names, questions=questions, usable=usable)
    said = f"{len(common):,} questions have a rated answer of each system"
    if len(common) < request.questions_per_draw:
        return None, f"no draws: {said}, {request.questions_per_draw} are needed"
    weights = draw_weights(
        questions,
        common,
        n_draws=request.n_draws,
        questions_per_draw=request.questions_per_draw,
        seed=request.seed,
    )
    return weights, f"{request.n_draws} draws of {request.questions_per_draw} questions: {said}"
