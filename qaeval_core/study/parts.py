"""Study parts: AUC, win-lose agreement and forward selection, as records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.stats.auc import weighted_auc
from qaeval_core.stats.bootstrap import percentile_interval, resample_weights
from qaeval_core.stats.correlation import CONSTANT_METRIC
from qaeval_core.stats.forward_selection import N_FOLDS, N_REPEATS, forward_selection
from qaeval_core.stats.levels import complete_rows
from qaeval_core.stats.ordered import make_ordered
from qaeval_core.stats.win_lose import RankPairs, rank_pairs, weighted_share, win_lose
from qaeval_core.study import inputs
from qaeval_core.study.expressions import binary_labels
from qaeval_core.study.inputs import ScoreColumn
from qaeval_core.study.levels import cluster_codes
from qaeval_core.study.points import plain
from qaeval_core.study.records import AucRecord, SelectionRecord, StudyRequest, WinLoseRecord

ONE_LABEL = "one_label"
NO_PAIRS = "no_pairs"


class Slice(NamedTuple):
    """Rows under a name, and the scores to judge in them."""

    subset: str
    frame: pl.DataFrame
    columns: dict[str, ScoreColumn]

    def scores(self, metric: str) -> NDArray[np.float64]:
        """Return scores of shape (n_rows,), higher is better; NaN where undefined."""
        values = inputs.numbers(self.frame, metric)
        return values if self.columns[metric].higher_is_better else -values


def auc_records(request: StudyRequest, part: Slice) -> list[AucRecord]:
    """Return the area under the ROC curve of each metric."""
    assert request.auc is not None
    labels = binary_labels(part.frame, request.auc)
    labelled = ~np.isnan(labels)
    rows = Slice(
        part.subset, part.frame.filter(pl.Series(labelled, dtype=pl.Boolean)), part.columns
    )
    is_positive = labels[labelled] == 1
    clusters = None if request.cluster is None else cluster_codes(rows.frame, request.cluster)
    return [
        _auc(
            request,
            rows,
            metric,
            is_positive=is_positive,
            clusters=clusters,
            n_unlabelled=int((~labelled).sum()),
        )
        for metric in part.columns
    ]


def _auc(
    request: StudyRequest,
    rows: Slice,
    metric: str,
    *,
    is_positive: NDArray[np.bool_],
    clusters: NDArray[np.intp] | None,
    n_unlabelled: int,
) -> AucRecord:
    scores = rows.scores(metric)
    defined = ~np.isnan(scores)
    ordered, positive = make_ordered(scores[defined]), is_positive[defined]
    n_positive, n = int(positive.sum()), len(positive)
    parts = [np.empty(0)]
    for weights in resample_weights(
        len(scores), n_resamples=request.n_resamples, seed=request.seed, clusters=clusters
    ):
        parts.append(weighted_auc(ordered, positive, weights[defined]))
    interval = percentile_interval(np.concatenate(parts))
    reason = None if 0 < n_positive < n else ONE_LABEL
    if reason is None and ordered.n_distinct == 1:
        # All ties would be 0.5 with no uncertainty at all, for a metric that says nothing.
        reason, interval = (
            CONSTANT_METRIC,
            percentile_interval(np.full(request.n_resamples, np.nan)),
        )
    value = float(weighted_auc(ordered, positive, np.ones((n, 1)))[0])
    return AucRecord(
        subset=rows.subset,
        label=str(request.auc),
        metric=metric,
        value=None if reason else plain(value),
        low=plain(interval.low),
        high=plain(interval.high),
        reason=reason,
        n_positive=n_positive,
        n_negative=n - n_positive,
        n_undefined_metric=len(scores) - n,
        n_undefined_label=n_unlabelled,
        n_resamples=interval.n_resamples,
        n_undefined_resamples=interval.n_undefined,
    )


def win_lose_records(request: StudyRequest, part: Slice, human: str) -> list[WinLoseRecord]:
    """Return how often each metric ranks two answers as people do."""
    assert request.win_lose is not None
    questions = cluster_codes(part.frame, request.win_lose)
    ratings = inputs.numbers(part.frame, human)
    pairs = rank_pairs(human=ratings, questions=questions, min_gap=request.min_gap)
    return [_win_lose(request, part, pairs, human=human, metric=metric) for metric in part.columns]


def _win_lose(
    request: StudyRequest, part: Slice, pairs: RankPairs, *, human: str, metric: str
) -> WinLoseRecord:
    scores = part.scores(metric)
    found = win_lose(scores, pairs)
    # Pairs of one question share answers, so questions are drawn, not pairs.
    parts = [np.empty(0)]
    drawn, numbers = np.unique(pairs.question, return_inverse=True)
    renumbered = RankPairs(pairs.winner, pairs.loser, numbers.astype(np.intp))
    for weights in resample_weights(len(drawn), n_resamples=request.n_resamples, seed=request.seed):
        parts.append(weighted_share(scores, renumbered, weights))
    interval = percentile_interval(np.concatenate(parts))
    return WinLoseRecord(
        subset=part.subset,
        human=human,
        metric=metric,
        min_gap=request.min_gap,
        share=plain(found.share),
        low=plain(interval.low),
        high=plain(interval.high),
        reason=NO_PAIRS if np.isnan(found.share) else None,
        n_pairs=len(pairs.winner),
        n_agree=found.n_agree,
        n_tied=found.n_tied,
        n_disagree=found.n_disagree,
        n_undefined=found.n_undefined,
        n_resamples=interval.n_resamples,
        n_undefined_resamples=interval.n_undefined,
    )


def selection_records(
    request: StudyRequest, part: Slice, human: str
) -> tuple[list[SelectionRecord], str | None]:
    """Return the steps of forward selection, and a note on what was left out of it."""
    ratings = inputs.numbers(part.frame, human)
    rated = ~np.isnan(ratings)
    scores = {name: inputs.numbers(part.frame, name) for name in part.columns}
    # A metric with one value or none has nothing to add, and one without values no rows to leave.
    kept = [name for name in scores if len(np.unique(_defined(scores[name][rated]))) > 1]
    head = f"{part.subset}: {human}: forward selection"
    if not kept:
        return [], f"{head}: undefined, no metric varies"
    matrix = np.column_stack([scores[name] for name in kept])
    rows = rated & complete_rows(matrix)
    n = int(rows.sum())
    if n < 2 * N_FOLDS or len(np.unique(ratings[rows])) < 2:
        return [], f"{head}: undefined, {n:,} rows with all scores, or one rating alone"
    steps = forward_selection(kept, metrics=matrix[rows], human=ratings[rows], seed=request.seed)
    records = [
        SelectionRecord(
            subset=part.subset,
            human=human,
            step=step.step,
            metric=metric,
            n_chosen=n_chosen,
            n_repeats=N_REPEATS,
            mse=step.mse,
            r2=step.r2,
            n=n,
            n_undefined=len(rows) - n,
        )
        for step in steps
        for metric, n_chosen in step.n_chosen.items()
    ]
    dropped = [name for name in scores if name not in kept]
    return records, f"{head}: left out, one value: {', '.join(dropped)}" if dropped else None


def _defined(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[~np.isnan(values)]
