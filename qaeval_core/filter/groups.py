"""Groups: the stages inside of groups, and what is counted of them.

Groups are worked on some at a time: temporary arrays do not grow with the corpus, but with its
largest group. Where arrays are mapped, rows of the same part are first put beside each other: else
each part would read every page of every array.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.filter.corpus_rows import NO_TWIN, STEP, CorpusRows, Parts
from qaeval_core.filter.facts import KEPT
from qaeval_core.filter.order import have_equals, sorted_places, sorted_rows
from qaeval_core.stats.certificate import N_SHARES


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
    best = ordered[best]
    rows.twin[ordered[twins]] = best if rows.number is None else rows.number[best]
    rows.drop(ordered[twins], "duplicate")
    return np.delete(ordered, twins)


def decide_groups(rows: CorpusRows, *, has_exact: bool, top_k: int | None) -> None:
    """Run the stages inside of groups."""

    def work(rows: CorpusRows, members: NDArray[np.intp]) -> bool:
        """Return False, and do nothing, if hashes of ids are wanted first."""
        assert rows.group is not None
        hashes = rows.group
        left = members[rows.reason[members] == KEPT]
        ordered = sorted_rows(left, rows.rank, rows.tie, hashes)
        group, rank, is_unknown = hashes[ordered], rows.rank[ordered], rows.tie[ordered] == 0
        is_tied = (group[1:] == group[:-1]) & (rank[1:] == rank[:-1])
        if rows.find_ties is not None and (is_tied & (is_unknown[1:] | is_unknown[:-1])).any():
            return False
        if has_exact:
            ordered = _drop_exact_duplicates(rows, members, ordered)
        if top_k is not None:
            rows.drop(ordered[places_in(hashes[ordered]) >= top_k], "top_k")
        return True

    changed = ("reason", *(["twin"] if has_exact else []))
    each_part(rows, rows.group_parts(), work, ("rank", "tie", "group"), changed)


def each_part(
    rows: CorpusRows,
    parts: Parts,
    work: Callable[[CorpusRows, NDArray[np.intp]], bool],
    names: Sequence[str],
    changed: Sequence[str],
) -> None:
    """Have a function work on parts of the rows; once more where it wants hashes of ids first.

    Parameters
    ----------
    work : callable
        Takes rows and the members of a part; returns False, and does nothing, without hashes.
    names, changed : sequence of str
        Arrays that are read; those that are read and written.
    """
    with _together(rows, parts, names, changed) as own:
        is_done = list(own.each_part(parts, partial(work, own)))
    if not all(is_done):
        rows.look_up_ties()
        left = {turn for turn, done in enumerate(is_done) if not done}
        with _together(rows, parts, names, changed) as own:
            assert all(own.each_part(parts, partial(work, own), chosen=left))


@contextlib.contextmanager
def _together(
    rows: CorpusRows, parts: Parts, names: Sequence[str], changed: Sequence[str]
) -> Iterator[CorpusRows]:
    """Give the rows; where arrays are mapped, copies of some, in the order of their parts."""
    if not rows.is_mapped:
        yield rows
        return
    own = copy.copy(rows)
    own.number = rows.zeros(np.int64)
    for name in (*names, *changed):
        setattr(own, name, rows.zeros(getattr(rows, name).dtype))
    sizes = np.zeros(parts.n + 1, np.int64)
    for here in _steps(rows):
        sizes += np.bincount(parts.of(here).view(np.int64), minlength=len(sizes))
    own.bounds = np.cumsum(sizes) - sizes
    for here, places in _places_together(rows, parts, own.bounds):
        own.number[places] = np.arange(here.start, here.stop)
        for name in (*names, *changed):
            getattr(own, name)[places] = getattr(rows, name)[here]
    yield own
    for here, places in _places_together(rows, parts, own.bounds):
        for name in changed:
            getattr(rows, name)[here] = getattr(own, name)[places]


def _steps(rows: CorpusRows) -> Iterator[slice]:
    for start in range(0, len(rows), STEP):
        yield slice(start, min(start + STEP, len(rows)))


def _places_together(
    rows: CorpusRows, parts: Parts, bounds: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield some rows at a time, and their places where parts stand one by one.

    Rows of none come last.
    """
    filled = bounds.copy()
    for own in _steps(rows):
        # Small numbers are sorted faster.
        numbers = parts.of(own).astype(np.min_scalar_type(parts.n))
        order = np.argsort(numbers, kind="stable")
        sizes = np.bincount(numbers, minlength=len(bounds))
        first = np.repeat(filled - np.cumsum(sizes) + sizes, sizes)
        places = np.empty(len(order), np.int64)
        places[order] = first + np.arange(len(order))
        filled += sizes
        yield own, places


def places_in(sorted_groups: NDArray[Any]) -> NDArray[np.intp]:
    """Return the place of each row in its group, from 0."""
    places = np.arange(len(sorted_groups))
    is_first = np.ones(len(sorted_groups), dtype=bool)
    is_first[1:] = sorted_groups[1:] != sorted_groups[:-1]
    first: NDArray[np.intp] = np.maximum.accumulate(np.where(is_first, places, 0))
    return places - first


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


def count_groups(rows: CorpusRows) -> GroupCounts | None:
    """Count groups, if there are any; the hashes of ids are given up, counts lie in their place."""
    if rows.group is None:
        return None

    def work(rows: CorpusRows, members: NDArray[np.intp]) -> tuple[int, NDArray[np.int64]]:
        if not len(members):
            return 0, np.zeros(N_SHARES, np.int64)
        assert rows.group is not None
        both, hashes = _pairs(rows.tie), rows.group
        # Neighbors often share a group: then a stable sort is the faster one.
        ordered = members[np.argsort(hashes[members], kind="stable")]
        group = hashes[ordered]
        starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        sizes = np.diff(starts, append=len(ordered))
        kept = np.add.reduceat((rows.reason[ordered] == KEPT).astype(np.uint32), starts)
        smallest = np.minimum.reduceat(rows.share[ordered], starts)
        both[ordered, 0] = np.repeat(sizes, sizes)
        both[ordered, 1] = np.repeat(kept, sizes)
        return int((kept > 0).sum()), np.bincount(smallest[smallest < N_SHARES], minlength=N_SHARES)

    n_kept, first = 0, np.zeros(N_SHARES, np.int64)
    parts = rows.group_parts()
    with _together(rows, parts, ("group", "reason", "share"), ("tie",)) as own:
        for n, by_share in own.each_part(parts, partial(work, own)):
            n_kept += n
            first += by_share
    both = _pairs(rows.tie)
    n_by_share = tuple(int(n) for n in np.cumsum(first))
    return GroupCounts(both[:, 0], both[:, 1], n_kept, n_by_share)


def _pairs(numbers: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return an array as two halves of each number."""
    return numbers.view(np.uint32).reshape(-1, 2)
