"""Chart grids: boxes of distributions, and a grid of what is better than what, as SVG.

As in ``charts``: every mark says in a ``<title>`` what it stands for, and letters have room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.pages.axes import RIGHT, TOP, WIDTH, drawn, titled
from qaeval_core.pages.charts import NAMES, ROW, RowsFrame, row_name

MAX_PAIRED = 14  # rows of a grid: more would leave no room for signs
_SIGNS = ("−", "+")


@dataclass(frozen=True, slots=True)
class Box:
    """A named set of ``n`` values.

    Attributes
    ----------
    quantiles : tuple of five float, optional
        What 5, 25, 50, 75 and 95 % of the values do not exceed; None where there is no value.
    mean : float, optional
    """

    name: str
    n: int
    quantiles: tuple[float, float, float, float, float] | None = None
    mean: float | None = None

    def __str__(self) -> str:
        if self.quantiles is None or self.mean is None:
            return f"{self.name}: no value"
        low, first, median, third, high = (f"{value:.4g}" for value in self.quantiles)
        return (
            f"{self.name}: {self.n:,} values, median {median}, mean {self.mean:.4g}, "
            f"half in {first} to {third}, 90 % in {low} to {high}"
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """How a pair compares: positive where the row's is better; sure: hardly by chance."""

    value: float | None
    is_sure: bool
    said: str


def boxes(sets: Sequence[Box], *, title: str) -> str:
    """Return a row for each set of values: a line over 90 % of them, and a box over half.

    The upright line in a box is the median, the dot the mean.
    """
    known = [value for own in sets for value in (*(own.quantiles or ()), own.mean)]
    rows = RowsFrame.over([value for value in known if value is not None], len(sets))
    parts = rows.frame()
    for i, own in enumerate(sets):
        name = f"{own.name}, n {own.n:,}"
        parts.append(rows.name(i, name, name))
        if own.quantiles is None or own.mean is None:
            parts.append(rows.remark(i, "no value", str(own)))
            continue
        y, mean = rows.middle(i), rows.across(own.mean)
        low, first, median, third, high = map(rows.across, own.quantiles)
        parts.append(
            f"<g>{titled(str(own))}"
            f'<line class="line a" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<rect class="box" x="{first:.1f}" y="{y - 6:.1f}" '
            f'width="{max(third - first, 1.0):.1f}" height="12"/>'
            f'<line class="line b" x1="{median:.1f}" x2="{median:.1f}" y1="{y - 6:.1f}" '
            f'y2="{y + 6:.1f}"/><circle class="a" cx="{mean:.1f}" cy="{y:.1f}" r="2.5"/></g>'
        )
    return drawn("".join(parts), rows.height, title)


def pair_grid(names: Sequence[str], cells: Mapping[tuple[int, int], Cell], *, title: str) -> str:
    """Return a grid of pairs: blue where the row's is better, orange where the column's is.

    A sign stands where that is sure, so that color alone says nothing. Columns have the numbers
    of the rows.

    Parameters
    ----------
    names : sequence of str
        At most ``MAX_PAIRED``; more would have no room for signs.
    cells : mapping of (row, column) to Cell
        Pairs that are not there are left empty.
    title : str
    """
    step = min(24.0, (WIDTH - NAMES - 2 * RIGHT) / max(len(names), 1))
    left, top = NAMES + RIGHT, TOP + ROW
    most = max((abs(own.value) for own in cells.values() if own.value is not None), default=0.0)
    parts = []
    for i, name in enumerate(names):
        numbered, x, y = f"{i + 1} {name}", left + (i + 0.5) * step, top + (i + 0.5) * ROW
        parts.append(row_name(numbered, name, y))
        parts.append(f'<text x="{x:.1f}" y="{top - 5}" text-anchor="middle">{i + 1}</text>')
    for (i, j), own in cells.items():
        x, y = left + j * step, top + i * ROW
        alpha = 0.0 if own.value is None else abs(own.value) / (most or 1.0)
        kind = "a" if (own.value or 0.0) > 0 else "b"
        sign = "?" if own.value is None else _SIGNS[own.value > 0] if own.is_sure else ""
        parts.append(
            f'<g>{titled(own.said)}<rect class="{kind} cell" x="{x:.1f}" y="{y:.1f}" '
            f'width="{step:.1f}" height="{ROW}" fill-opacity="{0.6 * alpha:.2f}"/>'
        )
        if sign:
            place = f'x="{x + step / 2:.1f}" y="{y + 13:.1f}"'
            parts.append(f'<text {place} text-anchor="middle">{sign}</text>')
        parts.append("</g>")
    return drawn("".join(parts), top + len(names) * ROW + TOP, title)
