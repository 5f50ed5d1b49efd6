"""Counts: what is kept of units: sums by bucket of clusters, and the few that differ most.

Everything adds up over parts, and none of it grows with rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.compare.units import SharedUnits
from qaeval_core.profile.column_profile import N_SUM_BUCKETS
from qaeval_core.profile.run_profile import ClusterCounts
from qaeval_core.stats.paired_rows import MAX_CHANGES, Changes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# Of a column whose values get tables of their own.
MAX_GROUPS = 50


@dataclass(slots=True)
class MeanSums:
    """Sums of complete units by bucket of clusters.

    Attributes
    ----------
    n : float ndarray of shape (n_metrics, n_buckets)
    sums : float ndarray of shape (n_metrics, n_systems, n_buckets)
    lowest, highest : float ndarray of shape (n_metrics, n_systems)
        NaN without a unit.
    """

    n: FloatArray
    sums: FloatArray
    lowest: FloatArray
    highest: FloatArray

    @classmethod
    def of_none(cls, n_metrics: int, n_systems: int) -> MeanSums:
        """Return the sums of no units."""
        ends = np.full((n_metrics, n_systems), np.nan)
        return cls(
            np.zeros((n_metrics, N_SUM_BUCKETS)),
            np.zeros((n_metrics, n_systems, N_SUM_BUCKETS)),
            ends,
            ends.copy(),
        )

    def add(self, values: FloatArray, buckets: NDArray[np.intp]) -> None:
        """Add units; those that lack a value of some system have no part in a metric."""
        for i, own in enumerate(values):
            is_whole = np.isfinite(own).all(axis=0)
            if not is_whole.any():
                continue
            at = buckets[is_whole]
            self.n[i] += np.bincount(at, minlength=N_SUM_BUCKETS)
            for j, each in enumerate(own[:, is_whole]):
                self.sums[i, j] += np.bincount(at, each, minlength=N_SUM_BUCKETS)
                self.lowest[i, j] = np.fmin(self.lowest[i, j], each.min())
                self.highest[i, j] = np.fmax(self.highest[i, j], each.max())


@dataclass(frozen=True, slots=True)
class FarUnit:
    """A unit whose systems differ: its key, and each one's value and row."""

    key: str
    spread: float
    values: tuple[float, ...]
    rows: tuple[int, ...]


class UnitCounts:
    """What is kept of units; of none at first.

    Attributes
    ----------
    n_units : int
        SharedUnits that every system has.
    n_rows, n_matched, n_repeated, n_unnamed : int ndarray of shape (n_systems,)
        See `SharedUnits`.
    undefined : int ndarray of shape (n_metrics, n_systems)
        Of these units.
    wins : int ndarray of shape (n_metrics, n_systems, n_systems)
        Complete units at which one system has more than another.
    has_others : bool ndarray of shape (n_metrics,)
        Whether a value is neither end of its metric's range.
    """

    def __init__(self, ranges: Sequence[tuple[float | None, float | None]], n_systems: int) -> None:
        n_metrics = len(ranges)
        self._ranges, self._n_systems = ranges, n_systems
        self.n_units = 0
        self.n_rows, self.n_matched, self.n_repeated, self.n_unnamed = np.zeros(
            (4, n_systems), np.int64
        )
        self.n_other_clusters = 0
        self.undefined = np.zeros((n_metrics, n_systems), np.int64)
        self.wins = np.zeros((n_metrics, n_systems, n_systems), np.int64)
        self.has_others = np.zeros(n_metrics, dtype=bool)
        self.whole = MeanSums.of_none(n_metrics, n_systems)
        self.groups: dict[str, dict[str | None, MeanSums] | None] = {}
        self.far: list[list[FarUnit]] = [[] for _ in ranges]
        self.clusters = ClusterCounts([np.empty(0, np.uint64)])

    def add(self, units: SharedUnits) -> None:
        """Count units."""
        self.n_rows += units.n_rows
        self.n_matched += units.n_matched
        self.n_repeated += units.n_repeated
        self.n_unnamed += units.n_unnamed
        self.n_other_clusters += units.n_other_clusters
        n = len(units.keys)
        if not n:
            return
        self.n_units += n
        self.undefined += (~np.isfinite(units.values)).sum(axis=2)
        buckets = (units.clusters % np.uint64(N_SUM_BUCKETS)).astype(np.intp)
        self.whole.add(units.values, buckets)
        self.clusters.add(units.clusters, [np.zeros(n, np.intp)])
        self._add_groups(units, buckets)
        for i, values in enumerate(units.values):
            is_whole = np.isfinite(values).all(axis=0)
            self._add_wins(i, values[:, is_whole])
            self._add_far(i, units, np.flatnonzero(is_whole))

    def _add_groups(self, units: SharedUnits, buckets: NDArray[np.intp]) -> None:
        for name, column in units.groups.items():
            known = self.groups.setdefault(name, {})
            coded = column.combine_chunks().dictionary_encode()
            texts = [*coded.dictionary.to_pylist(), None]
            codes = coded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
            present = np.unique(codes).tolist()
            if known is None or len(known.keys() | {texts[code] for code in present}) > MAX_GROUPS:
                self.groups[name] = None
                continue
            for code in present:
                empty = MeanSums.of_none(len(self._ranges), self._n_systems)
                own = known.setdefault(texts[code], empty)
                chosen = codes == code
                own.add(units.values[:, :, chosen], buckets[chosen])

    def _add_wins(self, metric: int, values: FloatArray) -> None:
        ends = [end for end in self._ranges[metric] if end is not None]
        self.has_others[metric] |= not bool(np.isin(values, ends).all())
        for i in range(self._n_systems):
            for j in range(i):
                changes = Changes.of(values[i], values[j])
                is_more = changes.is_changed & (changes.size > 0)
                is_less = changes.is_changed & (changes.size < 0)
                self.wins[metric, j, i] += int(is_more.sum())
                self.wins[metric, i, j] += int(is_less.sum())

    def _add_far(self, metric: int, units: SharedUnits, chosen: NDArray[np.intp]) -> None:
        values = units.values[metric][:, chosen]
        if not values.size:
            return
        keys = units.keys.take(pa.array(chosen))
        frame = pl.DataFrame({"spread": np.ptp(values, axis=0), "key": pl.from_arrow(keys)})
        # The key breaks ties, so that parts do not decide.
        order = frame.with_row_index("at").filter(pl.col("spread") > 0)
        order = order.sort("spread", "key", descending=[True, False]).head(MAX_CHANGES)
        found = [
            FarUnit(key, spread, tuple(values[:, at].tolist()), tuple(units.rows[:, chosen[at]]))
            for at, spread, key in order.rows()
        ]
        every = sorted([*self.far[metric], *found], key=lambda own: (-own.spread, own.key))
        self.far[metric] = every[:MAX_CHANGES]
