"""Parsed: rows of text as Arrow tables, whose types are those that all values have.

A column whose values have several types is JSON, a text a cell: what a cell says is seen when it is
read, and a wrong one costs its own row alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from qaeval_core.errors import InputError
from qaeval_core.schema import UNREADABLE_LINE, is_json


class InexactNumbersError(InputError):
    """Floats cannot hold each whole number of a column.

    Attributes
    ----------
    column : str
    """

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message, column)
        self.column = column

    @classmethod
    def of(cls, column: str) -> InexactNumbersError:
        """Return the error of a column."""
        return cls(f"column {column!r} has numbers that no float holds [QA0306]", column)


def records_table(
    records: Sequence[Mapping[str, Any] | None], schema: pa.Schema | None = None
) -> pa.Table:
    """Return records as a table; None is a row of nulls.

    Parameters
    ----------
    schema : pyarrow.Schema, optional
        Columns and types; default those of the records.
    """
    if schema is None:
        names = list(dict.fromkeys(name for row in records if row is not None for name in row))
        columns = {
            name: _column(name, [row and row.get(name) for row in records]) for name in names
        }
    else:
        columns = {
            field.name: _column(
                field.name, [row and row.get(field.name) for row in records], field.type
            )
            for field in schema
        }
    return pa.table(columns)


def _column(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    if kind is None or not is_json(kind):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            if kind is not None:  # All else that values are was seen when it was chosen.
                raise InexactNumbersError.of(name) from None
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def with_unreadable(table: pa.Table, n_rows: int, why: Mapping[int, str] | None = None) -> pa.Table:
    """Return a table of so many rows whose last column says which rows are none, and why."""
    texts = pa.nulls(n_rows, pa.string())
    if why:
        texts = pa.array([why.get(i) for i in range(n_rows)], pa.string())
    if not table.column_names:
        return pa.table({UNREADABLE_LINE: texts})
    return table.append_column(pa.field(UNREADABLE_LINE, pa.string()), texts)


def without_unreadable(schema: pa.Schema | None) -> pa.Schema | None:
    """Return a schema without the column ``UNREADABLE_LINE``."""
    at = -1 if schema is None else schema.get_field_index(UNREADABLE_LINE)
    return schema if schema is None or at < 0 else schema.remove(at)


def joined_schema(schemas: Iterable[pa.Schema], *, otherwise: pa.DataType) -> pa.Schema:
    """Return the columns of all tables.

    Parameters
    ----------
    otherwise : pyarrow.DataType
        What a column of two types becomes, if no third one holds both.

    Examples
    --------
    >>> schemas = [pa.schema([("a", pa.int64())]), pa.schema([("a", pa.string())])]
    >>> joined_schema(schemas, otherwise=pa.json_()).types
    [JsonType(extension<arrow.json>)]
    """
    fields: dict[str, pa.Field] = {}
    for schema in dict.fromkeys(schemas):
        for field in schema:
            known = fields.get(field.name)
            fields[field.name] = field if known is None else _merged(known, field, otherwise)
    last = fields.pop(UNREADABLE_LINE, None)
    return pa.schema([*fields.values(), *([last] if last is not None else [])])


def _merged(one: pa.Field, other: pa.Field, otherwise: pa.DataType) -> pa.Field:
    try:
        both = pa.unify_schemas(
            [pa.schema([one]), pa.schema([other])], promote_options="permissive"
        )
    except (pa.ArrowException, TypeError):
        return pa.field(one.name, otherwise)
    return both.field(0)
