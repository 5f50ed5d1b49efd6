"""Charts: the few of pages, as SVG text: no library, no script, colors by the page's classes.

Their numbers are round ones, and what an axis is stands beside it. Letters are cut to the room they
have, by a width that hardly any font exceeds; every mark says in a ``<title>`` what it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.pages.axes import (
    BOTTOM,
    BROAD,
    TOP,
    WIDTH,
    Axis,
    Plot,
    Point,
    bottom_axis,
    count,
    drawn,
    fitted,
    joined,
    numbers,
    percents,
    share,
    span,
    ticks,
    titled,
    upright,
)
from qaeval_core.pages.html import escaped
from qaeval_core.terminal import visible

NAMES, ROW = 132, 18  # of charts of rows: room for names, height of a row
_MARKED_POINTS = 60  # lines of more points have a title as a whole alone
_LINES = ("line a", "line a dotted")


@dataclass(frozen=True, slots=True)
class Dot:
    """A named value with its interval; None where there is none, and then the reason."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    is_bad: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: undefined{f' ({self.reason})' if self.reason else ''}"
        edges = "" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.name}: {self.value:.4g}{edges}"


def at_both_widths(draw: Callable[[int], str]) -> str:
    """Return a chart twice: as wide as a page for desks, and as wide as others for phones."""
    return f'<div class="broad">{draw(BROAD)}</div><div class="narrow">{draw(WIDTH)}</div>'


def histogram(
    edges: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    is_share: bool,
    mark: tuple[float, str] | None = None,
    is_stacked: bool = False,
    x_label: str = "",
    width: int = WIDTH,
) -> str:
    """Return bars of one distribution, or of two side by side or on top of each other.

    Parameters
    ----------
    edges : sequence of float
        Of the bins, one more than they are; equally wide.
    series : mapping of name to sequence of float
        One or two: counts of rows in each bin, or shares of them.
    title : str
        What the chart shows, for those who hear it.
    is_share : bool
        Whether values are shares, shown as percent, not counts.
    mark : (float, str), optional
        Where a dashed line stands, and what it is; at the end where that lies beyond.
    is_stacked : bool
        Whether the second series stands on the first.
    x_label : str
        What the bins are of.
    """
    columns = [tuple(own) for own in zip(*series.values(), strict=True)]
    tall = [sum(own) if is_stacked else max(own) for own in columns]
    most = max(tall, default=0.0) or 1.0
    y_ticks = ticks(0.0, most, n_most=4, is_whole=not is_share)
    plot = Plot(
        (edges[0], edges[-1]) if edges[-1] > edges[0] else span(edges),
        (0.0, max(most, y_ticks[-1])),
        150 + (14 if x_label else 0),
        width,
        Axis(x_label),
        "share of rows" if is_share else "rows",
    )
    shown = percents(y_ticks) if is_share else [count(own) for own in y_ticks]
    parts = [plot.axes(y_ticks, shown)]
    wide = (plot.right - plot.across(edges[0])) / max(len(edges) - 1, 1)
    own_wide = wide if is_stacked else wide / max(len(series), 1)
    for i, values in enumerate(columns):
        below = 0.0
        for j, (name, value) in enumerate(zip(series, values, strict=True)):
            bottom, top = plot.up(below), plot.up(below + value)
            below += value if is_stacked else 0.0
            if not value:
                continue
            said = f"{100 * value:.3g} %" if is_share else f"{value:,.0f}"
            bin_shown = f"{edges[i]:.4g} to {edges[i + 1]:.4g}"
            x = plot.across(edges[0]) + i * wide + (0 if is_stacked else j * own_wide)
            parts.append(
                f'<rect class="{"ab"[j]}" x="{x:.1f}" y="{top:.1f}" '
                f'width="{max(own_wide - 0.6, 0.4):.1f}" height="{bottom - top:.1f}">'
                f"{titled(f'{name}, {bin_shown}: {said}')}</rect>"
            )
    keys = list(zip("ab", series, strict=False)) if len(series) > 1 else []
    if mark is not None:
        x = plot.across(mark[0])
        parts.append(upright(x, "level", mark[1], top=plot.top, bottom=plot.base))
        keys.append(("level", mark[1]))
    return drawn("".join(parts), plot.height, title, width=width) + legend(keys)


def interval_dots(
    dots: Sequence[Dot],
    *,
    title: str,
    x_range: tuple[float, float] | None = None,
    level: float | None = None,
    band: tuple[float, float] | None = None,
) -> str:
    """Return a row for each value: its name, a dot, and a line over its interval.

    Parameters
    ----------
    dots : sequence of Dot
        A row without a value says so; one that is bad has another color, and a ring.
    title : str
    x_range : (float, float), optional
        Default that of all values and intervals.
    level : float, optional
        Where a dashed line stands, such as what means nothing.
    band : (float, float), optional
        What is shaded, such as what is tolerated.
    """
    known = [edge for dot in dots for edge in (dot.value, dot.low, dot.high) if edge is not None]
    more = [*(band or ()), *([] if level is None else [level])]
    rows = RowsFrame.over([*known, *more], len(dots), x_range)
    parts = rows.frame(level, band)
    for i, dot in enumerate(dots):
        parts.append(rows.name(i, dot.name, dot.name))
        y, kind = rows.middle(i), "b" if dot.is_bad else "a"
        if dot.low is not None and dot.high is not None:
            parts.append(
                f'<line class="line {kind}" x1="{rows.across(dot.low):.1f}" '
                f'x2="{rows.across(dot.high):.1f}" y1="{y:.1f}" y2="{y:.1f}">'
                f"{titled(str(dot))}</line>"
            )
        if dot.value is None:
            parts.append(rows.remark(i, dot.reason or "undefined", str(dot)))
            continue
        parts.append(
            f'<circle class="{kind}" cx="{rows.across(dot.value):.1f}" cy="{y:.1f}" '
            f'r="{4.5 if dot.is_bad else 3.5}">{titled(str(dot))}</circle>'
        )
    return drawn("".join(parts), rows.height, title)


def curves(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_axis: Axis | None = None,
    y_label: str = "",
    y_range: tuple[float, float] | None = None,
    level: tuple[float, str] | None = None,
    mark: tuple[float, str] | None = None,
    bounds: Sequence[tuple[float, float, float]] = (),
    width: int = WIDTH,
) -> str:
    """Return lines through points, such as a curve with its bound or a history.

    Parameters
    ----------
    lines : mapping of name to sequence of (x, y)
        The first is drawn solid, the second dotted; x in order.
    title : str
    x_axis : Axis, optional
    y_label : str
        What the axis at the left is.
    y_range : (float, float), optional
        Default that of all points.
    level : (float, str), optional
        Where a dashed line lies, such as a limit, and what it is.
    mark : (float, str), optional
        Where an upright line stands, such as what was chosen, and what it is.
    bounds : sequence of (x, low, high), optional
        Shaded between low and high.
    """
    x_axis = x_axis or Axis()
    points = [point for line in lines.values() for point in line]
    values = [y for _, y in points] + [edge for _, *own in bounds for edge in own]
    low, high = y_range or span([*values, *([] if level is None else [level[0]])])
    height = (190 if width == WIDTH else 260) + (14 if x_axis.label else 0)
    plot = Plot(span([x for x, _ in points]), (low, high), height, width, x_axis, y_label)
    y_ticks = ticks(low, high, n_most=6)
    parts = [plot.axes(y_ticks, numbers(y_ticks))]
    keys = []
    if bounds:
        outline = [(plot.across(x), plot.up(top)) for x, _, top in bounds]
        outline += [(plot.across(x), plot.up(bottom)) for x, bottom, _ in reversed(bounds)]
        parts.append(f'<polygon class="band" points="{joined(outline)}">{titled(title)}</polygon>')
    if level is not None and low <= level[0] <= high:
        y, ends = plot.up(level[0]), (plot.across(plot.x[0]), plot.right)
        parts.append(
            f'<line class="level" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}">'
            f"{titled(level[1])}</line>"
        )
        keys.append(("level", level[1]))
    if mark is not None:
        x = plot.across(mark[0])
        parts.append(upright(x, "mark", mark[1], top=plot.top, bottom=plot.base))
        keys.append(("mark", mark[1]))
    for kind, (name, own) in zip(_LINES, lines.items(), strict=False):
        placed = [(plot.across(x), plot.up(y)) for x, y in own]
        parts.append(
            f'<polyline class="{kind}" points="{joined(placed)}">{titled(name)}</polyline>'
        )
        if len(own) <= _MARKED_POINTS:
            parts += [
                f'<circle class="a" cx="{at:.1f}" cy="{up:.1f}" r="2">'
                f"{titled(f'{name}, {one}: {y:.4g}')}</circle>"
                for (at, up), one, (_, y) in zip(
                    placed, (x_axis.titles or x_axis.shown)([x for x, _ in own]), own, strict=True
                )
            ]
    if keys or len(lines) > 1:
        keys = [*zip(_LINES, lines, strict=False), *keys]
    return drawn("".join(parts), height, title, width=width) + legend(keys)


def sparkline(values: Sequence[float], *, title: str) -> str:
    """Return a small line of a history, its last value as a dot, to stand beside a number."""
    width, height = 100, 20
    low, high = span(values)
    step = (width - 8) / max(len(values) - 1, 1)
    placed = [
        (4 + i * step, height - 4 - (value - low) / (high - low) * (height - 8))
        for i, value in enumerate(values)
    ]
    last = "".join(f'<circle class="a" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in placed[-1:])
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escaped(title)}">{titled(title)}'
        f'<polyline class="line a" points="{joined(placed)}"/>{last}</svg>'
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
        low, high = span(values if given is None else given)
        return cls(low, high, n_rows)

    @property
    def height(self) -> float:
        """Of the chart."""
        return self.n_rows * ROW + BOTTOM + TOP

    def across(self, value: float) -> float:
        """Return where a value lies."""
        return NAMES + 16 + share(value, self.low, self.high) * (WIDTH - NAMES - 24)

    def middle(self, i: int) -> float:
        """Return where the middle of a row lies."""
        return TOP + (i + 0.5) * ROW

    def frame(
        self, level: float | None = None, band: tuple[float, float] | None = None
    ) -> list[str]:
        """Return the lines at both ends and at a level, what is shaded, and the numbers below."""
        bottom, ends = self.height - BOTTOM, (self.low, self.high)
        parts = [upright(self.across(x), "grid", "", top=TOP, bottom=bottom) for x in ends]
        if band is not None:
            left, right = map(self.across, band)
            said = f"{band[0]:.3g} to {band[1]:.3g}"
            parts.append(
                f'<rect class="band" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
                f'height="{bottom - TOP:g}">{titled(said)}</rect>'
            )
        if level is not None and self.low <= level <= self.high:
            at = self.across(level)
            parts.append(upright(at, "level", f"{level:.3g}", top=TOP, bottom=bottom))
        return [*parts, bottom_axis(ends, (self.across(self.low), self.across(self.high)), bottom)]

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


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """Return what each mark of a chart looks like, by its classes, and what it is."""
    if not keys:
        return ""
    shown = [
        f'<span class="entry"><span class="key {kind}"></span> {escaped(name)}</span>'
        for kind, name in keys
    ]
    return f'<p class="soft legend">{" ".join(shown)}</p>'
