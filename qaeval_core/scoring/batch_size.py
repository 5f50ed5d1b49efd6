"""Batch size: how many rows may be decoded at once, by what a footer and its pages say.

A dictionary page of one text of a megabyte and a few hundred bytes of indices are gigabytes when
they are decoded. So what a row can be at most is told before the first one is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq

_MAX_ROWS = 1024
_BATCH_BYTES = 1 << 30
# Encodings that store every value by itself: what is decoded is as large as what is stored.
_WHOLE = frozenset(
    {
        "PLAIN",
        "RLE",
        "BIT_PACKED",
        "DELTA_BINARY_PACKED",
        "DELTA_LENGTH_BYTE_ARRAY",
        "BYTE_STREAM_SPLIT",
    }
)
_DICTIONARIES = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_HEADER_BYTES = 64
_DICTIONARY_PAGE = 2


def rows_per_batch(
    source: Any, footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]
) -> int:
    """Return how many rows take a gibibyte at most when they are decoded, 1 to 1,024.

    Parameters
    ----------
    source : file
        Of the footer; its place is moved.
    groups, columns : sequence of int, str
        What is to be read.
    """
    wanted = set(columns)
    n_rows = _MAX_ROWS
    for number in groups:
        group = footer.row_group(number)
        chunks = [group.column(i) for i in range(group.num_columns)] if group.num_rows else []
        n_bytes = sum(
            _bytes_of_row(source, chunk, n_rows=group.num_rows)
            for chunk in chunks
            if chunk.path_in_schema.partition(".")[0] in wanted
        )
        n_rows = min(n_rows, int(_BATCH_BYTES / max(n_bytes, 1.0)))
    return max(n_rows, 1)


def _bytes_of_row(source: Any, chunk: pq.ColumnChunkMetaData, *, n_rows: int) -> float:
    """Return what a row of a column takes: on average, or at most where values are repeated."""
    stored = max(int(chunk.total_uncompressed_size), 1)
    on_average = stored / n_rows
    encodings = frozenset(chunk.encodings)
    if encodings <= _WHOLE:
        return on_average
    # With prefixes of others (DELTA_BYTE_ARRAY), a value may be as long as all that is stored.
    largest = stored
    if encodings <= _WHOLE | _DICTIONARIES:
        largest = min(_dictionary_bytes(source, chunk) or stored, stored)
    n_values = max(int(chunk.num_values) / n_rows, 1.0)
    return max(on_average, largest * n_values)


def _dictionary_bytes(source: Any, chunk: pq.ColumnChunkMetaData) -> int | None:
    """Return the size of the dictionary that a column chunk begins with; None without one."""
    starts = [chunk.data_page_offset, chunk.dictionary_page_offset or 0]
    source.seek(min(start for start in starts if start > 0))
    try:
        kind, n_bytes = _page_header(source.read(_HEADER_BYTES))
    except (StopIteration, ValueError):
        return None
    return n_bytes if kind == _DICTIONARY_PAGE else None


def _page_header(content: bytes) -> tuple[int, int]:
    """Return the type and the uncompressed size of a page: the first fields of its Thrift struct.

    Examples
    --------
    >>> _page_header(bytes([0x15, 0x04, 0x15, 0x80, 0x02, 0x15]))
    (2, 128)

    Raises
    ------
    ValueError, StopIteration
        If these are not its first fields.
    """
    left = iter(content)
    fields = []
    for _ in range(2):
        # The next field, a 32-bit integer.
        if next(left) != 0x15:
            raise ValueError("no page header")
        fields.append(_varint(left))
    kind, n_bytes = (number >> 1 ^ -(number & 1) for number in fields)
    return kind, n_bytes


def _varint(left: Iterator[int]) -> int:
    number = shift = 0
    while True:
        byte = next(left)
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number
