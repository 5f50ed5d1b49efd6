"""Carried columns: ids and columns of a file's rows, read again to stand beside their scores.

Rows are scored by then, so that nothing is refused here: what does not decode is null, row group by
row group, and said to be. Stands alone: readers know no ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import UnreadableFileError
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.sample import sampled_rows
from qaeval_core.planning.shards import Piece, Stretch, stretches
from qaeval_core.running.reader import ShardReader
from qaeval_core.schema import is_json
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Store
from qaeval_core.text.column_hashes import UInt64, column_hashes

_CHUNK_ROWS = 16_384


class Copied(NamedTuple):
    """Id and carried columns of some rows.

    Attributes
    ----------
    table : pyarrow.Table
    chosen : bool ndarray of shape (n_rows,) or None
        Which are in the sample; None where all are.
    is_lost : bool
        Whether the input does not decode there: nulls, but for ids that are made.
    clusters : (uint64 ndarray, bool ndarray) or None
        Hashes of what rows share, and which rows share something, (n_rows,).
    """

    table: pa.Table
    chosen: NDArray[np.bool_] | None = None
    is_lost: bool = False
    clusters: tuple[UInt64, NDArray[np.bool_]] | None = None


class CopiedColumns:
    """Reads what is copied of files.

    Parameters
    ----------
    store : Store
        Of the run: its sample, and how long a disk is tried.
    id_column : str or None
        None: a row's id is its file and row number.
    carry : mapping of column to type
        A file that lacks one has nulls of that type.
    cluster : str, optional
        Rows of one value of it belong together; it is not copied.
    """

    def __init__(
        self,
        store: Store,
        *,
        id_column: str | None,
        carry: Mapping[str, pa.DataType],
        cluster: str | None = None,
    ) -> None:
        self._store = store
        self._types = carry
        self._id_column = id_column
        self._carry = list(carry)
        self._cluster = cluster

    @property
    def names(self) -> list[str]:
        """Columns of the input that are copied."""
        return [*([self._id_column] if self._id_column else []), *self._carry]

    def chunks(self, file: InputFile, rows: RowRange) -> Iterator[Copied]:
        """Yield id and carried columns in chunks; nulls where the input cannot be read.

        Parameters
        ----------
        file : InputFile
        rows : RowRange
            It begins where a row group does.
        """
        wanted = self.names
        if self._store.sample is not None:
            wanted.append(self._store.sample.column)
        plain = ShardReader(wanted, outages=self._store.outages)
        own = [] if self._cluster is None else [self._cluster]
        reader = ShardReader([*wanted, *own], outages=self._store.outages)
        todo = deque(_stretches_of(file, rows))
        position = rows.start
        while todo:
            stretch = todo.popleft()
            chunk = _next_chunk(stretch, position, rows.stop)
            if chunk.n_rows <= 0:
                continue
            try:
                piece = Piece.of(file, stretch)
                given = self._read(file, reader, piece, chunk, cluster=self._cluster)
            except UnreadableFileError:
                if stretch.stop_group - stretch.first_group > 1:
                    todo.extendleft(reversed(_alone(file, stretch)))
                    continue
                given = self._read_copied(file, plain, Piece.of(file, stretch), chunk)
            yield given
            position = chunk.start + given.table.num_rows
            todo.appendleft(stretch)
        reader.close()
        plain.close()

    def _read_copied(
        self, file: InputFile, reader: ShardReader, piece: Piece, chunk: RowRange
    ) -> Copied:
        """Return what can be read of a chunk where something cannot: what rows share may be it."""
        try:
            return self._read(file, reader, piece, chunk, cluster=None)
        except UnreadableFileError:
            # Its rows are quarantined or scored by now; only what is copied is missing.
            return Copied(self.missing(file, chunk), is_lost=True)

    def _read(
        self,
        file: InputFile,
        reader: ShardReader,
        piece: Piece,
        chunk: RowRange,
        *,
        cluster: str | None,
    ) -> Copied:
        """Return given columns of a chunk's rows: of all, or as many as are read at once.

        Raises
        ------
        UnreadableFileError
            If they do not decode.
        """
        sample = self._store.sample
        if not self.names and sample is None and cluster is None:
            return Copied(pa.table({"id": _row_ids(file, chunk)}))
        table = reader.read(piece, chunk)
        chunk = RowRange(chunk.start, chunk.start + table.num_rows)
        is_made = self._id_column is None
        columns = {"id": _row_ids(file, chunk) if is_made else table.column(self._id_column)}
        columns.update({name: table.column(name) for name in self._carry})
        copied = {name: self._as_elsewhere(name, own) for name, own in columns.items()}
        clusters = None if cluster is None else column_hashes(table.column(cluster))
        return Copied(pa.table(copied), sampled_rows(table, sample), clusters=clusters)

    def _as_elsewhere(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column as the text of its JSON; one that is not here as nulls of its type."""
        if is_json(column.type):
            storage = [chunk.storage for chunk in column.chunks]
            return pa.chunked_array(storage, column.type.storage_type)
        is_missing = pa.types.is_null(column.type) and name in self._types
        return column.cast(self._types[name]) if is_missing else column

    def missing(self, file: InputFile, chunk: RowRange) -> pa.Table:
        """Return nulls in the place of some rows' columns; ids where they are made."""
        columns = {}
        for name in ["id", *self._carry]:
            source = self._id_column if name == "id" else name
            if source is None:
                columns[name] = _row_ids(file, chunk)
            else:
                kind = file.type_of(source) or self._types[name]
                kind = kind.storage_type if is_json(kind) else kind
                columns[name] = pa.nulls(chunk.n_rows, kind)
        return pa.table(columns)


def _stretches_of(file: InputFile, rows: RowRange) -> Iterator[Stretch]:
    """Yield the row groups that hold some rows, as stretches of a chunk where they are short."""
    first = bisect_left(file.row_groups, rows.start, key=attrgetter("start"))
    last = bisect_left(file.row_groups, rows.stop, key=attrgetter("start"))
    for own in stretches(file.row_groups[first:last], rows_per_shard=_CHUNK_ROWS):
        yield own._replace(first_group=own.first_group + first, stop_group=own.stop_group + first)


def _next_chunk(stretch: Stretch, position: int, last_row: int) -> RowRange:
    """Return the rows of a stretch that are read next: up to the end of their chunk."""
    start = max(stretch.rows.start, position)
    n_before = (start - stretch.rows.start) // _CHUNK_ROWS * _CHUNK_ROWS
    stop = stretch.rows.start + n_before + _CHUNK_ROWS
    return RowRange(start, min(stop, stretch.rows.stop, last_row))


def _alone(file: InputFile, stretch: Stretch) -> list[Stretch]:
    """Return the row groups of a stretch as stretches of their own."""
    return [
        Stretch(i, i + 1, RowRange(group.start, group.start + group.n_rows), group.n_bytes)
        for i, group in enumerate(file.row_groups)
        if stretch.first_group <= i < stretch.stop_group
    ]


def _row_ids(file: InputFile, rows: RowRange) -> pa.Array:
    return pa.array([f"{file.relative}#{row}" for row in range(rows.start, rows.stop)], pa.string())
