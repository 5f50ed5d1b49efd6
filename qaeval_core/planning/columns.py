"""Columns: which input column serves which role, and which can be ids, before anything runs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, SchemaError, nearest
from qaeval_core.planning.inputs import InputFile
from qaeval_core.schema import ROLES, fits_role, is_json, is_optional
from qaeval_core.text.column_hashes import hashes
from qaeval_core.text.plain_columns import column_type, paths, plain_type, top_name

ROWS = "rows"
# What rows that belong together share, for people; the first one that is there.
CLUSTER_ROLES = {"context": "contexts", "question": "questions"}


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
            raise ConfigError(f"no role {role!r}{nearest(role, ROLES)} [QA0105]")
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    columns = {role: role_column(role, names, mapping) for role in dict.fromkeys(roles)}
    columns.update(optional_columns(optional, names, mapping))
    if "id" in mapping:
        columns["id"] = mapping["id"]
    elif files and all("id" in file.written.names for file in files):  # A folder's id=1 is none.
        columns["id"] = "id"
    for role, column in columns.items():
        columns[role] = field_of(_first_type(files, column), role=role, column=column)
    for file in files:
        for role, column in columns.items():
            is_missing = file.type_of(column) is None
            is_elsewhere = _first_type(files, column) is not None
            if is_missing and is_optional(role) and is_elsewhere:
                continue
            try:
                _check_column(file, role, column)
            except SchemaError:
                _check_alike(file, files, column)
                raise
    return columns


def present_roles(files: Sequence[InputFile], mapping: Mapping[str, str]) -> dict[str, str]:
    """Return role -> column for each role that has a column in a file."""
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    columns = {role: role_column(role, names, mapping) for role in ROLES}
    return {
        role: column for role, column in columns.items() if _first_type(files, column) is not None
    }


def cluster_column(
    files: Sequence[InputFile],
    asked: str | None,
    *,
    mapping: Mapping[str, str],
    known: Mapping[str, str],
) -> tuple[str | None, str]:
    """Return the column that says which rows belong together, None for none, and what they share.

    Parameters
    ----------
    asked : str or None
        A column or a role; ``none`` for independent rows; None for the context, else the question.
        Where questions do not repeat, that is each row alone.
    mapping : mapping of role to column
    known : mapping of role to column
        Roles that were found.

    Raises
    ------
    ConfigError
        If no file has what was asked for.
    """
    found = {**present_roles(files, mapping), **known}
    if asked is None:
        role = next((own for own in CLUSTER_ROLES if own in found), None)
        return (None, ROWS) if role is None else (found[role], CLUSTER_ROLES[role])
    if asked == "none":
        return None, ROWS
    shared = CLUSTER_ROLES.get(asked, f"values of {asked}")
    if _first_type(files, asked) is not None or not files:
        return asked, shared
    if asked in found:
        return found[asked], shared
    names = ["none", *found, *paths(files[0].schema)]
    raise ConfigError(f"--cluster: no column {asked!r}{nearest(asked, names)} [QA0305]")


def _check_alike(file: InputFile, files: Sequence[InputFile], column: str) -> None:
    """Raise SchemaError if another file has a column of another type: one way must serve both."""
    top = top_name(file.schema.names, column)
    own = file.type_of(top) if top is not None else None
    for other in files:
        kind = other.type_of(top) if top is not None else None
        if kind is not None and own != kind and not pa.types.is_null(kind):
            raise SchemaError(
                f"{file.name}: column {top!r} is {own}, but {kind} in {other.name}; make "
                "them alike [QA0307]"
            ) from None


def _first_type(files: Sequence[InputFile], column: str) -> pa.DataType | None:
    """Return the type that the first file with a column gives it; one of nulls says the least."""
    kinds = [kind for file in files if (kind := file.type_of(column)) is not None]
    return next((kind for kind in kinds if not pa.types.is_null(kind)), next(iter(kinds), None))


def field_of(kind: pa.DataType | None, *, role: str, column: str) -> str:
    """Return a column, or of a struct that is none of a role's types the only field that is."""
    if kind is None or role == "id" or fits_role(kind, role):
        return column
    own = fitting_fields(kind, role)
    return f"{column}.{own[0]}" if len(own) == 1 else column


def fitting_fields(kind: pa.DataType, role: str) -> list[str]:
    """Return the fields of a struct, or of a list of structs, that can serve a role.

    Examples
    --------
    >>> texts, starts = pa.list_(pa.string()), pa.list_(pa.int32())
    >>> fitting_fields(pa.struct([("text", texts), ("answer_start", starts)]), "references")
    ['text']
    """
    schema = pa.schema([("_", kind)])
    known = {path.removeprefix("_."): column_type(schema, path) for path in paths(schema)[1:]}
    return [name for name, own in known.items() if own is not None and fits_role(own, role)]


def column_notes(
    files: Sequence[InputFile],
    *,
    columns: Mapping[str, str],
    mapping: Mapping[str, str],
    carry: Sequence[str],
) -> list[str]:
    """Return what a person may want to know of how columns were found."""
    notes = []
    for role, column in columns.items():
        given = mapping.get(role, role)
        if column.startswith(f"{given}."):
            notes.append(f"role {role} reads the field {column}")
    for column in dict.fromkeys([*columns.values(), *carry]):
        lacking = [file.name for file in files if file.type_of(column) is None]
        if lacking:
            more = f" and {len(lacking) - 1:,} more files" if len(lacking) > 1 else ""
            notes.append(f"{lacking[0]}{more} has no column {column!r}: it is null there")
    return notes


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
    """Raise SchemaError if no file has a column to carry, or one has it twice."""
    twice = sorted({column for column in carry if carry.count(column) > 1})
    if twice:
        raise ConfigError(f"column {twice[0]!r} is carried twice; name it once [QA0106]")
    for column in carry if files else ():
        if _first_type(files, column) is None:
            hint = nearest(column, paths(files[0].schema))
            raise SchemaError(f"{files[0].name}: no column {column!r} to carry{hint} [QA0305]")
        for file in files:
            if file.schema.names.count(column) > 1:
                raise SchemaError(
                    f"{file.name}: the carried column {column!r} exists twice [QA0308]"
                )


def carried_types(files: Sequence[InputFile], carry: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the type of each carried column, of the first file that has it."""
    kinds = {name: _first_type(files, name) for name in carry}
    return {
        name: kind.storage_type if is_json(kind) else kind
        for name, kind in kinds.items()
        if kind is not None
    }


def with_carried(files: Sequence[InputFile], carry: Sequence[str]) -> list[InputFile]:
    """Return files that all have the carried columns: one that a file lacks is null there."""
    kinds = carried_types(files, carry)
    found = []
    for file in files:
        own = [pa.field(*item) for item in kinds.items() if file.type_of(item[0]) is None]
        schema = pa.schema([*file.schema, *own], metadata=file.schema.metadata)
        found.append(replace(file, schema=schema) if own else file)
    return found


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
    kind = file.type_of(column)
    if kind is None:
        wanted = column if column != role else f"{column} (role {role})"
        raise SchemaError(
            f"{file.name}: no column {wanted}{nearest(column, paths(file.schema))}; map it "
            f"with --column {role}=NAME [QA0305]"
        )
    if names.count(column) > 1:
        raise SchemaError(f"{file.name}: the column {column!r} exists twice [QA0308]")
    check_type(kind, role=role, column=column, where=f"{file.name}: ")


def check_type(kind: pa.DataType, *, role: str, column: str, where: str = "") -> None:
    """Raise SchemaError, which says what can be done, if a type cannot serve a role."""
    if not fits_role(kind, role):
        raise SchemaError(
            f"{where}column {column!r} is {kind}, but role {role} needs "
            f"{ROLES[role]}{_way_out(kind, role, column)} [QA0306]"
        )


def _way_out(kind: pa.DataType, role: str, column: str) -> str:
    """Return what can be done about a column whose type fits no role."""
    if fits_role(plain_type(kind, binary_as_text=True), role):
        return "; cast it, or read bytes as texts: --set input.binary_as_text=true"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "; write its numbers as texts"
    own = fitting_fields(kind, role)
    named = " or ".join(f"--column {role}={column}.{name}" for name in own[:3])
    return f"; name a field: {named}" if own else ""


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
            kind = file.type_of(column)
            if kind is None or (column, kind) in seen:
                continue
            seen.add((column, kind))
            try:
                if column == id_column:
                    _check_comparable(kind)
                sink = io.BytesIO()
                pq.write_table(pa.schema([(column, kind)]).empty_table(), sink)
            except pa.ArrowException as error:
                role = "an id" if column == id_column else "carried"
                raise SchemaError(
                    f"{file.name}: column {column!r} is {kind}, which cannot be {role}: "
                    f"{error} [QA0306]"
                ) from None


def _check_comparable(kind: pa.DataType) -> None:
    import polars as pl

    if pa.types.is_nested(kind):
        for i in range(kind.num_fields):
            # A column of decimals is compared as text; polars panics where they lie inside others.
            inner = kind.field(i).type
            if pa.types.is_decimal(inner) and not pa.types.is_decimal128(inner):
                raise pa.ArrowNotImplementedError(f"{inner} inside another type")
            _check_comparable(inner)
    try:
        hashes(pa.chunked_array([], kind))
    except pl.exceptions.PolarsError as error:
        raise pa.ArrowNotImplementedError(str(error)) from None
