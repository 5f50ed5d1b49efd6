"""JSON Lines: a block of lines to a table, by PyArrow, and line by line where that refuses one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from qaeval_core.planning.text_files.parsed import (
    records_table,
    with_unreadable,
    without_unreadable,
)
from qaeval_core.schema import is_json
from qaeval_core.text.plain_columns import with_inner

# Of larger whole numbers a float does not hold each.
_MAX_EXACT = float(2**53)
_CHUNK_BYTES = 1 << 20  # What a core's cache holds.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_lines(
    data: bytes, n_lines: int, *, name: str, first_line: int = 1, schema: pa.Schema | None = None
) -> pa.Table:
    """Return the rows of whole lines of JSON.

    Parameters
    ----------
    data : bytes
        UTF-8.
    n_lines : int
        As `count_lines` says.
    name : str
        Of the file, for messages.
    first_line : int, default 1
        Number of the first line in its file.
    schema : pyarrow.Schema, optional
        Columns and types; default those of these lines.
    """
    table = _read(data, without_unreadable(schema))
    if table is not None and table.num_rows != n_lines:
        n_filled = sum(1 for line in data.split(b"\n") if line.strip())
        table = table if table.num_rows == n_filled else None
    if table is not None:
        return with_unreadable(table, table.num_rows)
    return _parse_each(data, name=name, first_line=first_line, schema=schema)


def count_lines(data: bytes) -> int:
    r"""Return how many lines a text has.

    >>> count_lines(b"a"), count_lines(b"a\n\n"), count_lines(b"")
    (1, 2, 0)
    """
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def _read(data: bytes, schema: pa.Schema | None) -> pa.Table | None:
    """Return a table, or None where the lines must be read one by one."""
    if schema is not None and any(is_json(field.type) for field in schema):
        return None
    try:
        data.decode()
        try:
            table = _read_json(data, schema, chunk_bytes=_CHUNK_BYTES)
        except pa.ArrowInvalid:  # Of a line that is longer, among others.
            table = _read_json(data, schema)
        plain = pa.schema([field.with_type(_as_text(field.type)) for field in table.schema])
        if plain != table.schema:  # A text that looks like a date stays the text that it is.
            table = _read_json(data, plain)
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    if not table.column_names or {"qas", "context"} <= set(table.column_names):
        return None  # Of a passage each question is a row.
    return None if _has_lost_digits(table) else table


def _read_json(
    data: bytes, schema: pa.Schema | None, *, chunk_bytes: int | None = None
) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(
            use_threads=False, block_size=chunk_bytes or len(data) + 1
        ),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "error",
        ),
    )


def _as_text(kind: pa.DataType) -> pa.DataType:
    """Return a type whose dates are texts."""
    if pa.types.is_nested(kind):
        return with_inner(kind, _as_text)
    return pa.string() if pa.types.is_temporal(kind) else kind


def _has_lost_digits(table: pa.Table) -> bool:
    """Return whether a float may stand for a whole number that it does not hold."""
    floats = [name for name in table.column_names if pa.types.is_floating(table[name].type)]
    for name in floats:
        largest = pc.max(pc.abs(pc.drop_null(table[name]))).as_py()
        if largest is not None and largest >= _MAX_EXACT:
            return True
    return False


def _parse_each(data: bytes, *, name: str, first_line: int, schema: pa.Schema | None) -> pa.Table:
    records: list[Mapping[str, Any] | None] = []
    why: dict[int, str] = {}
    for number, line in enumerate(data.split(b"\n"), start=first_line):
        if not line.strip():
            continue
        record, problem = _record(line)
        if problem:
            why[len(records)] = f"{name}, line {number}: {problem}"
            records.append(None)
        else:
            records += [record] if record is None else _questions(record)
    table = records_table(records, without_unreadable(schema))
    return with_unreadable(table, len(records), why)


def _record(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return what a line says, or what is wrong with it."""
    try:
        record = json.loads(line.decode())
        if _HALF.search(line):
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except UnicodeEncodeError:
        return None, "it has half of a surrogate pair"
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"
    if not isinstance(record, dict):
        return None, f"a JSON object is needed, not {type(record).__name__}"
    return record, ""


def _questions(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row a question, of MRQA's passages; the header of its files is none."""
    if set(record) == {"header"}:
        return
    if not _is_passage(record):
        yield record
        return
    for question in record["qas"]:
        yield question_row(record, question)


def _is_passage(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("qas"), list) and isinstance(record.get("context"), str)


def question_row(passage: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question of SQuAD's or MRQA's files as a row, its context beside it."""
    row: dict[str, Any] = {}
    for key in ("id", "qid"):
        if key in question:
            row["id"] = question[key]
    row |= {"question": question.get("question"), "context": passage["context"]}
    answers = question.get("answers")
    if isinstance(answers, list) and all(isinstance(own, dict) for own in answers):
        row["answers"] = {
            "text": [own.get("text") for own in answers],
            "answer_start": [own.get("answer_start") for own in answers],
        }
    elif answers is not None:
        row["answers"] = answers
    if "is_impossible" in question:
        row["is_impossible"] = question["is_impossible"]
    return row
