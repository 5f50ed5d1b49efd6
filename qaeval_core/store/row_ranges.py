"""Row ranges: rows of one file, cut into shards, and what of them is covered."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RowRange(NamedTuple):
    """Rows [start, stop) of one file."""

    start: int
    stop: int

    @property
    def n_rows(self) -> int:
        """Rows of the range."""
        return self.stop - self.start


def split(rows: RowRange, *, rows_per_shard: int) -> Iterator[RowRange]:
    """Cut a range into shards of equal size; the last may be shorter."""
    for start in range(rows.start, rows.stop, rows_per_shard):
        yield RowRange(start, min(start + rows_per_shard, rows.stop))


def tiles(ranges: Iterable[RowRange], *, n_rows: int) -> bool:
    """Return whether ranges in order cover [0, n_rows) without gap or overlap.

    Examples
    --------
    >>> tiles([RowRange(0, 2), RowRange(2, 5)], n_rows=5), tiles([RowRange(0, 2)], n_rows=5)
    (True, False)
    """
    position = 0
    for rows in ranges:
        if rows.start != position:
            return False
        position = rows.stop
    return position == n_rows


def cover(done: Iterable[RowRange], *, n_rows: int) -> list[RowRange]:
    """Return disjoint done ranges within [0, n_rows), in order; overlapping ones are left out.

    Ranges of another shard size count as long as they do not overlap: a run with other
    ``rows_per_shard`` pays for gaps alone.

    Examples
    --------
    >>> cover([RowRange(4, 8), RowRange(0, 4), RowRange(2, 6)], n_rows=8)
    [RowRange(start=0, stop=4), RowRange(start=4, stop=8)]
    """
    bounds = np.array(list(done), dtype=np.int64).reshape(-1, 2)
    chosen = bounds[covering(bounds[:, 0], bounds[:, 1], n_rows=n_rows)]
    return [RowRange(*own) for own in chosen.tolist()]


def covering(
    starts: NDArray[np.int64], stops: NDArray[np.int64], *, n_rows: int
) -> NDArray[np.int64]:
    """Return which ranges `cover` chooses, by their places, in the order of their rows."""
    order = np.lexsort((-stops, starts))
    order = order[(stops[order] <= n_rows) & (starts[order] < stops[order])]
    firsts, ends = starts[order], stops[order]
    if bool(np.all(firsts[1:] >= ends[:-1])):
        return order
    chosen, position = [], 0
    for i, (start, stop) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        if start >= position:
            chosen.append(i)
            position = stop
    return order[chosen]


def open_ranges(shard: RowRange, done: Sequence[RowRange]) -> list[RowRange]:
    """Return the parts of a shard that disjoint, ordered done ranges leave open.

    Examples
    --------
    >>> open_ranges(RowRange(0, 10), [RowRange(2, 4), RowRange(8, 12)])
    [RowRange(start=0, stop=2), RowRange(start=4, stop=8)]
    """
    left = []
    position = shard.start
    # Of a million ranges, those of one shard are looked at alone.
    first = bisect_right(done, shard.start, key=attrgetter("stop"))
    for i in range(first, len(done)):
        rows = done[i]
        if rows.start >= shard.stop:
            break
        if rows.start > position:
            left.append(RowRange(position, rows.start))
        position = max(position, rows.stop)
    if position < shard.stop:
        left.append(RowRange(position, shard.stop))
    return left
