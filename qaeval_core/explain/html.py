"""Explain: escaped text, numbers and tables as HTML."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

from qaeval_core.terminal import visible


def escaped(text: str) -> str:
    """Return a text as HTML shows it, also inside of attributes; controls as their pictures.

    Examples
    --------
    >>> escaped('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text, keep="\n\t"), quote=True)


def number(value: float) -> str:
    """Return a number as people read it: four significant digits.

    Examples
    --------
    >>> number(0.123456), number(-512.25), number(3e-8), number(0.0)
    ('0.1235', '-512.2', '3e-08', '0')
    """
    return f"{value:.4g}"


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
) -> str:
    """Return a table; the first cell of each row names the row.

    Parameters
    ----------
    numbers : collection of int
        Columns that hold numbers.
    """
    lines = ['<div class="wide">', "<table>", f"<caption>{escaped(caption)}</caption>"]
    names = "".join(f'<th scope="col">{escaped(name)}</th>' for name in head)
    lines.append(f"<thead><tr>{names}</tr></thead>")
    lines.append("<tbody>")
    for row in rows:
        cells = [f'<th scope="row" dir="auto">{escaped(row[0])}</th>']
        for i, cell in enumerate(row[1:], start=1):
            kind = ' class="number"' if i in numbers else ' dir="auto"'
            cells.append(f"<td{kind}>{escaped(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])
