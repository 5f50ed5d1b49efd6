"""Charts: the few of pages, as SVG text: no library, no script, colors by the page's classes.

A chart is 360 units wide: as wide as a phone shows it without making its letters smaller. Its
letters are cut to the room they have, by a width that hardly any font exceeds; every mark says in a
``<title>`` what it stands for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qaeval_core.pages.html import escaped
from qaeval_core.terminal import visible

WIDTH = 360
_LEFT, RIGHT, TOP, _BOTTOM = 46, 8, 8, 20  # room for the numbers of the axes
_PLOT = WIDTH - _LEFT - RIGHT
NAMES, ROW = 132, 18  # of `interval_dots`: room for names, height of a row
_LETTER = 11  # height, as in the style of pages
_MARKED_POINTS = 60  # lines of more points have a title as a whole alone
_WIDE = frozenset("mwMW@%&…QGODNHU")
# Beyond, the difference of two may have no number.
_HUGE = 1e300

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Dot:
    """A named value with its interval; None where there is none, and then the reason."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: undefined{f' ({self.reason})' if self.reason else ''}"
        edges = "" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.name}: {self.value:.4g}{edges}"


def histogram(
    edges: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    is_share: bool,
    mark: tuple[float, str] | None = None,
) -> str:
    """Return bars of one distribution, or of two side by side.

    Parameters
    ----------
    edges : sequence of float
        Of the bins, one more than they are; equally wide.
    series : mapping of name to sequence of float
        One or two: counts of rows in each bin, or shares of them.
    title : str
        What the chart shows, for those who hear it.
    is_share : bool
        Whether titles show percent, not counts.
    mark : (float, str), optional
        Where a dashed line stands, and what it is; at the end where that lies beyond.
    """
    height = 150
    most = max((value for values in series.values() for value in values), default=0.0) or 1.0
    base, n_bins = height - _BOTTOM, len(edges) - 1
    step = _PLOT / max(n_bins, 1)
    parts = [_grid(0.0, most, height=height, shown=_rough_percent if is_share else _count)]
    for j, (name, values) in enumerate(series.items()):
        width = step / len(series)
        for i, value in enumerate(values):
            if not value:
                continue
            tall = value / most * (base - TOP)
            said = _percent(value) if is_share else f"{value:,.0f}"
            span = f"{edges[i]:.4g} to {edges[i + 1]:.4g}"
            parts.append(
                f'<rect class="{"ab"[j]}" x="{_LEFT + i * step + j * width:.1f}" '
                f'y="{base - tall:.1f}" width="{max(width - 0.6, 0.4):.1f}" height="{tall:.1f}">'
                f"{titled(f'{name}, {span}: {said}')}</rect>"
            )
    if mark is not None:
        x = _LEFT + _share(mark[0], edges[0], edges[-1]) * _PLOT
        parts.append(_upright(x, "level", mark[1], top=TOP, bottom=base))
    parts += _x_ticks([(_LEFT, _number(edges[0])), (WIDTH - RIGHT, _number(edges[-1]))], height)
    return drawn("".join(parts), height, title) + _legend(list(series), [_BAR, _BAR])


def interval_dots(
    dots: Sequence[Dot],
    *,
    title: str,
    x_range: tuple[float, float] | None = None,
    level: float | None = None,
) -> str:
    """Return a row for each value: its name, a dot, and a line over its interval.

    Parameters
    ----------
    dots : sequence of Dot
        A row without a value says so.
    title : str
    x_range : (float, float), optional
        Default that of all values and intervals.
    level : float, optional
        Where a dashed line stands, such as what means nothing.
    """
    known = [edge for dot in dots for edge in (dot.value, dot.low, dot.high) if edge is not None]
    rows = RowsFrame.over([*known, *([] if level is None else [level])], len(dots), x_range)
    parts = rows.frame(level)
    for i, dot in enumerate(dots):
        parts.append(rows.name(i, dot.name, dot.name))
        y = rows.middle(i)
        if dot.low is not None and dot.high is not None:
            parts.append(
                f'<line class="line a" x1="{rows.across(dot.low):.1f}" '
                f'x2="{rows.across(dot.high):.1f}" y1="{y:.1f}" y2="{y:.1f}">'
                f"{titled(str(dot))}</line>"
            )
        if dot.value is None:
            parts.append(rows.remark(i, dot.reason or "undefined", str(dot)))
            continue
        parts.append(
            f'<circle class="a" cx="{rows.across(dot.value):.1f}" cy="{y:.1f}" r="3.5">'
            f"{titled(str(dot))}</circle>"
        )
    return drawn("".join(parts), rows.height, title)


def curves(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    y_range: tuple[float, float] | None = None,
    level: float | None = None,
    bounds: Sequence[tuple[float, float, float]] = (),
    x_shown: Callable[[float], str] | None = None,
) -> str:
    """Return lines through points, such as a curve with its bound or a history.

    Parameters
    ----------
    lines : mapping of name to sequence of (x, y)
        The first is drawn solid, the second dotted; x in order.
    title : str
    y_range : (float, float), optional
        Default that of all points.
    level : float, optional
        Where a dashed line lies, such as a limit.
    bounds : sequence of (x, low, high), optional
        Shaded between low and high.
    x_shown : callable, optional
        How numbers below are written.
    """
    height, shown = 190, x_shown or _number
    points = [point for line in lines.values() for point in line]
    x_low, x_high = _range([x for x, _ in points])
    values = [y for _, y in points] + [edge for _, *own in bounds for edge in own]
    low, high = y_range or _range([*values, *([] if level is None else [level])])

    def place(x: float, y: float) -> Point:
        tall = (min(max(y, low), high) - low) / (high - low) * (height - _BOTTOM - TOP)
        return _LEFT + (x - x_low) / (x_high - x_low) * _PLOT, height - _BOTTOM - tall

    parts = [_grid(low, high, height=height, shown=_number)]
    if bounds:
        outline = [place(x, top) for x, _, top in bounds]
        outline += [place(x, bottom) for x, bottom, _ in reversed(bounds)]
        parts.append(f'<polygon class="band" points="{_joined(outline)}">{titled(title)}</polygon>')
    if level is not None and low <= level <= high:
        (left, y), (right, _) = place(x_low, level), place(x_high, level)
        parts.append(
            f'<line class="level" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}">'
            f"{titled(_number(level))}</line>"
        )
    for kind, (name, own) in zip(("line a", "line a dotted"), lines.items(), strict=False):
        placed = [place(x, y) for x, y in own]
        parts.append(
            f'<polyline class="{kind}" points="{_joined(placed)}">{titled(name)}</polyline>'
        )
        if len(own) <= _MARKED_POINTS:
            parts += [
                f'<circle class="a" cx="{at:.1f}" cy="{up:.1f}" r="2">'
                f"{titled(f'{name}, {shown(x)}: {y:.4g}')}</circle>"
                for (at, up), (x, y) in zip(placed, own, strict=True)
            ]
    parts += _x_ticks([(_LEFT, shown(x_low)), (WIDTH - RIGHT, shown(x_high))], height)
    return drawn("".join(parts), height, title) + _legend(list(lines), [_SOLID, _DOTTED])


def sparkline(values: Sequence[float], *, title: str) -> str:
    """Return a small line of a history, its last value as a dot, to stand beside a number."""
    width, height = 100, 20
    low, high = _range(values)
    step = (width - 8) / max(len(values) - 1, 1)
    placed = [
        (4 + i * step, height - 4 - (value - low) / (high - low) * (height - 8))
        for i, value in enumerate(values)
    ]
    last = "".join(f'<circle class="a" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in placed[-1:])
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escaped(title)}">{titled(title)}'
        f'<polyline class="line a" points="{_joined(placed)}"/>{last}</svg>'
    )


@dataclass(frozen=True, slots=True)
class RowsFrame:
    """The frame of charts whose rows have names: where values and rows lie."""

    low: float
    high: float
    n_rows: int

    @classmethod
    def over(
        cls, values: Sequence[float], n_rows: int, given: tuple[float, float] | None = None
    ) -> RowsFrame:
        """Return the frame of some rows, over all values or a given range."""
        low, high = _range(values if given is None else given)
        return cls(low, high, n_rows)

    @property
    def height(self) -> float:
        """Of the chart."""
        return self.n_rows * ROW + _BOTTOM + TOP

    def across(self, value: float) -> float:
        """Return where a value lies."""
        return NAMES + 16 + _share(value, self.low, self.high) * (WIDTH - NAMES - 24)

    def middle(self, i: int) -> float:
        """Return where the middle of a row lies."""
        return TOP + (i + 0.5) * ROW

    def frame(self, level: float | None = None) -> list[str]:
        """Return the lines at both ends and at a level, and the numbers below."""
        bottom = self.height - _BOTTOM
        ends = (self.low, self.high)
        parts = [_upright(self.across(x), "grid", "", top=TOP, bottom=bottom) for x in ends]
        if level is not None and self.low <= level <= self.high:
            x, said = self.across(level), _number(level)
            parts.append(_upright(x, "level", said, top=TOP, bottom=bottom))
        left, right = map(_number, ends)
        return parts + _x_ticks([(NAMES + 8, left), (WIDTH - RIGHT, right)], self.height)

    def name(self, i: int, text: str, whole: str) -> str:
        """Return the name of a row, cut to its room; whole is what it says."""
        return row_name(text, whole, self.middle(i))

    def remark(self, i: int, text: str, whole: str) -> str:
        """Return words in place of a mark."""
        shown = fitted(visible(text), WIDTH - NAMES - 24)
        return (
            f'<text class="soft" x="{NAMES + 16}" y="{self.middle(i) + 4:.1f}">{titled(whole)}'
            f"{escaped(shown)}</text>"
        )


def row_name(text: str, whole: str, y: float) -> str:
    """Return the name of a row whose middle is at y, cut to its room; whole is what it says."""
    return (
        f'<text x="{NAMES}" y="{y + 4:.1f}" text-anchor="end">{titled(whole)}'
        f"{escaped(fitted(visible(text), NAMES))}</text>"
    )


def _upright(x: float, kind: str, said: str, *, top: float, bottom: float) -> str:
    inner = titled(said) if said else ""
    return (
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:g}">{inner}</line>'
    )


def fitted(text: str, room: float) -> str:
    """Return a text that is no wider than some units, cut where it would be.

    Examples
    --------
    >>> fitted("topic", 132), fitted("a long name of a column", 60)
    ('topic', 'a long…')
    """
    used, n_kept, dots = 0.0, 0, _letter_width("…")
    for letter in text:
        used += _letter_width(letter)
        if used > room:
            return f"{text[:n_kept]}…"
        n_kept += used + dots <= room
    return text


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF" or ord(letter) > 0xFFFF:
        return 1.4 * _LETTER
    return (1.05 if letter in _WIDE or not letter.isascii() else 0.68) * _LETTER


def drawn(inner: str, height: float, title: str) -> str:
    """Return a chart of marks."""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escaped(title)}">{inner}</svg>'
    )


def titled(text: str) -> str:
    """Return what a mark says of itself."""
    return f"<title>{escaped(text)}</title>"


def _grid(low: float, high: float, *, height: float, shown: Callable[[float], str]) -> str:
    parts = []
    for j in range(3):
        y = TOP + (height - _BOTTOM - TOP) * j / 2
        text = shown(high - (high - low) * j / 2)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 4}" y="{min(y + 4, height - 8):.1f}" text-anchor="end">'
            f"{fitted(text, _LEFT - 4)}</text>"
        )
    return "".join(parts)


def _x_ticks(ends: Sequence[tuple[float, str]], height: float) -> list[str]:
    """Return the numbers at the left and at the right end below a chart."""
    anchors = ("start", "end")
    return [
        f'<text x="{x:.1f}" y="{height - 5:g}" text-anchor="{anchor}">{escaped(text)}</text>'
        for (x, text), anchor in zip(ends, anchors, strict=True)
    ]


_BAR, _SOLID, _DOTTED = "bar", "solid line", "dotted line"


def _legend(names: Sequence[str], kinds: Sequence[str]) -> str:
    """Return what each of two series looks like; one needs no telling."""
    if len(names) < 2:
        return ""
    marks = ("a", "b" if kinds[0] == _BAR else "a")
    looks = [kind if kind != _BAR else "" for kind in kinds]
    shown = [
        f'<span class="key {mark}">■</span> {escaped(name)}{f" ({look})" if look else ""}'
        for mark, look, name in zip(marks, looks, names, strict=False)
    ]
    return f'<p class="soft legend">{" · ".join(shown)}</p>'


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return lowest and highest of finite values, never equal."""
    finite = [min(max(value, -_HUGE), _HUGE) for value in values if np.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if high > low:
        return low, high
    half = max(0.5, abs(low) * 1e-9)
    return low - half, low + half


def _share(value: float, low: float, high: float) -> float:
    """Return how far a value lies from low to high, from 0 to 1; what lies beyond is at an end."""
    return (min(max(value, low), high) - low) / (high - low)


def _joined(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _rough_percent(value: float) -> str:
    """Return a share in the few letters that an axis has room for.

    Examples
    --------
    >>> _rough_percent(0.3472), _rough_percent(0.0047), _rough_percent(1.0)
    ('35 %', '0.47 %', '100 %')
    """
    return f"{100 * value:.0f} %" if value >= 0.1 or not value else f"{100 * value:.2g} %"


def _count(value: float) -> str:
    """Return a count in few letters.

    Examples
    --------
    >>> _count(950), _count(12_400), _count(3_000_000)
    ('950', '12.4k', '3M')
    """
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{sign}"
    return f"{value:.3g}"
