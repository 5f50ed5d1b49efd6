"""Shares: up to twenty parts of a ranking, best first, that could be kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.filter.corpus_rows import STEP, CorpusRows
from qaeval_core.filter.order import Cut
from qaeval_core.filter.write import NO_BIN, share_of_rows
from qaeval_core.stats.certificate import kept_rows


@dataclass(frozen=True, slots=True)
class Shares:
    """Up to twenty kept shares of the rows that reach the last stage, smallest first.

    A share ends where rank values differ: ``cuts`` are by value, never among equal rows.
    """

    n_eligible: int
    counts: tuple[int, ...]
    cuts: tuple[Cut, ...]

    def nearest(self, share: float) -> int:
        """Return the number of the share that is nearest to a fraction of the rows."""
        return int(np.argmin(np.abs(np.array(self.counts) / self.n_eligible - share)))


def make_shares(rows: CorpusRows) -> Shares:
    """Return the shares of the rows that are left that a certificate chooses from."""
    ranking = rows.ranking()
    n_eligible = len(ranking)
    if not n_eligible:
        return Shares(0, (), ())
    ends = dict(ranking.ends(kept_rows(n_eligible).tolist()))
    return Shares(n_eligible, tuple(ends), tuple(ends.values()))


def smallest_shares(rows: CorpusRows, shares: Shares) -> NDArray[np.uint8]:
    """Return the smallest share that keeps each row, 0 to 19; ``NO_BIN`` of dropped rows.

    Call it after the last stage but one: what that dropped is in no share.
    """
    for start in range(0, len(rows), STEP):
        own = slice(start, min(start + STEP, len(rows)))
        share = share_of_rows(rows.rank[own], rows.tie[own], shares.cuts, first_row=start)
        rows.share[own] = np.where(rows.is_eligible(own), share, NO_BIN)
    return rows.share
