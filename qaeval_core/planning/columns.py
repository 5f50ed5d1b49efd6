"""Columns: which input column serves which role, and which can be ids, before anything runs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError, SchemaError, nearest
from qaeval_core.planning.inputs import InputFile
from qaeval_core.schema import ROLES, fits_role


def resolve_columns(
    files: Sequence[InputFile],
    *,
    roles: Iterable[str],
    mapping: Mapping[str, str],
    optional: Iterable[str] = (),
) -> dict[str, str]:
    """Return role -> column for the roles that metrics read, and ``id`` where there is one.

    An optional role is left out where it is not mapped and no file has a column of its name.

    A role takes the column it is mapped to, else the column of its own name; ``candidate`` falls
    back to what ``question`` is mapped to, else to a column ``question``.

    Raises
    ------
    ConfigError
        If a mapped role does not exist.
    SchemaError
        If a file lacks a column or its type does not fit; names file, column and nearest names.
    """
    for role in mapping:
        if role not in ROLES:
            raise ConfigError(f"unknown role {role!r}{nearest(role, ROLES)}")
    names = [name for file in files for name in file.schema.names]
    columns = {role: role_column(role, names, mapping) for role in dict.fromkeys(roles)}
    columns.update(optional_columns(optional, names, mapping))
    if "id" in mapping:
        columns["id"] = mapping["id"]
    elif files and all("id" in file.schema.names for file in files):
        columns["id"] = "id"
    for file in files:
        for role, column in columns.items():
            _check_column(file, role, column)
    return columns


def optional_columns(
    roles: Iterable[str], names: Sequence[str], mapping: Mapping[str, str]
) -> dict[str, str]:
    """Return role -> column for optional roles that are mapped or have a column of their name.

    Examples
    --------
    >>> optional_columns(["entities", "answer_type"], ["entities"], {})
    {'entities': 'entities'}
    """
    return {role: mapping.get(role, role) for role in roles if role in mapping or role in names}


def check_carried(files: Sequence[InputFile], carry: Sequence[str]) -> None:
    """Raise SchemaError if a column to carry is missing in a file, or is not one column there."""
    twice = sorted({column for column in carry if carry.count(column) > 1})
    if twice:
        raise ConfigError(f"column {twice[0]!r} is to be carried twice; name it once")
    for file in files:
        for column in carry:
            if column not in file.schema.names:
                hint = nearest(column, file.schema.names)
                raise SchemaError(f"{file.relative}: no column {column!r} to carry{hint}")
            if file.schema.names.count(column) > 1:
                raise SchemaError(f"{file.relative}: column {column!r} to carry stands there twice")


def role_column(role: str, names: Sequence[str], mapping: Mapping[str, str]) -> str:
    """Return the column that a role is read from, by mapping or by name.

    Examples
    --------
    >>> role_column("candidate", ["id", "question"], {})
    'question'
    """
    if role in mapping:
        return mapping[role]
    if role != "candidate":
        return role
    if "question" in mapping:
        return mapping["question"]
    return "candidate" if "candidate" in names else "question"


def _check_column(file: InputFile, role: str, column: str) -> None:
    names = file.schema.names
    if column not in names:
        wanted = column if column != role else f"{column} (role {role})"
        raise SchemaError(
            f"{file.relative}: no column {wanted}{nearest(column, names)}; map it with "
            f"--column {role}=NAME"
        )
    if names.count(column) > 1:
        raise SchemaError(f"{file.relative}: column {column!r} stands there twice")
    kind = file.schema.field(column).type
    if not fits_role(kind, role):
        raise SchemaError(
            f"{file.relative}: column {column!r} is {kind}, but role {role} needs {ROLES[role]}"
        )


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
