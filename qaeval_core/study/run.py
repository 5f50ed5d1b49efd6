"""Run a study: scores against human ratings, from tables to statistics.

Everything drawn at random depends on the seed and the rows of a subset alone, so metrics are
always judged on the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.stats.bootstrap import percentile_interval, scaled_bootstrap
from qaeval_core.stats.correlation import CONSTANT_METRIC
from qaeval_core.stats.ranking import (
    N_FOLDS,
    N_REPEATS,
    RankPairs,
    auc,
    check_sklearn,
    forward_selection,
    rank_pairs,
    weighted_auc,
    weighted_share,
    win_lose,
)
from qaeval_core.stats.system_scores import complete_rows
from qaeval_core.study import inputs
from qaeval_core.study.correlations import (
    Level,
    make_draws,
    make_systems,
    rated_rows,
    segment_level,
)
from qaeval_core.study.inputs import Subset
from qaeval_core.study.records import ALL_ROWS, DRAWS, Statistic, Study, StudyRequest
from qaeval_core.tables import conditions, score_tables
from qaeval_core.tables.score_tables import ScoreColumn, StudyTable

ONE_LABEL = "one_label"
NO_PAIRS = "no_pairs"
MAX_GROUPS = 200
_WORTH_SAYING = 50_000  # scores to resample: a second or more


def run_study(request: StudyRequest, *, say: Callable[[str], None] = lambda _: None) -> Study:
    """Read the tables of a request and return everything it asks for.

    Parameters
    ----------
    request : StudyRequest
    say : callable
        Told what is being computed, for studies that take a while.

    Raises
    ------
    UnreadableFileError, SchemaError, ConfigError
        If a table cannot be read, a column is missing or an expression cannot be understood.
    """
    table = score_tables.read_study(request.scores, has_places=True, encoding=request.encoding)
    table, clusters = inputs.with_clusters(table, request)
    request = replace(request, cluster=clusters.column)
    if request.ratings is not None and request.on is not None:
        table = inputs.join_ratings(
            table, request.ratings, on=request.on, encoding=request.encoding
        )
    metrics = _check(request, table)
    study = Study(
        request,
        table.frame.height,
        metrics,
        scores={name: score_tables.numbers(table.frame, name) for name in metrics},
        ratings={name: score_tables.numbers(table.frame, name) for name in request.human},
        notes=[*table.notes, _drawn(table.frame, clusters)],
    )
    if aside := [] if request.metrics else inputs.no_metrics(table):
        study.notes.append(f"counts and raw values are no metrics here: {', '.join(aside)}")
    columns = {name: table.described.get(name, ScoreColumn()) for name in metrics}
    for name, frame in _subsets(request, table.frame, study.notes):
        subset = Subset(name, frame, columns)
        for human in request.human:
            if frame.height * len(metrics) >= _WORTH_SAYING:
                say(f"{name}: {human}: {frame.height:,} rows, {len(metrics)} metrics")
            _judge(study, subset, human)
        if request.auc is not None:
            study.statistics += _areas(request, subset, request.auc)
    return study


def _drawn(frame: pl.DataFrame, clusters: inputs.Clusters) -> str:
    """Return what resamples draw."""
    if clusters.column is None:
        return f"intervals treat {frame.height:,} rows as independent"
    n = int(inputs.cluster_codes(frame, clusters.column).max(initial=-1)) + 1
    return (
        f"intervals draw {n:,} groups of rows, by {clusters.name}; --cluster none draws rows one "
        "by one"
    )


def _judge(study: Study, subset: Subset, human: str) -> None:
    request = study.request
    for level in _levels(study, subset, human):
        study.statistics += level.correlations()
        # Draws share rows, and have no resamples to compare on.
        if level.name != DRAWS:
            study.statistics += level.comparisons(_pairs(request, study.metrics))
    if request.win_lose is not None:
        keyed = _keyed(study, subset, request.win_lose, "win-lose pairs")
        study.statistics += _win_lose(request, keyed, human, request.win_lose)
    if request.forward_selection:
        found, note = _selection(request, subset, human)
        study.statistics += found
        study.notes += [note] if note else []


def _levels(study: Study, subset: Subset, human: str) -> Iterator[Level]:
    request = study.request
    yield segment_level(rated_rows(request, subset, human, cluster=request.cluster))
    # The rows of one system have no systems to correlate.
    is_one_system = request.by == request.system and subset.name.startswith(f"{request.by}=")
    if request.system is None or is_one_system:
        return
    # A system's answers to one question are kept together with those of other systems.
    cluster = request.cluster or request.question
    keyed = _keyed(study, subset, request.system, "systems")
    systems = make_systems(rated_rows(request, keyed, human, cluster=cluster), request.system)
    summed = [name for name, column in subset.columns.items() if column.over_examples != "mean"]
    if means := [name for name in summed if systems.aggregation[name] == "mean"]:
        known = [name for name in means if subset.columns[name].metric in METRICS]
        unknown = [name for name in means if name not in known]
        for own, why in ((known, "no statistics to sum"), (unknown, "metrics not installed here")):
            if own:
                _note(study, f"{why}, so systems have means of rows: {', '.join(own)}")
    yield systems.level()
    if request.n_draws:
        draws, note = make_draws(systems)
        study.notes.append(f"{subset.name}: {human}: {note}")
        if draws is not None:
            yield systems.level(draws)


def _keyed(study: Study, subset: Subset, column: str, what: str) -> Subset:
    """Return the rows that have a key; those without are left out and counted."""
    kept = subset.frame.filter(pl.col(column).is_not_null())
    if n_left_out := subset.frame.height - kept.height:
        _note(study, f"{subset.name}: {n_left_out:,} rows without {column} are left out of {what}")
    return replace(subset, frame=kept)


def _note(study: Study, note: str) -> None:
    study.notes += [note] if note not in study.notes else []


def _areas(request: StudyRequest, subset: Subset, label: str) -> Iterator[Statistic]:
    """Yield the area under the ROC curve of each metric, over the rows with a label."""
    labels = conditions.binary_labels(subset.frame, label)
    is_labeled = ~np.isnan(labels)
    labeled = replace(subset, frame=subset.frame.filter(pl.Series(is_labeled, dtype=pl.Boolean)))
    is_positive = labels[is_labeled] == 1
    column = request.cluster
    clusters = None if column is None else inputs.cluster_codes(labeled.frame, column)
    for metric in subset.columns:
        scores = labeled.scores(metric)
        defined = ~np.isnan(scores)
        value, reason, resampled = _area(request, scores, is_positive, clusters)
        yield Statistic(
            table="auc",
            subset=subset.name,
            human=label,
            metric=metric,
            value=value,
            **asdict(percentile_interval(resampled)),
            reason=reason,
            n_positive=int(is_positive[defined].sum()),
            n_negative=int((~is_positive[defined]).sum()),
            n_undefined=int((~defined).sum()),
            n_undefined_human=int((~is_labeled).sum()),
        )


def _area(
    request: StudyRequest,
    scores: NDArray[np.float64],
    is_positive: NDArray[np.bool_],
    clusters: NDArray[np.intp] | None,
) -> tuple[float, str | None, NDArray[np.float64]]:
    """Return an area, why it is undefined, and the areas of resamples."""
    defined = ~np.isnan(scores)
    own, positive = scores[defined], is_positive[defined]
    value = auc(positive=own[positive], negative=own[~positive])
    if not np.isnan(value) and np.ptp(own) == 0:
        # All ties would be 0.5 with no uncertainty at all, for a metric that says nothing.
        return np.nan, CONSTANT_METRIC, np.full(request.n_resamples, np.nan)
    resampled = scaled_bootstrap(
        lambda weights: weighted_auc(own, positive, weights[defined]),
        np.asarray(value),
        len(scores),
        n_resamples=request.n_resamples,
        seed=request.seed,
        clusters=clusters,
    )
    return value, ONE_LABEL if np.isnan(value) else None, np.clip(resampled, 0.0, 1.0)


def _win_lose(
    request: StudyRequest, subset: Subset, human: str, question: str
) -> Iterator[Statistic]:
    """Yield how often each metric ranks two answers to one question as people do."""
    pairs = rank_pairs(
        human=score_tables.numbers(subset.frame, human),
        questions=inputs.cluster_codes(subset.frame, question),
        min_gap=request.min_gap,
    )
    # Pairs of one question share answers, so questions are drawn, not pairs.
    drawn, numbers = np.unique(pairs.question, return_inverse=True)
    renumbered = RankPairs(pairs.winner, pairs.loser, numbers.astype(np.intp))
    clusters = None
    if request.cluster is not None and len(drawn):
        # Of each question that is drawn, by its first answer.
        codes = inputs.cluster_codes(subset.frame, request.cluster)
        first = np.unique(numbers, return_index=True)[1]
        clusters = np.unique(codes[pairs.winner[first]], return_inverse=True)[1].astype(np.intp)
    for metric in subset.columns:
        scores = subset.scores(metric)
        found = win_lose(scores, pairs)
        resampled = scaled_bootstrap(
            partial(weighted_share, scores, renumbered),
            np.asarray(found.share),
            len(drawn),
            n_resamples=request.n_resamples,
            seed=request.seed,
            clusters=clusters,
        )
        yield Statistic(
            table="win_lose",
            subset=subset.name,
            human=human,
            metric=metric,
            min_gap=request.min_gap,
            value=found.share,
            **asdict(percentile_interval(np.clip(resampled, 0.0, 1.0))),
            reason=NO_PAIRS if np.isnan(found.share) else None,
            n=len(pairs.winner),
            n_agree=found.n_agree,
            n_tied=found.n_tied,
            n_disagree=found.n_disagree,
            n_undefined=found.n_undefined,
        )


def _selection(
    request: StudyRequest, subset: Subset, human: str
) -> tuple[list[Statistic], str | None]:
    """Return the steps of forward selection, and a note on what was left out of it."""
    ratings = score_tables.numbers(subset.frame, human)
    rated = ~np.isnan(ratings)
    scores = {name: score_tables.numbers(subset.frame, name) for name in subset.columns}
    # A metric with one value or none has nothing to add, and one without values no rows to leave.
    kept = [name for name in scores if len(np.unique(_defined(scores[name][rated]))) > 1]
    head = f"{subset.name}: {human}: forward selection"
    if not kept:
        return [], f"{head}: undefined, no metric varies"
    matrix = np.column_stack([scores[name] for name in kept])
    rows = rated & complete_rows(matrix)
    n = int(rows.sum())
    if n < 2 * N_FOLDS or len(np.unique(ratings[rows])) < 2:
        return [], f"{head}: undefined, {n:,} rows with all scores, or one rating alone"
    found = [
        Statistic(
            table="forward_selection",
            subset=subset.name,
            human=human,
            step=step.step,
            metric=metric,
            n_chosen=n_chosen,
            n_repeats=N_REPEATS,
            value=step.mse,
            r2=step.r2,
            n=n,
            n_undefined=len(rows) - n,
        )
        for step in forward_selection(
            kept, metrics=matrix[rows], human=ratings[rows], seed=request.seed
        )
        for metric, n_chosen in step.n_chosen.items()
    ]
    dropped = [name for name in scores if name not in kept]
    return found, f"{head}: left out, one value: {', '.join(dropped)}" if dropped else None


def _defined(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[~np.isnan(values)]


def _check(request: StudyRequest, table: StudyTable) -> list[str]:
    """Return the metrics, after raising for any column that is missing or holds no numbers."""
    frame = table.frame
    for name in request.human:
        score_tables.check_numeric(frame, name, "--human")
    for option, column in (
        ("--by", request.by),
        ("--system", request.system),
        ("--question", request.question),
        ("--win-lose", request.win_lose),
    ):
        if column is not None:
            score_tables.check_key(frame, column, option)
    named = inputs.choose_metrics(table, request.metrics)
    metrics = [name for name in named if request.metrics or name not in request.human]
    if request.auc is not None:
        conditions.binary_labels(frame, request.auc)
    if request.forward_selection:
        check_sklearn("forward selection")
    _pairs(request, metrics)
    return metrics


def _pairs(request: StudyRequest, metrics: Sequence[str]) -> list[tuple[str, str]]:
    if request.compare is None:
        return []
    if request.compare == "all":
        return [(a, b) for i, a in enumerate(metrics) for b in metrics[i + 1 :]]
    names = [name.strip() for name in request.compare.split(",")]
    for name in names:
        if name not in metrics:
            raise ConfigError(
                f"--compare: no metric {name!r} here{nearest(name, metrics)} [QA0105]"
            )
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(
            f"--compare takes 'all' or two metrics A,B, not {request.compare!r} [QA0104]"
        )
    return [(names[0], names[1])]


def _subsets(
    request: StudyRequest, frame: pl.DataFrame, notes: list[str]
) -> Iterator[tuple[str, pl.DataFrame]]:
    chosen = [conditions.select_rows(frame, text, "--subset") for text in request.subsets]
    yield ALL_ROWS, frame
    for text, rows in zip(request.subsets, chosen, strict=True):
        if rows.null_count():
            notes.append(f"{text}: {rows.null_count():,} rows are neither: a value is undefined")
        yield text, frame.filter(rows)
    if request.by is not None:
        keys: NDArray[np.str_] = score_tables.texts(frame, request.by)
        names = np.unique(keys)
        if len(names) > MAX_GROUPS:
            raise ConfigError(
                f"--by {request.by}: {len(names):,} different values; at most {MAX_GROUPS} are "
                "allowed [QA0322]"
            )
        for name in names:
            shown = "null" if name == score_tables.NO_KEY else name
            yield f"{request.by}={shown}", frame.filter(pl.Series(keys == name))
