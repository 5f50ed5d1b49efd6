"""Order: exact cuts of a corpus's ranking, in memory that does not grow with it.

Rows are ordered by rank value, highest first; equal values by a hash of the row's id, and equal
hashes by place. The n-th row of that order is found digit by digit (a radix selection), so that
nothing is copied or sorted: temporary arrays are of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]

_CHUNK = 1 << 20
# Rows of equal rank values that are looked at together; their sort takes some 50 bytes each.
_MAX_TIED = 1 << 18
_DIGIT_BITS = 16
_N_DIGITS = 1 << _DIGIT_BITS
_ODD = np.uint64(0x9E3779B97F4A7C15)
_LAST_DIGIT = np.uint64(_N_DIGITS - 1)
_NO_SIGN = np.int64((1 << 63) - 1)
# Behind all rows of a value.
_LAST_TIE, _LAST_ROW = (1 << 64) - 1, (1 << 63) - 1


class Cut(NamedTuple):
    """The last row that is kept: rows at or before it in the order are.

    Attributes
    ----------
    rank : float
        Rank value of the row; -inf where it is undefined.
    tie : int
        Hash of its id.
    row : int
        Its number over the whole corpus.
    """

    rank: float
    tie: int
    row: int


class Ranking:
    """The order of some rows of a corpus.

    Parameters
    ----------
    rank : float64 ndarray of shape (n_rows,)
        Higher is better; no NaN.
    tie : uint64 ndarray of shape (n_rows,)
    is_member : callable
        Takes a slice of rows and returns a bool ndarray: which of them are ordered at all.
    find_ties : callable, optional
        Is called before hashes are looked at: only if a row that is asked for has an equal.

    Examples
    --------
    >>> rank = np.array([0.5, 0.9, 0.5, 0.1])
    >>> ranking = Ranking(rank, np.array([7, 1, 3, 0], np.uint64), lambda rows: rank[rows] > 0.2)
    >>> [cut.row for cut in ranking.cuts([1, 2, 3])]
    [1, 2, 0]
    """

    def __init__(
        self,
        rank: NDArray[np.float64],
        tie: UInt64,
        is_member: Callable[[slice], NDArray[np.bool_]],
        *,
        find_ties: Callable[[], None] = lambda: None,
    ) -> None:
        self._find_ties = find_ties
        self._rank = rank
        self._tie = tie
        self._is_member = is_member

    def __len__(self) -> int:
        return sum(int(self._is_member(rows).sum()) for rows in self._slices())

    def cuts(self, counts: Sequence[int]) -> list[Cut]:
        """Return the n-th row of the order, for each of some n from 1 to the number of rows."""
        found = _select(self._keys, counts)
        n_tied = {key: n_equal for key, _, n_equal in found}
        if any(n > 1 for n in n_tied.values()):
            self._find_ties()
        if sum(n_tied.values()) <= _MAX_TIED:
            tied = self._tied_rows(sorted(n_tied))
            rows = [
                int(tied[key][count - n_before - 1])
                for (key, n_before, _), count in zip(found, counts, strict=True)
            ]
        else:
            rows = [
                self._nth_tied(key, count - n_before)
                for (key, n_before, _), count in zip(found, counts, strict=True)
            ]
        return [Cut(float(self._rank[row]), int(self._tie[row]), row) for row in rows]

    def ends(self, counts: Sequence[int]) -> list[tuple[int, Cut]]:
        """Return where the values of some rows end: how many rows are as good or better, and a cut.

        Parameters
        ----------
        counts : sequence of int
            Places of rows, from 1. Equal rows have one end: a cut by their value alone.
        """
        return [
            (n_before + n_equal, Cut(_rank_of(key), _LAST_TIE, _LAST_ROW))
            for key, n_before, n_equal in _select(self._keys, counts)
        ]

    def is_kept(self, cut: Cut, rows: slice) -> NDArray[np.bool_]:
        """Return which of some rows stand at or before a cut, members or not."""
        numbers = np.arange(rows.start, rows.stop)
        return at_or_before(cut, self._rank[rows], self._tie[rows], numbers)

    def _slices(self) -> Iterator[slice]:
        for start in range(0, len(self._rank), _CHUNK):
            yield slice(start, min(start + _CHUNK, len(self._rank)))

    def _keys(self) -> Iterator[UInt64]:
        for rows in self._slices():
            yield rank_keys(self._rank[rows][self._is_member(rows)])

    def _tied_rows(self, keys: Sequence[int]) -> dict[int, NDArray[np.intp]]:
        """Return the rows of each of some rank values, in order; one walk for all of them."""
        wanted = np.array(keys, np.uint64)
        parts: list[NDArray[np.intp]] = []
        for rows in self._slices():
            own = np.flatnonzero(self._is_member(rows))
            is_tied = np.isin(rank_keys(self._rank[rows][own]), wanted)
            parts.append(rows.start + own[is_tied])
        ordered = sorted_rows(np.concatenate(parts), self._rank, self._tie)
        found = rank_keys(self._rank[ordered])
        return {key: ordered[found == np.uint64(key)] for key in keys}

    def _nth_tied(self, key: int, n: int) -> int:
        """Return the n-th row, from 1, of a rank value that very many rows have."""

        def ties() -> Iterator[UInt64]:
            for rows in self._slices():
                yield self._tie[rows][self._is_member(rows) & (rank_keys(self._rank[rows]) == key)]

        ((tie, n_before, _),) = _select(ties, [n])
        return self._nth_row(key, tie, n - n_before)

    def _nth_row(self, key: int, tie: int, n: int) -> int:
        """Return the n-th row, from 1, of a rank and a hash."""
        for rows in self._slices():
            is_tied = (rank_keys(self._rank[rows]) == key) & (self._tie[rows] == tie)
            own = np.flatnonzero(is_tied & self._is_member(rows))
            if n <= len(own):
                return int(rows.start + own[n - 1])
            n -= len(own)
        raise AssertionError("fewer rows than counted")


def at_or_before(
    cut: Cut, rank: NDArray[np.float64], tie: UInt64, rows: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which rows stand at or before a cut, by their rank values, hashes and numbers."""
    same = rank == cut.rank
    earlier = (tie < np.uint64(cut.tie)) | ((tie == np.uint64(cut.tie)) & (rows <= cut.row))
    kept: NDArray[np.bool_] = (rank > cut.rank) | (same & earlier)
    return kept


def sorted_rows(
    rows: NDArray[np.intp], rank: NDArray[np.float64], tie: UInt64, *groups: NDArray[Any]
) -> NDArray[np.intp]:
    """Return rows in order, best first inside of each group; arrays are of all rows.

    Parameters
    ----------
    rows : int ndarray
        Ascending.
    groups : unsigned int ndarray
        The first is the outermost.
    """
    # The place comes last: the sort is not stable, and eight times as fast as one that is.
    keys = [*(own[rows] for own in groups), rank[rows] + 0.0, tie[rows], rows]
    frame = pl.DataFrame({str(i): key for i, key in enumerate(keys)})
    descending = [i == len(groups) for i in range(len(keys))]
    order = frame.select(pl.arg_sort_by(frame.columns, descending=descending)).to_series()
    found: NDArray[np.intp] = rows[order.to_numpy()]
    return found


def sorted_places(*keys: UInt64) -> NDArray[np.intp]:
    """Return the places of some values in ascending order, equal ones in the order they have."""
    frame = pl.DataFrame({str(i): key for i, key in enumerate([*keys, np.arange(len(keys[0]))])})
    found: NDArray[np.intp] = frame.select(pl.arg_sort_by(frame.columns)).to_series().to_numpy()
    return found


def have_equals(first: UInt64, second: UInt64) -> NDArray[np.bool_]:
    """Return which pairs of hashes another place has, too; few others as well, by chance.

    Examples
    --------
    >>> group = np.array([1, 1, 2, 2], np.uint64)
    >>> have_equals(group, rank_keys(np.array([0.5, 0.5, 0.5, 0.1]))).tolist()
    [True, True, False, False]
    """
    return pl.Series(first ^ (second * _ODD)).is_duplicated().to_numpy()


def mixed(hashes: UInt64, salt: np.uint64) -> UInt64:
    """Return hashes in another order: the finalizer of splitmix64 (Steele et al. 2014).

    It is a permutation: hashes that differ still do.
    """
    own = hashes + salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        own = (own ^ (own >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(own ^ (own >> np.uint64(31)))


def rank_keys(rank: NDArray[np.float64]) -> UInt64:
    """Return whole numbers that are the smaller the higher a float is; -0.0 is 0.0."""
    bits = (rank + 0.0).view(np.int64)
    # All bits but the sign are turned of what is not negative; in place, for this takes time.
    flips = bits >> 63
    np.invert(flips, out=flips)
    flips &= _NO_SIGN
    bits ^= flips
    return bits.view(np.uint64)


def _rank_of(key: int) -> float:
    """Return the float that `rank_keys` made a whole number of."""
    bits = np.uint64(key)
    if not bits >> np.uint64(63):
        bits ^= np.uint64(_NO_SIGN)
    return float(bits.view(np.float64))


def _select(
    chunks: Callable[[], Iterator[UInt64]], counts: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return the n-th smallest of values, how many are smaller and equal, for each n from 1.

    One walk over the values for each of two digits, whatever the number of counts, and one that
    gathers those of the same two digits; where these are too many, one for each digit that is left.
    """
    prefixes = np.zeros(len(counts), np.uint64)
    left = np.array(counts, np.int64)
    n_equal = np.zeros(len(counts), np.int64)
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        known = np.unique(prefixes)
        head = np.uint64(shift + _DIGIT_BITS)
        if shift < 32 and int(n_equal.sum()) <= _MAX_TIED:
            return _among(chunks, prefixes, left, counts, shift=head)
        histogram = np.zeros(len(known) * _N_DIGITS, np.int64)
        for chunk in chunks():
            if head == 64:
                flat = (chunk >> np.uint64(shift)).view(np.int64)
            else:
                values, slot = _of_heads(chunk, known, head)
                flat = ((values >> np.uint64(shift)) & _LAST_DIGIT).view(np.int64)
                flat += slot * _N_DIGITS
            histogram += np.bincount(flat, minlength=len(histogram))
        for i, prefix in enumerate(prefixes):
            first = int(np.searchsorted(known, prefix)) * _N_DIGITS
            own = histogram[first : first + _N_DIGITS]
            cumulated = np.cumsum(own)
            digit = int(np.searchsorted(cumulated, left[i]))
            n_equal[i] = own[digit]
            left[i] -= cumulated[digit - 1] if digit else 0
            prefixes[i] = (prefix << np.uint64(_DIGIT_BITS)) | np.uint64(digit)
    return [
        (int(prefix), count - int(rest), int(equal))
        for prefix, count, rest, equal in zip(prefixes, counts, left, n_equal, strict=True)
    ]


def _of_heads(values: UInt64, known: UInt64, shift: np.uint64) -> tuple[UInt64, NDArray[np.intp]]:
    """Return the values whose first digits are known, and the number of each one's digits."""
    heads = values >> shift
    # By their last digit, which most values do not share: a search among the known is slow.
    numbers = np.full(_N_DIGITS, -1, np.intp)
    numbers[known & _LAST_DIGIT] = np.arange(len(known))
    slot = numbers[heads & _LAST_DIGIT]
    places = np.flatnonzero(slot >= 0)
    heads, slot = heads[places], slot[places]
    if np.count_nonzero(numbers >= 0) < len(known):
        slot = np.minimum(np.searchsorted(known, heads), len(known) - 1)
    is_known = known[slot] == heads
    return values[places[is_known]], slot[is_known]


def _among(
    chunks: Callable[[], Iterator[UInt64]],
    prefixes: UInt64,
    left: NDArray[np.int64],
    counts: Sequence[int],
    *,
    shift: np.uint64,
) -> list[tuple[int, int, int]]:
    """Return what `_select` does, of the few values that begin as the wanted ones do."""
    known = np.unique(prefixes)
    gathered = np.sort(np.concatenate([_of_heads(own, known, shift)[0] for own in chunks()]))
    heads = gathered >> shift
    found = []
    for prefix, rest, count in zip(prefixes, left, counts, strict=True):
        value = gathered[np.searchsorted(heads, prefix) + int(rest) - 1]
        first, stop = np.searchsorted(gathered, value), np.searchsorted(gathered, value, "right")
        n_before = count - int(rest) + int(first - np.searchsorted(heads, prefix))
        found.append((int(value), n_before, int(stop - first)))
    return found
