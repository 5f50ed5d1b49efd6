"""Value counts: quantiles of many values from counts that add up, whatever the order.

Values are counted in cells that hold neighboring floats: at first one float each. Where more than
65,536 cells are in use, each two neighbors become one, as often as it takes. How often that is
follows from the values alone, so parts of them, counted anywhere and added up in any order, give
the same counts, and the same quantiles.

A cell keeps its lowest and highest value. So quantiles are exact, to the last bit, where no cell
that they fall into holds two values; else their rank is off by less than such a cell's count. Cells
are narrow near both ends of a known range, where scores crowd. Where a cell holds more than .1 % of
all values even so, its values come from `value_blocks`, which hold for any values, by row order.

KLL sketches (Karnin, Lang, Liberty 2016) have such a bound, too, but depend on order and on chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.value_blocks import ValueBlocks

FloatArray = NDArray[np.float64]
UInt64 = NDArray[np.uint64]

MOST_CELLS = 1 << 16
_PENDING = 1 << 19  # values that wait to be counted at once
_MOST_OFF = 0.001  # Ranks of quantiles by cells are off by such a share of all at most.
_SIGN = np.uint64(1 << 63)
_ALL = np.uint64(2**64 - 1)


@dataclass(slots=True)
class _Cells:
    """Cells in use, in ascending order; arrays of shape (n_cells,)."""

    number: UInt64
    count: NDArray[np.int64]
    lowest: FloatArray
    highest: FloatArray

    @classmethod
    def none(cls) -> _Cells:
        return cls(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0), np.empty(0))

    def merged(self, other: _Cells) -> _Cells:
        """Return the cells of both."""
        if not len(self.number):
            return other
        number = np.concatenate([self.number, other.number])
        order = np.argsort(number, kind="stable")  # two ascending runs
        number = number[order]
        both = _Cells(
            number,
            np.concatenate([self.count, other.count])[order],
            np.concatenate([self.lowest, other.lowest])[order],
            np.concatenate([self.highest, other.highest])[order],
        )
        return both.gathered()

    def gathered(self) -> _Cells:
        """Return one cell for each number; equal ones are neighbors."""
        if not len(self.number):
            return self
        first = np.flatnonzero(np.concatenate([[True], self.number[1:] != self.number[:-1]]))
        return _Cells(
            self.number[first],
            np.add.reduceat(self.count, first),
            np.minimum.reduceat(self.lowest, first),
            np.maximum.reduceat(self.highest, first),
        )

    def wider(self, steps: int) -> _Cells:
        """Return the cells after neighbors became one, so often."""
        return _Cells(
            self.number >> np.uint64(steps), self.count, self.lowest, self.highest
        ).gathered()


class _Ranked(NamedTuple):
    """The value of a rank, and by how many ranks it may be off."""

    value: float
    n_off: int = 0


@dataclass(slots=True)
class ValueCounts:
    """Counts of values; of none at first.

    Parameters
    ----------
    low, high : float
        Range that is known of them, infinite where it is not: cells are narrow near its ends.
    most_cells : int, default 65,536
    blocks : ValueBlocks, optional
        Of no values.

    Examples
    --------
    >>> counts = ValueCounts(0.0, 1.0)
    >>> counts.add(np.array([1.0, 0.0, np.nan, 0.5]), first_row=0)
    >>> counts.n, counts.quantiles([0.0, 0.25, 1.0]), counts.rank_error([0.25])
    (3, [0.0, 0.25, 1.0], 0.0)
    """

    low: float = -math.inf
    high: float = math.inf
    most_cells: int = MOST_CELLS
    blocks: ValueBlocks = field(default_factory=ValueBlocks)
    steps: int = 0  # how often neighbors became one
    _cells: _Cells = field(default_factory=_Cells.none)
    _infinite: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    _waiting: list[FloatArray] = field(default_factory=list)
    _n_waiting: int = 0

    def add(self, values: NDArray[np.floating], first_row: int) -> None:
        """Count values of neighboring rows; NaN is left out.

        Parameters
        ----------
        values : float ndarray of shape (n_rows,)
        first_row : int
            Number of the first of them among all rows; each row is counted once.
        """
        finite = np.where(np.isfinite(values), values.astype(np.float64) + 0.0, np.nan)  # no -0.0
        self.blocks.add(finite, first_row)
        own = finite[~np.isnan(finite)]
        self._infinite += [np.count_nonzero(values == -np.inf), np.count_nonzero(values == np.inf)]
        self._waiting.append(own)
        self._n_waiting += len(own)
        if self._n_waiting >= _PENDING:
            self._settle()

    def merge(self, other: ValueCounts) -> None:
        """Add the counts of other values of the same range.

        Raises
        ------
        ValueError
            If it is another range.
        """
        if (self.low, self.high, self.most_cells) != (other.low, other.high, other.most_cells):
            raise ValueError("counts of other ranges cannot be added")
        self.take_arrays(other.arrays())

    @property
    def n(self) -> int:
        """How many values were counted."""
        self._settle()
        return int(self._cells.count.sum() + self._infinite.sum())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `from_arrays` reads."""
        self._settle()
        own = self._cells
        return {
            "number": own.number, "count": own.count, "lowest": own.lowest,
            "highest": own.highest, "steps": np.array(self.steps), "infinite": self._infinite,
            **self.blocks.arrays(),
        }  # fmt: skip

    def take_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add what `arrays` returned of other values."""
        self._settle()
        cells = _Cells(*(arrays[name] for name in ("number", "count", "lowest", "highest")))
        self._take(cells, int(arrays["steps"]))
        self._infinite = self._infinite + arrays["infinite"]
        self.blocks.take_arrays(arrays)

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return quantiles, between neighbors by proportion, as numpy's default.

        Raises
        ------
        ValueError
            If there are no values.
        """
        if not self.n:
            raise ValueError("no quantile of no values")
        return [self._quantile(share) for share in shares]

    def rank_error(self, shares: Sequence[float]) -> float:
        """Return by how much the ranks of quantiles may be off at most, as a share of all ranks."""
        if not self.n:
            return 0.0
        ranks = {rank for share in shares for rank in _ranks(share, self.n)[:2]}
        return max((self._ranked(rank).n_off for rank in ranks), default=0) / self.n

    def _quantile(self, share: float) -> float:
        low, high, weight = _ranks(share, self.n)
        lower, upper = self._ranked(low).value, self._ranked(high).value
        if lower == upper or weight == 0.0:
            return lower
        step = upper - lower
        return upper - step * (1 - weight) if weight >= 0.5 else lower + step * weight

    def _ranked(self, rank: int) -> _Ranked:
        """Return the value of a rank, from 0."""
        ends = np.cumsum(self._cells.count)
        rank -= int(self._infinite[0])
        if not 0 <= rank < (ends[-1] if len(ends) else 0):
            return _Ranked(math.copysign(math.inf, rank))
        i = int(np.searchsorted(ends, rank, side="right"))
        count = int(self._cells.count[i])
        low, high = float(self._cells.lowest[i]), float(self._cells.highest[i])
        inside = rank - int(ends[i]) + count
        if low == high or inside in (0, count - 1):
            return _Ranked(high if inside else low)
        if count > _MOST_OFF * self.n:
            return _Ranked(min(max(self.blocks.at(rank), low), high), self.blocks.n_off)
        between = low + (high - low) * inside / (count - 1)
        return _Ranked(between, max(inside, count - 1 - inside))

    def _settle(self) -> None:
        if not self._n_waiting:
            return
        values = np.sort(np.concatenate(self._waiting))
        self._waiting, self._n_waiting = [], 0
        number = self._numbers(values) >> np.uint64(self.steps)
        each = _Cells(number, np.ones(len(values), np.int64), values, values)
        self._take(each.gathered(), self.steps)

    def _take(self, cells: _Cells, steps: int) -> None:
        most = max(self.steps, steps)
        own = self._cells.wider(most - self.steps) if most > self.steps else self._cells
        own = own.merged(cells.wider(most - steps) if most > steps else cells)
        more = _steps_to(own.number, self.most_cells)
        self._cells, self.steps = (own.wider(more) if more else own), most + more

    def _numbers(self, values: FloatArray) -> UInt64:
        """Return numbers of the narrowest cells, which ascend as values do."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            bits = values.view(np.uint64)
            return np.where(bits & _SIGN, ~bits, bits | _SIGN)
        # By the distance from the nearer end; beyond the range all is one.
        from_low = np.maximum(values - self.low, 0.0).view(np.uint64)
        from_high = np.maximum(self.high - values, 0.0).view(np.uint64)
        is_low = values <= self.low + (self.high - self.low) / 2
        return np.where(is_low, from_low, _ALL - from_high)


def _steps_to(number: UInt64, most_cells: int) -> int:
    """Return how often neighbors must become one until so few cells are left."""
    if len(number) <= most_cells:
        return 0
    # Two neighbors stay apart as long as the highest bit in which they differ is there.
    differing = number[1:] ^ number[:-1]
    upper, lower = differing >> np.uint64(32), differing & np.uint64(2**32 - 1)
    # Of 32 bits at once: more would be rounded up to the next bit.
    bits = [np.frexp(own.astype(np.float64))[1] for own in (upper, lower)]
    highest = np.where(upper > 0, bits[0] + 32, bits[1])  # from 1
    n_apart = np.bincount(highest, minlength=66)
    left = 1 + n_apart[::-1].cumsum()[::-1]
    return int(np.argmax(left <= most_cells)) - 1


def _ranks(share: float, n: int) -> tuple[int, int, float]:
    """Return the ranks beside a quantile, from 0, and its weight between them."""
    place = share * (n - 1)
    low = math.floor(place)
    return low, min(low + 1, n - 1), place - low
