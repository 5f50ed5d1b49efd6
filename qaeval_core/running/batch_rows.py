"""Batch rows: how many rows may be decoded at once, whatever a small file says of itself.

Of a dictionary, any row may have the largest entry: a kilobyte of input can be gigabytes of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qaeval_core.planning.footer import (
    BYTE_ARRAY,
    FIXED_LEN_BYTE_ARRAY,
    Chunk,
    Footer,
    page_header,
)

_BATCH_BYTES = 1 << 29
# Encodings that store every value by itself: what is decoded is as large as what is stored.
# PLAIN, RLE, BIT_PACKED, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, BYTE_STREAM_SPLIT
_WHOLE = frozenset({0, 3, 4, 5, 6, 9})
_DICTIONARIES = frozenset({2, 8})  # PLAIN_DICTIONARY, RLE_DICTIONARY
_HEADER_BYTES = 64
_DICTIONARY_PAGE = 2
_ENTRY_BUFFER_BYTES = 1 << 20
_NUMBER_BYTES = 16  # At most, with their place in a list.


def rows_per_batch(
    source: Any,
    metadata: pq.FileMetaData,
    footer: Footer,
    groups: Sequence[int],
    columns: Sequence[str],
    *,
    n_bytes: int,
    max_rows: int,
    are_coded: bool = False,
) -> int:
    """Return how many rows take half a gibibyte at most when they are decoded, 1 to ``max_rows``.

    Parameters
    ----------
    source : file
        Of the footer; its place is moved.
    groups, columns : sequence of int, str
        What is to be read.
    n_bytes : int
        Of the file.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If a dictionary cannot be read.
    """
    n_rows = max_rows
    dictionaries = _Dictionaries(source, metadata, footer, columns, n_bytes=n_bytes)
    for number in groups:
        group = footer.groups[number]
        chunks = [chunk for chunk in group.chunks if chunk.column in columns]
        if group.n_rows < 1:
            continue
        if are_coded:
            bytes_of_row = sum(max(chunk.n_bytes, 1) for chunk in chunks) / group.n_rows
        else:
            pages = [dictionaries.page_bytes(chunk) for chunk in chunks]
            sizes = [
                _bytes_of_row(chunk, page, n_rows=group.n_rows)
                for chunk, page in zip(chunks, pages, strict=True)
            ]
            # A row may have the largest entry of a dictionary, which is looked for if it matters.
            for i in sorted(range(len(chunks)), key=lambda i: -sizes[i]):
                if pages[i] and sum(sizes) * max_rows > _BATCH_BYTES:
                    entry = dictionaries.largest_entry(number, chunks[i], pages[i])
                    sizes[i] = _bytes_of_row(chunks[i], entry, n_rows=group.n_rows)
            bytes_of_row = sum(sizes)
        n_rows = min(n_rows, int(_BATCH_BYTES / max(bytes_of_row, 1.0)))
    return max(n_rows, 1)


def _bytes_of_row(chunk: Chunk, entry_bytes: int | None, *, n_rows: int) -> float:
    """Return what a row of a column takes: on average, or at most where values are repeated."""
    stored = max(chunk.n_bytes, 1)
    on_average = stored / n_rows
    if chunk.encodings <= _WHOLE:
        return on_average
    # With prefixes of others (DELTA_BYTE_ARRAY), a value may be as long as all that is stored.
    largest = stored
    if chunk.kind not in (BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY):
        largest = _NUMBER_BYTES
    elif chunk.encodings <= _WHOLE | _DICTIONARIES:
        largest = min(entry_bytes or stored, stored)
    return max(on_average, largest * max(chunk.n_values / n_rows, 1.0))


class _Dictionaries:
    """Looks into the dictionaries of column chunks."""

    def __init__(
        self,
        source: Any,
        metadata: pq.FileMetaData,
        footer: Footer,
        columns: Sequence[str],
        *,
        n_bytes: int,
    ) -> None:
        self._source, self._metadata, self._n_bytes = source, metadata, n_bytes
        chunks = [chunk for group in footer.groups[:1] for chunk in group.chunks]
        self._texts = [own.column for own in chunks if own.column in columns and _is_text(own)]
        self._parquet: pq.ParquetFile | None = None

    def page_bytes(self, chunk: Chunk) -> int | None:
        """Return the size of the dictionary that a chunk begins with; None without one."""
        if not 0 < chunk.start <= self._n_bytes - _HEADER_BYTES:
            return None
        self._source.seek(chunk.start)
        try:
            kind, page_bytes = page_header(self._source.read(_HEADER_BYTES))
        except ValueError:
            return None
        return page_bytes if kind == _DICTIONARY_PAGE else None

    def largest_entry(self, group: int, chunk: Chunk, page_bytes: int | None) -> int | None:
        """Return the bytes of a dictionary's largest entry, or of all where it is not known.

        With the first value of a column, PyArrow decodes its whole dictionary.
        """
        if not (_is_text(chunk) and chunk.n_values):
            return page_bytes
        if self._parquet is None:
            self._parquet = pq.ParquetFile(
                self._source,
                metadata=self._metadata,
                buffer_size=_ENTRY_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
                read_dictionary=self._texts,
            )
        batches = self._parquet.iter_batches(
            batch_size=1, row_groups=[group], columns=[chunk.column], use_threads=False
        )
        first = next(batches, None)
        if first is None or not pa.types.is_dictionary(first.column(0).type):
            return page_bytes
        sizes = pc.binary_length(first.column(0).dictionary)
        # Each entry with four bytes for its length: otherwise this is not the whole of the page.
        if (pc.sum(sizes).as_py() or 0) + 4 * len(sizes) != page_bytes:
            return page_bytes
        return max(int(pc.max(sizes).as_py() or 0), 1)


def _is_text(chunk: Chunk) -> bool:
    """Return whether PyArrow can give a column as a dictionary."""
    return chunk.is_flat and chunk.kind == BYTE_ARRAY
