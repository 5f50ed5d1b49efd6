"""Reader: rows of shards from Parquet, each stretch of row groups decoded once.

Parquet cannot seek inside a row group, so the stream of the last stretch stays open: the next
shard of it goes on where the last one ended, also when it comes with another piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import UnreadableFileError
from qaeval_core.scoring.inputs import open_filesystem
from qaeval_core.scoring.plan import Piece, RowRange

_BATCH_ROWS = 1024
# Column chunks of a large row group are read through a buffer of this size, not whole.
_BUFFER_BYTES = 8 << 20


class ShardReader:
    """Reads shards; keeps one stream open.

    Parameters
    ----------
    columns : sequence of str
        Columns to read.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(dict.fromkeys(columns))
        self._key: tuple[str, int] | None = None
        self._source: Any = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._pending: pa.RecordBatch | None = None
        self._position = 0
        self.n_streams_opened = 0

    def read(self, piece: Piece, shard: RowRange) -> pa.Table:
        """Return the rows of a shard; tries a broken stream once more.

        Raises
        ------
        UnreadableFileError
            If the rows cannot be decoded.
        """
        try:
            return self._read(piece, shard)
        except (OSError, pa.ArrowException):
            self.close()
        try:
            return self._read(piece, shard)
        except (OSError, pa.ArrowException) as error:
            self.close()
            raise UnreadableFileError(
                f"{piece.relative}: rows {shard.start}-{shard.stop - 1} cannot be read: {error}"
            ) from None

    def close(self) -> None:
        """Close the open stream."""
        if self._source is not None:
            self._source.close()
        self._key, self._source, self._pending = None, None, None
        self._batches = iter(())

    def _read(self, piece: Piece, shard: RowRange) -> pa.Table:
        key = (piece.file_id, piece.first_group)
        if key != self._key or shard.start < self._position:
            self._open(piece, key)
        parts = []
        while self._position < shard.stop:
            batch = self._pending if self._pending is not None else next(self._batches, None)
            self._pending = None
            if batch is None:
                raise OSError(f"the row group ends before row {self._position}")
            first = max(shard.start - self._position, 0)
            last = min(shard.stop - self._position, batch.num_rows)
            if first < last:
                parts.append(batch.slice(first, last - first))
            if last < batch.num_rows:
                self._pending = batch.slice(last)
            self._position += last
        return pa.Table.from_batches(parts)

    def _open(self, piece: Piece, key: tuple[str, int]) -> None:
        self.close()
        filesystem, path, _ = open_filesystem(piece.uri)
        self._source = filesystem.open_input_file(path)
        parquet = pq.ParquetFile(self._source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        groups = list(range(piece.first_group, piece.stop_group))
        self._batches = parquet.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=groups, columns=self._columns, use_threads=False
        )
        self._key, self._position = key, piece.first_row
        self.n_streams_opened += 1
