"""Shared rows: those that two runs have both, found by their ids in the OUTs, compared in pairs.

Scores are read first. Where at least half of the ids are in both runs, so are the clusters of the
current run, and the input of both: the same input, scored by the same signature, has the same
values. Of metrics that ask a language model, whose replies may be others, and of models on a GPU,
whose last digits are those of a batch, that is not asked.

What is read is put into parts by ids, on disk where the rows are many, and paired a part at a time.
Ids are texts, not hashes: reports name rows by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.audited_columns import RowColumns, scored_rows
from qaeval_core.audit.count_profile import read_tables
from qaeval_core.audit.pair_counts import MatchedCounts, MatchedPairs
from qaeval_core.audit.paired import MIN_SHARE, PairedColumn
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.source import ROW_ID, Source, instance_of
from qaeval_core.errors import QAEvalError, SchemaError
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.unknown import is_known
from qaeval_core.profile.column_profile import FloatArray
from qaeval_core.profile.run_profile import UInt64
from qaeval_core.running.progress import Tell, no_progress
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.stats.paired_rows import match_rows
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.finished_run import FinishedRun
from qaeval_core.tables.open_corpus import open_corpus
from qaeval_core.tables.row_parts import ROWS_PER_PART, RowParts
from qaeval_core.text.column_hashes import column_hashes

Roles = tuple[str, ...]
# Odd, so that no bit of a hash is lost when those of several roles become one.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
# Tables in parts. Rows have their number over the run; other columns are numbered.
_SCORES, _INPUTS = ("scores0", "scores1"), ("inputs0", "inputs1")
_MATCHED, _CLUSTERS = "matched", "clusters"
_ID, _ROW, _WAS_ROW, _OWN, _WAS = "id", "row", "was row", "own", "was"


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
    tell: Tell = no_progress,
    retry_s: float = 0.0,
    rows_per_part: int = ROWS_PER_PART,
) -> SharedRows:
    """Compare the rows that two runs have both; those that were not scored have no part.

    Parameters
    ----------
    reference, current : Side
    settings : AuditSettings
    executor : RangeExecutor
    tell : callable, optional
        Gets a label, the rows done and all rows, of what is not the executor's.
    retry_s : float
        How long stores are tried.
    rows_per_part : int
        How many are in hand at once; more lie on disk.

    Raises
    ------
    RunError, InputError
        If scores cannot be read, or the disk is full; without the input, a note says what was not
        looked for.
    """
    sides = (reference, current)
    executor.begin(None, [path for side in sides for path in side.source.looked_at])
    names = _same_signatures(reference, current)
    n_rows = sum(side.source.corpus.n_rows for side in sides)
    with ExitStack() as stack:
        parts = RowParts(n_rows, stack, rows_per_part=rows_per_part)
        put = partial(
            _put,
            parts,
            executor,
            files=_named_rows(reference.run, current.run),
            retry_s=retry_s,
        )
        for name, side in zip(_SCORES, sides, strict=True):
            rows = RowColumns(watch={own: side.source.rows.watch[own] for own in names})
            put(name, _only(side.source, rows), partial(_values, rows=rows), label="pairs")
        share = _match(parts)
        if share < MIN_SHARE or not names:
            return SharedRows(share)
        rows = RowColumns(watch={}, cluster=current.source.rows.cluster, id=ROW_ID)
        own = partial(_clusters, rows=rows)
        put(_CLUSTERS, _only(current.source, rows), own, label="clusters")
        roles, notes = _put_inputs(sides, names, executor, put)
        counts = MatchedCounts(settings)
        for number in range(parts.n_parts):
            tell("matched pairs", n_rows * number // parts.n_parts, n_rows)
            if (pairs := _pairs(parts, number, names, roles)) is not None:
                counts.add(pairs)
        tell("matched pairs", n_rows, n_rows)
    return SharedRows(share, tuple(counts.columns()), tuple(notes))


def _only(source: Source, rows: RowColumns) -> Source:
    """Return a source that reads some columns, and whether rows were scored."""
    others = tuple(name for name in source.others if name == QUARANTINE_REASON)
    return replace(source, rows=rows, others=others)


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


def _put(
    parts: RowParts,
    executor: RangeExecutor,
    name: str,
    source: Source,
    columns: Callable[[pa.Table], Iterable[NDArray[np.generic]]],
    *,
    label: str,
    files: frozenset[str] | None,
    retry_s: float,
    starts: Mapping[str, int] | None = None,
) -> None:
    """Put scored rows into parts by ids, with their numbers over the run.

    Parameters
    ----------
    columns : callable
        What is put of a table of rows.
    files : frozenset of str, optional
        Those whose ids name rows; default all.
    starts : mapping of file to int, optional
        Its first row, where files do not stand in the order of the run.
    """
    tasks = source.corpus.tasks()
    own = partial(_read_range, source=source, columns=columns, files=files, retry_s=retry_s)
    tables = executor.map(own, tasks, label=label, n_rows=[task.rows.n_rows for task in tasks])
    with parts.writing(name) as put:
        for task, table in zip(tasks, tables, strict=True):
            start = task.file.start if starts is None else starts[task.file.relative]
            if table is not None:
                rows = pa.array(table[_ROW].to_numpy() + (start + task.rows.start))
                put(table.set_column(table.column_names.index(_ROW), _ROW, rows), _ID)


def _read_range(
    task: RangeTask,
    *,
    source: Source,
    columns: Callable[[pa.Table], Iterable[NDArray[np.generic]]],
    files: frozenset[str] | None,
    retry_s: float,
) -> pa.Table | None:
    """Return ids, numbers and some columns of the scored rows of a range."""
    found, first = [], 0
    has_ids = files is None or task.file.relative in files
    for table, ids in read_tables(task, source, has_ids=True, retry_s=retry_s):
        n = table.num_rows
        texts = ids if has_ids else pa.chunked_array([pa.nulls(n, pa.string())])
        own = {_ID: texts.cast(pa.large_string()), _ROW: first + np.arange(n)}
        given = columns(table.append_column(ROW_ID, ids))
        own |= {f"{_OWN}{i}": values for i, values in enumerate(given)}
        found.append(pa.table(own).filter(pa.array(scored_rows(table))))
        first += n
    return pa.concat_tables(found) if found else None


def _values(table: pa.Table, *, rows: RowColumns) -> list[FloatArray]:
    return list(rows.values(table).values())


def _clusters(table: pa.Table, *, rows: RowColumns) -> list[UInt64]:
    return [rows.clusters(table)]


def _match(parts: RowParts) -> float:
    """Put the rows that both runs have into parts of their own; return their share."""
    n_rows, n_matched = np.zeros(2, np.int64), 0
    with parts.writing(_MATCHED) as put:
        for number in range(parts.n_parts):
            before, now = (parts.take(name, number) for name in _SCORES)
            n_rows += [0 if table is None else table.num_rows for table in (before, now)]
            if before is None or now is None:
                continue
            matched = match_rows([before[_ID], now[_ID]])
            was, own = (
                table.take(pa.array(rows))
                for table, rows in zip((before, now), matched.rows, strict=True)
            )
            n_matched += own.num_rows
            own = own.append_column(_WAS_ROW, was[_ROW])
            for i, name in enumerate(was.column_names[2:]):
                own = own.append_column(f"{_WAS}{i}", was[name])
            put(own, _ID)
    return float(n_matched / max(n_rows.max(), 1))


def _pairs(
    parts: RowParts, number: int, names: Sequence[str], roles: Mapping[str, int]
) -> MatchedPairs | None:
    """Return the pairs of a part; None where it has none."""
    matched = parts.take(_MATCHED, number)
    if matched is None:
        return None
    rows = [matched[name].to_numpy() for name in (_WAS_ROW, _ROW)]
    (clusters,) = _of_rows(parts, _CLUSTERS, number, rows[1])
    before, now = ([], [])
    if roles:
        before, now = (
            _of_rows(parts, name, number, own) for name, own in zip(_INPUTS, rows, strict=True)
        )
    same = [was == own for was, own in zip(before, now, strict=True)]
    return MatchedPairs(
        ids=matched[_ID],
        rows=rows[1],
        clusters=clusters,
        values={
            name: (matched[f"{_WAS}{i}"].to_numpy(), matched[f"{_OWN}{i}"].to_numpy())
            for i, name in enumerate(names)
        },
        is_same={name: same[i] for name, i in roles.items()},
    )


def _of_rows(parts: RowParts, name: str, number: int, rows: NDArray[np.int64]) -> list[UInt64]:
    """Return the columns of some rows, by their numbers."""
    table = parts.take(name, number)
    assert table is not None, f"{name} has no part of rows that were matched"
    numbers = table[_ROW].to_numpy()
    order = np.argsort(numbers, kind="stable")
    at = order[np.searchsorted(numbers, rows, sorter=order)]
    assert np.array_equal(numbers[at], rows), f"{name} lacks rows that were matched"
    return [table[own].to_numpy()[at] for own in table.column_names[2:]]


def _put_inputs(
    sides: Sequence[Side], names: Sequence[str], executor: RangeExecutor, put: Callable[..., None]
) -> tuple[dict[str, int], list[str]]:
    """Put hashes of both inputs into parts.

    Returns
    -------
    (dict of column to int, list of str)
        Which hash is of what a column is made of, where that says something; and notes.
    """
    left_out = {name: why for name in names if (why := _why_not(sides, name))}
    roles = {name: _roles_of(sides[1], name) for name in names if name not in left_out}
    notes = [
        f"not_reproducible is not checked in {', '.join(own)}: {why}"
        for why in sorted(set(left_out.values()))
        if (own := [name for name in left_out if left_out[name] == why])
    ]
    wanted = list(dict.fromkeys(roles.values()))
    if not wanted:
        return {}, notes
    for name, side in zip(_INPUTS, sides, strict=True):
        try:
            _put_input(name, side, wanted, executor, put)
        except QAEvalError as error:
            return {}, [*notes, f"not_reproducible is not checked: {error}"]
    return {name: wanted.index(own) for name, own in roles.items()}, notes


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


def _put_input(
    name: str,
    side: Side,
    wanted: Sequence[Roles],
    executor: RangeExecutor,
    put: Callable[..., None],
) -> None:
    """Put hashes of what rows of a run have in some roles into parts, one of each set of these."""
    run = side.run
    given = open_corpus(run.out, columns={}, inputs=side.inputs)
    # A role without a column is one whose values are null.
    columns = {role: run.columns[role] for own in wanted for role in own if role in run.columns}
    for column in columns.values():
        if column not in given.names:
            raise SchemaError(f"the input no longer has the column {column!r} [QA0305]")
    source = Source(
        corpus=given,
        rows=RowColumns(watch={}, cluster=columns.get("context")),
        cluster="",
        others=tuple(dict.fromkeys(columns.values())),
    )
    executor.begin(None, source.looked_at)
    starts = {file.relative: file.start for file in side.source.corpus.files}
    hashes = partial(_input_hashes, columns=columns, wanted=wanted)
    put(name, source, hashes, label="inputs", starts=starts)


def _input_hashes(
    table: pa.Table, *, columns: Mapping[str, str], wanted: Sequence[Roles]
) -> list[UInt64]:
    """Return the hashes of rows, one of each set of roles."""
    hashes = {role: column_hashes(table[column])[0] for role, column in columns.items()}
    found = []
    for roles in wanted:
        joined = np.zeros(table.num_rows, np.uint64)
        for role in roles:
            joined = joined * _SPREAD + hashes.get(role, np.uint64(0))
        found.append(joined)
    return found
