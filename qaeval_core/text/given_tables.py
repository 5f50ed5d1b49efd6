"""Given tables: what people hold in memory as an Arrow table, and results in the kind given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from qaeval_core.errors import SchemaError


class GivenTable(NamedTuple):
    """A table of a user, and what makes another Arrow table one of the same kind."""

    table: pa.Table
    back: Callable[[pa.Table], Any]


def given_table(rows: object) -> GivenTable | None:
    """Return the table that an object is; None where it is none.

    Parameters
    ----------
    rows : object
        pyarrow Table, RecordBatch or RecordBatchReader; polars DataFrame or LazyFrame; pandas
        DataFrame; ``datasets.Dataset``; mapping of column to list or ndarray; or whatever speaks
        Arrow's PyCapsule protocol, which comes back as a pyarrow Table.

    Raises
    ------
    SchemaError
        If the columns of a mapping have different lengths.

    Examples
    --------
    >>> given = given_table({"a": [1, 2]})
    >>> given.table.num_rows, given.back(given.table)
    (2, {'a': [1, 2]})
    """
    taken = next((take for is_kind, take in _KINDS if is_kind(rows)), None)
    return None if taken is None else taken(rows)


def known_table(rows: object) -> GivenTable:
    """Return the table that an object is, rows as mappings among them.

    Raises
    ------
    SchemaError
        If it is none.
    """
    found = given_table(rows)
    if found is not None:
        return found
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = given_table({name: [row.get(name) for row in rows] for name in names})
        assert columns is not None
        return GivenTable(columns.table, lambda table: table.to_pylist())
    raise SchemaError(
        f"rows must be a table or a list of mappings, not {type(rows).__name__} [QA0320]"
    )


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _of_pandas(frame: Any) -> GivenTable:
    index = frame.index

    def back(table: pa.Table) -> Any:
        found = table.to_pandas()
        # Of as many rows each is the score of the row that it had.
        return found.set_axis(index) if len(found) == len(index) else found

    return GivenTable(_without_pandas(pa.Table.from_pandas(frame, preserve_index=False)), back)


def _without_pandas(table: pa.Table) -> pa.Table:
    """Return a table whose metadata say nothing of another frame's columns."""
    metadata = {key: own for key, own in (table.schema.metadata or {}).items() if key != b"pandas"}
    return table.replace_schema_metadata(metadata or None)


def _of_datasets(dataset: Any) -> GivenTable:
    # It is loaded: its own object is here.
    module = sys.modules["datasets"]

    def back(table: pa.Table) -> Any:
        return module.Dataset(module.table.InMemoryTable(table.replace_schema_metadata(None)))

    plain = dataset.with_format("arrow")[:] if len(dataset) else dataset.data.table.slice(0, 0)
    return GivenTable(plain.replace_schema_metadata(None), back)


def _of_columns(columns: Mapping[Any, Any]) -> GivenTable:
    given = {str(name): columns[name] for name in columns}
    lengths = {name: len(values) for name, values in given.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {n:,}" for name, n in lengths.items())
        raise SchemaError(f"columns need as many rows as each other: {shown} [QA0320]")
    is_numpy = any(isinstance(values, np.ndarray) for values in given.values())
    table = pa.table({name: _column(values) for name, values in given.items()})

    def back(own: pa.Table) -> dict[str, Any]:
        if not is_numpy:
            return {name: own[name].to_pylist() for name in own.column_names}
        return {name: own[name].to_numpy(zero_copy_only=False) for name in own.column_names}

    return GivenTable(table, back)


def _column(values: Any) -> pa.Array:
    """Return a column; one whose values have several types is JSON, a text a cell."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
        texts = [None if own is None else json.dumps(own, default=_plain) for own in plain]
        return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else str(value)


def appended(table: pa.Table, more: pa.Table) -> pa.Table:
    """Return a table with the columns of another one; ``id`` is the one that it has.

    Raises
    ------
    SchemaError
        If another column is in both.
    """
    names = [name for name in more.column_names if name != "id" or name not in table.column_names]
    check_new(name for name in names if name in table.column_names)
    for name in names:
        table = table.append_column(more.schema.field(name), more[name])
    return table


def check_new(taken: Iterable[str]) -> None:
    """Raise SchemaError where a column of scores has the name of a column that is there."""
    name = next(iter(taken), None)
    if name is not None:
        raise SchemaError(
            f"the column {name!r} is there already; rename it, or score under another name [QA0308]"
        )


def last_text(value: object) -> object:
    """Return the text of the last message of a chat, such as a model's completion; others as given.

    Examples
    --------
    >>> last_text([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ann"}])
    'Ann'
    """
    last = value[-1] if isinstance(value, list | tuple) and value else None
    if not isinstance(last, Mapping) or "content" not in last:
        return value
    content = last["content"]
    if not isinstance(content, list):
        return content
    # Some servers' contents are lists of parts.
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def last_texts(table: pa.Table) -> pa.Table:
    """Return a table whose columns of chats are the texts of their last messages."""
    for place, column in enumerate(table.schema):
        kind = column.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not is_list or not pa.types.is_struct(kind.value_type):
            continue
        names = [field.name for field in kind.value_type]
        if {"role", "content"} <= set(names):
            texts = [last_text(value) for value in table.column(place).to_pylist()]
            table = table.set_column(place, column.name, _column(texts))
    return table


def _name(rows: object) -> str:
    return f"{type(rows).__module__}.{type(rows).__name__}"


def _speaks_arrow(rows: object) -> bool:
    return hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")


def _same(table: pa.Table) -> pa.Table:
    return table


# Which objects are tables, the narrower kinds first; libraries that may be absent by their names.
_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], GivenTable]], ...] = (
    (lambda rows: isinstance(rows, pa.Table), lambda rows: GivenTable(rows, _same)),
    (
        lambda rows: isinstance(rows, pa.RecordBatch),
        lambda rows: GivenTable(pa.Table.from_batches([rows]), _batch),
    ),
    (
        lambda rows: isinstance(rows, pl.DataFrame),
        lambda rows: GivenTable(rows.to_arrow(), pl.DataFrame),
    ),
    (
        lambda rows: isinstance(rows, pl.LazyFrame),
        lambda rows: GivenTable(
            rows.collect().to_arrow(), lambda table: pl.DataFrame(table).lazy()
        ),
    ),
    (
        lambda rows: _name(rows).startswith("pandas.") and type(rows).__name__ == "DataFrame",
        _of_pandas,
    ),
    (lambda rows: _name(rows) == "datasets.arrow_dataset.Dataset", _of_datasets),
    (lambda rows: isinstance(rows, Mapping), _of_columns),
    (_speaks_arrow, lambda rows: GivenTable(pa.table(rows), _same)),
)
