"""Sheets: CSV as spreadsheets save it: their delimiters, encodings and decimal commas.

Where Excel writes lists with semicolons, as in most of Europe, it writes numbers with commas. It
saves "CSV" in the code page of the machine, and "CSV UTF-8" with a byte order mark.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from typing import TYPE_CHECKING

from qaeval_core.planning.text_files.kinds import encoding_of

if TYPE_CHECKING:
    import polars as pl

# Files of other kinds, whatever they are called: a ZIP archive, an older compound file.
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# What Excel may write before the header, so that other machines know the delimiter.
_SAID = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_DELIMITERS = ",;\t"
_ROWS_LOOKED_AT = 20
_NUMBER = r"^[+-]?\d+(,\d+)?([Ee][+-]?\d+)?$"
# Where tabs part columns it may be as many thousands: Excel saves those of English tables so.
_THOUSANDS = r"^[+-]?\d{1,3},\d{3}$"
_DECIMAL_COMMA = r"^[+-]?[\d. ]*\d,\d+ ?%?$"
# What spreadsheets write for TRUE and FALSE in English, German, French, Spanish, Italian,
# Portuguese, Dutch and Polish.
_TRUE = ("TRUE", "WAHR", "VRAI", "VERDADERO", "VERO", "VERDADEIRO", "WAAR", "PRAWDA")
_FALSE = ("FALSE", "FALSCH", "FAUX", "FALSO", "ONWAAR", "FAŁSZ")


def read_sheet(
    content: bytes, text_column: str | None = None, *, encoding: str | None = None
) -> pl.DataFrame:
    r"""Return the table of a CSV file.

    Parameters
    ----------
    text_column : str, optional
        A column that is text, whatever it looks like: ``007`` is no number.
    encoding : str, optional
        Default: as `decoded` finds it.

    Raises
    ------
    polars.exceptions.PolarsError, ValueError
        If it is none.

    Examples
    --------
    >>> read_sheet("id;good\n007;0,5\n".encode("utf-8-sig"), "id").rows()
    [('007', 0.5)]
    """
    import polars as pl

    text = _plain_lines(decoded(content, encoding))
    said = _SAID.match(text)
    text = text[said.end() :] if said is not None else text
    text = _BLANK_LINES.sub("", text, count=1)
    delimiter = said[1] if said is not None else delimiter_of(text)
    source = io.BytesIO(text.encode())
    kinds = {text_column: pl.String} if text_column is not None else None
    frame = pl.read_csv(
        source, infer_schema_length=None, schema_overrides=kinds, separator=delimiter
    )
    return frame.with_columns(
        _read_cells(frame[name], delimiter) for name in frame.columns if name != text_column
    )


def _read_cells(column: pl.Series, delimiter: str) -> pl.Series:
    """Return a column of texts as numbers or booleans, if all of it says so."""
    import polars as pl

    cells = column.drop_nulls()
    if column.dtype != pl.String or cells.is_empty():
        return column
    if cells.is_in([*_TRUE, *_FALSE]).all():
        return column.is_in(_TRUE)
    # Of a comma between columns it is not known: others write numbers as everybody does.
    with_comma = cells.filter(cells.str.contains(",", literal=True))
    is_number = delimiter != "," and len(with_comma) > 0 and cells.str.contains(_NUMBER).all()
    if not is_number or (delimiter == "\t" and with_comma.str.contains(_THOUSANDS).all()):
        return column
    return column.str.replace(",", ".").cast(pl.Float64)


def decimal_comma(column: pl.Series) -> str:
    """Return what to say of a column of texts that was no number for its commas; else nothing.

    Examples
    --------
    >>> import polars as pl
    >>> decimal_comma(pl.Series(["1.5", "1.234,5"]))
    " ('1.234,5' has a decimal comma: save numbers with points)"
    """
    import polars as pl

    if column.dtype != pl.String:
        return ""
    found = column.filter(column.str.contains(_DECIMAL_COMMA).fill_null(value=False))
    return f" ({found[0]!r} has a decimal comma: save numbers with points)" if len(found) else ""


def is_workbook(content: bytes) -> bool:
    """Return whether a file is a spreadsheet program's own, whatever its name."""
    return content.startswith(_WORKBOOKS)


def decoded(content: bytes, encoding: str | None = None) -> str:
    """Return a text in the encoding that `encoding_of` says, else in UTF-8 or Windows-1252.

    Raises
    ------
    ValueError
        If it is in none of them.
    """
    own = encoding_of(content, encoding)
    for name in (own,) if own is not None else ("utf-8", "cp1252"):
        try:
            text = content.decode(name)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise ValueError("its text is neither UTF-8 nor Windows-1252: save it as CSV UTF-8")


def _plain_lines(text: str) -> str:
    """Return a text whose rows end in a line feed; those of older programs have another sign."""
    if "\r" in text and "\n" not in _QUOTED.sub("", text):
        return text.replace("\r", "\n")
    return text


def delimiter_of(text: str) -> str:
    """Return what parts the first rows most evenly, and their header most often; else a comma."""

    def evenness(delimiter: str) -> tuple[float, int]:
        rows = csv.reader(io.StringIO(text), delimiter=delimiter)
        widths: list[int] = []
        # A text may be longer than the reader takes.
        with contextlib.suppress(csv.Error):
            widths.extend(len(row) for row in itertools.islice(rows, _ROWS_LOOKED_AT) if row)
        if not widths or widths[0] < 2:
            return 0.0, 0
        return widths.count(widths[0]) / len(widths), widths[0]

    return max(_DELIMITERS, key=evenness)
