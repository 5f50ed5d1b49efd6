"""Axes: where the marks of a chart lie, the numbers beside them, and the room that letters have."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qaeval_core.pages.html import escaped
from qaeval_core.terminal import visible

WIDTH = 360  # as wide as a phone shows it without making its letters smaller
BROAD = 720
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 20  # room for the numbers of the axes
_LABEL = 14  # height of a line that names an axis
_LETTER = 11  # height, as in the style of pages
_WIDE = frozenset("mwMW@%&…QGODNHU")
# Beyond, the difference of two may have no number.
_HUGE = 1e300
_MOST_DECIMALS = 6

Point = tuple[float, float]


def ticks(low: float, high: float, *, n_most: int = 5, is_whole: bool = False) -> list[float]:
    """Return round numbers of equal distance from low to high: a few, or both ends.

    Examples
    --------
    >>> ticks(0, 19, n_most=4), ticks(0.0713, 0.0792, n_most=4)
    ([0.0, 5.0, 10.0, 15.0], [0.072, 0.074, 0.076, 0.078])
    >>> ticks(0, 1.5, is_whole=True)
    [0.0, 1.0]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / n_most))
    steps = [power * own for own in (1, 2, 5, 10, 20) if power * own >= 1 or not is_whole]
    for step in steps or [1.0]:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < n_most:
            # Of 0.1 + 0.2 nobody wants to see the last digit.
            found = [float(f"{i * step:.12g}") for i in range(first, last + 1)]
            return found if len(set(found)) > 1 else [low, high]
    return [low, high]


def numbers(values: Sequence[float]) -> list[str]:
    """Return the numbers of an axis, with as many decimals as tell them apart.

    Examples
    --------
    >>> numbers([0.072, 0.074]), numbers([0.0, 0.5]), numbers([-1e-300, 2e30])
    (['0.072', '0.074'], ['0.0', '0.5'], ['-1e-300', '2e+30'])
    """
    step = min((abs(b - a) for a, b in itertools.pairwise(values)), default=0.0) or 1.0
    n_decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    largest = max(map(abs, values), default=0.0)
    if n_decimals <= _MOST_DECIMALS and largest < 1e6:
        while any(abs(own - round(own, n_decimals)) > step / 100 for own in values):
            n_decimals += 1
        return [f"{own + 0.0:.{n_decimals}f}" for own in values]
    n_digits = min(max(math.ceil(math.log10(max(largest / step, 1))) + 1, 3), 12)
    return [f"{own:.{n_digits}g}" for own in values]


def count(value: float) -> str:
    """Return a count in few letters.

    Examples
    --------
    >>> count(950), count(12_400), count(3_000_000)
    ('950', '12.4k', '3M')
    """
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{sign}"
    return f"{value:.3g}"


def percents(values: Sequence[float]) -> list[str]:
    """Return shares as percent, with as many decimals as tell them apart.

    Examples
    --------
    >>> percents([0.0, 0.25, 0.5]), percents([0.0, 0.005])
    (['0 %', '25 %', '50 %'], ['0.0 %', '0.5 %'])
    """
    return [f"{own} %" for own in numbers([100 * value for value in values])]


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis below a chart.

    Attributes
    ----------
    label : str
        What it is, with its unit; nothing where that is said beside the chart.
    shown : callable
        How its numbers are written.
    ticks : sequence of float, optional
        Where its numbers stand, as far as they have room; default round ones.
    titles : callable, optional
        How they are written where a mark says what it is; default as below the chart.
    """

    label: str = ""
    shown: Callable[[Sequence[float]], list[str]] = numbers
    ticks: Sequence[float] | None = None
    titles: Callable[[Sequence[float]], list[str]] | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A frame with numbers at both axes.

    Attributes
    ----------
    x, y : (float, float)
        The ranges, low to high.
    y_label : str
        What the axis at the left is, with its unit.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    height: int
    width: int = WIDTH
    x_axis: Axis = Axis()
    y_label: str = ""

    @property
    def top(self) -> float:
        """Where the highest value lies."""
        return TOP + (_LABEL if self.y_label else 0)

    @property
    def base(self) -> float:
        """Where the lowest value lies."""
        return self.height - BOTTOM - (_LABEL if self.x_axis.label else 0)

    @property
    def right(self) -> float:
        """Where the last value lies."""
        return self.width - RIGHT

    def across(self, value: float) -> float:
        """Return where a value of x lies; what is beyond the range is at its end."""
        return LEFT + share(value, *self.x) * (self.right - LEFT)

    def up(self, value: float) -> float:
        """Return where a value of y lies; what is beyond the range is at its end."""
        return self.base - share(value, *self.y) * (self.base - self.top)

    def axes(self, y_ticks: Sequence[float], y_shown: Sequence[str]) -> str:
        """Return the lines and numbers of both axes, and their labels."""
        parts = []
        for value, text in zip(y_ticks, y_shown, strict=True):
            y = self.up(value)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{self.right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{LEFT - 4}" y="{max(y + 4, 10):.1f}" text-anchor="end">'
                f"{escaped(fitted(text, LEFT - 4))}</text>"
            )
        parts.append(bottom_axis(self.x, (LEFT, self.right), self.base, self.x_axis, self.width))
        if self.y_label:
            parts.append(f'<text class="soft" x="4" y="11">{escaped(self._named(self.y_label))}')
            parts.append("</text>")
        if self.x_axis.label:
            parts.append(
                f'<text class="soft" x="{self.width / 2:g}" y="{self.height - 5}" '
                f'text-anchor="middle">{escaped(self._named(self.x_axis.label))}</text>'
            )
        return "".join(parts)

    def _named(self, text: str) -> str:
        return fitted(visible(text), self.width - 16)


def bottom_axis(
    values: tuple[float, float],
    ends: tuple[float, float],
    base: float,
    axis: Axis | None = None,
    width: int = WIDTH,
) -> str:
    """Return the numbers below a chart, and their small lines: as many as have room.

    Parameters
    ----------
    values : (float, float)
        At both ends.
    ends : (float, float)
        Where they lie.
    base : float
        Where the chart ends.
    """
    axis = axis or Axis()
    for n_most in (*range(9 if width > WIDTH else 6, 1, -1), 1):
        found: Sequence[float] = ticks(*values, n_most=n_most) if n_most > 1 else [values[0]]
        if axis.ticks:
            found = axis.ticks[:: -(-len(axis.ticks) // n_most)]
        placed, reached = [], -math.inf
        for value, text in zip(found, axis.shown(found), strict=True):
            x = ends[0] + share(value, *values) * (ends[1] - ends[0])
            wide = sum(map(letter_width, text))
            left = min(max(x - wide / 2, 2.0), width - wide)
            placed.append((x, left, wide, text))
            if left < reached:
                break
            reached = left + wide + 6
        else:
            break
    parts = []
    for x, left, wide, text in placed:
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{base:g}" y2="{base + 4:g}"/>'
            f'<text x="{left + wide / 2:.1f}" y="{base + 15:g}" text-anchor="middle">'
            f"{escaped(text)}</text>"
        )
    return "".join(parts)


def upright(x: float, kind: str, said: str, *, top: float, bottom: float) -> str:
    """Return a line from top to bottom of a chart; said is what it stands for."""
    inner = titled(said) if said else ""
    return (
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom:g}">{inner}'
        "</line>"
    )


def drawn(inner: str, height: float, title: str, *, width: int = WIDTH) -> str:
    """Return a chart of marks."""
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height:g}" role="img" '
        f'aria-label="{escaped(title)}">{inner}</svg>'
    )


def titled(text: str) -> str:
    """Return what a mark says of itself."""
    return f"<title>{escaped(text)}</title>"


def joined(points: Sequence[Point]) -> str:
    """Return the points of a line."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return lowest and highest of finite values, never equal."""
    finite = [min(max(value, -_HUGE), _HUGE) for value in values if np.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if high > low:
        return low, high
    half = max(0.5, abs(low) * 1e-9)
    return low - half, low + half


def share(value: float, low: float, high: float) -> float:
    """Return how far a value lies from low to high, from 0 to 1; what lies beyond is at an end."""
    return (min(max(value, low), high) - low) / (high - low)


def fitted(text: str, room: float) -> str:
    """Return a text that is no wider than some units, cut where it would be.

    Examples
    --------
    >>> fitted("topic", 132), fitted("a long name of a column", 60)
    ('topic', 'a long…')
    """
    used, n_kept, dots = 0.0, 0, letter_width("…")
    for letter in text:
        used += letter_width(letter)
        if used > room:
            return f"{text[:n_kept]}…"
        n_kept += used + dots <= room
    return text


def letter_width(letter: str) -> float:
    """Return the units that a letter takes in nearly any font."""
    if unicodedata.east_asian_width(letter) in "WF" or ord(letter) > 0xFFFF:
        return 1.4 * _LETTER
    return (1.05 if letter in _WIDE or not letter.isascii() else 0.68) * _LETTER
