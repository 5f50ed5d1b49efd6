"""Value blocks: quantiles of any values, whose ranks are off by less than a known, small share.

Values lie in blocks by their rows: of 65,536 rows, of twice as many, and so on. A block holds its
values in ascending order, each with how many rows have it. Where there are more than 32,768, groups
of neighbors become their median, each of a 32,768th of the block's values or so. That moves a rank
by less than such a share of them. Two neighboring blocks become one, so of n rows a rank is off by
less than a 32,768th for each time that they could: by .05 % of a billion rows, for any values.

Which blocks there are follows from the rows' numbers alone. So the same rows in the same order have
the same blocks, whatever parts of them are counted where, and in which order parts are added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROWS_PER_BLOCK = 1 << 16
MOST_VALUES = 1 << 15
_PART = -1  # in place of a level


class _Block(NamedTuple):
    """Values in ascending order, and how many rows have each; both of shape (n_values,)."""

    values: FloatArray
    counts: IntArray
    n_off: int = 0  # by how many ranks are off at most

    @classmethod
    def of(cls, values: FloatArray) -> _Block:
        """Return all values."""
        return cls(*np.unique(values, return_counts=True))

    @classmethod
    def of_all(cls, blocks: Iterable[_Block]) -> _Block:
        """Return the values of several."""
        columns = tuple(zip(*blocks, strict=True))
        if not columns:
            return cls.of(np.empty(0))
        values, counts = map(np.concatenate, columns[:2])
        order = np.argsort(values, kind="stable")  # ascending runs
        values, counts = values[order], counts[order]
        is_first = np.append(True, values[1:] != values[:-1])[: len(values)]
        first = np.flatnonzero(is_first)
        counts = np.add.reduceat(counts, first) if len(first) else counts
        return cls(values[first], counts, sum(columns[2]))

    def shortened(self, most: int) -> _Block:
        """Return so many values at most: of each group of neighbors the median.

        Groups begin at equal steps of rank. A value that more rows have than a step holds ends its
        group, and is its median.
        """
        if len(self.values) <= most:
            return self
        ends = np.cumsum(self.counts)
        group = (ends - self.counts) * most // ends[-1]
        first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        last = np.append(first[1:], len(group)) - 1
        before, after = ends[first] - self.counts[first], ends[last]
        median = np.searchsorted(ends, before + (after - before) // 2, side="right")
        is_off = np.maximum(ends[median] - self.counts[median] - before, after - ends[median])
        return _Block(self.values[median], after - before, self.n_off + int(is_off.max()))


@dataclass(slots=True)
class _Begun:
    """Some rows of a block whose others are not counted yet."""

    n_rows: int = 0
    blocks: list[_Block] = field(default_factory=list)


@dataclass(slots=True)
class ValueBlocks:
    """Values by blocks of rows; of none at first.

    Parameters
    ----------
    rows_per_block : int, default 65,536
    most_values : int, default 32,768
        Of a block.

    Examples
    --------
    >>> blocks = ValueBlocks()
    >>> blocks.add(np.array([0.5, 0.25, 0.5]), first_row=0)
    >>> [blocks.at(rank) for rank in range(3)], blocks.n_off
    ([0.25, 0.5, 0.5], 0)
    """

    rows_per_block: int = ROWS_PER_BLOCK
    most_values: int = MOST_VALUES
    # By level, and the number of the block among those of its level.
    _whole: dict[tuple[int, int], _Block] = field(default_factory=dict)
    _parts: defaultdict[int, _Begun] = field(default_factory=lambda: defaultdict(_Begun))
    _ranked: tuple[FloatArray, IntArray] | None = None  # values and ends of their ranks

    def add(self, values: FloatArray, first_row: int) -> None:
        """Count values of neighboring rows, NaN where a row has none.

        Parameters
        ----------
        values : float64 ndarray of shape (n_rows,)
            Finite, or NaN.
        first_row : int
            Number of the first of them among all rows; each row is counted once.
        """
        start, stop = first_row, first_row + len(values)
        while start < stop:
            number, inside = divmod(start, self.rows_per_block)
            n_rows = min(stop - start, self.rows_per_block - inside)
            own = values[start - first_row : start - first_row + n_rows]
            self._put_part(number, n_rows, _Block.of(own[~np.isnan(own)]))
            start += n_rows

    def take(self, other: ValueBlocks) -> None:
        """Add the counts of other rows."""
        self.take_arrays(other.arrays())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `take_arrays` reads."""
        parts = [
            (_PART, n, own.n_rows, _Block.of_all(own.blocks)) for n, own in self._parts.items()
        ]
        whole = [(*key, 0, own) for key, own in self._whole.items()]
        found = sorted([*parts, *whole], key=itemgetter(0, 1))
        rows = [(*told, len(own.values), own.n_off) for *told, own in found]
        together = [own for *_, own in found] or [_Block.of(np.empty(0))]
        return {
            "blocks": np.array(rows, np.int64).reshape(-1, 5),
            "block_values": np.concatenate([own.values for own in together]),
            "block_counts": np.concatenate([own.counts for own in together]),
        }

    def take_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add what `arrays` returned of other rows."""
        values, counts, stop = arrays["block_values"], arrays["block_counts"], 0
        for level, number, n_rows, n_values, n_off in arrays["blocks"].tolist():
            start, stop = stop, stop + n_values
            own = _Block(values[start:stop], counts[start:stop], n_off)
            if level == _PART:
                self._put_part(number, n_rows, own)
            else:
                self._put(level, number, own)

    @property
    def n_off(self) -> int:
        """By how many ranks `at` is off at most."""
        return sum(own.n_off for own in self._whole.values())

    def at(self, rank: int) -> float:
        """Return the value of a rank, from 0."""
        if self._ranked is None:
            parts = [own for part in self._parts.values() for own in part.blocks]
            found = _Block.of_all([*parts, *self._whole.values()])
            self._ranked = found.values, np.cumsum(found.counts)
        values, ends = self._ranked
        return float(values[np.searchsorted(ends, rank, side="right")])

    def _put_part(self, number: int, n_rows: int, own: _Block) -> None:
        part = self._parts[number]
        part.n_rows += n_rows
        part.blocks.append(own)
        self._ranked = None
        if part.n_rows == self.rows_per_block:
            del self._parts[number]
            self._put(0, number, _Block.of_all(part.blocks))

    def _put(self, level: int, number: int, own: _Block) -> None:
        own, self._ranked = own.shortened(self.most_values), None
        while (other := self._whole.pop((level, number ^ 1), None)) is not None:
            own = _Block.of_all([own, other]).shortened(self.most_values)
            level, number = level + 1, number >> 1
        self._whole[level, number] = own
