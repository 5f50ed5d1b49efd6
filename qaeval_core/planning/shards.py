"""Shards: input files to shards and pieces, deterministic, minus what is done.

A shard is a row range of one file: scored, committed and resumed as one. A piece is up to 16
consecutive open shards of one stretch of row groups: what is scheduled, its stretch streamed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from qaeval_core.planning.inputs import FileVersion, InputFile, RowGroup
from qaeval_core.planning.read_as import ReadAs
from qaeval_core.store.row_ranges import RowRange, open_ranges, split

MAX_SHARDS_PER_PIECE = 16


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
    read_as: ReadAs

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
            read_as=file.read_as,
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
    """Join neighboring row groups while they fit one shard together.

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
