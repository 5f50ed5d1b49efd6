"""Documents: files that are one JSON value: SQuAD's, lists of rows, and columns of pandas.

And files of JSON that are read whole, such as tables of labels or ratings: they have no copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from qaeval_core.errors import UnreadableFileError
from qaeval_core.planning.text_files.json_lines import count_lines, parse_lines, question_row
from qaeval_core.planning.text_files.kinds import TextKind, encoding_of
from qaeval_core.planning.text_files.parsed import records_table
from qaeval_core.schema import UNREADABLE_LINE

_SHAPES = "a list of objects, SQuAD's form, an object of columns, or JSON Lines"


def document_rows(data: bytes, *, name: str) -> Iterator[dict[str, Any]] | None:
    """Return the rows of a document; None where the file is JSON Lines by another name.

    Raises
    ------
    UnreadableFileError
        If it is no JSON, or holds no rows.
    """
    try:
        content = json.loads(data.decode())
    except UnicodeDecodeError:
        raise UnreadableFileError(f"{name} is not UTF-8; name its encoding [QA0304]") from None
    except (ValueError, RecursionError) as error:
        if _is_lines(data):
            return None
        raise UnreadableFileError(f"{name} is not JSON: {error} [QA0304]") from None
    found = _rows(content)
    if found is None:
        hint = ""
        if isinstance(content, dict) and all(isinstance(own, str) for own in content.values()):
            hint = "; predictions by id are joined with --predictions"
        raise UnreadableFileError(f"{name} holds no rows: it must be {_SHAPES}{hint} [QA0304]")
    return found


def _is_lines(data: bytes) -> bool:
    first = data.lstrip().partition(b"\n")[0]
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


def _rows(content: object) -> Iterator[dict[str, Any]] | None:
    if isinstance(content, list):
        return iter(content) if all(isinstance(row, dict) for row in content) else None
    if not isinstance(content, dict):
        return None
    data = content.get("data")
    if isinstance(data, list) and all(isinstance(own, dict) for own in data):
        return _questions(data) if any("paragraphs" in own for own in data) else iter(data)
    if "paragraphs" in content:
        return _questions([content])
    return _of_columns(content)


def _questions(articles: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for article in articles:
        title = {"title": article["title"]} if "title" in article else {}
        for passage in article.get("paragraphs", ()):
            for question in passage["qas"]:
                yield {**question_row(passage, question), **title}


def _of_columns(content: Mapping[str, Any]) -> Iterator[dict[str, Any]] | None:
    """Return the rows of an object of columns: lists, or objects by the number of the row."""
    columns = list(content.values())
    if not columns or not all(isinstance(own, type(columns[0])) for own in columns):
        return None
    if isinstance(columns[0], list):
        is_table = len({len(own) for own in columns}) == 1
        rows = range(len(columns[0]))
        found = ({name: own[i] for name, own in content.items()} for i in rows)
    elif isinstance(columns[0], dict):
        is_table = all(own.keys() == columns[0].keys() for own in columns)
        is_table = is_table and all(key.isdecimal() for key in columns[0])
        found = ({name: own[key] for name, own in content.items()} for key in columns[0])
    else:
        return None
    return found if is_table else None


def unpacked(content: bytes, kind: TextKind) -> bytes:
    """Return the bytes of a file that may be compressed.

    Raises
    ------
    OSError
        If they are damaged.
    """
    if kind.compression is None:
        return content
    with pa.input_stream(pa.BufferReader(content), compression=kind.compression) as stream:
        return bytes(stream.read())


def as_utf8(content: bytes, encoding: str | None) -> bytes:
    """Return a text in UTF-8; it is in the encoding that `encoding_of` says.

    Raises
    ------
    ConfigError
        If there is none of this name.
    UnicodeDecodeError
        If it is in another one.
    """
    own = encoding_of(content, encoding)
    return content if own is None else content.decode(own).encode()


def whole_json(
    content: bytes, kind: TextKind, *, name: str, encoding: str | None = None
) -> pa.Table:
    """Return the rows of JSON Lines or of a JSON document.

    Parameters
    ----------
    encoding : str, optional
        Default UTF-8, or as a byte order mark says.

    Raises
    ------
    UnreadableFileError
        If it holds none, or a line is none.
    """
    content = as_utf8(content, encoding)
    rows = document_rows(content, name=name) if kind.format == "json" else None
    if rows is not None:
        return records_table(list(rows))
    if not content.strip():
        raise UnreadableFileError(f"{name} is empty [QA0304]")
    table = parse_lines(content, count_lines(content), name=name)
    whys = table[UNREADABLE_LINE].drop_null()
    if len(whys):
        raise UnreadableFileError(f"{whys[0].as_py()} [QA0304]")
    return table.drop_columns([UNREADABLE_LINE])
