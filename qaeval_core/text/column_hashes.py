"""Column hashes: 64 bits of a value's text, the same ones in whatever file, process or week.

Groups of rows are told apart by them, and samples drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.schema import is_list, is_text

UInt64 = NDArray[np.uint64]
_LIST_END = b"\x1e"


def text_hashes(texts: Iterable[bytes | None]) -> UInt64:
    """Return 64 bits of BLAKE2b of each text, nobody's choice; 0 for null.

    Of ten million texts, two have the same ones once in 370,000 times.
    """
    blake = hashlib.blake2b
    digests = [bytes(8) if text is None else blake(text, digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def column_hashes(column: pa.ChunkedArray) -> tuple[UInt64, NDArray[np.bool_]]:
    """Return hashes of a column's values as texts, and which are there; a list is one value.

    Returns
    -------
    (uint64 ndarray, bool ndarray), both of shape (n_rows,)
    """
    if is_list(column.type) and is_text(column.type.value_type):
        rows = column.cast(pa.large_list(pa.large_binary())).to_pylist()
        # An empty passage in a list is not the same as none.
        texts = [
            None if row is None else _LIST_END.join(part or b"" for part in row) for row in rows
        ]
        return text_hashes(texts), np.array([text is not None for text in texts], dtype=bool)
    if pa.types.is_dictionary(column.type):
        return _coded_hashes(column)
    # Neighbors share contexts: each is hashed once.
    coded = text_column(column).cast(pa.large_binary()).combine_chunks().dictionary_encode()
    own = text_hashes(coded.dictionary.to_pylist())
    is_there = np.asarray(coded.is_valid())
    codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    hashes = own[codes] if len(own) else np.zeros(len(codes), np.uint64)
    return np.where(is_there, hashes, np.uint64(0)), is_there


def _coded_hashes(column: pa.ChunkedArray) -> tuple[UInt64, NDArray[np.bool_]]:
    """Return what `column_hashes` does, of a column of dictionaries."""
    found: list[UInt64] = [np.zeros(0, np.uint64)]
    for chunk in column.chunks:
        # A slice of a file has the dictionary of all of it. The last one stands for null.
        codes = chunk.indices.fill_null(len(chunk.dictionary)).to_numpy(zero_copy_only=False)
        is_used = np.zeros(len(chunk.dictionary) + 1, dtype=bool)
        is_used[codes] = True
        own = np.zeros(len(is_used), np.uint64)
        used = pa.chunked_array([chunk.dictionary.filter(pa.array(is_used[:-1]))])
        texts = text_column(used).cast(pa.large_binary())
        own[np.flatnonzero(is_used[:-1])] = text_hashes(texts.to_pylist())
        found.append(own[codes])
    return np.concatenate(found), np.asarray(column.is_valid())


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values stand in it themselves, not in a dictionary."""
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def text_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as readable texts: ids, groups and quotas are compared as such."""
    column = decoded(column)
    kind = column.type
    if is_text(kind):
        return readable(column.cast(pa.string()) if pa.types.is_null(kind) else column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    texts = [text_of(scalar) for scalar in column]
    return pa.chunked_array([pa.array(texts, pa.string())])


def hashes(ids: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return hashes of ids: equal for equal ones, in one process.

    Examples
    --------
    >>> len(set(hashes(pa.chunked_array([["x", "y", "x"]]))))
    2
    """
    import polars as pl  # Not at the top: most runs have no ids, and its import takes long.

    parts = [_comparable(chunk) for chunk in ids.chunks] or [_comparable(pa.array([], ids.type))]
    joined = pa.chunked_array(parts)
    return pl.Series(pl.from_arrow(joined)).hash().to_numpy()


def _comparable(ids: pa.Array) -> pa.Array:
    """Return ids as something that any bytes and any time zone can be hashed in."""
    kind = ids.type
    if isinstance(kind, pa.BaseExtensionType):
        return _comparable(ids.storage)
    if pa.types.is_dictionary(kind):
        return _comparable(ids.dictionary_decode())
    if _is_text(kind):
        return ids.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    if pa.types.is_timestamp(kind):
        return ids.view(pa.int64())
    if pa.types.is_decimal(kind):
        return ids.cast(pa.string())
    return ids


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    r"""Return a column whose texts are UTF-8: other bytes become replacement characters.

    A column without such texts comes back as it is. Texts inside lists and records are left alone,
    and those of a dictionary are UTF-8: Arrow reads no others.

    Examples
    --------
    >>> broken = pa.chunked_array([pa.array([b"a", b"b\xff"]).view(pa.string())])
    >>> readable(broken).to_pylist() == ["a", "b\ufffd"]
    True
    """
    kind = column.type
    if not _is_text(kind) or _is_utf8(column):
        return column
    texts = [text_of(scalar) for scalar in column]
    return pa.chunked_array([pa.array(texts, pa.string()).cast(kind)])


def _is_utf8(texts: pa.ChunkedArray) -> bool:
    try:
        texts.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def text_of(scalar: pa.Scalar) -> str | None:
    """Return an id as a text for people, None where there is none."""
    try:
        value = scalar.as_py()
        return None if value is None else str(value)
    except (ValueError, OverflowError, LookupError, TypeError, pa.ArrowException):
        # No UTF-8, no such time zone, or no time that Python knows: Arrow's errors among them.
        return _raw(scalar)


def texts_of(scalar: pa.Scalar) -> str | list[str | None] | None:
    """Return a text, or the texts of a list, for people; a quarantined row may have any bytes.

    Examples
    --------
    >>> texts_of(pa.array([["a", None]])[0]), texts_of(pa.scalar("a"))
    (['a', None], 'a')
    """
    if is_list(scalar.type) and scalar.is_valid:
        return [text_of(own) for own in scalar.values]
    return text_of(scalar)


def _raw(scalar: pa.Scalar) -> str:
    if _is_text(scalar.type):
        return bytes(scalar.as_buffer().to_pybytes()).decode("utf-8", "replace")
    if pa.types.is_timestamp(scalar.type):
        times: Sequence[object] = [scalar.value]
        naive = pa.array(times, pa.int64()).view(pa.timestamp(scalar.type.unit))
        zone = scalar.type.tz or ""
        return f"{naive.cast(pa.string())[0].as_py()} UTC, {zone}".rstrip(", ")
    return f"({scalar.type})"
