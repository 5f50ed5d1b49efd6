"""Pair counts: what is kept of the rows that two runs share. It adds up, and grows with no rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.profile.column_profile import N_SUM_BUCKETS, FloatArray
from qaeval_core.profile.run_profile import UInt64
from qaeval_core.stats.bootstrap import LEVEL, Comparison
from qaeval_core.stats.paired_rows import MAX_CHANGES, PARITY, Change, Changes
from qaeval_core.stats.paired_tests import PairedTests

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedPairs:
    """Some rows that two runs share.

    Attributes
    ----------
    ids : pyarrow.ChunkedArray of shape (n_pairs,)
    rows : int ndarray of shape (n_pairs,)
        Their numbers in the current run.
    clusters : uint64 ndarray of shape (n_pairs,)
        Hashes.
    values : mapping of column to pair of float ndarray of shape (n_pairs,)
        Of the reference and of the current run; NaN where undefined.
    is_same : mapping of column to bool ndarray of shape (n_pairs,)
        Rows whose input and signature are the same in both; a column that is not there has none.
    """

    ids: pa.ChunkedArray
    rows: NDArray[np.int64]
    clusters: UInt64
    values: Mapping[str, tuple[FloatArray, FloatArray]]
    is_same: Mapping[str, BoolArray] = field(default_factory=dict)


class MatchedCounts:
    """What the pairs of two runs say; of none at first.

    Examples
    --------
    >>> counts = MatchedCounts(AuditSettings(n_draws=99))
    >>> for row, (before, now) in enumerate([(0.5, 0.75), (0.5, 0.5)]):
    ...     values = {"f1": (np.array([before]), np.array([now]))}
    ...     ids, own = pa.chunked_array([[f"q{row}"]]), np.array([row])
    ...     pairs = MatchedPairs(ids=ids, rows=own, clusters=own.astype(np.uint64), values=values)
    ...     counts.add(pairs)
    >>> [(own.n_pairs, own.difference, own.largest) for own in counts.columns()]
    [(2, 0.125, (Change(id='q0', reference=0.5, current=0.75),))]
    """

    def __init__(self, settings: AuditSettings) -> None:
        self._settings = settings
        self._columns: dict[str, _ColumnPairs] = {}
        self._is_occupied = np.zeros(N_SUM_BUCKETS, dtype=bool)

    def add(self, pairs: MatchedPairs) -> None:
        """Count pairs that no call before had."""
        buckets = (pairs.clusters % np.uint64(N_SUM_BUCKETS)).astype(np.intp)
        self._is_occupied[buckets] = True
        for name in pairs.values:
            own = self._columns.setdefault(name, _ColumnPairs(self._settings.min_clusters))
            own.add(name, pairs, buckets)

    def columns(self) -> list[PairedColumn]:
        """Return what was found of each column, corrected for all of them."""
        tests, found = self._tests(), []
        for name, own in self._columns.items():
            # What has no verdict has no part in the correction.
            chosen = self._tests() if own.is_few else tests
            occupied = self._is_occupied
            (test,) = chosen.add(own.apart[None, occupied], own.n[occupied])
            found.append(own.result(name, test))
        p_values = iter(tests.corrected())
        return [own if own.is_few else replace(own, p_adjusted=next(p_values)) for own in found]

    def _tests(self) -> PairedTests:
        level = max(LEVEL, 1 - self._settings.alpha)
        own = self._settings
        return PairedTests(n_resamples=own.n_draws, seed=own.seed, level=level)


class _ColumnPairs:
    """The pairs of one column.

    Attributes
    ----------
    apart : float ndarray of shape (n_buckets,)
        Sums of differences by bucket of clusters.
    n : int ndarray of shape (n_buckets,)
        Rows that have a difference.
    """

    def __init__(self, min_clusters: int) -> None:
        self.apart = np.zeros(N_SUM_BUCKETS)
        self.n = np.zeros(N_SUM_BUCKETS, np.int64)
        self._before = _Spread()
        self._min_clusters = min_clusters
        self._clusters = np.empty(0, np.uint64)
        self._n_pairs = self._n_both = self._n_up = self._n_down = 0
        self._n_appeared = self._n_vanished = self._n_same = self._n_other = 0
        self._largest, self._not_reproduced = _Largest(), _Largest()

    @property
    def is_few(self) -> bool:
        """Whether the rows with a difference are of too few clusters for a verdict."""
        return len(self._clusters) < self._min_clusters

    def add(self, name: str, pairs: MatchedPairs, buckets: NDArray[np.intp]) -> None:
        """Count pairs."""
        before, now = pairs.values[name]
        changes = Changes.of(before, now)
        # Of the rows that have a difference: clusters of other rows tell nothing of it.
        has_size = np.isfinite(before) & np.isfinite(now) & np.isfinite(changes.size)
        at, sizes = buckets[has_size], changes.size[has_size]
        self.apart += np.bincount(at, sizes, minlength=N_SUM_BUCKETS)
        self.n += np.bincount(at, minlength=N_SUM_BUCKETS)
        self._before.add(before[has_size])
        if self.is_few:
            seen = np.union1d(self._clusters, pairs.clusters[has_size])
            self._clusters = seen[: self._min_clusters]
        was_there, is_there = ~np.isnan(before), ~np.isnan(now)
        is_changed = changes.is_changed
        same = pairs.is_same.get(name, np.zeros(len(before), dtype=bool))
        is_other = same & (is_changed | (was_there != is_there))
        self._n_pairs += len(before)
        self._n_both += _count(was_there & is_there)
        self._n_up += _count(is_changed & (changes.size > 0))
        self._n_down += _count(is_changed & (changes.size < 0))
        self._n_appeared += _count(~was_there & is_there)
        self._n_vanished += _count(was_there & ~is_there)
        self._n_same += _count(same)
        self._n_other += _count(is_other)
        self._largest.add(name, pairs, is_changed)
        self._not_reproduced.add(name, pairs, is_other)

    def result(self, name: str, test: Comparison) -> PairedColumn:
        """Return what was found, with what a test says of it."""
        is_alike = math.isnan(test.interval.low)
        return PairedColumn(
            column=name,
            n_pairs=self._n_pairs,
            n_both=self._n_both,
            difference=test.difference,
            low=test.difference if is_alike else test.interval.low,
            high=test.difference if is_alike else test.interval.high,
            p=test.p_value,
            effect=self._before.effect(test.difference),
            share_up=self._n_up / max(self._n_both, 1),
            share_down=self._n_down / max(self._n_both, 1),
            n_appeared=self._n_appeared,
            n_vanished=self._n_vanished,
            largest=self._largest.changes,
            n_not_reproduced=self._n_other,
            is_few=self.is_few,
            n_same=self._n_same,
            not_reproduced=self._not_reproduced.changes,
        )


def _count(chosen: BoolArray) -> int:
    return int(np.count_nonzero(chosen))


@dataclass(slots=True)
class _Spread:
    """The standard deviation of values that come in parts, which is added up as differences are.

    Chan, Golub and LeVeque: of two parts it is that of each, and of the distance of their means.
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    farthest: float = 1.0

    def add(self, values: FloatArray) -> None:
        """Add finite values."""
        if not len(values):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(values.mean())
            self.squares += float(np.square(values - mean).sum())
            n, apart = self.n + len(values), np.float64(mean) - self.mean
            if self.n:  # Else huge values had a distance from no mean, and no spread that is known.
                self.squares += float(apart * apart * (self.n * len(values) / n))
                mean = float(self.mean + apart * (len(values) / n))
            self.mean = mean
        self.n = n
        self.farthest = max(self.farthest, float(np.abs(values).max()))

    def effect(self, difference: float) -> float:
        """Return a mean difference in standard deviations; of one value alone, its direction."""
        spread = math.sqrt(self.squares / self.n) if self.n else 0.0
        if not spread <= PARITY * PARITY * self.farthest:
            return difference / spread
        return float(np.sign(difference)) if not abs(difference) <= PARITY else 0.0


class _Largest:
    """The 20 largest changes; those of undefined values come first, then earlier rows."""

    def __init__(self) -> None:
        self._found: list[tuple[float, int, Change]] = []

    def add(self, name: str, pairs: MatchedPairs, chosen: BoolArray) -> None:
        """Add the chosen pairs."""
        before, now = pairs.values[name]
        at = np.flatnonzero(chosen)
        with np.errstate(invalid="ignore", over="ignore"):
            sizes = np.nan_to_num(np.abs(now[at] - before[at]), nan=np.inf)
        for i in np.lexsort((pairs.rows[at], -sizes))[:MAX_CHANGES].tolist():
            row = int(at[i])
            change = Change(str(pairs.ids[row]), float(before[row]), float(now[row]))
            self._found.append((-float(sizes[i]), int(pairs.rows[row]), change))
        self._found = sorted(self._found, key=lambda own: own[:2])[:MAX_CHANGES]

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for _, _, change in self._found)
