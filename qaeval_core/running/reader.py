"""Reader: rows of shards from Parquet, each stretch of row groups decoded once.

Parquet cannot seek inside a row group, so the stream of the last stretch stays open: the next
shard of it goes on where the last one ended, also when it comes with another piece.

What cannot be read is one of three things, and the type of the exception tells them not apart (of
360 damaged files 147 raised OSError and 183 ArrowInvalid):

- content, if all bytes come and do not decode: `UnreadableFileError`, a verdict on rows;
- the store, if bytes do not come: tried again, then `StorageError`;
- another file, if it is not as it was planned any more: `InputChangedError`.
"""

from __future__ import annotations

import bisect
import errno
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from qaeval_core.errors import InputChangedError, UnreadableFileError
from qaeval_core.families.validate import IntArray, table_rows
from qaeval_core.planning.filesystems import local_stamp, open_filesystem, remote_stamp, store_of
from qaeval_core.planning.footer import Footer
from qaeval_core.planning.inputs import FileVersion, InputFile, read_footer
from qaeval_core.planning.read_as import ReadAs, said_schema
from qaeval_core.planning.shards import Piece, ReadLimits, plan_file
from qaeval_core.running.batch_rows import rows_per_batch
from qaeval_core.schema import UNREADABLE_LINE
from qaeval_core.storage.retry import Outages
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.text.plain_columns import (
    column_at,
    has_inner_dictionary,
    plain_table,
    top_name,
)
from qaeval_core.text.text_notes import MAX_LOOKED_AT

# Column chunks of a large row group are read through a buffer of this size, not whole.
_BUFFER_BYTES = 8 << 20
_MAX_ROWS = 1024


class ShardReader:
    """Reads shards; keeps one stream open.

    Parameters
    ----------
    columns : sequence of str
        Columns to read, or paths such as ``answers.text``; one that a file lacks is null.
    outages : Outages, optional
        How long a store is tried; default once.
    max_rows : int, default 1024
        Decoded at once; fewer where rows are large.
    are_coded : bool, default False
        Whether texts come as dictionaries: what rows share is decoded, and held, once.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        outages: Outages | None = None,
        max_rows: int = _MAX_ROWS,
        are_coded: bool = False,
    ) -> None:
        self._max_rows, self._are_coded = max_rows, are_coded
        self._columns = list(dict.fromkeys(columns))
        self._outages = outages or Outages()
        self._key: tuple[str, int] | None = None
        self._source: _Source | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._pending: pa.RecordBatch | None = None
        self._position = 0
        self._said: pa.Schema | None = None
        self.n_streams_opened = 0

    def parts(self, piece: Piece, shard: RowRange) -> Iterator[tuple[RowRange, pa.Table]]:
        """Yield the rows of a shard, so many at once as the piece's limits allow.

        Raises
        ------
        UnreadableFileError, InputChangedError, StorageError
            See `read`.
        """
        while shard.n_rows > 0:
            table = self.read(piece, shard)
            part = RowRange(shard.start, shard.start + table.num_rows)
            yield part, table
            shard = RowRange(part.stop, shard.stop)

    def read(self, piece: Piece, shard: RowRange) -> pa.Table:
        """Return the first rows of a shard: all, or as many as the piece's limits allow.

        At least one row comes, and no more than a batch above the limits is decoded for it.

        Raises
        ------
        UnreadableFileError
            If all bytes come and the rows do not decode.
        InputChangedError
            If the file is not as it was planned any more.
        StorageError
            If the store does not give the bytes for as long as it is tried.
        """
        return self._outages.call(
            lambda: self._read_or_judge(piece, shard),
            store=store_of(piece.uri),
            what=f"cannot read {piece.uri}",
        )

    def close(self) -> None:
        """Close the open stream."""
        if self._source is not None:
            self._source.close()
        self._key, self._source, self._pending = None, None, None
        self._batches = iter(())

    def _read_or_judge(self, piece: Piece, shard: RowRange) -> pa.Table:
        try:
            return self._read(piece, shard, is_watched=False)
        except (OSError, pa.ArrowException):
            self.close()
        # Once more from the start of its row group, with an eye on the bytes.
        try:
            return self._read(piece, shard, is_watched=True)
        except (OSError, pa.ArrowException) as error:
            source = self._source
            if source is None:
                raise _as_os_error(error) from None  # It could not be opened.
            failure = source.failure
            if failure is None:
                source.check(piece)
                failure = source.failure
            self.close()
            if failure is not None:
                raise failure from None
            raise UnreadableFileError(
                f"{piece.relative}: cannot decode rows {shard.start}-{shard.stop - 1}: {error} "
                "[QA0304]"
            ) from None

    def _read(self, piece: Piece, shard: RowRange, *, is_watched: bool) -> pa.Table:
        key = (piece.file_id, piece.first_group)
        if key != self._key or shard.start < self._position:
            self._open(piece, key, is_watched=is_watched)
        parts: list[pa.RecordBatch] = []
        n_bytes = 0
        while self._position < shard.stop and n_bytes < piece.limits.shard_bytes:
            batch = self._pending if self._pending is not None else next(self._batches, None)
            self._pending = None
            if batch is None:
                raise pa.ArrowInvalid(f"the row group ends before row {self._position}")
            first = max(shard.start - self._position, 0)
            last = min(shard.stop - self._position, batch.num_rows)
            if first < last:
                part = batch.slice(first, last - first)
                left = piece.limits.shard_bytes - n_bytes
                part = part.slice(0, _n_rows_within(part, left, least=0 if parts else 1))
                last = first + part.num_rows
                parts.append(part)
                n_bytes = n_bytes + part.nbytes if last == batch.num_rows else left + n_bytes
            if last < batch.num_rows:
                self._pending = batch.slice(last)
            self._position += last
        if self._source is not None:
            # After the rows came: a file that is replaced meanwhile must not leave half of each.
            self._source.check(piece)
        return self._as_asked(pa.Table.from_batches(parts), piece.read_as)

    def _as_asked(self, table: pa.Table, read_as: ReadAs) -> pa.Table:
        """Return the columns that were asked for, of plain types."""
        if not self._are_coded:
            table = plain_table(table, binary_as_text=read_as.binary_as_text, said=self._said)
        if table.column_names and set(self._columns) <= set(table.column_names):
            return table.select(self._columns)
        keys = dict(read_as.keys)
        columns = {name: _column(table, name, keys) for name in self._columns}
        return pa.table(columns)

    def _open(self, piece: Piece, key: tuple[str, int], *, is_watched: bool) -> None:
        self.close()
        source = _Source(piece.uri, is_watched=is_watched)
        source.check(piece)
        self._source = source
        metadata, footer = source.footer(piece)
        names = metadata.schema.to_arrow_schema().names
        coded = [name for name in self._columns if name in names] if self._are_coded else None
        parquet = pq.ParquetFile(
            source.file,
            metadata=metadata,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=coded,
        )
        tops = [top_name(names, name) for name in self._columns]
        columns = list(dict.fromkeys(top for top in tops if top is not None))
        if not columns:  # Of a file that lacks them all, one tells how many rows there are.
            columns = names[:1]
        self._said = said_schema(parquet.schema)
        groups = list(range(piece.first_group, piece.stop_group))
        n_rows = rows_per_batch(
            source.file,
            metadata,
            footer,
            groups,
            columns,
            n_bytes=piece.version.size_bytes,
            max_rows=self._max_rows,
            are_coded=self._are_coded,
        )
        self._batches = batches(parquet, groups, columns, n_rows=n_rows)
        self._key, self._position = key, piece.first_row
        self.n_streams_opened += 1


def batches(
    parquet: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str], *, n_rows: int
) -> Iterator[pa.RecordBatch]:
    """Return the rows of row groups, at most so many at once."""
    kinds = (parquet.schema_arrow.field(name).type for name in columns)
    # PyArrow makes no batch of two groups where each has an inner dictionary of its own.
    apart = [[group] for group in groups] if any(map(has_inner_dictionary, kinds)) else [groups]
    return chain.from_iterable(
        parquet.iter_batches(
            batch_size=n_rows, row_groups=list(own), columns=list(columns), use_threads=False
        )
        for own in apart
    )


def _column(table: pa.Table, name: str, keys: Mapping[str, str | None]) -> pa.ChunkedArray:
    """Return a column, or what a path leads to, of a folder's name, or nulls, in this order."""
    try:
        return column_at(table, name)
    except KeyError:
        value = pa.scalar(keys.get(name), pa.string() if name in keys else pa.null())
        return pa.chunked_array([pa.repeat(value, table.num_rows)])


def _n_rows_within(batch: pa.RecordBatch, n_bytes: int, *, least: int) -> int:
    """Return how many of the first rows take so many bytes at most."""
    if batch.nbytes <= n_bytes:
        return int(batch.num_rows)
    n_rows = bisect.bisect_right(
        range(1, batch.num_rows + 1), n_bytes, key=lambda n: batch.slice(0, n).nbytes
    )
    return max(n_rows, least)


def check_unchanged(file: InputFile, *, outages: Outages) -> None:
    """Look whether a file is still the one that was planned, on the machine that planned.

    Raises
    ------
    InputChangedError, StorageError
        If it is not, or cannot be looked at.
    """
    filesystem, path = open_filesystem(file.uri)

    def look() -> None:
        _check_info(file.relative, file.version, filesystem.get_file_info(path))
        if file.version.stamp and _stamp(file.uri, filesystem, path) != file.version.stamp:
            raise _changed(file.relative)

    outages.call(look, store=store_of(file.uri), what=f"cannot look at {file.uri}")


def _check_info(relative: str, version: FileVersion, info: fs.FileInfo) -> None:
    """Raise InputChangedError if a file is another, FileNotFoundError if there is none."""
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), info.path)
    if not version.is_of(info):
        raise _changed(relative)


def _stamp(uri: str, filesystem: fs.FileSystem, path: str) -> str:
    """Return what `FileVersion.stamp` would be of a file as it is now."""
    if "://" not in uri:
        return local_stamp(path)
    with filesystem.open_input_file(path) as opened:
        return remote_stamp(opened)


def _changed(relative: str) -> InputChangedError:
    return InputChangedError(
        f"{relative} changed during the run; run the same command again to score what it is now "
        "[QA0309]"
    )


class _Source:
    """A file of a store, and what the store refused of it.

    Parameters
    ----------
    uri : str
    is_watched : bool
        Whether reads go through Python, which sees each of them and costs time.

    Raises
    ------
    OSError
        If it cannot be opened.
    """

    def __init__(self, uri: str, *, is_watched: bool) -> None:
        try:
            self._filesystem, self._path = open_filesystem(uri)
            self._stamp = local_stamp(self._path) if "://" not in uri else ""
            self._opened = self._filesystem.open_input_file(self._path)
            self._stamp = self._stamp or remote_stamp(self._opened)
        except (OSError, pa.ArrowException) as error:
            raise _as_os_error(error) from None
        self._watched = _Watched(self._opened) if is_watched else None
        self.file: Any = self._watched or self._opened
        self._failure: OSError | None = None

    @property
    def failure(self) -> OSError | None:
        """What the store refused; None also where nobody looked."""
        watched = self._watched.failure if self._watched is not None else None
        return self._failure or watched

    def check(self, piece: Piece) -> None:
        """Raise InputChangedError if the file is not as it was planned, or opened, any more."""
        try:
            _check_info(piece.relative, piece.version, self._filesystem.get_file_info(self._path))
            stamp = _stamp(piece.uri, self._filesystem, self._path) if self._stamp else ""
        except OSError as error:
            self._failure = error
            raise
        # A local file's stamp says something on the machine alone that looked.
        planned = piece.version.stamp if "://" in piece.uri else ""
        if stamp != self._stamp or (planned and stamp != planned):
            raise _changed(piece.relative)

    def footer(self, piece: Piece) -> tuple[pq.FileMetaData, Footer]:
        """Return the footer; InputChangedError if it is not the planned one."""
        try:
            metadata, footer, footer_hash = read_footer(self._opened)
        except OSError as error:
            self._failure = error
            raise
        if footer_hash != piece.version.footer:
            raise _changed(piece.relative)
        return metadata, footer

    def close(self) -> None:
        """Close it."""
        self._opened.close()


class _Watched(io.RawIOBase):
    """Reads of a source, and the first one that its store did not give whole."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._size = source.size()
        self.failure: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer at the end alone."""
        left = self._size - self._source.tell()
        wanted = left if size < 0 else min(size, left)
        try:
            content: bytes = self._source.read(wanted)
        except OSError as error:
            self.failure = self.failure or error
            raise
        if len(content) < wanted:
            self.failure = OSError(errno.EIO, f"{len(content)} of {wanted} bytes came")
            raise self.failure
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._source.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _as_os_error(error: Exception) -> OSError:
    """Return what kept a store from being opened as the error of a store that it is."""
    return error if isinstance(error, OSError) else OSError(str(error))


_ROWS_PER_READ = 4096


def draw_rows(
    n_total: int, *, n_rows: int, rng: np.random.Generator, among: IntArray | None = None
) -> IntArray:
    """Return numbers of rows drawn without replacement, ascending; ``among`` some, or of all."""
    n_total = n_total if among is None else len(among)
    drawn = np.sort(rng.choice(n_total, size=min(n_total, n_rows), replace=False))
    return drawn if among is None else among[drawn]


def first_texts(
    file: InputFile,
    columns: Mapping[str, str],
    *,
    n_rows: int,
    limits: ReadLimits | None = None,
    outages: Outages | None = None,
) -> dict[str, list[object]]:
    """Return the first values of a file by role, for a look at them; none where it is unreadable.

    Parameters
    ----------
    n_rows : int
        Rows of the file that count.
    limits, outages
        As of `read_rows`.
    """
    try:
        return read_rows(
            [file],
            np.arange(min(n_rows, MAX_LOOKED_AT)),
            n_rows={file.file_id: n_rows},
            columns=columns,
            limits=limits or ReadLimits(),
            outages=outages,
        )
    except UnreadableFileError:
        return {}  # Whoever reads these rows next says so of them.


def read_rows(
    files: Sequence[InputFile],
    chosen: IntArray,
    *,
    n_rows: Mapping[str, int],
    columns: Mapping[str, str],
    limits: ReadLimits,
    outages: Outages | None = None,
) -> dict[str, list[object]]:
    """Return the values of chosen rows by role, in order of the input.

    Parameters
    ----------
    chosen : int ndarray
        Numbers of rows over all files, ascending.
    n_rows : mapping of file id to int
        Rows of each file that count.
    columns : mapping of role to column
    limits : ReadLimits
        How much is read at once.
    outages : Outages, optional
        How long a store is tried; default once.
    """
    reader = ShardReader([*columns.values(), UNREADABLE_LINE], outages=outages)
    values: dict[str, list[object]] = {role: [] for role in columns}
    offset = 0
    for file in files:
        pieces = plan_file(
            file,
            done={"": ()},
            rows_per_shard=_ROWS_PER_READ,
            limits=limits,
            n_rows=n_rows[file.file_id],
        )
        shards = ((piece, rows) for piece in pieces for rows in piece.shards)
        for piece, rows in shards:
            first, stop = np.searchsorted(chosen, [offset + rows.start, offset + rows.stop])
            if first == stop:
                continue
            for part, table in reader.parts(piece, rows):
                first, stop = np.searchsorted(chosen, [offset + part.start, offset + part.stop])
                taken = table.take(chosen[first:stop] - offset - part.start)
                found = table_rows(
                    taken,
                    columns=columns,
                    max_bytes=limits.text_bytes,
                    has_no_answers=file.read_as.has_no_answers,
                )
                for role, own in found.items():
                    values[role] += own
        offset += n_rows[file.file_id]
    return values
