"""Corpus rows: what is known of every row, in memory or in mapped files.

33 bytes a row in, and 2 or 4 more where they are counted by a column's values. They are walked a
step at a time, groups some at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from qaeval_core.filter.facts import KEPT, Facts, Stages
from qaeval_core.filter.order import Ranking
from qaeval_core.filter.row_arrays import row_zeros
from qaeval_core.filter.values import RowValues

T = TypeVar("T")

_ROWS_PER_BUCKET = 1 << 18
_BUCKETS_PER_WALK = 8
# The sorts in them are of two and more already.
_N_THREADS = 2
STEP = 1 << 20
BYTES_PER_ROW = 40
# On disk: where rows have groups, they are copied.
MAPPED_BYTES_PER_ROW = 80
_LEAST_STEPS = 64  # floats from one end of a range to the other
NO_TWIN = -1


class Parts(NamedTuple):
    """Into how many parts whole groups of rows are put, and in which some neighboring rows are.

    Rows of number ``n`` are in none.
    """

    n: int
    of: Callable[[slice], NDArray[np.uint64]]


class CorpusRows:
    """What is known of every row of a corpus, in order of files and rows.

    Parameters
    ----------
    n_rows : int
    stages : Stages
        They say which arrays there are.
    folder : Path, optional
        On the disk that holds the arrays; default memory.

    Attributes
    ----------
    reason, rank, tie, group
        As `Facts` has them.
    values : mapping of column to RowValues
        Of columns whose values are counted.
    value : int ndarray, optional
        Numbers of the values that the stage at work counts.
    twin : int64 ndarray, optional
        Row that a duplicate is one of; ``NO_TWIN`` of others. Until duplicates are known, the
        hashes of questions lie here.
    find_ties : callable, optional
        Puts the hashes that break ties into ``tie``, as long as some are 0 there.
    share : uint8 ndarray
        Zeros until `smallest_shares` puts there the smallest share that has a row.
    is_mapped : bool
        Whether the arrays lie on disk.
    zeros : callable
        Makes one more array beside them, from a dtype.
    number, bounds : int64 ndarray, optional
        The number of each row, and where parts of groups begin, if rows stand by groups.
    """

    def __init__(self, n_rows: int, stages: Stages, *, folder: Path | None = None) -> None:
        self.stages = stages
        self.is_mapped = folder is not None
        self.zeros = zeros = partial(row_zeros, n_rows, folder=folder)
        self.reason = zeros(np.uint8)
        self.share = zeros(np.uint8)
        self.rank = zeros(np.float64)
        self.tie = zeros(np.uint64)
        self.find_ties: Callable[[], None] | None = None
        has_duplicates = stages.duplicates.kind != "none"
        self.group = zeros(np.uint64) if stages.group or has_duplicates else None
        self.twin = zeros(np.int64) if has_duplicates else None
        self.values = {name: RowValues(zeros) for name in stages.counted}
        self.value: NDArray[Any] | None = None
        self.number: NDArray[np.int64] | None = None
        self.bounds: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.reason)

    @property
    def rows_per_part(self) -> int:
        """How many rows are worked on together, where groups are small."""
        return _ROWS_PER_BUCKET

    def group_parts(self) -> Parts:
        """Return parts of groups by their hashes, which are spread evenly."""
        n = -(-len(self) // _ROWS_PER_BUCKET)

        def part_of(own: slice) -> NDArray[np.uint64]:
            assert self.group is not None, "nothing is grouped"
            return bucket_of(self.group[own], n)

        return Parts(n, part_of)

    def put(self, start: int, facts: Facts) -> None:
        """Put the facts of some rows into their place."""
        rows = slice(start, start + len(facts.reason))
        self.reason[rows], self.rank[rows] = facts.reason, facts.rank
        if facts.tie is not None:
            self.tie[rows] = facts.tie
        if self.group is not None and facts.group is not None:
            self.group[rows] = facts.group
        if self.twin is not None and facts.question is not None:
            self.twin[rows] = facts.question.view(np.int64)
        for name, values in self.values.items():
            values.put(start, facts.values[name])

    def is_eligible(self, rows: slice) -> NDArray[np.bool_]:
        """Return which of some rows no stage has dropped."""
        return np.asarray(self.reason[rows] == KEPT)

    def ranking(
        self,
        *,
        value: int | None = None,
        shares: tuple[NDArray[np.uint8], int, int] | None = None,
    ) -> Ranking:
        """Return the order of rows that are left, or of some of them.

        Parameters
        ----------
        value : int, optional
            Only rows of this one of the values that are counted.
        shares : (uint8 ndarray of shape (n_rows,), int, int), optional
            The smallest share that has a row, and the first and last of those to take.
        """

        def is_member(rows: slice) -> NDArray[np.bool_]:
            left = self.is_eligible(rows)
            if value is not None and self.value is not None:
                left &= self.value[rows] == value
            if shares is not None:
                left &= (shares[0][rows] >= shares[1]) & (shares[0][rows] <= shares[2])
            return left

        return Ranking(self.rank, self.tie, is_member, find_ties=self.look_up_ties)

    def look_up_ties(self) -> None:
        """Have the hashes that break ties of all rows."""
        if self.find_ties is not None:
            self.find_ties()
            self.find_ties = None

    def drop(self, rows: NDArray[np.intp] | slice | NDArray[np.bool_], reason: str) -> None:
        """Drop rows for a reason."""
        self.reason[rows] = self.stages.code(reason)

    def counts(self) -> dict[str, int]:
        """Return how many rows each reason dropped; those of "" are kept."""
        found = np.zeros(len(self.stages.reasons), np.int64)
        for start in range(0, len(self), STEP):  # What is counted is copied as 64 bits.
            found += np.bincount(self.reason[start : start + STEP], minlength=len(found))
        return dict(zip(self.stages.reasons, map(int, found), strict=True))

    def rank_range(self) -> tuple[float, float]:
        """Return the lowest and the highest rank value, 0 and 1 if no row has one; fit for bins.

        Values that are all but equal have a wider range: bins end at floats.
        """
        low, high = np.inf, -np.inf
        for start in range(0, len(self), STEP):
            rank = self.rank[start : start + STEP]
            high = max(high, rank.max())
            low = min(low, np.min(rank, where=np.isfinite(rank), initial=np.inf))
        if low > high:
            return 0.0, 1.0
        least = _LEAST_STEPS * np.spacing(max(abs(low), abs(high)))
        return float(low), float(high if high - low >= least else low + max(1.0, least))

    def members(self, parts: Parts) -> Iterator[NDArray[np.intp]]:
        """Yield the rows of each part, ascending.

        One walk over all rows finds those of several parts.
        """
        if not len(self):
            return
        if self.bounds is not None:
            yield from (np.arange(*ends) for ends in pairwise(self.bounds.tolist()))
            return
        for first in range(0, parts.n, _BUCKETS_PER_WALK):
            rows, codes = [], []
            n_parts = np.uint64(min(parts.n - first, _BUCKETS_PER_WALK))
            for start in range(0, len(self), STEP):
                own = parts.of(slice(start, start + STEP)) - np.uint64(first)
                # What is before the first wraps around.
                chosen = np.flatnonzero(own < n_parts)
                rows.append(start + chosen)
                codes.append(own[chosen].astype(np.uint8))
            found, code = np.concatenate(rows), np.concatenate(codes)
            ordered = found[np.argsort(code, kind="stable")]
            yield from np.split(ordered, np.cumsum(np.bincount(code))[:-1])

    def each_part(
        self,
        parts: Parts,
        work: Callable[[NDArray[np.intp]], T],
        *,
        chosen: Collection[int] | None = None,
    ) -> Iterator[T]:
        """Yield what a function returns of the rows of each part, all in turn.

        A few threads call it, none of them twice with a row: arrays may be written to.

        Parameters
        ----------
        chosen : collection of int, optional
            Which turns to take; default all.
        """
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(_N_THREADS) as pool:
            for turn, members in enumerate(self.members(parts)):
                if chosen is not None and turn not in chosen:
                    continue
                waiting.append(pool.submit(work, members))
                if len(waiting) > _N_THREADS:
                    yield waiting.popleft().result()
            for future in waiting:
                yield future.result()


def bucket_of(group: NDArray[np.uint64], n_buckets: int) -> NDArray[np.uint64]:
    """Return in which of some equal ranges hashes lie."""
    half = np.uint64(32)
    return np.asarray(((group >> half) * np.uint64(n_buckets)) >> half)
