"""Quotas: how many rows each value of a column may have, and which of its rows these are.

What is known of a value is a few numbers in arrays, so there may be millions of values: passages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.filter.corpus_rows import STEP, CorpusRows, Parts
from qaeval_core.filter.facts import KEPT
from qaeval_core.filter.groups import each_part, places_in
from qaeval_core.filter.order import mixed, sorted_rows
from qaeval_core.filter.request import Quota

# Values that are told one by one: those of the most rows.
N_TOLD = 50
_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaCounts:
    """Rows of a value, or of several: that reach a stage, may stay, and do."""

    n_reaching: int
    n_allowed: int
    n_kept: int

    @property
    def shortfall(self) -> int:
        """Rows that it may have and does not."""
        return self.n_allowed - self.n_kept

    def content(self) -> dict[str, int]:
        """Return what filter.json says."""
        return {**asdict(self), "shortfall": self.shortfall}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedValues:
    """What a stage did to the values of a column.

    Attributes
    ----------
    n_values, n_short : int
        Values that reach it, and those with fewer rows than they may have.
    told : mapping of row to QuotaCounts
        Of the values of the most rows; by a row that has the value.
    all, others : QuotaCounts
        Of all values, and of those that are not told.
    """

    column: str
    n_values: int
    n_short: int
    told: Mapping[int, QuotaCounts]
    all: QuotaCounts
    others: QuotaCounts

    def content(self, names: Mapping[tuple[int, str], str | None]) -> dict[str, Any]:
        """Return what filter.json says, with the texts of values by row and column."""
        return {
            "n_values": self.n_values,
            "n_short": self.n_short,
            "shortfall": self.all.shortfall,
            "values": [
                {"value": names[row, self.column], **own.content()}
                for row, own in self.told.items()
            ],
            "others": {"n_values": self.n_values - len(self.told), **self.others.content()},
        }


def n_of(size: Fraction | int, n_rows: int) -> int:
    """Return how many of some rows a share or a budget is: rounded down, one at least.

    Examples
    --------
    >>> n_of(Fraction("0.29"), 100), n_of(Fraction("0.001"), 10), n_of(50, 10), n_of(1, 0)
    (29, 1, 10, 0)
    """
    wanted = int(size * n_rows) if isinstance(size, Fraction) else size
    return min(max(wanted, 1), n_rows)


def apply_quota(
    rows: CorpusRows, column: str, quota: Quota, size: Fraction | int | None
) -> CountedValues:
    """Drop rows that a value of a quota's column has too many.

    Parameters
    ----------
    size : Fraction or int, optional
        The share or number of rows to divide, for a quota that divides one.

    Raises
    ------
    ConfigError
        If a budget has not one row for each value.
    """
    reaching = _reaching(rows, column)
    n_values, each = int(np.count_nonzero(reaching)), quota.n
    if quota.kind == "equal":
        assert size is not None, "checked by the request"
        budget = n_of(size, int(reaching.sum()))
        each = budget // max(n_values, 1)
        if n_values and not each:
            raise ConfigError(
                f"--quota {quota.column}=equal: the budget of {budget:,} rows is smaller than the "
                f"{n_values:,} values of {quota.column} [QA0709]"
            )
    allowed = np.where(reaching > 0, each, 0)
    return _keep_allowed(rows, column, reaching, allowed, reason="quota")


def apply_share(
    rows: CorpusRows, column: str, size: Fraction | int, *, seed: int, reason: str
) -> CountedValues:
    """Keep a share of the rows of each value of a column, or divide a budget in proportion."""
    reaching = _reaching(rows, column)
    total = int(reaching.sum())
    n_rows = n_of(size, total)
    each = size if isinstance(size, Fraction) else Fraction(n_rows, max(total, 1))
    allowed = largest_remainders(each, reaching, n_rows, order=_order(rows, column, seed))
    return _keep_allowed(rows, column, reaching, allowed, reason=reason)


def largest_remainders(
    each: Fraction, sizes: NDArray[np.int64], n: int, *, order: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return a share of each size: its whole part, and one more for the largest remainders.

    Parameters
    ----------
    each : Fraction
    sizes : int64 ndarray of shape (n_values,)
    n : int
        The sum: that of all sizes times the share, rounded.
    order : uint64 ndarray of shape (n_values,)
        Which of equal remainders come first: the smallest.

    Examples
    --------
    >>> order = np.array([3, 1, 2], np.uint64)
    >>> largest_remainders(Fraction("0.5"), np.array([1, 1, 1]), 1, order=order).tolist()
    [0, 1, 0]
    """
    # Equal sizes have equal remainders, and there are few sizes.
    known = np.unique(sizes)
    kinds = np.searchsorted(known, sizes).astype(np.min_scalar_type(len(known)))
    exact = [each * int(size) for size in known]
    rests = [part - int(part) for part in exact]
    places = {rest: place for place, rest in enumerate(sorted(set(rests), reverse=True))}
    shares: NDArray[np.int64] = np.array([int(part) for part in exact], np.int64)[kinds]
    place = np.array([places[rest] for rest in rests], kinds.dtype)[kinds]
    left = n - int(shares.sum())
    ends = np.cumsum(np.bincount(place))
    last = int(np.searchsorted(ends, left))
    shares[place < last] += 1
    n_before = int(ends[last - 1]) if last else 0
    shares[_first(np.flatnonzero(place == last), left - n_before, order)] += 1
    return shares


def _first(values: NDArray[np.intp], n: int, order: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the n values that come first, in any order; all if they are no more."""
    if len(values) <= n:
        return values
    places: NDArray[np.intp] = np.argpartition(order[values], n)[:n]
    return values[places]


def _order(rows: CorpusRows, column: str, seed: int) -> NDArray[np.uint64]:
    """Return hashes of values and the seed, by which equal ones are told apart."""
    return mixed(rows.values[column].hashes(), np.uint64(seed * _ODD % (1 << 64)))


def _reaching(rows: CorpusRows, column: str) -> NDArray[np.int64]:
    """Return how many rows of each value no stage has dropped."""
    values = rows.values[column]
    found = np.zeros(len(values), np.int64)
    for start in range(0, len(rows), STEP):
        own = slice(start, start + STEP)
        np.add.at(found, values.code[own][rows.is_eligible(own)], 1)
    return found


def _keep_allowed(
    rows: CorpusRows,
    column: str,
    reaching: NDArray[np.int64],
    allowed: NDArray[np.int64],
    *,
    reason: str,
) -> CountedValues:
    """Drop the rows of each value behind its best ones."""
    rows.value = rows.values[column].code
    # Sorted together where they are few; of more the cut is found without a copy.
    is_cut = allowed < reaching
    is_large = reaching > rows.rows_per_part
    for code in np.flatnonzero(is_cut & is_large).tolist():
        _cut_value(rows, code, int(allowed[code]), reason)
    _cut_values(rows, np.where(is_cut & ~is_large, reaching, 0), allowed, reason)
    return _counted(rows, column, reaching, allowed)


def _cut_value(rows: CorpusRows, code: int, n_kept: int, reason: str) -> None:
    assert rows.value is not None
    ranking = rows.ranking(value=code)
    (cut,) = ranking.cuts([n_kept]) if n_kept else [None]
    for start in range(0, len(rows), STEP):
        own = slice(start, min(start + STEP, len(rows)))
        dropped = rows.is_eligible(own) & (rows.value[own] == code)
        if cut is not None:
            dropped &= ~ranking.is_kept(cut, own)
        rows.drop(start + np.flatnonzero(dropped), reason)


def _cut_values(
    rows: CorpusRows, sizes: NDArray[np.int64], allowed: NDArray[np.int64], reason: str
) -> None:
    """Cut the values that have a size, some whole ones at a time."""
    if not sizes.any():
        return
    part = (np.cumsum(sizes) - sizes) // rows.rows_per_part
    n_parts = int(part[-1]) + 1
    part[sizes == 0] = n_parts
    numbers = part.astype(np.min_scalar_type(n_parts))

    def part_of(own: slice) -> NDArray[np.uint64]:
        assert rows.value is not None
        return np.asarray(numbers[rows.value[own]], np.uint64)

    def work(rows: CorpusRows, members: NDArray[np.intp]) -> bool:
        """Return False, and do nothing, if hashes of ids are wanted first."""
        assert rows.value is not None
        left = members[rows.reason[members] == KEPT]
        ordered = sorted_rows(left, rows.rank, rows.tie, rows.value)
        value = rows.value[ordered]
        place, n_kept = places_in(value), allowed[value]
        if rows.find_ties is not None and _is_tied(rows, ordered, place, n_kept):
            return False
        rows.drop(ordered[place >= n_kept], reason)
        return True

    each_part(rows, Parts(n_parts, part_of), work, ("rank", "tie", "value"), ("reason",))


def _is_tied(
    rows: CorpusRows,
    ordered: NDArray[np.intp],
    place: NDArray[np.intp],
    n_kept: NDArray[np.int64],
) -> bool:
    """Return whether a cut is among rows of equal rank, of which a hash is not known."""
    rank = rows.rank[ordered]
    is_equal = np.zeros(len(ordered), dtype=bool)
    is_equal[1:] = (place[1:] > 0) & (rank[1:] == rank[:-1])
    first = np.maximum.accumulate(np.where(is_equal, 0, np.arange(len(ordered))))
    # What is not known is a 0, and comes first of its equals.
    return bool((rows.tie[ordered[first[is_equal & (place == n_kept)]]] == 0).any())


def _counted(
    rows: CorpusRows, column: str, reaching: NDArray[np.int64], allowed: NDArray[np.int64]
) -> CountedValues:
    """Return what was counted; values of the most rows are told, equal ones by hash."""
    kept = np.minimum(reaching, allowed)

    def counts(chosen: NDArray[np.intp] | slice) -> QuotaCounts:
        n = [int(own[chosen].sum()) for own in (reaching, allowed, kept)]
        return QuotaCounts(n_reaching=n[0], n_allowed=n[1], n_kept=n[2])

    there = np.flatnonzero(reaching)
    told, order = there, _order(rows, column, 0)
    if len(there) > N_TOLD:
        least = np.partition(reaching, -N_TOLD)[-N_TOLD]
        more, equal = np.flatnonzero(reaching > least), np.flatnonzero(reaching == least)
        told = np.concatenate([more, _first(equal, N_TOLD - len(more), order)])
    told = told[np.lexsort([order[told], -reaching[told]])]
    others = np.ones(len(reaching), dtype=bool)
    others[told] = False
    row_of = _rows_of(rows, told)
    return CountedValues(
        column=column,
        n_values=len(there),
        n_short=int(np.count_nonzero(kept < allowed)),
        told={row_of[int(code)]: counts(np.array([code])) for code in told},
        all=counts(slice(None)),
        others=counts(np.flatnonzero(others)),
    )


def _rows_of(rows: CorpusRows, codes: NDArray[np.intp]) -> dict[int, int]:
    """Return the first row of each of some values."""
    assert rows.value is not None
    found: dict[int, int] = {}
    for start in range(0, len(rows), STEP):
        if len(found) == len(codes):
            break
        own = rows.value[start : start + STEP]
        places = np.flatnonzero(np.isin(own, codes))
        known, first = np.unique(own[places], return_index=True)
        for code, place in zip(known.tolist(), places[first].tolist(), strict=True):
            found.setdefault(code, start + place)
    return found
