"""Decide: the stages that need all rows: duplicates, top-k, quotas, and the share.

Cuts are found without copies, so that temporary arrays do not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.filter.corpus_rows import NO_TWIN, STEP, CorpusRows
from qaeval_core.filter.groups import decide_groups
from qaeval_core.filter.order import Cut, at_or_before
from qaeval_core.filter.request import FilterRequest, Quota


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
    for start in range(0, len(rows), STEP):
        own = slice(start, start + STEP)
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
    for start in range(0, len(rows), STEP):
        own = slice(start, min(start + STEP, len(rows)))
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
    for start in range(0, len(rows), STEP):
        own = slice(start, min(start + STEP, len(rows)))
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
        decide_groups(rows, has_exact=kind == "exact", top_k=request.top_k)
    quota = request.quotas
    return [] if quota is None else apply_quota(rows, quota, request.n_or_share)
