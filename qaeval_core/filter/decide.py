"""Decide: the stages that need all rows: duplicates, top-k, quotas, and the share.

Arrays of a whole corpus, on one machine: 33 bytes a row in, 2 more for quotas. Groups are worked
on some at a time and cuts are found without copies, so that temporary arrays do not grow with the
corpus; they grow with its largest group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.filter.facts import KEPT, MAX_VALUES, Facts, Stages
from qaeval_core.filter.order import (
    Cut,
    Ranking,
    at_or_before,
    have_equals,
    sorted_places,
    sorted_rows,
)
from qaeval_core.filter.request import FilterRequest, Quota
from qaeval_core.stats.certificate import N_SHARES

T = TypeVar("T")

_ROWS_PER_BUCKET = 1 << 18
_BUCKETS_PER_WALK = 8
# The sorts in them are of two and more already.
_N_THREADS = 2
_STEP = 1 << 20
BYTES_PER_ROW = 40
_LEAST_STEPS = 64  # floats from one end of a range to the other
NO_TWIN = -1


class CorpusRows:
    """What is known of every row of a corpus, in order of files and rows.

    Parameters
    ----------
    n_rows : int
    stages : Stages
        They say which arrays there are.

    Attributes
    ----------
    reason, rank, tie, group, value
        As `Facts` has them, values by ``values``.
    twin : int64 ndarray, optional
        Row that a duplicate is one of; ``NO_TWIN`` of others. Until duplicates are known, the
        hashes of questions lie here.
    find_ties : callable, optional
        Puts the hashes that break ties into ``tie``, as long as some are 0 there.
    """

    def __init__(self, n_rows: int, stages: Stages) -> None:
        self.stages = stages
        self.reason = np.zeros(n_rows, np.uint8)
        self.rank = np.zeros(n_rows, np.float64)
        self.tie = np.zeros(n_rows, np.uint64)
        self.find_ties: Callable[[], None] | None = None
        has_duplicates = stages.duplicates.kind != "none"
        self.group = np.zeros(n_rows, np.uint64) if stages.group or has_duplicates else None
        self.twin = np.zeros(n_rows, np.int64) if has_duplicates else None
        self.value = np.zeros(n_rows, np.uint16) if stages.quota else None
        self.values: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self.reason)

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
        if self.value is not None and facts.value is not None:
            codes = [self.values.setdefault(text, len(self.values)) for text in facts.values]
            if len(self.values) > MAX_VALUES:
                raise ConfigError(
                    f"--quota: {self.stages.quota} has more than {MAX_VALUES:,} different values "
                    "[QA0322]"
                )
            self.value[rows] = np.array(codes, np.uint16)[facts.value]

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
            Only rows of this value of the quota.
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
        found = np.bincount(self.reason, minlength=len(self.stages.reasons))
        return dict(zip(self.stages.reasons, map(int, found), strict=True))

    def rank_range(self) -> tuple[float, float]:
        """Return the lowest and the highest rank value, 0 and 1 if no row has one; fit for bins.

        Values that are all but equal have a wider range: bins end at floats.
        """
        low, high = np.inf, -np.inf
        for start in range(0, len(self), _STEP):
            rank = self.rank[start : start + _STEP]
            high = max(high, rank.max())
            low = min(low, np.min(rank, where=np.isfinite(rank), initial=np.inf))
        if low > high:
            return 0.0, 1.0
        least = _LEAST_STEPS * np.spacing(max(abs(low), abs(high)))
        return float(low), float(high if high - low >= least else low + max(1.0, least))

    def groups(self) -> Iterator[NDArray[np.intp]]:
        """Yield the rows of some whole groups at a time, ascending; each row once.

        Hashes are spread evenly: equal ranges of them have about as many rows. One walk over all
        rows finds those of several ranges.
        """
        assert self.group is not None, "nothing is grouped"
        if not len(self):
            return
        n_buckets = -(-len(self) // _ROWS_PER_BUCKET)
        for first in range(0, n_buckets, _BUCKETS_PER_WALK):
            rows, codes = [], []
            for start in range(0, len(self), _STEP):
                own = bucket_of(self.group[start : start + _STEP], n_buckets) - np.uint64(first)
                # What is before the first wraps around.
                chosen = np.flatnonzero(own < np.uint64(_BUCKETS_PER_WALK))
                rows.append(start + chosen)
                codes.append(own[chosen].astype(np.uint8))
            found, code = np.concatenate(rows), np.concatenate(codes)
            ordered = found[np.argsort(code, kind="stable")]
            yield from np.split(ordered, np.cumsum(np.bincount(code))[:-1])

    def each_group(
        self, work: Callable[[NDArray[np.intp]], T], *, chosen: Collection[int] | None = None
    ) -> Iterator[T]:
        """Yield what a function returns of the rows of some whole groups, all in turn.

        A few threads call it, none of them twice with a row: arrays may be written to.

        Parameters
        ----------
        chosen : collection of int, optional
            Which turns to take; default all.
        """
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(_N_THREADS) as pool:
            for turn, members in enumerate(self.groups()):
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


def _drop_exact_duplicates(
    rows: CorpusRows, members: NDArray[np.intp], ordered: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Drop questions that are the same as a better one of their group; return the others.

    Parameters
    ----------
    members, ordered : int ndarray
        Rows of some groups; those that are left, best first inside of each group.
    """
    assert rows.twin is not None
    assert rows.group is not None
    # Until now hashes of questions lie here.
    group, question = rows.group[ordered], rows.twin[ordered].view(np.uint64)
    rows.twin[members] = NO_TWIN
    places = np.flatnonzero(have_equals(group, question))
    places = places[sorted_places(group[places], question[places])]
    group, question = group[places], question[places]
    is_first = np.ones(len(places), dtype=bool)
    is_first[1:] = (group[1:] != group[:-1]) | (question[1:] != question[:-1])
    best = places[np.maximum.accumulate(np.where(is_first, np.arange(len(places)), 0))]
    twins, best = places[~is_first], best[~is_first]
    rows.twin[ordered[twins]] = ordered[best]
    rows.drop(ordered[twins], "duplicate")
    return np.delete(ordered, twins)


def _decide_groups(rows: CorpusRows, *, has_exact: bool, top_k: int | None) -> None:
    """Run the stages inside of groups."""
    assert rows.group is not None
    hashes = rows.group

    def work(members: NDArray[np.intp]) -> bool:
        """Return False, and do nothing, if hashes of ids are wanted first."""
        left = members[rows.reason[members] == KEPT]
        ordered = sorted_rows(left, rows.rank, rows.tie, hashes)
        group, rank, is_unknown = hashes[ordered], rows.rank[ordered], rows.tie[ordered] == 0
        is_tied = (group[1:] == group[:-1]) & (rank[1:] == rank[:-1])
        if rows.find_ties is not None and (is_tied & (is_unknown[1:] | is_unknown[:-1])).any():
            return False
        if has_exact:
            ordered = _drop_exact_duplicates(rows, members, ordered)
        if top_k is not None:
            rows.drop(ordered[_places(hashes[ordered]) >= top_k], "top_k")
        return True

    is_done = list(rows.each_group(work))
    if not all(is_done):
        rows.look_up_ties()
        left = {turn for turn, done in enumerate(is_done) if not done}
        assert all(rows.each_group(work, chosen=left))


def drop_found_duplicates(
    rows: CorpusRows, found: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> None:
    """Drop rows that were found to be near-duplicates: pairs of arrays, rows and their twins.

    No pair is kept: all together take sixteen bytes a duplicate.
    """
    assert rows.twin is not None
    rows.twin[:] = NO_TWIN
    for duplicates, twins in found:
        rows.twin[duplicates] = twins
        rows.drop(duplicates, "duplicate")


def _places(sorted_groups: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the place of each row in its group, from 0."""
    places = np.arange(len(sorted_groups))
    is_first = np.ones(len(sorted_groups), dtype=bool)
    is_first[1:] = sorted_groups[1:] != sorted_groups[:-1]
    first: NDArray[np.intp] = np.maximum.accumulate(np.where(is_first, places, 0))
    return places - first


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaCount:
    """What a quota did to one value, None that of no value: rows that reach it, may stay, do."""

    value: str | None
    n_reaching: int
    n_allowed: int
    n_kept: int

    @property
    def shortfall(self) -> int:
        """Rows that it may have and does not."""
        return self.n_allowed - self.n_kept


def apply_quota(rows: CorpusRows, quota: Quota, size: Fraction | int | None) -> list[QuotaCount]:
    """Drop rows that a value of the quota's column has too many.

    Parameters
    ----------
    size : Fraction or int, optional
        The share or number of rows to divide, for quotas that divide one.

    Raises
    ------
    ConfigError
        If a budget has not one row for each value.
    """
    assert rows.value is not None
    reaching = np.zeros(max(len(rows.values), 1), np.int64)
    for start in range(0, len(rows), _STEP):
        own = slice(start, start + (_STEP))
        reaching += np.bincount(rows.value[own][rows.is_eligible(own)], minlength=len(reaching))
    found = sorted(rows.values.items(), key=lambda own: (own[0] is None, own[0] or ""))
    there = [(name, code) for name, code in found if reaching[code]]
    allowed = _allowed(quota, size, [int(reaching[code]) for _, code in there])
    counts = []
    for (name, code), n_allowed in zip(there, allowed, strict=True):
        n_kept = min(n_allowed, int(reaching[code]))
        if n_kept < reaching[code]:
            _cut_value(rows, code, n_kept)
        counts.append(
            QuotaCount(
                value=name, n_reaching=int(reaching[code]), n_allowed=n_allowed, n_kept=n_kept
            )
        )
    return counts


def _cut_value(rows: CorpusRows, code: int, n_kept: int) -> None:
    assert rows.value is not None
    ranking = rows.ranking(value=code)
    (cut,) = ranking.cuts([n_kept]) if n_kept else [None]
    for start in range(0, len(rows), _STEP):
        own = slice(start, min(start + (_STEP), len(rows)))
        dropped = rows.is_eligible(own) & (rows.value[own] == code)
        if cut is not None:
            dropped &= ~ranking.is_kept(cut, own)
        rows.drop(start + np.flatnonzero(dropped), "quota")


def _allowed(quota: Quota, size: Fraction | int | None, reaching: Sequence[int]) -> list[int]:
    """Return how many rows each value may have."""
    if quota.kind == "most":
        return [quota.n] * len(reaching)
    assert size is not None, "checked by the request"
    total = sum(reaching)
    if quota.kind == "equal":
        budget = n_of(size, total)
        each = budget // max(len(reaching), 1)
        if reaching and not each:
            raise ConfigError(
                f"--quota {quota.column}=equal: the budget of {budget:,} rows is smaller than the "
                f"{len(reaching):,} values of {quota.column} [QA0709]"
            )
        return [each] * len(reaching)
    if isinstance(size, Fraction):
        return [n_of(size, own) for own in reaching]
    return _proportional(min(size, total), reaching)


def _proportional(budget: int, reaching: Sequence[int]) -> list[int]:
    """Divide a budget in proportion: whole parts, then one each by largest remainder."""
    total = max(sum(reaching), 1)
    exact = [Fraction(budget * own, total) for own in reaching]
    whole = [int(part) for part in exact]
    left = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in left[: budget - sum(whole)]:
        whole[i] += 1
    return whole


def n_of(size: Fraction | int, n_rows: int) -> int:
    """Return how many of some rows a share or a budget is: rounded down, one at least.

    Examples
    --------
    >>> n_of(Fraction("0.29"), 100), n_of(Fraction("0.001"), 10), n_of(50, 10), n_of(1, 0)
    (29, 1, 10, 0)
    """
    wanted = int(size * n_rows) if isinstance(size, Fraction) else size
    return min(max(wanted, 1), n_rows)


def keep_best(rows: CorpusRows, cut: Cut | None) -> None:
    """Drop the rows that are left behind a cut; without one, all."""
    last = rows.stages.last
    for start in range(0, len(rows), _STEP):
        own = slice(start, min(start + _STEP, len(rows)))
        dropped = rows.is_eligible(own)
        if cut is not None:
            numbers = np.arange(own.start, own.stop)
            dropped &= ~at_or_before(cut, rows.rank[own], rows.tie[own], numbers)
        rows.drop(start + np.flatnonzero(dropped), last)


def decide(
    rows: CorpusRows,
    request: FilterRequest,
    *,
    near_duplicates: Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]],
) -> list[QuotaCount]:
    """Run the stages before the last one.

    Parameters
    ----------
    near_duplicates : callable
        Finds near-duplicates by ROUGE-L, if they are asked for.

    Returns
    -------
    list of QuotaCount
        Empty without a quota.
    """
    kind = rows.stages.duplicates.kind
    if kind == "rouge_l":
        drop_found_duplicates(rows, near_duplicates())
    if kind == "exact" or request.top_k is not None:
        _decide_groups(rows, has_exact=kind == "exact", top_k=request.top_k)
    quota = request.quotas
    return [] if quota is None else apply_quota(rows, quota, request.n_or_share)


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What is counted of groups.

    Attributes
    ----------
    size, kept : uint32 ndarray of shape (n_rows,)
        Rows of each row's group, and the kept ones.
    n_kept : int
        Groups with kept rows.
    n_by_share : tuple of int
        Groups of which each kept share has rows.
    """

    size: NDArray[np.uint32]
    kept: NDArray[np.uint32]
    n_kept: int
    n_by_share: tuple[int, ...]


def count_groups(rows: CorpusRows, share: NDArray[np.uint8]) -> GroupCounts | None:
    """Count groups, if there are any; the hashes of ids are given up, counts lie in their place.

    Parameters
    ----------
    share : uint8 ndarray of shape (n_rows,)
        The smallest share that has a row; ``N_SHARES`` or more of rows that none has.
    """
    if rows.group is None:
        return None
    both = rows.tie.view(np.uint32).reshape(-1, 2)
    hashes = rows.group

    def work(members: NDArray[np.intp]) -> tuple[int, NDArray[np.int64]]:
        if not len(members):
            return 0, np.zeros(N_SHARES, np.int64)
        # Neighbors often share a group: then a stable sort is the faster one.
        ordered = members[np.argsort(hashes[members], kind="stable")]
        group = hashes[ordered]
        starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        sizes = np.diff(starts, append=len(ordered))
        kept = np.add.reduceat((rows.reason[ordered] == KEPT).astype(np.uint32), starts)
        smallest = np.minimum.reduceat(share[ordered], starts)
        both[ordered, 0] = np.repeat(sizes, sizes)
        both[ordered, 1] = np.repeat(kept, sizes)
        return int((kept > 0).sum()), np.bincount(smallest[smallest < N_SHARES], minlength=N_SHARES)

    n_kept, first = 0, np.zeros(N_SHARES, np.int64)
    for n, by_share in rows.each_group(work):
        n_kept += n
        first += by_share
    n_by_share = tuple(int(n) for n in np.cumsum(first))
    return GroupCounts(both[:, 0], both[:, 1], n_kept, n_by_share)
