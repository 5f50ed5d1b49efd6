"""Histogram: the counts of profiles in few enough bins for a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.profile.cells import N_EQUAL, Cells
from qaeval_core.profile.column_profile import IntArray, Profile

_N_BARS = 32


@dataclass(frozen=True, slots=True)
class Counted:
    """One distribution: rows in each bar, and those that are in none."""

    counts: list[int]
    n_below: int
    n_above: int
    n_undefined: int

    @property
    def n_defined(self) -> int:
        """Rows with a value."""
        return sum(self.counts) + self.n_below + self.n_above

    @property
    def shares(self) -> list[float]:
        """Of the rows with a value, by bar."""
        return [count / max(self.n_defined, 1) for count in self.counts]

    @property
    def remark(self) -> str:
        """How many rows there are, and what of them no bar shows."""
        parts = [f"{self.n_defined:,} rows", f"{self.n_undefined:,} undefined"]
        beyond = ((self.n_below, "below"), (self.n_above, "above"))
        return ", ".join([*parts, *(f"{n:,} {where}" for n, where in beyond if n)])


@dataclass(frozen=True, slots=True)
class Bars:
    """Distributions in the same bars.

    Attributes
    ----------
    edges : list of float
        Of the bars, one more than they are; equally wide.
    """

    edges: list[float]
    counted: list[Counted]


def counted_bars(profiles: Sequence[Profile]) -> Bars:
    """Return all rows of runs in at most 32 bars: over the column's range, or that of the data.

    Parameters
    ----------
    profiles : sequence of Profile
        Of the same cells.
    """
    cells = profiles[0].cells
    equal = [_equal_counts(cells, _whole(own)) for own in profiles]
    held = np.flatnonzero(sum(equal))
    first, n_cells = 0, N_EQUAL
    if not np.isfinite([profiles[0].low, profiles[0].high]).all() and len(held):
        first, n_cells = int(held[0]), int(held[-1] - held[0]) + 1
    step = -(-n_cells // _N_BARS)
    n_bars = -(-n_cells // step)
    edges = cells.low + cells.width * (first + step * np.arange(n_bars + 1))
    counted = []
    for own, counts in zip(profiles, equal, strict=True):
        padded = np.zeros(n_bars * step, np.int64)
        padded[:n_cells] = counts[first : first + n_cells]
        below, above = _beyond(cells, _whole(own))
        bars = padded.reshape(n_bars, step).sum(axis=1).tolist()
        counted.append(Counted(bars, below, above, int(_whole(own)[-1])))
    return Bars(edges.tolist(), counted)


def _whole(profile: Profile) -> IntArray:
    """Return the rows of each cell, all slices' rows once."""
    counts: IntArray = profile.counts[0].sum(axis=0, dtype=np.int64)
    return counts


def _is_inside(cells: Cells) -> NDArray[np.bool_]:
    """Return which ordered cells lie in the range: those at both ends and atoms beyond do not."""
    centers = cells.centers
    inside: NDArray[np.bool_] = (centers >= cells.low) & (centers <= cells.high)
    inside[0] = inside[-1] = False
    return inside


def _equal_counts(cells: Cells, counts: IntArray) -> IntArray:
    """Return rows by equal cell: an atom and both parts of the cell that it cuts are one again."""
    inside = _is_inside(cells)
    places = np.floor((cells.centers[inside] - cells.low) / cells.width).astype(np.intp)
    found = np.zeros(N_EQUAL, np.int64)
    np.add.at(found, np.clip(places, 0, N_EQUAL - 1), counts[:-1][inside])
    return found


def _beyond(cells: Cells, counts: IntArray) -> tuple[int, int]:
    outside, is_low = ~_is_inside(cells), cells.centers <= cells.low
    own = counts[:-1]
    return int(own[outside & is_low].sum()), int(own[outside & ~is_low].sum())
