"""Plan: input files to shards and pieces, deterministic, minus what is done.

A shard is a row range of one file: scored, committed and resumed as one. A piece is up to 16
consecutive open shards of one stretch of row groups: what is scheduled, its stretch streamed once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.planning.inputs import FileVersion, InputFile, RowGroup

MAX_SHARDS_PER_PIECE = 16


class RowRange(NamedTuple):
    """Rows [start, stop) of one file."""

    start: int
    stop: int

    @property
    def n_rows(self) -> int:
        """Rows of the range."""
        return self.stop - self.start


class Stretch(NamedTuple):
    """Consecutive row groups that are read as one stream."""

    first_group: int
    stop_group: int
    rows: RowRange
    n_bytes: int


class ReadLimits(NamedTuple):
    """How many decoded bytes are in hand at once: of one read, and of one text or list of texts.

    A plan knows sizes by footers alone, and a dictionary of one text of a megabyte may stand for a
    million rows.
    """

    shard_bytes: int = 64 << 20
    text_bytes: int = 16 << 20


_LIMITS = ReadLimits()


@dataclass(frozen=True, slots=True)
class Piece:
    """What is scheduled: shards of one stretch of one file, open for the same families."""

    families: tuple[str, ...]
    file_id: str
    relative: str
    version: FileVersion
    first_group: int
    stop_group: int
    first_row: int
    shards: tuple[RowRange, ...]
    limits: ReadLimits

    @classmethod
    def of(
        cls,
        file: InputFile,
        stretch: Stretch,
        *,
        families: tuple[str, ...] = (),
        shards: tuple[RowRange, ...] = (),
        limits: ReadLimits = _LIMITS,
    ) -> Piece:
        """Return a piece of a stretch of a file."""
        return cls(
            families=families,
            file_id=file.file_id,
            relative=file.relative,
            version=file.version,
            first_group=stretch.first_group,
            stop_group=stretch.stop_group,
            first_row=stretch.rows.start,
            shards=shards,
            limits=limits,
        )

    @property
    def uri(self) -> str:
        """Where its file lies."""
        return self.version.uri

    @property
    def n_rows(self) -> int:
        """Rows of all its shards."""
        return sum(shard.n_rows for shard in self.shards)


def stretches(row_groups: Sequence[RowGroup], *, rows_per_shard: int) -> list[Stretch]:
    """Join neighbouring row groups while they fit one shard together.

    A writer that flushes every few rows would otherwise dictate shards of a few rows.

    Examples
    --------
    >>> groups = [RowGroup(0, 3, 30), RowGroup(3, 4, 40), RowGroup(7, 9, 90)]
    >>> [tuple(s.rows) for s in stretches(groups, rows_per_shard=8)]
    [(0, 7), (7, 16)]
    """
    joined: list[Stretch] = []
    for i, group in enumerate(row_groups):
        rows = RowRange(group.start, group.start + group.n_rows)
        last = joined[-1] if joined else None
        if last and last.rows.n_rows + rows.n_rows <= rows_per_shard:
            both = RowRange(last.rows.start, rows.stop)
            joined[-1] = Stretch(last.first_group, i + 1, both, last.n_bytes + group.n_bytes)
        else:
            joined.append(Stretch(i, i + 1, rows, group.n_bytes))
    return joined


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


def plan_file(
    file: InputFile,
    *,
    done: Mapping[str, Sequence[RowRange]],
    rows_per_shard: int,
    limits: ReadLimits,
    n_rows: int,
    rows_per_piece: int | None = None,
) -> list[Piece]:
    """Return the pieces of one file that are still to be done by families that share a pass.

    Parameters
    ----------
    done : mapping of family key to sequence of RowRange
        Committed ranges of each family, as `cover` returns them.
    n_rows : int
        Rows of the file that count (fewer than it has, under ``--limit``).
    rows_per_piece : int, optional
        At most so many rows a piece, so that all actors have work.
    """
    pieces = []
    for stretch in stretches(file.row_groups, rows_per_shard=rows_per_shard):
        rows = RowRange(stretch.rows.start, min(stretch.rows.stop, n_rows))
        if not any(open_ranges(rows, own) for own in done.values()):
            continue
        bytes_per_row = max(stretch.n_bytes / max(stretch.rows.n_rows, 1), 1.0)
        size = max(min(rows_per_shard, int(limits.shard_bytes / bytes_per_row)), 1)
        n_shards = MAX_SHARDS_PER_PIECE
        if rows_per_piece is not None:
            n_shards = min(max(rows_per_piece // size, 1), n_shards)
        for families, group in groupby(_open_shards(rows, size, done), key=itemgetter(1)):
            shards = [shard for shard, _ in group]
            for i in range(0, len(shards), n_shards):
                pieces.append(
                    Piece.of(
                        file,
                        stretch,
                        families=families,
                        shards=tuple(shards[i : i + n_shards]),
                        limits=limits,
                    )
                )
    return pieces


def _open_shards(
    rows: RowRange, size: int, done: Mapping[str, Sequence[RowRange]]
) -> Iterator[tuple[RowRange, tuple[str, ...]]]:
    """Yield each open range with the families that it is open for."""
    for shard in split(rows, rows_per_shard=size):
        families: dict[RowRange, list[str]] = {}
        for family, own in done.items():
            for left in open_ranges(shard, own):
                families.setdefault(left, []).append(family)
        for left in sorted(families):
            yield left, tuple(families[left])
