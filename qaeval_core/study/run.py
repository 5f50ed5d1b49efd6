"""Correlate: run a study of scores against human ratings, from tables to records.

Everything drawn at random depends on the seed and the rows of a subset alone, so metrics are
always judged on the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.stats.forward_selection import check_sklearn
from qaeval_core.study import inputs
from qaeval_core.study.expressions import binary_labels, select_rows
from qaeval_core.study.inputs import ScoreColumn, StudyTable
from qaeval_core.study.levels import (
    RatedRows,
    make_draws,
    make_systems,
    rated_rows,
    segment_points,
)
from qaeval_core.study.parts import Slice, auc_records, selection_records, win_lose_records
from qaeval_core.study.points import Points
from qaeval_core.study.records import ALL_ROWS, DRAWS, Study, StudyRequest
from qaeval_core.suggest import nearest

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
    table = inputs.read_study(request.scores)
    if request.ratings is not None and request.on is not None:
        table = inputs.join_ratings(table, request.ratings, on=request.on)
    metrics = _check(request, table)
    study = Study(
        request,
        table.frame.height,
        metrics,
        scores={name: inputs.numbers(table.frame, name) for name in metrics},
        ratings={name: inputs.numbers(table.frame, name) for name in request.human},
        notes=list(table.notes),
    )
    columns = {name: table.described.get(name, ScoreColumn()) for name in metrics}
    for name, frame in _subsets(request, table.frame, study.notes):
        part = Slice(name, frame, columns)
        for human in request.human:
            if frame.height * len(metrics) >= _WORTH_SAYING:
                say(f"{name}: {human}: {frame.height:,} rows, {len(metrics)} metrics")
            _judge(study, part, human)
        if request.auc is not None:
            study.auc += auc_records(request, part)
    return study


def _judge(study: Study, part: Slice, human: str) -> None:
    request = study.request
    data = rated_rows(request, part.frame, human, metrics=study.metrics, cluster=request.cluster)
    levels = [segment_points(data, human, part.columns)]
    # The rows of one system have no systems to correlate.
    is_one_system = request.by == request.system and part.subset.startswith(f"{request.by}=")
    if request.system is not None and not is_one_system:
        # A system's answers to one question are kept together with those of other systems.
        cluster = request.cluster or request.question
        keyed = _keyed(study, part, request.system, "systems")
        data = rated_rows(request, keyed.frame, human, metrics=study.metrics, cluster=cluster)
        levels += _system_points(study, part, data, human)
    for points in levels:
        study.correlations += points.correlations(part.subset)
        # Draws share rows, and have no resamples to compare on.
        if points.level != DRAWS:
            study.comparisons += points.comparisons(part.subset, _pairs(request, study.metrics))
    if request.win_lose is not None:
        keyed = _keyed(study, part, request.win_lose, "win-lose pairs")
        study.win_lose += win_lose_records(request, keyed, human)
    if request.forward_selection:
        found, note = selection_records(request, part, human)
        study.forward_selection += found
        study.notes += [note] if note else []


def _keyed(study: Study, part: Slice, column: str, what: str) -> Slice:
    """Return the rows that have a key; those without are left out and counted."""
    kept = inputs.with_key(part.frame, column)
    if n_left_out := part.frame.height - kept.height:
        note = f"{part.subset}: {n_left_out:,} rows without {column} are left out of {what}"
        study.notes += [note] if note not in study.notes else []
    return part._replace(frame=kept)


def _system_points(study: Study, part: Slice, data: RatedRows, human: str) -> list[Points]:
    request = study.request
    assert request.system is not None
    systems = make_systems(data, request.system, part.columns)
    summed = [name for name, column in part.columns.items() if column.over_examples != "mean"]
    if means := [name for name in summed if systems.kinds[name] == "mean"]:
        note = f"no statistics to sum, so systems have means of rows: {', '.join(means)}"
        study.notes += [note] if note not in study.notes else []
    levels = [systems.points(human, part.columns, None)]
    if request.n_draws:
        draws, note = make_draws(data, systems.names)
        study.notes.append(f"{part.subset}: {human}: {note}")
        if draws is not None:
            levels.append(systems.points(human, part.columns, draws))
    return levels


def _check(request: StudyRequest, table: StudyTable) -> list[str]:
    """Return the metrics, after raising for any column that is missing or holds no numbers."""
    frame = table.frame
    for name in request.human:
        inputs.check_numeric(frame, name, "--human")
    for option, column in (
        ("--by", request.by),
        ("--system", request.system),
        ("--question", request.question),
        ("--win-lose", request.win_lose),
        ("--cluster", request.cluster),
    ):
        if column is not None:
            inputs.check_key(frame, column, option)
    named = inputs.choose_metrics(table, request.metrics)
    metrics = [name for name in named if request.metrics or name not in request.human]
    if request.auc is not None:
        binary_labels(frame, request.auc)
    if request.forward_selection:
        check_sklearn()
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
            raise ConfigError(f"--compare: {name!r} is no metric here{nearest(name, metrics)}")
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(f"--compare takes 'all' or two metrics A,B, not {request.compare!r}")
    return [(names[0], names[1])]


def _subsets(
    request: StudyRequest, frame: pl.DataFrame, notes: list[str]
) -> Iterator[tuple[str, pl.DataFrame]]:
    chosen = [select_rows(frame, text, "--subset") for text in request.subsets]
    yield ALL_ROWS, frame
    for text, rows in zip(request.subsets, chosen, strict=True):
        if rows.null_count():
            notes.append(f"{text}: {rows.null_count():,} rows are neither: a value is undefined")
        yield text, frame.filter(rows)
    if request.by is not None:
        keys: NDArray[np.str_] = inputs.texts(frame, request.by)
        names = np.unique(keys)
        if len(names) > MAX_GROUPS:
            raise ConfigError(
                f"--by {request.by}: {len(names):,} different values, at most {MAX_GROUPS}"
            )
        for name in names:
            shown = "null" if name == inputs.NO_KEY else name
            yield f"{request.by}={shown}", frame.filter(pl.Series(keys == name))
