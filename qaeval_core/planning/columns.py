"""Columns: which input column serves which role, and which can be ids, before anything runs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, SchemaError, nearest
from qaeval_core.planning.inputs import InputFile
from qaeval_core.schema import ROLES, fits_role
from qaeval_core.text.column_hashes import hashes


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
