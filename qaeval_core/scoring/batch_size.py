"""Batch size: how many rows may be decoded at once, by what a footer and its pages say.

A dictionary page of one text of a megabyte and a few hundred bytes of indices are gigabytes when
they are decoded. So what a row can be at most is told before the first one is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qaeval_core.scoring.footer import Chunk, Footer, page_header

_MAX_ROWS = 1024
_BATCH_BYTES = 1 << 30
# Encodings that store every value by itself: what is decoded is as large as what is stored.
# PLAIN, RLE, BIT_PACKED, DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, BYTE_STREAM_SPLIT
_WHOLE = frozenset({0, 3, 4, 5, 6, 9})
_DICTIONARIES = frozenset({2, 8})  # PLAIN_DICTIONARY, RLE_DICTIONARY
_HEADER_BYTES = 64
_DICTIONARY_PAGE = 2


def rows_per_batch(
    source: Any, footer: Footer, groups: Sequence[int], columns: Sequence[str], *, n_bytes: int
) -> int:
    """Return how many rows take a gibibyte at most when they are decoded, 1 to 1,024.

    Parameters
    ----------
    source : file
        Of the footer; its place is moved.
    groups, columns : sequence of int, str
        What is to be read.
    n_bytes : int
        Of the file.
    """
    n_rows = _MAX_ROWS
    for group in (footer.groups[number] for number in groups):
        if group.n_rows < 1:
            continue
        bytes_of_row = 0.0
        for chunk in group.chunks:
            if chunk.column in columns:
                has_page = 0 < chunk.start <= n_bytes - _HEADER_BYTES
                page = _dictionary_bytes(source, chunk) if has_page else None
                bytes_of_row += _bytes_of_row(chunk, page, n_rows=group.n_rows)
        n_rows = min(n_rows, int(_BATCH_BYTES / max(bytes_of_row, 1.0)))
    return max(n_rows, 1)


def _bytes_of_row(chunk: Chunk, dictionary_bytes: int | None, *, n_rows: int) -> float:
    """Return what a row of a column takes: on average, or at most where values are repeated."""
    stored = max(chunk.n_bytes, 1)
    on_average = stored / n_rows
    if chunk.encodings <= _WHOLE:
        return on_average
    # With prefixes of others (DELTA_BYTE_ARRAY), a value may be as long as all that is stored.
    largest = stored
    if chunk.encodings <= _WHOLE | _DICTIONARIES:
        largest = min(dictionary_bytes or stored, stored)
    return max(on_average, largest * max(chunk.n_values / n_rows, 1.0))


def _dictionary_bytes(source: Any, chunk: Chunk) -> int | None:
    """Return the size of the dictionary that a column chunk begins with; None without one."""
    source.seek(chunk.start)
    try:
        kind, n_bytes = page_header(source.read(_HEADER_BYTES))
    except ValueError:
        return None
    return n_bytes if kind == _DICTIONARY_PAGE else None
