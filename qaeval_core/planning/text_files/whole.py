"""Whole: a file of text that is read at once, such as a table of labels or ratings.

Stands alone: such a file is no input of a run, so it has no copy.
"""

from __future__ import annotations

import pyarrow as pa

from qaeval_core.errors import UnreadableFileError
from qaeval_core.planning.text_files.documents import document_rows
from qaeval_core.planning.text_files.json_lines import count_lines, parse_lines
from qaeval_core.planning.text_files.kinds import TextKind, marked_encoding
from qaeval_core.planning.text_files.parsed import records_table
from qaeval_core.schema import UNREADABLE_LINE


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


def whole_json(content: bytes, kind: TextKind, *, name: str) -> pa.Table:
    """Return the rows of JSON Lines or of a JSON document.

    Raises
    ------
    UnreadableFileError
        If it holds none, or a line is none.
    """
    encoding = marked_encoding(content)
    if encoding is not None:
        content = content.decode(encoding).encode()
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
