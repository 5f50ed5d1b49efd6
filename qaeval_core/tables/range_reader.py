"""Range reader: rows of scores and of their input, the same at once, so many as fit memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from qaeval_core.errors import InputChangedError, ReconcileError
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.shards import Piece, ReadLimits
from qaeval_core.running.reader import ShardReader
from qaeval_core.storage.checksums import is_file_intact
from qaeval_core.storage.path import StoragePath
from qaeval_core.storage.retry import Outages
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.text.column_hashes import text_column
from qaeval_core.text.plain_columns import without_json

# What is in hand at once of each side.
_LIMITS = ReadLimits(shard_bytes=1 << 24)
ROWS_PER_READ = 1 << 16
# Wide rows are read fewer at once: the reader looks at the footer.
_ROWS_PER_BATCH = 1 << 12


class RangeRows(NamedTuple):
    """Some neighboring rows; ``ids`` as texts, empty where nobody asks for them."""

    rows: RowRange
    table: pa.Table
    ids: pa.ChunkedArray


class RangeReader:
    """Reads columns of source and scores of the same rows.

    Parameters
    ----------
    task : RangeTask
    names : sequence of str, optional
        Columns; default all, the source's first.
    score_names : sequence of str
        Which columns are the scores'.
    shared : str, optional
        Column of texts that neighbors share, such as the context: it comes as a dictionary.
    id_column : str, optional
        Of the source; without one a row's id is its file and row number.
    has_ids : bool, default True
        Whether ids are asked for.
    outages : Outages

    Raises
    ------
    InputChangedError, StorageError, UnreadableFileError
        While rows are read, as `ShardReader` does.
    """

    def __init__(
        self,
        task: RangeTask,
        *,
        names: Sequence[str] | None = None,
        score_names: Sequence[str] = (),
        shared: str | None = None,
        id_column: str | None = None,
        has_ids: bool = True,
        outages: Outages,
    ) -> None:
        file = task.file
        self._has_ids = has_ids or file.compares_ids
        self._task, self._id_column = task, id_column
        self._names = file.source.schema.names if names is None else list(names)
        if names is None:
            self._names = [*self._names, *score_names]
        own = [name for name in self._names if name not in score_names]
        others = [name for name in self._names if name in score_names]
        needs_id = self._has_ids and (file.scores is None or file.compares_ids)
        if needs_id and id_column is not None and id_column not in own:
            own.append(id_column)
        coded = [name for name in own if name == shared and _is_plain_text(file.source, name)]
        own = [name for name in own if name not in coded]
        self._sides = [_Side(file.source, own, task.rows, outages)] if own else []
        if coded:
            self._sides.append(_Side(file.source, coded, task.rows, outages, are_coded=True))
        self._scores: _Side | None = None
        if file.scores is not None:
            if self._has_ids:
                others = ["id", *others]
            self._scores = _Side(file.scores, others, task.rows, outages)
            self._sides.append(self._scores)

    def __iter__(self) -> Iterator[RangeRows]:
        start, stop = self._task.rows
        while start < stop:
            rows = RowRange(start, min(start + ROWS_PER_READ, stop))
            tables = [side.read(rows) for side in self._sides]
            n_rows = min([table.num_rows for table in tables], default=rows.n_rows)
            rows = RowRange(start, start + n_rows)
            columns: dict[str, pa.ChunkedArray] = {}
            for side, table in zip(self._sides, tables, strict=True):
                side.took(table, n_rows)
                own = table.slice(0, n_rows)
                columns |= {
                    name: own[name]
                    for name in own.column_names
                    if side is not self._scores or name != "id"
                }
            ids = self._ids(rows, columns, tables[-1].slice(0, n_rows) if tables else None)
            chosen = {name: columns[name] for name in self._names}
            yield RangeRows(rows, pa.table(chosen) if chosen else _no_columns(n_rows), ids)
            start += n_rows

    def _ids(
        self, rows: RowRange, columns: Mapping[str, pa.ChunkedArray], scores: pa.Table | None
    ) -> pa.ChunkedArray:
        if not self._has_ids:
            return pa.chunked_array([], pa.string())
        relative = self._task.file.relative
        name = self._id_column
        own = text_column(columns[name]) if name is not None and name in columns else None
        if self._scores is None or scores is None:
            if own is not None:
                return own
            return pa.chunked_array([[f"{relative}#{row}" for row in range(*rows)]], pa.string())
        ids = text_column(scores["id"])
        if self._task.file.compares_ids and own is not None and not own.equals(ids):
            raise InputChangedError(
                f"{relative}: ids of rows {rows.start}-{rows.stop - 1} are not those that were "
                "scored; run qaeval score on it [QA0309]"
            )
        return ids

    def close(self) -> None:
        """Close what is open."""
        for side in self._sides:
            side.close()


def _no_columns(n_rows: int) -> pa.Table:
    """Return a table of rows without a column that anybody reads."""
    return pa.table({"": pa.nulls(n_rows)})


def _is_plain_text(file: InputFile, name: str) -> bool:
    kind = file.type_of(name)
    return kind is not None and bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class _Side:
    """One of the files of a range, read in order; what was read too far is kept."""

    def __init__(
        self,
        file: InputFile,
        names: Sequence[str],
        rows: RowRange,
        outages: Outages,
        *,
        are_coded: bool = False,
    ) -> None:
        max_rows = ROWS_PER_READ if are_coded else _ROWS_PER_BATCH
        self._file = file
        self._reader = ShardReader(names, outages=outages, max_rows=max_rows, are_coded=are_coded)
        groups = [
            i
            for i, group in enumerate(file.row_groups)
            if group.start < rows.stop and group.start + group.n_rows > rows.start
        ]
        first = groups[0] if groups else 0
        self._piece = Piece(
            families=(),
            file_id=file.file_id,
            relative=file.relative,
            version=file.version,
            first_group=first,
            stop_group=groups[-1] + 1 if groups else 0,
            first_row=file.row_groups[first].start if groups else 0,
            shards=(),
            limits=_LIMITS,
            read_as=file.read_as,
        )
        self._left: pa.Table | None = None

    def read(self, rows: RowRange) -> pa.Table:
        """Return the first of some rows: all, or as many as fit in memory."""
        if self._left is not None and self._left.num_rows:
            return self._left.slice(0, rows.n_rows)
        table = without_json(self._reader.read(self._piece, rows))
        for place, name in enumerate(table.column_names):
            kind = self._file.type_of(name)
            if kind is not None and pa.types.is_null(table.schema.types[place]):
                # Of a column that this file lacks and others have.
                table = table.set_column(place, name, pa.nulls(table.num_rows, kind))
        return table

    def took(self, table: pa.Table, n_rows: int) -> None:
        """Keep what was read beyond some rows."""
        before = self._left if self._left is not None and self._left.num_rows else table
        self._left = before.slice(n_rows)

    def close(self) -> None:
        """Close it."""
        self._reader.close()


def check_intact(path: StoragePath, outages: Outages) -> None:
    """Raise ReconcileError if a bit of a file of scores has turned since it was written."""
    intact = outages.call(
        lambda: is_file_intact(path), store=str(path.parent), what=f"cannot read {path}"
    )
    if not intact:
        raise ReconcileError(f"{path} is damaged: its checksum differs; score again [QA0510]")
