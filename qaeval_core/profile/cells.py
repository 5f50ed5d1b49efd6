"""Cells: the fixed grid that the values of one column are counted in, run after run.

512 equal cells over a range. A value with at least 1 % of the first run's mass, such as 0, 1 or a
cap, is a cell of its own and cuts the equal cell that it lies in: all cells are in the order of
their values, so that a cumulative sum of counts is the distribution function at each edge. One
cell each lies below and above the range; infinities are there. The last one is for undefined
values.

Finding values of 1 %
---------------------
Misra and Gries, Finding Repeated Elements, Science of Computer Programming 1982, in the mergeable
form of Agarwal et al., Mergeable Summaries, PODS 2012: at most 65,536 values are counted; where
there are more, the count of the next one is taken from all of them. A count is then too low, by no
more than the sum of what was taken, which is at most n / 65,537. Values that may or may not have
1 %, for that reason, are looked at a second time: the result is exact, in any order and cut.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from qaeval_core.errors import UnreadableFileError, first_problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

N_EQUAL = 512
ATOM_SHARE = 0.01
_MAX_COUNTED = 1 << 16
# Values that wait to be counted together: sorting few at a time costs more.
_MAX_WAITING = 1 << 18
# Beyond, the width of a range would be infinite.
_HUGE = 2.0**1000
# Of so few atoms, comparing all values with each is quicker than two searches.
_FEW_ATOMS = 16


@dataclass(frozen=True, slots=True)
class Cells:
    """The grid of one column.

    Attributes
    ----------
    low, high : float
        Range of the equal cells, finite, low < high; high lies in the last of them.
    atoms : tuple of float
        Ascending finite values that are cells of their own, in the range or not.

    Examples
    --------
    >>> cells = Cells(0.0, 1.0)
    >>> cells.codes(np.array([-np.inf, 0.0, 1.0, 1.5, np.nan])).tolist()
    [0, 1, 512, 513, 514]
    >>> Cells(0.0, 1.0, (0.0,)).codes(np.array([-1.0, 0.0, 0.001, 0.002, np.nan])).tolist()
    [0, 2, 3, 4, 516]
    """

    low: float
    high: float
    atoms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(f"no range of cells: {self.low} to {self.high}")
        if not all(map(math.isfinite, self.atoms)) or any(
            left >= right for left, right in zip(self.atoms, self.atoms[1:], strict=False)
        ):
            raise ValueError(f"atoms are finite and ascend: {self.atoms}")

    @property
    def n_ordered(self) -> int:
        """Number of cells of defined values, in the order of these."""
        return N_EQUAL + 2 + 2 * len(self.atoms)

    @property
    def n_cells(self) -> int:
        """Number of all cells; the last one is for undefined values."""
        return self.n_ordered + 1

    @property
    def width(self) -> float:
        """Width of an equal cell."""
        return (self.high - self.low) / N_EQUAL

    def codes(self, values: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return the cell of each value.

        Parameters
        ----------
        values : float ndarray of shape (n_rows,)
            NaN where undefined.

        Returns
        -------
        int ndarray of shape (n_rows,)
            From 0 to ``n_cells`` - 1.
        """
        given = np.asarray(values, dtype=np.float64)
        is_undefined = np.isnan(given)
        codes = self._equal_codes(given)
        self._step_over_atoms(codes, given)
        codes[is_undefined] = self.n_ordered
        return codes

    def _step_over_atoms(self, codes: NDArray[np.intp], values: FloatArray) -> None:
        """Add the cells of atoms to codes; anything for NaN.

        Each atom before a value puts two cells before its own: the atom, and what is left of the
        cell that it cuts.
        """
        if len(self.atoms) <= _FEW_ATOMS:
            for atom in self.atoms:
                codes += values > atom
                codes += values >= atom
        else:
            atoms = np.array(self.atoms)
            codes += np.searchsorted(atoms, values, side="left")
            codes += np.searchsorted(atoms, values, side="right")

    def _equal_codes(self, values: FloatArray) -> NDArray[np.intp]:
        """Return codes as if there were no atoms; anything for NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            places = np.floor((values - self.low) * (N_EQUAL / (self.high - self.low)))
        places = np.nan_to_num(np.clip(places, 0, N_EQUAL - 1))
        inside: NDArray[np.intp] = places.astype(np.intp) + 1
        inside[values < self.low] = 0
        inside[values > self.high] = N_EQUAL + 1
        return inside

    @property
    def edges(self) -> FloatArray:
        """Both ends of each ordered cell; float ndarray of shape (n_ordered, 2).

        An atom's are equal; the first cell begins at -inf and the last one ends at inf.
        """
        starts = np.empty(self.n_ordered)
        starts[self._equal_starts()] = [-np.inf, *np.linspace(self.low, self.high, N_EQUAL + 1)]
        atoms = np.array(self.atoms)
        places = self.codes(atoms)
        starts[places] = starts[places + 1] = atoms
        # An atom at an edge may lie beyond it by what was rounded.
        starts = np.maximum.accumulate(starts)
        return np.stack([starts, np.append(starts[1:], np.inf)], axis=1)

    def _equal_starts(self) -> NDArray[np.intp]:
        """Return the code that each equal cell, below and above included, begins with."""
        own = self._equal_codes(np.array(self.atoms, dtype=np.float64))
        n_before = np.searchsorted(own, np.arange(N_EQUAL + 2), side="left")
        return np.arange(N_EQUAL + 2) + 2 * n_before

    @property
    def centers(self) -> FloatArray:
        """Where the mass of each ordered cell is taken to lie; ascending, (n_ordered,).

        That of the first and last one lies at their finite ends.
        """
        edges = self.edges
        edges[0, 0], edges[-1, 1] = edges[0, 1], edges[-1, 0]
        centers: FloatArray = edges.mean(axis=1)
        return centers

    def to_json(self) -> str:
        """Return the grid as text; numbers come back as they were."""
        return json.dumps({"low": self.low, "high": self.high, "atoms": list(self.atoms)})

    @classmethod
    def from_json(cls, text: str | bytes) -> Cells:
        """Return the grid that `to_json` wrote.

        Raises
        ------
        UnreadableFileError
            If the text is none.
        """
        try:
            return _CELLS.validate_json(text)
        except ValidationError as error:
            raise UnreadableFileError(
                f"cannot read the cells of a profile: {first_problem(error)} [QA0801]"
            ) from None


_CELLS = TypeAdapter(Cells)


class CellsFinder:
    """Chooses cells from the values of a first run, given in any order and cut.

    Parameters
    ----------
    low, high : float, optional
        What the metric says of its range; infinite, or not given: the data's.
    """

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self._declared = (-math.inf if low is None else low, math.inf if high is None else high)
        self._data = (math.inf, -math.inf)
        self._n_defined = 0
        self._values = np.empty(0)
        self._counts = np.empty(0, np.int64)
        self._taken = 0  # no count is lower than the true one by more
        self._waiting: list[FloatArray] = []
        self._again: dict[float, int] | None = None

    def add(self, values: NDArray[np.floating]) -> None:
        """Count values; NaN is left out, infinities have no part in the range."""
        given = np.asarray(values, dtype=np.float64)
        given = given[~np.isnan(given)]
        self._n_defined += len(given)
        finite = given[np.abs(given) < _HUGE]
        if len(finite):
            low, high = self._data
            self._data = (min(low, float(finite.min())), max(high, float(finite.max())))
        self._waiting.append(finite)
        if sum(map(len, self._waiting)) >= _MAX_WAITING:
            self._settle()

    def merge(self, other: CellsFinder) -> None:
        """Add what another one counted of other rows."""
        self._settle()
        other._settle()
        self._n_defined += other._n_defined
        self._data = (min(self._data[0], other._data[0]), max(self._data[1], other._data[1]))
        self._taken += other._taken
        self._count(other._values, other._counts)

    def _settle(self) -> None:
        if not self._waiting:
            return
        # -0.0 is 0.0, or a cell would be cut twice at the same place.
        values, counts = np.unique(np.concatenate(self._waiting) + 0.0, return_counts=True)
        self._waiting = []
        self._count(values, counts)

    def _count(self, values: FloatArray, counts: IntArray) -> None:
        joined = np.concatenate([self._values, values])
        self._values, places = np.unique(joined, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.zeros(len(self._values), np.int64)
        np.add.at(self._counts, places, weights)
        if len(self._counts) > _MAX_COUNTED:
            place = len(self._counts) - _MAX_COUNTED - 1
            least = int(np.partition(self._counts, place)[place])
            is_left = self._counts > least
            self._values, self._counts = self._values[is_left], self._counts[is_left] - least
            self._taken += least

    @property
    def undecided(self) -> FloatArray:
        """Values that may have 1 % of the mass or not; nearly always none."""
        self._settle()
        needed = ATOM_SHARE * self._n_defined
        return self._values[(self._counts < needed) & (self._counts + self._taken >= needed)]

    def count_again(self, values: NDArray[np.floating]) -> None:
        """Count the undecided values exactly, among all values once more."""
        if self._again is None:
            self._again = dict.fromkeys(self.undecided.tolist(), 0)
        for value in self._again:
            self._again[value] += int(np.count_nonzero(values == value))

    def cells(self) -> Cells:
        """Return the cells; an undecided value that was not counted again has one of its own."""
        undecided = self.undecided
        needed = ATOM_SHARE * self._n_defined
        surely = self._values[self._counts >= needed].tolist()
        if self._again is None:
            found = [*surely, *undecided.tolist()]
        else:
            found = [*surely, *(one for one, count in self._again.items() if count >= needed)]
        low, high = self._range()
        return Cells(low, high, tuple(sorted(found)) if self._n_defined else ())

    def _range(self) -> tuple[float, float]:
        """Return the declared range where it is bounded, else the data's."""
        pairs = zip(self._declared, self._data, strict=True)
        low, high = (own if math.isfinite(own) else data for own, data in pairs)
        if not (math.isfinite(low) and math.isfinite(high)):  # Nothing is defined.
            low = low if math.isfinite(low) else min(0.0, high - 1) if math.isfinite(high) else 0.0
            high = high if math.isfinite(high) else low + 1
        if low >= high:  # One value alone, or all beyond a bound that the metric says.
            half = max(abs(low), abs(high), 1.0) / 2
            low, high = min(low, high) - half, max(low, high) + half
        return low, high


def choose_cells(
    read: Callable[[], Iterable[NDArray[np.floating]]],
    *,
    low: float | None = None,
    high: float | None = None,
) -> Cells:
    """Return cells for the values of a first run; memory does not grow with them.

    Parameters
    ----------
    read : callable
        Yields all values, a part at a time; called again only if a value is near 1 %.
    low, high : float, optional
        What the metric says of its range; infinite, or not given: the data's.

    Examples
    --------
    >>> scores = np.array([0.0, 0.0, 0.25, 1.0])
    >>> choose_cells(lambda: [scores], low=0.0, high=1.0).atoms
    (0.0, 0.25, 1.0)
    """
    finder = CellsFinder(low, high)
    for values in read():
        finder.add(values)
    if len(finder.undecided):
        for values in read():
            finder.count_again(values)
    return finder.cells()
