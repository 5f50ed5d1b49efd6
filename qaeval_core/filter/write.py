"""Write: the second pass: kept rows, and what was decided of every row.

A range of rows and its decisions in, two parts of Parquet files out, and sums for the yield curve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.filter.corpus_rows import NO_TWIN
from qaeval_core.filter.facts import KEPT
from qaeval_core.filter.order import Cut, at_or_before
from qaeval_core.filter.scan import IdsAside
from qaeval_core.filter.values import value_text
from qaeval_core.pages.marked import marked_texts
from qaeval_core.planning.inputs import InputFile
from qaeval_core.schema import COLUMNS_METADATA, is_json
from qaeval_core.stats.certificate import N_SHARES
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.store.lock import Tenure
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.range_reader import RangeReader, RangeRows
from qaeval_core.text.column_hashes import text_of, texts_of
from qaeval_core.text.plain_columns import column_at, column_type

DECISIONS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("rank_value", pa.float64()),
        pa.field("duplicate_of", pa.string()),
        pa.field("group_size", pa.int64()),
        pa.field("group_kept", pa.int64()),
    ]
)
_ROWS_PER_GROUP = 1 << 16
_GROUP_BYTES = 64 << 20
NO_BIN = 255
N_BINS = 20
# Of a text that an example shows, and of a context before the answer.
_MAX_CHARS, _BEFORE_MARK = 1_000, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What every range needs to know.

    Attributes
    ----------
    metrics : tuple of str
        Columns that are averaged.
    rank_range : (float, float)
        Lowest and highest rank value, between which ``N_BINS`` bins lie.
    roles : mapping of role to column
        Texts that examples show.
    counted : sequence of str
        Columns of which values are shown.
    starts : tuple of int
        Number of the first row of each range, over the whole corpus.
    tenure : Tenure
        Of KEPT; another filter that has taken it is not written over.
    fingerprint : str
        Of the filter.
    keeps : bool
        Whether kept rows are written at all.
    higher_is_better : bool
        Of the values that people see; those that rows are ranked by are negatives of them if not.
    """

    reasons: tuple[str, ...]
    score_names: tuple[str, ...]
    id_column: str | None
    metrics: tuple[str, ...]
    roles: Mapping[str, str]
    counted: Sequence[str]
    starts: tuple[int, ...]
    work: str
    rank_range: tuple[float, float]
    tenure: Tenure
    fingerprint: str
    keeps: bool = True
    higher_is_better: bool = True
    columns_metadata: bytes = b""
    retry_s: float = 0.0

    @property
    def outages(self) -> Outages:
        """How long stores are tried."""
        return Outages(retry_s=self.retry_s)

    def shown(self, rank: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rank values as people see them."""
        return rank if self.higher_is_better else 0.0 - rank  # Not -0.


class WantedRows(NamedTuple):
    """Rows of which more is wanted: examples' texts, and values by row and column."""

    examples: Sequence[int] = ()
    values: Sequence[tuple[int, str]] = ()

    def among(self, rows: slice) -> WantedRows:
        """Return those that are among some rows."""
        return WantedRows(
            [row for row in self.examples if rows.start <= row < rows.stop],
            [own for own in self.values if rows.start <= own[0] < rows.stop],
        )


@dataclass(slots=True)
class Decisions:
    """What was decided of neighboring rows; arrays of shape (n_rows,).

    Attributes
    ----------
    share : uint8 ndarray
        The smallest of the kept shares that has the row; ``NO_BIN`` of rows that an earlier stage
        dropped.
    shown : WantedRows
        Rows, over the whole corpus, of which more is wanted.
    """

    reason: NDArray[np.uint8]
    rank: NDArray[np.float64]
    share: NDArray[np.uint8]
    twin: NDArray[np.int64] | None = None
    group_size: NDArray[np.uint32] | None = None
    group_kept: NDArray[np.uint32] | None = None
    shown: WantedRows = field(default_factory=WantedRows)


@dataclass(slots=True)
class MetricSums:
    """Sums of metrics over some rows.

    Attributes
    ----------
    by_share, n_by_share : ndarray of shape (n_metrics, N_SHARES)
        Sums, and numbers of defined values, by smallest share.
    kept, dropped, n_kept, n_dropped : ndarray of shape (n_metrics,)
    ranks : int64 ndarray of shape (2, N_BINS)
        How many rows have a rank value in each bin: dropped ones and kept ones.
    """

    by_share: NDArray[np.float64]
    n_by_share: NDArray[np.int64]
    kept: NDArray[np.float64]
    n_kept: NDArray[np.int64]
    dropped: NDArray[np.float64]
    n_dropped: NDArray[np.int64]
    ranks: NDArray[np.int64]

    @classmethod
    def of_all(cls, written: Sequence[WrittenRange], n_metrics: int) -> MetricSums:
        """Return those of all ranges."""
        found = cls.none(n_metrics)
        for own in written:
            found.add(own.sums)
        return found

    @classmethod
    def none(cls, n_metrics: int) -> MetricSums:
        """Return those of no rows."""
        return cls(
            np.zeros((n_metrics, N_SHARES)),
            np.zeros((n_metrics, N_SHARES), np.int64),
            np.zeros(n_metrics),
            np.zeros(n_metrics, np.int64),
            np.zeros(n_metrics),
            np.zeros(n_metrics, np.int64),
            np.zeros((2, N_BINS), np.int64),
        )

    def add(self, other: MetricSums) -> None:
        """Add those of other rows."""
        self.by_share += other.by_share
        self.n_by_share += other.n_by_share
        self.kept += other.kept
        self.n_kept += other.n_kept
        self.dropped += other.dropped
        self.n_dropped += other.n_dropped
        self.ranks += other.ranks


@dataclass(slots=True)
class WrittenRange:
    """What was written of a range; examples by row, texts of values by row and column."""

    number: int
    sums: MetricSums
    examples: dict[int, dict[str, Any]] = field(default_factory=dict)
    names: dict[tuple[int, str], str | None] = field(default_factory=dict)


def write_range(task: RangeTask, decisions: Decisions, plan: WritePlan) -> WrittenRange:
    """Write the parts of a range.

    Raises
    ------
    InputChangedError, StorageError, UnreadableFileError
        If rows cannot be read, or the disk refuses for as long as it is tried.
    """
    outages = plan.outages

    def write() -> WrittenRange:
        return _write_parts(task, decisions, plan, outages)

    return outages.call(write, store=plan.work, what=f"cannot write below {plan.work}")


def _write_parts(
    task: RangeTask, decisions: Decisions, plan: WritePlan, outages: Outages
) -> WrittenRange:
    written = WrittenRange(task.number, MetricSums.none(len(plan.metrics)))
    reader = RangeReader(
        task,
        names=None if plan.keeps else _needed(plan),
        score_names=plan.score_names,
        id_column=plan.id_column,
        outages=outages,
    )
    schema, ids = kept_schema(task, plan), IdsAside(plan)
    with (
        _writing(part_path(plan.work, "decisions", task.number), DECISIONS_SCHEMA, "id") as decided,
        _writing(part_path(plan.work, "kept", task.number), schema, plan.id_column) as kept,
    ):
        kept_groups, decided_groups = _Grouped(kept), _Grouped(decided)
        for part in reader:
            own = slice(part.rows.start - task.rows.start, part.rows.stop - task.rows.start)
            chosen = decisions.reason[own] == KEPT
            _add_sums(written.sums, part.table, decisions.share[own], chosen, plan)
            _count_ranks(written.sums, decisions.rank[own], chosen, plan)
            _add_examples(written, task, part, decisions, plan)
            _add_names(written, task, part, decisions)
            decided_groups.add(_decided_rows(part, own, decisions, plan, ids))
            if plan.keeps and chosen.any():
                table = _with_id(part, schema).filter(pa.array(chosen))
                kept_groups.add(table.cast(schema))
        kept_groups.flush()
        decided_groups.flush()
    reader.close()
    return written


@contextlib.contextmanager
def _writing(
    path: StoragePath, schema: pa.Schema, id_column: str | None
) -> Iterator[pq.ParquetWriter]:
    # Flushed once it is in its place, or as a part of what is.
    with (
        path.writer(is_flushed=False) as sink,
        pq.ParquetWriter(
            sink, schema, compression="zstd", use_dictionary=_repeating(schema, id_column)
        ) as writer,
    ):
        yield writer


def _repeating(schema: pa.Schema, id_column: str | None) -> list[str]:
    """Return the columns whose values repeat: others cost time and space."""
    buffer = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), buffer)
    columns = pq.ParquetFile(pa.BufferReader(buffer.getvalue())).schema
    own = [columns.column(i) for i in range(len(columns))]
    return [
        column.path
        for column in own
        if column.physical_type not in ("FLOAT", "DOUBLE") and column.path != id_column
    ]


class _Grouped:
    """Writes tables as row groups of a useful size."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer
        self._tables: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        n_rows = sum(own.num_rows for own in self._tables)
        if n_rows >= _ROWS_PER_GROUP or sum(own.nbytes for own in self._tables) >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._tables:
            self._writer.write_table(pa.concat_tables(self._tables))
            self._tables = []


def part_path(work: str, what: str, number: int) -> StoragePath:
    """Return where a part of an output file lies."""
    return as_path(work) / what / f"{number}.parquet"


def _needed(plan: WritePlan) -> list[str]:
    return list(dict.fromkeys([*plan.metrics, *plan.roles.values(), *plan.counted]))


def written_schema(file: InputFile) -> pa.Schema:
    """Return the columns of a file as it has them, or as they are read where Arrow cannot go back.

    JSON is the text that it is.
    """
    fields = []
    for own in file.schema:
        place = file.written.get_field_index(own.name)
        kinds = [own.type] if place < 0 else [file.written.types[place], own.type]
        kinds = [kind.storage_type if is_json(kind) else kind for kind in kinds]
        fields.append(own.with_type(next(kind for kind in kinds if _can_cast(kinds[-1], kind))))
    return pa.schema(fields, metadata=file.schema.metadata)


def _can_cast(kind: pa.DataType, other: pa.DataType) -> bool:
    if kind == other:
        return True
    if not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind)):
        return _has_cast(kind, other)
    # Arrow says what it cannot do of an inner type where there is a value alone.
    own = [kind.field(i).type for i in range(kind.num_fields)]
    wanted = [other.field(i).type for i in range(other.num_fields)]
    return _has_cast(kind, other) and all(map(_can_cast, own, wanted))


def _has_cast(kind: pa.DataType, other: pa.DataType) -> bool:
    try:
        pa.nulls(0, kind).cast(other)
    except pa.ArrowNotImplementedError:
        return False
    return True


def kept_schema(task: RangeTask, plan: WritePlan) -> pa.Schema:
    """Return the columns of kept rows: the source's, and the scores."""
    source = written_schema(task.file.source)
    fields = list(source)
    if plan.id_column is None and "id" not in source.names:
        fields.insert(0, pa.field("id", pa.string()))
    if task.file.scores is not None:
        fields += [task.file.scores.schema.field(name) for name in plan.score_names]
    metadata = dict(source.metadata or {})
    if plan.columns_metadata:
        metadata[COLUMNS_METADATA] = plan.columns_metadata
    return pa.schema(fields, metadata=metadata or None)


def _with_id(part: RangeRows, schema: pa.Schema) -> pa.Table:
    if "id" in schema.names and "id" not in part.table.column_names:
        return part.table.add_column(0, "id", part.ids)
    return part.table


def _decided_rows(
    part: RangeRows, own: slice, decisions: Decisions, plan: WritePlan, ids: IdsAside
) -> pa.Table:
    codes = decisions.reason[own]
    rank = decisions.rank[own]
    names = pa.array([None, *plan.reasons[1:]], pa.string())
    n_rows = len(codes)
    columns = {
        "id": part.ids.cast(pa.string()),
        "kept": pa.array((codes == KEPT) & plan.keeps),
        "reason": names.take(pa.array(codes)),
        "rank_value": pa.array(plan.shown(rank), mask=np.isneginf(rank)),
        "duplicate_of": _twin_ids(decisions.twin, own, plan, ids),
        "group_size": _counts(decisions.group_size, own, n_rows),
        "group_kept": _counts(decisions.group_kept, own, n_rows),
    }
    return pa.table(columns, schema=DECISIONS_SCHEMA)


def _counts(values: NDArray[np.uint32] | None, own: slice, n_rows: int) -> pa.Array:
    return pa.nulls(n_rows, pa.int64()) if values is None else pa.array(values[own].astype("i8"))


def _twin_ids(
    twins: NDArray[np.int64] | None, own: slice, plan: WritePlan, ids: IdsAside
) -> pa.Array:
    """Return the ids of twins, from where the first pass put them."""
    n_rows = own.stop - own.start
    if twins is None:
        return pa.nulls(n_rows, pa.string())
    rows = twins[own]
    places = np.flatnonzero(rows != NO_TWIN)
    if not len(places):
        return pa.nulls(n_rows, pa.string())
    wanted = rows[places]
    numbers = np.searchsorted(np.array(plan.starts), wanted, side="right") - 1
    found: list[pa.Array] = []
    taken: list[NDArray[np.intp]] = []
    for number in np.unique(numbers):
        chosen = numbers == number
        found.append(ids.of(int(number)).take(pa.array(wanted[chosen] - plan.starts[number])))
        taken.append(places[chosen])
    order = np.full(n_rows, -1, np.int64)
    order[np.concatenate(taken)] = np.arange(len(wanted))
    texts = pa.concat_arrays(found).cast(pa.string())
    return texts.take(pa.array(order, mask=order < 0))


def _add_sums(
    sums: MetricSums,
    table: pa.Table,
    share: NDArray[np.uint8],
    kept: NDArray[np.bool_],
    plan: WritePlan,
) -> None:
    eligible = share != NO_BIN
    for i, name in enumerate(plan.metrics):
        # Whole numbers beyond 2^53 are rounded, as they are where rows are ranked.
        column = table[name].cast(pa.float64(), safe=False).to_numpy()
        defined = np.isfinite(column)
        chosen = eligible & defined
        sums.by_share[i] += np.bincount(share[chosen], column[chosen], minlength=N_SHARES)
        sums.n_by_share[i] += np.bincount(share[chosen], minlength=N_SHARES)
        for total, count, own in (
            (sums.kept, sums.n_kept, kept & defined),
            (sums.dropped, sums.n_dropped, ~kept & defined),
        ):
            total[i] += column[own].sum()
            count[i] += int(own.sum())


def _count_ranks(
    sums: MetricSums, rank: NDArray[np.float64], kept: NDArray[np.bool_], plan: WritePlan
) -> None:
    defined = np.isfinite(rank)
    for i, own in enumerate((~kept & defined, kept & defined)):
        sums.ranks[i] += np.histogram(rank[own], N_BINS, plan.rank_range)[0]


def _add_examples(
    written: WrittenRange, task: RangeTask, part: RangeRows, decisions: Decisions, plan: WritePlan
) -> None:
    first = task.file.start + part.rows.start
    for row in decisions.shown.examples:
        if not first <= row < first + part.rows.n_rows:
            continue
        place = row - first
        in_range = row - task.start
        texts = {
            role: texts_of(column_at(part.table, name)[place])
            for role, name in plan.roles.items()
            if column_type(part.table.schema, name) is not None
        }
        pieces = marked_texts(texts, n_chars=_MAX_CHARS, n_before=_BEFORE_MARK)
        rank = float(plan.shown(decisions.rank[in_range : in_range + 1])[0])
        written.examples[row] = {
            "file": task.file.relative,
            "row": part.rows.start + place,
            "id": text_of(part.ids[place]),
            "kept": bool(decisions.reason[in_range] == KEPT) and plan.keeps,
            "reason": plan.reasons[decisions.reason[in_range]] or None,
            "rank_value": rank if np.isfinite(rank) else None,
            "texts": {role: "".join(own) for role, own in pieces},
        }


def _add_names(
    written: WrittenRange, task: RangeTask, part: RangeRows, decisions: Decisions
) -> None:
    first = task.file.start + part.rows.start
    for row, name in decisions.shown.values:
        if first <= row < first + part.rows.n_rows:
            value = column_at(part.table, name).slice(row - first, 1)
            written.names[row, name] = value_text(value)


def share_of_rows(
    rank: NDArray[np.float64],
    tie: NDArray[np.uint64],
    cuts: Sequence[Cut],
    *,
    first_row: int,
) -> NDArray[np.uint8]:
    """Return the number of the first cut, from 0, that keeps each of some neighboring rows."""
    if not cuts:
        return np.full(len(rank), NO_BIN, np.uint8)
    found = np.zeros(len(rank), np.uint8)
    for cut in cuts:
        found += rank < cut.rank
    # Rows of a cut's very value: by hash, then by place.
    ranks = np.array([*(cut.rank for cut in cuts), np.nan])
    tied = np.flatnonzero(ranks[found] == rank)
    found[tied] = len(cuts)
    for j, cut in reversed(list(enumerate(cuts))):
        is_kept = at_or_before(cut, rank[tied], tie[tied], first_row + tied)
        found[tied[is_kept]] = j
    return np.where(found < len(cuts), found, NO_BIN).astype(np.uint8)
