"""CSV: whole records to a table, and where a stretch of a file may be cut.

Every value is read as text. A column of no role becomes numbers where each of its values is the
usual text of one: ``007`` is none. An empty cell is null, a quoted empty one is the empty text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from qaeval_core.errors import UnreadableFileError
from qaeval_core.planning.text_files.json_lines import count_lines
from qaeval_core.planning.text_files.parsed import (
    InexactNumbersError,
    with_unreadable,
    without_unreadable,
)
from qaeval_core.planning.text_files.sheets import delimiter_of

_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
# A float holds each whole number of fifteen digits.
_NUMBER = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_MAX_FIELD = 1 << 30


@dataclass(frozen=True, slots=True)
class Header:
    """The first record of a CSV file.

    Attributes
    ----------
    n_bytes, n_lines : int
        Of the record, with what stands before it.
    is_one_line : bool
    """

    names: tuple[str, ...]
    delimiter: str
    n_bytes: int
    n_lines: int
    is_one_line: bool


def read_header(head: bytes, *, name: str, delimiter: str | None) -> Header:
    """Return the header of a file of which these are the first bytes, whole records.

    Raises
    ------
    UnreadableFileError
        If there is none, or it names a column twice or not at all.
    """
    n_blank = len(head) - len(head.lstrip(b"\r\n"))
    said = delimiter or delimiter_of(head[n_blank:].decode("utf-8", "replace"))
    n_bytes = n_blank + _first_record(head[n_blank:], said)
    record = head[n_blank:n_bytes].decode("utf-8", "replace")
    try:
        names = next(csv.reader(io.StringIO(record), delimiter=said), [])
    except csv.Error:  # Lines may end in carriage returns alone.
        raise UnreadableFileError(
            f"{name}: the first line is no line of CSV; save it with line feeds [QA0304]"
        ) from None
    twice = next((own for own in names if names.count(own) > 1), None)
    if not names or not all(names) or twice is not None:
        what = "it names no column" if not any(names) else "a column of it has no name"
        what = what if twice in (None, "") else f"it names {twice!r} twice"
        raise UnreadableFileError(f"{name}: the first line must name the columns; {what} [QA0304]")
    n_lines = count_lines(head[:n_bytes])
    is_one_line = count_lines(head[n_blank:n_bytes]) == 1
    return Header(tuple(names), said, n_bytes, n_lines, is_one_line)


def _first_record(data: bytes, delimiter: str) -> int:
    """Return the bytes of the first record; of all where it does not end."""
    at = data.find(b"\n") + 1
    while at and whole_records(data[:at], delimiter) == 0:
        at = data.find(b"\n", at) + 1
    return at or len(data)


def _quoted(delimiter: str) -> re.Pattern[bytes]:
    sign = re.escape(delimiter.encode())
    return re.compile(rb"(?:\A|(?<=[\n" + sign + rb']))"[^"]*(?:""[^"]*)*(?:"|\Z)')


def whole_records(data: bytes, delimiter: str) -> int:
    r"""Return how many of the first bytes are whole records; data begins with one.

    Examples
    --------
    >>> whole_records(b'1,"a\nb"\n2,"c\n', ","), whole_records(b'1,5" pipe\n2,x', ",")
    (8, 10)
    """
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    end, at = 0, 0
    for found in _quoted(delimiter).finditer(data):
        end = max(end, data.rfind(b"\n", at, found.start()) + 1)
        if found.end() == len(data) and not _is_closed(found[0]):
            return end
        at = found.end()
    return max(end, data.rfind(b"\n", at) + 1)


def _is_closed(quoted: bytes) -> bool:
    n_quotes = len(quoted) - len(quoted.rstrip(b'"'))
    # The first one opens; of those at the end each pair is one that is quoted.
    return (n_quotes - (n_quotes == len(quoted))) % 2 == 1


def has_quoted_break(data: bytes, delimiter: str) -> bool:
    r"""Return whether a value of whole lines may go on in the next line.

    No line that ends in an open value is missed; where none does, each line is a record.

    Examples
    --------
    >>> has_quoted_break(b'1,"a\nb"\n', ","), has_quoted_break(b'1,"a ""b"" c"\n', ",")
    (True, False)
    """
    if b'"' not in data:
        return False
    sign = re.escape(delimiter.encode())
    opened = rb"(?:\A|(?<=[\n" + sign + rb']))"[^"\n]*(?:""[^"\n]*)*(?:\n|\Z)'
    return re.search(opened, data) is not None


def parse_records(
    data: bytes,
    header: Header,
    *,
    name: str,
    texts: Collection[str],
    first_line: int = 1,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Return the rows of whole records.

    Parameters
    ----------
    data : bytes
        UTF-8, without the header.
    texts : collection of str
        Columns that stay texts, whatever they look like.
    first_line : int, default 1
        Number of the first line in its file.
    schema : pyarrow.Schema, optional
        Columns and types; default those of these records.
    """
    table, why = _read(data, header, name=name, first_line=first_line)
    own = without_unreadable(schema)
    columns = {
        column: table[column]
        if column in texts
        else _typed(column, table[column], None if own is None else own.field(column).type)
        for column in header.names
    }
    return with_unreadable(pa.table(columns), table.num_rows, why)


def _read(
    data: bytes, header: Header, *, name: str, first_line: int
) -> tuple[pa.Table, dict[int, str]]:
    """Return all values as texts, and why records are none: these are rows of nulls."""
    found: list[pyarrow.csv.InvalidRow] = []

    def skip(record: pyarrow.csv.InvalidRow) -> str:
        found.append(record)
        return "skip"

    kinds = dict.fromkeys(header.names, pa.string())
    if not data.strip():
        return pa.schema(kinds.items()).empty_table(), {}
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=list(header.names)
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=header.delimiter, newlines_in_values=True, invalid_row_handler=skip
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                # What is not UTF-8 costs its own row, as in Parquet.
                check_utf8=False,
                column_types=kinds,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        raise UnreadableFileError(
            f"{name}, lines from {first_line:,} on: {error} [QA0304]"
        ) from None
    return _with_gaps(table, found, data, header, name=name, first_line=first_line)


def _with_gaps(
    table: pa.Table,
    found: Sequence[pyarrow.csv.InvalidRow],
    data: bytes,
    header: Header,
    *,
    name: str,
    first_line: int,
) -> tuple[pa.Table, dict[int, str]]:
    """Return the records with a row of nulls for each that was skipped, and why it was."""
    if not found:
        return table, {}
    csv.field_size_limit(_MAX_FIELD)
    text = io.StringIO(data.decode("utf-8", "replace"), newline="")
    reader = csv.reader(text, delimiter=header.delimiter)
    starts, line = [], 0
    for values in reader:
        if values:
            starts.append(line)
        line = reader.line_num
    skipped = {record.number - 1: record for record in found}
    n_rows = table.num_rows + len(skipped)
    rows = iter(range(table.num_rows))
    taken = pa.array([None if i in skipped else next(rows) for i in range(n_rows)], pa.int64())
    why = {
        i: f"{name}, line {first_line + starts[i]}: {record.actual_columns} values for "
        f"{record.expected_columns} columns"
        for i, record in skipped.items()
    }
    return table.take(taken), why


def _typed(name: str, column: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    """Return a column of texts in a type, or in that which all of them say."""
    if kind is None:
        kind = _kind(column)
    if pa.types.is_null(kind):
        return pa.nulls(len(column))
    if pa.types.is_boolean(kind):
        return pc.equal(pc.ascii_lower(column), "true")
    if pa.types.is_string(kind):
        return column
    if pa.types.is_floating(kind) and not _all(pc.match_substring_regex(column, _NUMBER)):
        raise InexactNumbersError.of(name)
    return column.cast(kind)


def _kind(column: pa.ChunkedArray) -> pa.DataType:
    values = pc.drop_null(column)
    if not len(values):
        return pa.null()
    for pattern, kind in ((_WHOLE, pa.int64()), (_NUMBER, pa.float64())):
        if _all(pc.match_substring_regex(values, pattern)):
            return kind
    lower = pc.ascii_lower(values)
    is_truth = pc.is_in(lower, pa.array(["true", "false"]))
    return pa.bool_() if _all(is_truth) else pa.string()


def _all(truths: pa.ChunkedArray) -> bool:
    return bool(pc.all(truths, min_count=0).as_py())
