"""Plain columns: whatever Arrow type a writer chose, as one of the few that all else knows.

Views become large texts and bytes, viewed lists become lists, run ends become rows, at any depth.
JSON stays JSON: whoever reads a role parses it, and whoever copies it keeps the text.

A column's name may be a path: ``answers.text`` is the field ``text`` of the struct ``answers``, or
of every struct of the list ``answers``. A column, or field, that has the very name goes before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qaeval_core.schema import is_json, is_list


def plain_type(kind: pa.DataType, *, binary_as_text: bool = False) -> pa.DataType:
    """Return the type that a column is read as.

    Parameters
    ----------
    binary_as_text : bool, default False
        Whether bytes are texts.

    Examples
    --------
    >>> str(plain_type(pa.list_view(pa.string_view())))
    'list<item: large_string>'
    >>> str(plain_type(pa.list_(pa.binary()), binary_as_text=True))
    'list<item: string>'
    """
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type, binary_as_text=binary_as_text)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        return with_inner(kind, partial(plain_type, binary_as_text=binary_as_text))
    return _plain_value_type(kind, binary_as_text=binary_as_text)


def with_inner(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a nested type with each of its inner types changed; lists are no views then."""
    types = pa.types

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if types.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    if is_list(kind):
        is_large = types.is_large_list(kind) or types.is_large_list_view(kind)
        inner = changed(kind.value_field)
        return pa.large_list(inner) if is_large else pa.list_(inner)
    if types.is_struct(kind):
        return pa.struct([changed(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        key, item = changed(kind.key_field), changed(kind.item_field)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, change(kind.value_type), ordered=kind.ordered)
    return kind


def _plain_value_type(kind: pa.DataType, *, binary_as_text: bool) -> pa.DataType:
    types = pa.types
    if is_json(kind):
        return pa.json_(_plain_value_type(kind.storage_type, binary_as_text=False))
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_string() if binary_as_text else pa.large_binary()
    if binary_as_text and types.is_binary(kind):
        return pa.string()
    return pa.large_string() if binary_as_text and types.is_large_binary(kind) else kind


def has_inner_dictionary(kind: pa.DataType) -> bool:
    """Return whether dictionaries lie inside a column's lists or structs.

    >>> has_inner_dictionary(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    True
    """
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return any(pa.types.is_dictionary(own) or has_inner_dictionary(own) for own in inner)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a column holds bytes, or lists of them, which could be texts."""
    kind = kind.value_type if is_list(kind) else kind
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def plain_schema(schema: pa.Schema, *, binary_as_text: bool = False) -> pa.Schema:
    """Return the schema that a table is read with."""
    kinds = [plain_type(kind, binary_as_text=binary_as_text) for kind in schema.types]
    fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
    return pa.schema(fields, metadata=schema.metadata)


def plain_table(
    table: pa.Table, *, binary_as_text: bool = False, said: pa.Schema | None = None
) -> pa.Table:
    """Return a table of plain columns; one that is plain already comes back as it is.

    Parameters
    ----------
    said : pyarrow.Schema, optional
        What the file says of its columns where the table's own types say less: which are JSON.
    """
    given = table.schema
    if said is not None:
        given = pa.schema([said.field(name) for name in given.names], metadata=given.metadata)
    schema = plain_schema(given, binary_as_text=binary_as_text)
    if schema == table.schema:
        return table
    columns = [
        pa.chunked_array([_as(chunk, kind) for chunk in column.chunks], kind)
        for column, kind in zip(table.columns, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)


def without_json(table: pa.Table) -> pa.Table:
    """Return a table in which JSON is the text that it is."""
    for place, field in enumerate(table.schema):
        if is_json(field.type):
            texts = [chunk.storage for chunk in table.column(place).chunks]
            column = pa.chunked_array(texts, field.type.storage_type)
            table = table.set_column(place, field.name, column)
    return table


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array as its plain type; bytes that are no UTF-8 stay in it, for who reads them."""
    types = pa.types
    if array.type == kind:
        return array
    if types.is_run_end_encoded(array.type):
        return _as(pc.run_end_decode(array), kind)
    if is_json(kind):
        storage = array.storage if is_json(array.type) else array
        return pa.ExtensionArray.from_storage(kind, _as(storage, kind.storage_type))
    if types.is_string(kind) or types.is_large_string(kind):
        large = types.is_large_string(kind)
        return array.cast(pa.large_binary() if large else pa.binary()).view(kind)
    if types.is_nested(kind) or types.is_dictionary(kind):
        return _nested_as(array, kind)
    return array.cast(kind)


def _nested_as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        own = [_as(array.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(own, fields=fields, mask=array.is_null())
    if types.is_dictionary(kind):
        values = _as(array.dictionary, kind.value_type)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)
    if types.is_map(kind):
        return _map_of(array, kind)
    if is_list(kind) and not types.is_fixed_size_list(kind):
        return list_of(array, _as(array.flatten(), kind.value_type), kind)
    return array.cast(kind)


def _map_of(maps: pa.MapArray, kind: pa.MapType) -> pa.Array:
    """Return maps of other types of keys and items."""
    first, stop = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    keys, items = (own.slice(first, stop - first) for own in (maps.keys, maps.items))
    offsets = pc.subtract(maps.offsets, first)
    if maps.null_count:
        is_null = pa.concat_arrays([maps.is_null(), pa.array([False])])
        offsets = pc.if_else(is_null, pa.scalar(None, pa.int32()), offsets)
    arrays = _as(keys, kind.key_type), _as(items, kind.item_type)
    return pa.MapArray.from_arrays(offsets, *arrays, type=kind)


def list_of(lists: pa.Array, values: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """Return lists of other values: as many in each, nulls where there were nulls."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    kind = kind or pa.large_list(values.type)
    is_large = pa.types.is_large_list(kind)
    make = pa.LargeListArray if is_large else pa.ListArray
    starts = pa.array(offsets, pa.int64() if is_large else pa.int32())
    mask = lists.is_null() if lists.null_count else None
    return make.from_arrays(starts, values, type=kind, mask=mask)


def top_name(names: Collection[str], name: str) -> str | None:
    """Return the column that a name or path begins with; None where there is none.

    Examples
    --------
    >>> top_name(["answers", "bleu.1"], "answers.text"), top_name(["answers", "bleu.1"], "bleu.1")
    ('answers', 'bleu.1')
    """
    if name in names:
        return name
    parts = name.split(".")
    tops = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((top for top in tops if top in names), None)


def column_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column or of what a path leads to; None where there is none.

    Examples
    --------
    >>> answer = pa.struct([("text", pa.list_(pa.string())), ("start", pa.list_(pa.int32()))])
    >>> schema = pa.schema([("answers", answer), ("all", pa.list_(answer))])
    >>> print(column_type(schema, "answers.text"), column_type(schema, "all.start"))
    list<item: string> large_list<item: int32>
    >>> column_type(schema, "answers.texts") is None
    True
    """
    top = top_name(schema.names, name)
    if top is None:
        return None
    return _type_at(schema.types[schema.names.index(top)], _rest(name, top))


def _rest(name: str, top: str) -> list[str]:
    return name[len(top) + 1 :].split(".") if len(name) > len(top) else []


def _type_at(kind: pa.DataType, rest: Sequence[str]) -> pa.DataType | None:
    if not rest or is_json(kind) or pa.types.is_null(kind):
        return kind
    if is_list(kind):
        inner = _type_at(kind.value_type, rest)
        if inner is None:
            return None
        return pa.large_list(inner.value_type if is_list(inner) else inner)
    if pa.types.is_struct(kind):
        name, rest = _field(kind, rest)
        return None if name is None else _type_at(kind.field(name).type, rest)
    return None


def _field(kind: pa.StructType, rest: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the field that the rest of a path begins with, and what is left of the path."""
    names = [kind.field(i).name for i in range(kind.num_fields)]
    name = top_name(names, ".".join(rest))
    return name, () if name is None else rest[name.count(".") + 1 :]


def column_at(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, or what a path leads to: lists in lists are one list.

    Raises
    ------
    KeyError
        If there is none.

    Examples
    --------
    >>> rows = [{"answers": [{"text": "Ann"}, {"text": "Ann Lee"}]}, {"answers": None}]
    >>> column_at(pa.Table.from_pylist(rows), "answers.text").to_pylist()
    [['Ann', 'Ann Lee'], None]
    """
    top = top_name(table.column_names, name)
    kind = column_type(table.schema, name)
    if top is None or kind is None:
        raise KeyError(name)
    chunks = [_array_at(chunk, _rest(name, top)) for chunk in table.column(top).chunks]
    return pa.chunked_array(chunks, kind)


def _array_at(array: pa.Array, rest: Sequence[str]) -> pa.Array:
    if not rest or pa.types.is_null(array.type):
        return array
    if is_json(array.type):
        values = [_json_at(text, rest) for text in array.storage.to_pylist()]
        storage = pa.array(values, array.type.storage_type)
        return pa.ExtensionArray.from_storage(array.type, storage)
    if pa.types.is_struct(array.type):
        name, rest = _field(array.type, rest)
        assert name is not None, "the column's type was looked at"
        return _array_at(pc.struct_field(array, [name]), rest)
    inner = _array_at(array.flatten(), rest)
    if not is_list(inner.type):
        return list_of(array, inner)
    # The ends of outer lists, in values of the inner ones.
    ends = np.concatenate([[0], np.cumsum(_lengths(inner))])
    outer = np.concatenate([[0], np.cumsum(_lengths(array))])
    offsets = pa.array(ends[outer], pa.int64())
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(offsets, inner.flatten(), mask=mask)


def _lengths(lists: pa.Array) -> Any:
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _json_at(text: str | None, rest: Sequence[str]) -> str | None:
    """Return the JSON that a path leads to in a JSON text; one that is none stays as it is.

    >>> _json_at('{"answers": [{"text": "Ann"}, {"text": "Bo"}]}', ["answers", "text"])
    '["Ann", "Bo"]'
    """
    try:
        found = None if text is None else value_at(json.loads(text), rest)
    except (ValueError, RecursionError):
        return text
    return None if found is None else json.dumps(found)


def value_at(value: Any, rest: Sequence[str]) -> Any:
    """Return what a path leads to in mappings and lists; None where it ends before.

    >>> value_at({"answers": [{"text": "Ann"}, {"text": ["Bo", "Cy"]}]}, ["answers", "text"])
    ['Ann', 'Bo', 'Cy']
    """
    if not rest:
        return value
    if isinstance(value, list):
        found = [value_at(item, rest) for item in value]
        flat = (item if isinstance(item, list) else [item] for item in found)
        return [one for item in flat for one in item]
    name = top_name(value, ".".join(rest)) if isinstance(value, Mapping) else None
    return None if name is None else value_at(value[name], rest[name.count(".") + 1 :])


def paths(schema: pa.Schema) -> list[str]:
    """Return the names of columns, and the paths to the fields in them.

    Examples
    --------
    >>> paths(pa.schema([("id", pa.int32()), ("answers", pa.struct([("text", pa.string())]))]))
    ['id', 'answers', 'answers.text']
    """
    return [path for field in schema for path in _paths(field.name, field.type)]


def _paths(name: str, kind: pa.DataType) -> Iterator[str]:
    yield name
    while is_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _paths(f"{name}.{kind.field(i).name}", kind.field(i).type)
