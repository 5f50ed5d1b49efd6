"""Sheets: CSV as spreadsheets save it: their delimiters, encodings and decimal commas.

Where Excel writes lists with semicolons, as in most of Europe, it writes numbers with commas. It
saves "CSV" in the code page of the machine, and "CSV UTF-8" with a byte order mark.
"""

from __future__ import annotations

import io
import re

import polars as pl

_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# What Excel may write before the header, so that other machines know the delimiter.
_SAID = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_DECIMAL = r"^[+-]?\d+,\d+$"


def read_sheet(content: bytes, text_column: str | None = None) -> pl.DataFrame:
    r"""Return the table of a CSV file.

    Parameters
    ----------
    text_column : str, optional
        A column that is text, whatever it looks like: ``007`` is no number.

    Raises
    ------
    polars.exceptions.PolarsError, ValueError
        If it is none.

    Examples
    --------
    >>> read_sheet("id;good\n007;0,5\n".encode("utf-8-sig"), "id").rows()
    [('007', 0.5)]
    """
    text = decoded(content)
    said = _SAID.match(text)
    if said is not None:
        text = text[said.end() :]
    delimiter = said[1] if said is not None else _delimiter(text)
    source = io.BytesIO(text.encode())
    kinds = {text_column: pl.String} if text_column is not None else None
    frame = pl.read_csv(
        source, infer_schema_length=None, schema_overrides=kinds, separator=delimiter
    )
    if delimiter != ";":
        return frame
    # Of a semicolon alone it is not known: others write numbers as everybody does.
    are_numbers = [
        name
        for name in frame.columns
        if name != text_column
        and frame[name].dtype == pl.String
        and frame[name].drop_nulls().len() > 0
        and frame[name].drop_nulls().str.contains(_DECIMAL).all()
    ]
    return frame.with_columns(
        pl.col(name).str.replace(",", ".").cast(pl.Float64) for name in are_numbers
    )


def decoded(content: bytes) -> str:
    """Return a text in the encoding that its mark tells, else UTF-8, else Windows-1252."""
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if marked is not None:
        return content.decode(marked)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252")


def _delimiter(text: str) -> str:
    """Return what stands most often between the names of a header; a comma if nothing does."""
    header = _QUOTED.sub("", text.partition("\n")[0])
    return max(",;\t", key=header.count)
