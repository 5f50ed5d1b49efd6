r"""Printed: tables of results as text, Markdown, LaTeX, JSON or CSV, from the same cells.

Examples
--------
>>> f1 = Estimate(0.4851, 0.4519, 0.5183)
>>> table = ResultTable("scores", ("metric", "score", "n"), [["f1", f1, 1300]])
>>> print(printed([table], "text"))
metric                   score      n
f1        0.485 [0.452, 0.518]  1,300
>>> print(printed([table], "csv", percent=True))
metric,score,score_low,score_high,n
f1,48.51,45.19,51.83,1300
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from qaeval_core.errors import ConfigError, nearest

Format = Literal["text", "markdown", "latex", "json", "csv"]
FORMATS: tuple[str, ...] = get_args(Format)
_LEAST_DECIMALS, _MOST_DECIMALS = 3, 6
# Of tabulate.
_STYLES = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs"}
# What papers write for names of statistics.
_SYMBOLS = {"pearson": "$r$", "spearman": r"$\rho$", "kendall": r"$\tau_b$"}
# Beyond, a share in percent is rounding.
_PERCENT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, None where there is none.

    Attributes
    ----------
    is_share : bool
        Whether it lies on a scale from 0 (or -1) to 1, and may be shown in percent.
    mark : str
        A sign behind the number, such as ``*``.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    is_share: bool = True
    mark: str = ""


ResultCell: TypeAlias = Estimate | str | int | float | None


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of results.

    Attributes
    ----------
    name : str
        A word, under which JSON has it.
    head : sequence of str
    rows : sequence of sequence of ResultCell
        One cell for each column of the head.
    title : str
        A line above; "" for none.
    remarks : sequence of str
        Lines below.
    over : sequence of str
        A heading above each name of the head, "" for none. Equal ones that follow each other are
        one heading in LaTeX. Elsewhere they stand before the name.
    """

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[ResultCell]]
    title: str = ""
    remarks: Sequence[str] = ()
    over: Sequence[str] = ()

    def names(self, sign: str) -> list[str]:
        """Return the name of each column, with a sign between its heading and its own."""
        over = self.over or [""] * len(self.head)
        pairs = zip(over, self.head, strict=True)
        return [f"{above}{sign}{own}" if above else own for above, own in pairs]


def check_format(name: str) -> str:
    """Return the name of a format.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    if name not in FORMATS:
        raise ConfigError(f"--format: no {name!r}{nearest(name, FORMATS)} [QA0105]")
    return name


def printed(
    tables: Sequence[ResultTable],
    form: str,
    *,
    percent: bool = False,
    width: int | None = None,
) -> str:
    """Return tables of results as people paste them.

    Parameters
    ----------
    form : str
        One of `FORMATS`.
    percent : bool, default False
        Show shares times 100.
    width : int, optional
        Decimals of estimates in text, Markdown and LaTeX; default two digits of half the interval.

    Returns
    -------
    str
        CSV has a column for each end of intervals, and an empty line between tables. JSON is an
        object of tables, by name.
    """
    if form == "json":
        return json.dumps({own.name: _content(own, percent) for own in tables}, indent=2)
    if form == "csv":
        return "\n\n".join(_csv(own, percent) for own in tables)
    return "\n\n".join(_table(own, form, percent, width) for own in tables)


def _table(table: ResultTable, form: str, percent: bool, width: int | None) -> str:
    # Imported here: it takes time that --help and runs on workers need not pay.
    from tabulate import tabulate

    rows = [
        [_inline(shown(cell, percent=percent, width=width), form) for cell in row]
        for row in table.rows
    ]
    columns = list(zip(*table.rows, strict=True)) or [() for _ in table.head]
    has_heads_over = form == "latex" and bool(table.over)
    names = table.head if has_heads_over else table.names(" ")
    lines = tabulate(
        rows,
        headers=[_inline(own, form) for own in names],
        tablefmt=_STYLES[form],
        disable_numparse=True,
        colalign=[_align(own) for own in columns] if rows else None,
    )
    if has_heads_over:
        lines = _with_heads_over(lines, [_inline(own, form) for own in table.over])
    title = _inline(table.title, form)
    title = {"markdown": f"**{title}**\n", "latex": f"% {title}"}.get(form, title)
    before = [title] if table.title else []
    sign = {"latex": "% ", "markdown": "\n"}.get(form, "")
    below = (f"{sign}{_inline(line, form)}" for line in table.remarks)
    return "\n".join([*before, lines, *below])


def _with_heads_over(lines: str, over: Sequence[str]) -> str:
    """Return a table of LaTeX with a row of headings, and rules below them, above its head."""
    begin, top, head, *others = lines.split("\n")
    spans = [(name, len(list(own))) for name, own in itertools.groupby(over)]
    words = _escaped([name for name, _ in spans])
    cells, rules, last = [], [], 0
    for (name, n_columns), word in zip(spans, words, strict=True):
        cells.append(rf"\multicolumn{{{n_columns}}}{{c}}{{{_SYMBOLS.get(name, word)}}}")
        rules += [rf"\cmidrule(lr){{{last + 1}-{last + n_columns}}}"] if name else []
        last += n_columns
    names = [_SYMBOLS.get(own, own) for own in _cells(head)]
    above = [" & ".join(cells) + r" \\", " ".join(rules)]
    return "\n".join([begin, top, *above, " & ".join(names) + r" \\", *others])


def _escaped(texts: Sequence[str]) -> list[str]:
    from tabulate import tabulate

    row = tabulate([], headers=texts, tablefmt=_STYLES["latex"], disable_numparse=True)
    return _cells(row.split("\n")[2])


def _cells(row: str) -> list[str]:
    """Return the cells of a row of LaTeX."""
    return [own.strip() for own in re.split(r"(?<!\\)&", row.removesuffix(r"\\"))]


def _inline(text: str, form: str) -> str:
    """Return a text in one line; what LaTeX reads as signs tabulate escapes itself."""
    line = " ".join(text.split())
    return re.sub(r"([|<])", r"\\\1", line) if form == "markdown" else line


def _align(cells: Sequence[ResultCell]) -> str:
    are_words = all(own is None or isinstance(own, str) for own in cells)
    return "left" if are_words else "right"


def shown(cell: ResultCell, *, percent: bool = False, width: int | None = None) -> str:
    """Return a cell as text.

    Examples
    --------
    >>> shown(Estimate(0.5, 0.4, 0.6), percent=True), shown(1200), shown(None)
    ('50.0 [40.0, 60.0]', '1,200', '')
    """
    if isinstance(cell, Estimate):
        return _shown_estimate(cell, percent, width)
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.{_LEAST_DECIMALS}f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _shown_estimate(cell: Estimate, percent: bool, width: int | None) -> str:
    if cell.value is None or math.isnan(cell.value):
        return ""
    factor = 100 if percent and cell.is_share else 1
    decimals = width
    if decimals is None:
        decimals = decimals_of(cell.low, cell.high) - (2 if factor == 100 else 0)
    value, *ends = (
        f"{own * factor:.{decimals}f}"
        for own in (cell.value, cell.low, cell.high)
        if own is not None
    )
    interval = f" [{', '.join(ends)}]" if len(ends) == 2 else ""
    return f"{value}{interval}{cell.mark}"


def decimals_of(low: float | None, high: float | None) -> int:
    """Return the decimals of a number with an interval: two digits of half its width.

    Examples
    --------
    >>> decimals_of(0.4, 0.6), decimals_of(0.5, 0.5001), decimals_of(None, None)
    (3, 6, 3)
    """
    if low is None or high is None or not (high > low and math.isfinite(high - low)):
        return _LEAST_DECIMALS
    wanted = 1 - math.floor(math.log10((high - low) / 2))
    return min(max(wanted, _LEAST_DECIMALS), _MOST_DECIMALS)


def _plain(cell: ResultCell, percent: bool) -> Any:
    if isinstance(cell, Estimate):
        return _scaled(cell, cell.value, percent)
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _scaled(cell: Estimate, value: float | None, percent: bool) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value * 100, _PERCENT_DIGITS) if percent and cell.is_share else value


def _content(table: ResultTable, percent: bool) -> dict[str, Any]:
    rows = [dict(_pairs(table, row, percent)) for row in table.rows]
    return {"rows": rows, "remarks": list(table.remarks)}


def _pairs(table: ResultTable, row: Sequence[ResultCell], percent: bool) -> list[tuple[str, Any]]:
    """Return the names and plain values of a row; an estimate with an interval has three."""
    pairs: list[tuple[str, Any]] = []
    for i, (name, cell) in enumerate(zip(table.names("_"), row, strict=True)):
        pairs.append((name, _plain(cell, percent)))
        if _has_interval(table, i):
            ends = (cell.low, cell.high) if isinstance(cell, Estimate) else (None, None)
            for end, value in zip(("low", "high"), ends, strict=True):
                own = _scaled(cell, value, percent) if isinstance(cell, Estimate) else None
                pairs.append((f"{name}_{end}", own))
    return pairs


def _has_interval(table: ResultTable, column: int) -> bool:
    cells = (row[column] for row in table.rows)
    return any(isinstance(own, Estimate) and own.low is not None for own in cells)


def _csv(table: ResultTable, percent: bool) -> str:
    text = io.StringIO(newline="")
    rows = [_pairs(table, row, percent) for row in table.rows]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in rows[0]] if rows else table.names("_"))
    writer.writerows([value for _, value in row] for row in rows)
    return text.getvalue().rstrip("\n")
