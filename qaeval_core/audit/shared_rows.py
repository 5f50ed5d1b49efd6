"""Shared rows: those that two runs have both, found by their ids in the OUTs, compared in pairs.

Scores are read first. Where at least half of the ids are in both runs, so are the clusters of the
current run, and the input of both: the same input, scored by the same signature, has the same
values. Of metrics that ask a language model, whose replies may be others, and of models on a GPU,
whose last digits are those of a batch, that is not asked.

But: ids, values and hashes of both runs are held at once, where the audit runs, while a profile
never grows with rows. Pairs cost that: 248 bytes a row and run, measured from one million rows to
four with six columns and ids of 18 letters. Ids are texts, not hashes: reports name rows by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.audited_columns import RowColumns, scored_rows
from qaeval_core.audit.count_profile import read_tables
from qaeval_core.audit.paired import PairedColumn, are_enough, pair_columns
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.source import ROW_ID, Source, instance_of
from qaeval_core.errors import QAEvalError, SchemaError
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.unknown import is_known
from qaeval_core.profile.column_profile import FloatArray
from qaeval_core.profile.run_profile import UInt64
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.stats.paired_rows import MatchedRows, match_rows
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.finished_run import FinishedRun
from qaeval_core.tables.open_corpus import open_corpus
from qaeval_core.text.column_hashes import column_hashes

T = TypeVar("T")
Roles = tuple[str, ...]
RowIndices = NDArray[np.intp]
# Odd, so that no bit of a hash is lost when those of several roles become one.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs.

    Attributes
    ----------
    inputs : sequence of str
        Where its input lies now, if not where the run had it.
    """

    run: FinishedRun
    source: Source
    inputs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SharedRows:
    """What the pairs of two runs say.

    Attributes
    ----------
    share : float
        Of the scored rows of the run that shares fewer.
    columns : tuple of PairedColumn
        Empty where that is less than half.
    notes : tuple of str
    """

    share: float
    columns: tuple[PairedColumn, ...] = ()
    notes: tuple[str, ...] = ()


def pair_runs(
    reference: Side,
    current: Side,
    settings: AuditSettings,
    executor: RangeExecutor,
    *,
    retry_s: float = 0.0,
) -> SharedRows:
    """Compare the rows that two runs have both; those that were not scored have no part.

    Parameters
    ----------
    reference, current : Side
    settings : AuditSettings
    executor : RangeExecutor
    retry_s : float
        How long stores are tried.

    Raises
    ------
    RunError, InputError
        If scores cannot be read; without the input, a note says what was not looked for.
    """
    sides = (reference, current)
    executor.begin(None, [path for side in sides for path in side.source.looked_at])
    files = _named_rows(reference.run, current.run)
    scores = [_read_scores(side.source, executor, files, retry_s=retry_s) for side in sides]
    matched = match_rows([own.ids for own in scores])
    names = _same_signatures(reference, current)
    if not (are_enough(matched) and names):
        return SharedRows(matched.share)
    values, ids, rows = _taken(scores, matched, names)
    del scores  # The inputs are read next.
    clusters = _read_clusters(current.source, executor, retry_s=retry_s)[rows[1]]
    is_same, notes = _same_inputs(sides, rows, names, executor, retry_s=retry_s)
    columns = pair_columns(values, ids, clusters, settings, is_same=is_same)
    return SharedRows(matched.share, tuple(columns), tuple(notes))


def _named_rows(reference: FinishedRun, current: FinishedRun) -> frozenset[str] | None:
    """Return the files whose rows can be told apart by ids; None: all.

    Without a column of ids a row is called by its file and number: in a file that is another one
    now, that is another row.
    """
    has_ids = ["id" in run.columns for run in (reference, current)]
    if all(has_ids):
        return None
    if any(has_ids):
        return frozenset()
    pairs = reference.file_ids.items() & current.file_ids.items()
    return frozenset(relative for relative, _ in pairs)


def _same_signatures(reference: Side, current: Side) -> list[str]:
    before, now = reference.source.rows.watch, current.source.rows.watch
    return [
        name for name in now if name in before and before[name].signature == now[name].signature
    ]


@dataclass(slots=True)
class _Scores:
    """The scored rows of some files: ids, numbers of rows over the run, and values."""

    ids: pa.ChunkedArray
    rows: RowIndices
    values: dict[str, FloatArray] = field(default_factory=dict)


def _read_scores(
    source: Source, executor: RangeExecutor, files: frozenset[str] | None, *, retry_s: float
) -> _Scores:
    watch = source.rows.watch
    alone = replace(source, rows=RowColumns(watch=watch), others=_present(source))
    parts = _mapped(executor, partial(_score_range, files=files), alone, "pairs", retry_s=retry_s)
    return _joined(parts, list(watch))


def _present(source: Source) -> tuple[str, ...]:
    return tuple(name for name in source.others if name == QUARANTINE_REASON)


def _joined(given: Iterable[_Scores], names: Sequence[str]) -> _Scores:
    parts = list(given)
    chunks = [chunk for part in parts for chunk in part.ids.chunks]
    values = {name: [np.empty(0), *(part.values[name] for part in parts)] for name in names}
    return _Scores(
        pa.chunked_array(chunks, pa.large_string()),
        np.concatenate([np.empty(0, np.intp), *(part.rows for part in parts)]),
        {name: np.concatenate(own) for name, own in values.items()},
    )


def _score_range(
    task: RangeTask, *, source: Source, files: frozenset[str] | None, retry_s: float
) -> _Scores:
    parts, first = [], task.start
    for table, given in read_tables(task, source, has_ids=True, retry_s=retry_s):
        is_scored = scored_rows(table)
        ids = given.cast(pa.large_string()).filter(pa.array(is_scored))
        if files is not None and task.file.relative not in files:
            ids = pa.chunked_array([pa.nulls(len(ids), pa.large_string())])
        values = {name: own[is_scored] for name, own in source.rows.values(table).items()}
        parts.append(_Scores(ids, first + np.flatnonzero(is_scored), values))
        first += table.num_rows
    return _joined(parts, list(source.rows.watch))


def _taken(
    scores: Sequence[_Scores], matched: MatchedRows, names: Sequence[str]
) -> tuple[
    dict[str, tuple[FloatArray, FloatArray]], pa.ChunkedArray, tuple[RowIndices, RowIndices]
]:
    """Return values, ids and numbers of the rows that are in both runs."""
    (before, now), (was, now_at) = scores, matched.rows
    values = {name: (before.values[name][was], now.values[name][now_at]) for name in names}
    rows = (before.rows[was], now.rows[now_at])
    return values, now.ids.take(pa.array(now_at)), rows


def _read_clusters(source: Source, executor: RangeExecutor, *, retry_s: float) -> UInt64:
    """Return the hashes of the clusters of all rows."""
    rows = RowColumns(watch={}, cluster=source.rows.cluster, id=ROW_ID)
    alone = replace(source, rows=rows, others=())
    parts = _mapped(executor, _cluster_range, alone, "clusters", retry_s=retry_s)
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _cluster_range(task: RangeTask, *, source: Source, retry_s: float) -> UInt64:
    found = [np.empty(0, np.uint64)]
    for table, ids in read_tables(task, source, has_ids=True, retry_s=retry_s):
        found.append(source.rows.clusters(table.append_column(ROW_ID, ids)))
    return np.concatenate(found)


def _mapped(
    executor: RangeExecutor, work: Callable[..., T], source: Source, label: str, *, retry_s: float
) -> Iterator[T]:
    tasks = source.corpus.tasks()
    own = partial(work, source=source, retry_s=retry_s)
    return executor.map(own, tasks, label=label, n_rows=[task.rows.n_rows for task in tasks])


def _same_inputs(
    sides: Sequence[Side],
    rows: Sequence[RowIndices],
    names: Sequence[str],
    executor: RangeExecutor,
    *,
    retry_s: float,
) -> tuple[dict[str, NDArray[np.bool_]], list[str]]:
    """Return which pairs have the same input, of columns where that says something, and notes."""
    left_out = {name: why for name in names if (why := _why_not(sides, name))}
    roles = {name: _roles_of(sides[1], name) for name in names if name not in left_out}
    notes = [
        f"not_reproducible is not checked in {', '.join(own)}: {why}"
        for why in sorted(set(left_out.values()))
        if (own := [name for name in left_out if left_out[name] == why])
    ]
    if not roles:
        return {}, notes
    hashes = []
    for side, own_rows in zip(sides, rows, strict=True):
        try:
            found = _read_inputs(side, tuple(set(roles.values())), executor, retry_s=retry_s)
        except QAEvalError as error:
            return {}, [*notes, f"not_reproducible is not checked: {error}"]
        hashes.append({own: each[own_rows] for own, each in found.items()})
    before, now = hashes
    same = {own: before[own] == now[own] for own in before}
    return {name: same[own] for name, own in roles.items()}, notes


def _why_not(sides: Sequence[Side], name: str) -> str:
    """Return why the same input need not give the same value; "" where it must."""
    for side in sides:
        own = side.source.rows.watch[name]
        settings = side.run.config.metrics.get(instance_of(name, own))
        if settings is None or not own.signature:
            return "it is not a score of these runs"
        if not is_known(settings):
            return "its metric is not installed here"
        needs = metric_of(settings).needs
        if "endpoint" in needs:
            return "a language model may give another reply"
        if side.run.device == "cuda" and needs != ("words",):
            return "on a GPU the last digits depend on the batch"
    return ""


def _roles_of(side: Side, name: str) -> Roles:
    """Return the roles that a column of scores is made of."""
    settings = side.run.config.metrics[instance_of(name, side.source.rows.watch[name])]
    metric = metric_of(settings)
    return (*metric.roles_of(settings), *metric.optional_roles)


def _read_inputs(
    side: Side, wanted: Sequence[Roles], executor: RangeExecutor, *, retry_s: float
) -> dict[Roles, UInt64]:
    """Return the hashes of what all rows of a run have in some roles, of each set of these."""
    run, corpus = side.run, side.source.corpus
    given = open_corpus(run.out, columns={}, inputs=side.inputs)
    # A role without a column is one whose values are null.
    columns = {role: run.columns[role] for own in wanted for role in own if role in run.columns}
    for column in columns.values():
        if column not in given.names:
            raise SchemaError(f"the input no longer has the column {column!r} [QA0305]")
    shared = columns.get("context")
    source = Source(
        corpus=given,
        rows=RowColumns(watch={}, cluster=shared),
        cluster="",
        others=tuple(dict.fromkeys(columns.values())),
    )
    executor.begin(None, source.looked_at)
    starts = {file.relative: file.start for file in corpus.files}
    found = {own: np.zeros(corpus.n_rows, np.uint64) for own in wanted}
    work = partial(_input_range, columns=columns, wanted=tuple(wanted))
    parts = _mapped(executor, work, source, "inputs", retry_s=retry_s)
    for task, part in zip(given.tasks(), parts, strict=True):
        # Files of the input need not stand in the order of those of the scores.
        start = starts.get(task.file.relative, 0) + task.rows.start
        for own, hashes in zip(wanted, part, strict=True):
            found[own][start : start + len(hashes)] = hashes
    return found


def _input_range(
    task: RangeTask,
    *,
    source: Source,
    columns: Mapping[str, str],
    wanted: Sequence[Roles],
    retry_s: float,
) -> list[UInt64]:
    parts: list[list[UInt64]] = [[np.empty(0, np.uint64)] for _ in wanted]
    for table, _ in read_tables(task, source, has_ids=False, retry_s=retry_s):
        hashes = {role: column_hashes(table[column])[0] for role, column in columns.items()}
        for roles, own in zip(wanted, parts, strict=True):
            joined = np.zeros(table.num_rows, np.uint64)
            for role in roles:
                joined = joined * _SPREAD + hashes.get(role, np.uint64(0))
            own.append(joined)
    return [np.concatenate(own) for own in parts]
