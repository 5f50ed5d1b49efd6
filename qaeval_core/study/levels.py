"""Study levels: how the points of a correlation follow from rows: each row, or each system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.metrics.catalogue import corpus_score
from qaeval_core.stats.bootstrap import resample_weights
from qaeval_core.stats.columns import column_correlations
from qaeval_core.stats.correlation import (
    COEFFICIENTS,
    Correlation,
    correlation,
    make_pairs,
    observed,
    weighted_correlations,
    why_undefined,
)
from qaeval_core.stats.levels import (
    Aggregator,
    common_questions,
    complete_rows,
    draw_weights,
    group_scores,
    make_grouping,
    mean_of,
    score_of_sums,
)
from qaeval_core.study import inputs
from qaeval_core.study.inputs import ScoreColumn
from qaeval_core.study.points import Measured, Points
from qaeval_core.study.records import DRAWS, SEGMENT, SYSTEM, StudyRequest


@dataclass(frozen=True, slots=True)
class RatedRows:
    """Rows with a rating: scores by metric, and what rows are grouped and drawn by."""

    request: StudyRequest
    frame: pl.DataFrame
    human: NDArray[np.float64]
    scores: dict[str, NDArray[np.float64]]
    n_undefined_human: int
    clusters: NDArray[np.intp] | None

    def weights(self, rows: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
        """Yield the weights of some rows in each resample of all rows."""
        for chunk in resample_weights(
            len(self.human),
            n_resamples=self.request.n_resamples,
            seed=self.request.seed,
            clusters=self.clusters,
        ):
            yield chunk[rows]


def rated_rows(
    request: StudyRequest,
    frame: pl.DataFrame,
    human: str,
    *,
    metrics: list[str],
    cluster: str | None,
) -> RatedRows:
    """Return the rows with a rating.

    Parameters
    ----------
    cluster : str or None
        Column whose equal values are drawn together; None: rows are drawn one by one.
    """
    ratings = inputs.numbers(frame, human)
    is_rated = ~np.isnan(ratings)
    rated = frame.filter(pl.Series(is_rated, dtype=pl.Boolean))
    return RatedRows(
        request=request,
        frame=rated,
        human=ratings[is_rated],
        scores={name: inputs.numbers(rated, name) for name in metrics},
        n_undefined_human=int((~is_rated).sum()),
        clusters=None if cluster is None else cluster_codes(rated, cluster),
    )


def cluster_codes(frame: pl.DataFrame, column: str) -> NDArray[np.intp]:
    """Return the number, from 0, of each row's value of a column; a row without is alone."""
    names, codes = np.unique(inputs.texts(frame, column), return_inverse=True)
    alone = names[codes] == inputs.NO_KEY if len(names) else np.zeros(0, dtype=bool)
    codes[alone] = len(names) + np.arange(int(alone.sum()))
    return np.unique(codes, return_inverse=True)[1].astype(np.intp)


def segment_points(data: RatedRows, human: str, columns: dict[str, ScoreColumn]) -> Points:
    """Return points that are rows."""

    def measure(metric: str, rows: NDArray[np.bool_]) -> Measured:
        pairs = make_pairs(metric=data.scores[metric][rows], human=data.human[rows])
        reason = why_undefined(pairs)
        if reason is not None:
            return _undefined(pairs.n, reason, data.request.n_resamples)
        chunks = [weighted_correlations(pairs, weights) for weights in data.weights(rows)]
        return Measured(pairs.n, None, observed(pairs), _joined(chunks))

    return Points(
        level=SEGMENT,
        human=human,
        columns=columns,
        aggregation=dict.fromkeys(columns, ""),
        defined={name: ~np.isnan(data.scores[name]) for name in columns},
        n_undefined_human=data.n_undefined_human,
        measure=measure,
    )


@dataclass(frozen=True, slots=True)
class Systems:
    """Points that are systems: scores over a system's rows against the mean of its ratings."""

    data: RatedRows
    names: NDArray[np.str_]  # (n_rows,)
    kinds: dict[str, str]  # metric -> "mean" or "sum_of_statistics"
    aggregators: dict[str, Aggregator]
    defined: dict[str, NDArray[np.bool_]]

    def points(
        self, human: str, columns: dict[str, ScoreColumn], draws: NDArray[np.float64] | None
    ) -> Points:
        """Return systems as points, or systems in draws where weights of draws are given."""
        return Points(
            level=SYSTEM if draws is None else DRAWS,
            human=human,
            columns=columns,
            aggregation=self.kinds,
            defined=self.defined,
            n_undefined_human=self.data.n_undefined_human,
            measure=self._measure if draws is None else partial(self._measure_draws, draws),
        )

    def _measure(self, metric: str, rows: NDArray[np.bool_]) -> Measured:
        found = self._correlations(metric, rows, np.ones((int(rows.sum()), 1)))
        first = found[COEFFICIENTS[0]]
        if first.reason is not None:
            return _undefined(first.n, first.reason, self.data.request.n_resamples)
        chunks = []
        for weights in self.data.weights(rows):
            scores, ratings = self._scores(metric, rows, weights)
            chunks.append(column_correlations(metric=scores, human=ratings))
        return Measured(first.n, None, _values(found), _joined(chunks))

    def _measure_draws(
        self, draws: NDArray[np.float64], metric: str, rows: NDArray[np.bool_]
    ) -> Measured:
        # Draws share rows: an interval from them as if they were independent would be too narrow.
        found = self._correlations(metric, rows, draws[rows])
        first = found[COEFFICIENTS[0]]
        nothing = dict.fromkeys(COEFFICIENTS, np.empty(0))
        return Measured(first.n, first.reason, _values(found), nothing)

    def _correlations(
        self, metric: str, rows: NDArray[np.bool_], weights: NDArray[np.float64]
    ) -> dict[str, Correlation]:
        scores, ratings = self._scores(metric, rows, weights)
        return {
            name: correlation(name, metric=scores.ravel(), human=ratings.ravel())
            for name in COEFFICIENTS
        }

    def _scores(
        self, metric: str, rows: NDArray[np.bool_], weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return scores and ratings of systems; both of shape (n_systems, n_sets)."""
        grouping = make_grouping(self.names[rows])
        kept = np.flatnonzero(rows)

        def aggregate(own: NDArray[np.intp], w: NDArray[np.float64]) -> NDArray[np.float64]:
            return self.aggregators[metric](kept[own], w)

        return (
            group_scores(grouping, aggregate, weights),
            group_scores(grouping, mean_of(self.data.human[rows]), weights),
        )


def make_systems(data: RatedRows, system: str, columns: dict[str, ScoreColumn]) -> Systems:
    """Return the systems of some rows.

    A metric that is scored from sums over rows is, where the table holds its statistics.
    """
    kinds: dict[str, str] = {}
    aggregators: dict[str, Aggregator] = {}
    defined: dict[str, NDArray[np.bool_]] = {}
    for name, column in columns.items():
        statistics = None
        if column.over_examples == "sum_of_statistics":
            statistics = inputs.statistics_of(data.frame, name)
        if statistics is None:
            kinds[name] = "mean"
            aggregators[name] = mean_of(data.scores[name])
            defined[name] = ~np.isnan(data.scores[name])
        else:
            kinds[name] = column.over_examples
            score = partial(corpus_score, column.metric, column.settings)
            aggregators[name] = score_of_sums(statistics, score)
            defined[name] = complete_rows(statistics)
    return Systems(data, inputs.texts(data.frame, system), kinds, aggregators, defined)


def make_draws(
    data: RatedRows, systems: NDArray[np.str_]
) -> tuple[NDArray[np.float64] | None, str]:
    """Return the weights of rows in each draw of questions, and a note that says how many.

    Returns
    -------
    float ndarray of shape (n_rows, n_draws), or None
        None where fewer questions have an answer of each system than a draw needs.
    """
    request = data.request
    assert request.question is not None
    questions = inputs.texts(data.frame, request.question)
    usable = questions != inputs.NO_KEY
    common = common_questions(systems=systems, questions=questions, usable=usable)
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


def _undefined(n: int, reason: str, n_resamples: int) -> Measured:
    nothing = np.full(n_resamples, np.nan)
    return Measured(
        n, reason, dict.fromkeys(COEFFICIENTS, float("nan")), dict.fromkeys(COEFFICIENTS, nothing)
    )


def _values(found: dict[str, Correlation]) -> dict[str, float]:
    return {name: result.value for name, result in found.items()}


def _joined(chunks: list[dict[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in COEFFICIENTS}
