"""Ids: of whatever type a column has and whatever bytes it holds, compared and shown.

An id is copied, counted where it repeats, and named where its row is quarantined. Text that is no
UTF-8 is compared by its bytes and shown with replacement characters; so are texts that are carried,
for readers of Parquet refuse a whole file for one such text.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import SchemaError
from qaeval_core.planning.inputs import InputFile


def check_copied(
    files: Iterable[InputFile], *, id_column: str | None, carry: Sequence[str]
) -> None:
    """Look whether ids can be compared, and ids and carried columns be written.

    Raises
    ------
    SchemaError
        If not; it names file, column and type.
    """
    seen: set[tuple[str, pa.DataType]] = set()
    for file in files:
        for column in [*([id_column] if id_column else []), *carry]:
            kind = file.schema.field(column).type
            if (column, kind) in seen:
                continue
            seen.add((column, kind))
            try:
                if column == id_column:
                    _check_comparable(kind)
                sink = io.BytesIO()
                pq.write_table(pa.schema([(column, kind)]).empty_table(), sink)
            except (pa.ArrowException, pl.exceptions.PolarsError) as error:
                role = "an id" if column == id_column else "carried"
                raise SchemaError(
                    f"{file.relative}: column {column!r} is {kind}, which cannot be {role}: {error}"
                ) from None


def _check_comparable(kind: pa.DataType) -> None:
    if pa.types.is_nested(kind):
        for i in range(kind.num_fields):
            # A column of decimals is compared as text; polars panics where they lie inside others.
            inner = kind.field(i).type
            if pa.types.is_decimal(inner) and not pa.types.is_decimal128(inner):
                raise pa.ArrowNotImplementedError(f"{inner} inside another type")
            _check_comparable(inner)
    hashes(pa.chunked_array([], kind))


def hashes(ids: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return hashes of ids: equal for equal ones, in one process.

    Examples
    --------
    >>> len(set(hashes(pa.chunked_array([["x", "y", "x"]]))))
    2
    """
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


def _raw(scalar: pa.Scalar) -> str:
    if _is_text(scalar.type):
        return bytes(scalar.as_buffer().to_pybytes()).decode("utf-8", "replace")
    if pa.types.is_timestamp(scalar.type):
        times: Sequence[object] = [scalar.value]
        naive = pa.array(times, pa.int64()).view(pa.timestamp(scalar.type.unit))
        zone = scalar.type.tz or ""
        return f"{naive.cast(pa.string())[0].as_py()} UTC, {zone}".rstrip(", ")
    return f"({scalar.type})"
