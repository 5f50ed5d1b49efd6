"""Paired: the rows that two runs share, value by value, which tell far smaller changes apart.

Where at least half the ids of both runs are in both: the mean difference with an interval over
clusters drawn again, how many values rose and fell, and the largest changes. And a tripwire: the
same input scored by the same signature has the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.compare import Alert
from qaeval_core.audit.drift import Drawn, Test, shift
from qaeval_core.audit.p_values import adjusted
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.profile.column_profile import N_BUCKETS, FloatArray
from qaeval_core.stats.bootstrap import resample_weights
from qaeval_core.stats.paired_rows import PARITY, Change, Changes, MatchedRows, largest_changes

MIN_SHARE = 0.5
_MAX_NAMED = 3


def are_enough(matched: MatchedRows) -> bool:
    """Return whether runs can be compared in pairs."""
    return matched.share >= MIN_SHARE


@dataclass(frozen=True, slots=True)
class PairedColumn:
    """The differences of one column, current less reference, of rows defined in both.

    Attributes
    ----------
    n_pairs, n_both : int
        Rows in both runs; those defined in both.
    difference, low, high : float
        Mean, and its 95 % interval; NaN where no row is defined in both.
    p : float
        The chance of such a mean where nothing changed.
    effect : float
        The mean in standard deviations of the reference.
    share_up, share_down : float
        Of rows that changed by more than `PARITY`.
    n_appeared, n_vanished : int
        Rows that were undefined and are not any more, and the other way round.
    largest : tuple of Change
        The 20 largest changes.
    n_not_reproduced : int
        Values that changed though input and signature did not.
    is_few : bool
        Whether the rows with a difference are of too few clusters for a verdict.
    n_same : int
        Rows whose input and signature are known to be the same.
    not_reproduced : tuple of Change
        The 20 largest changes of these; those from or to undefined first.
    p_adjusted : float
        For all columns together, by max-T; NaN where there are too few clusters.
    """

    column: str
    n_pairs: int
    n_both: int
    difference: float
    low: float
    high: float
    p: float
    effect: float
    share_up: float
    share_down: float
    n_appeared: int
    n_vanished: int
    largest: tuple[Change, ...]
    n_not_reproduced: int
    is_few: bool
    n_same: int = 0
    not_reproduced: tuple[Change, ...] = ()
    p_adjusted: float = math.nan


def pair_columns(
    values: Mapping[str, tuple[FloatArray, FloatArray]],
    ids: pa.ChunkedArray,
    clusters: NDArray[np.uint64],
    settings: AuditSettings,
    *,
    is_same: Mapping[str, NDArray[np.bool_]] | None = None,
) -> list[PairedColumn]:
    """Compare the values of matched rows.

    Parameters
    ----------
    values : mapping of column to pair of float ndarray of shape (n_pairs,)
        Of the reference and of the current run; NaN where undefined.
    ids : pyarrow.ChunkedArray of shape (n_pairs,)
    clusters : uint64 ndarray of shape (n_pairs,)
        Hashes.
    settings : AuditSettings
    is_same : mapping of column to bool ndarray of shape (n_pairs,), optional
        Rows whose input and signature are the same in both.
    """
    buckets = (clusters % np.uint64(N_BUCKETS)).astype(np.intp)
    occupied, places = np.unique(buckets, return_inverse=True)
    drawn = resample_weights(len(occupied), n_resamples=settings.n_draws, seed=settings.seed)
    weights = np.concatenate([np.empty((len(occupied), 0)), *drawn], axis=1).T
    found, tests = [], []
    for name, (before, now) in values.items():
        same = (is_same or {}).get(name, np.zeros(len(ids), dtype=bool))
        # Of the rows that have a difference: clusters of other rows tell nothing of it.
        n_clusters = len(np.unique(clusters[np.isfinite(before) & np.isfinite(now)]))
        is_few = n_clusters < settings.min_clusters
        draws = (places, weights)
        own, test = _pair(name, before, now, ids=ids, draws=draws, same=same, is_few=is_few)
        found.append(own)
        tests.append(test)
    return [replace(own, p_adjusted=p) for own, p in zip(found, adjusted(tests), strict=True)]


def _pair(
    name: str,
    before: FloatArray,
    now: FloatArray,
    *,
    ids: pa.ChunkedArray,
    draws: tuple[NDArray[np.intp], FloatArray],
    same: NDArray[np.bool_],
    is_few: bool,
) -> tuple[PairedColumn, Test]:
    there = [~np.isnan(own) for own in (before, now)]
    changes = Changes.of(before, now)
    change, is_changed = changes.size, changes.is_changed
    is_measured = np.isfinite(before) & np.isfinite(now) & np.isfinite(change)
    places, weights = draws
    n = weights.shape[1]
    sums = np.bincount(places[is_measured], change[is_measured], minlength=n)
    counts = np.bincount(places[is_measured], minlength=n)
    difference, drawn = Drawn.of(np.stack([sums, counts], axis=1), weights).ratio(0, 1)
    test = shift(Test(name, "", "mean", np.nan, np.nan, difference, is_few=is_few), drawn)
    n_both = int((there[0] & there[1]).sum())
    is_other = same & (is_changed | (there[0] != there[1]))
    paired = PairedColumn(
        column=name,
        n_pairs=len(before),
        n_both=n_both,
        difference=difference,
        low=test.low,
        high=test.high,
        p=test.p,
        effect=_effect(difference, before[is_measured]),
        share_up=float((is_changed & (change > 0)).sum()) / max(n_both, 1),
        share_down=float((is_changed & (change < 0)).sum()) / max(n_both, 1),
        n_appeared=int((~there[0] & there[1]).sum()),
        n_vanished=int((there[0] & ~there[1]).sum()),
        largest=largest_changes(is_changed, ids, before, now),
        n_not_reproduced=int(is_other.sum()),
        is_few=is_few,
        n_same=int(same.sum()),
        not_reproduced=largest_changes(is_other, ids, before, now),
    )
    return paired, test


def _effect(difference: float, before: FloatArray) -> float:
    """Return a mean difference in standard deviations; of one value alone, its direction."""
    with np.errstate(invalid="ignore", over="ignore"):
        spread = float(before.std()) if len(before) else 0.0
        is_one_value = spread <= PARITY * PARITY * float(np.abs(before).max(initial=1.0))
    if not is_one_value:
        return difference / spread
    return float(np.sign(difference)) if not abs(difference) <= PARITY else 0.0


def with_pairs(
    alerts: Sequence[Alert], found: Sequence[PairedColumn], settings: AuditSettings
) -> list[Alert]:
    """Return alerts with those of the pairs; values that nothing explains come first.

    A change needs effect and evidence, as without pairs.
    Values that input and signature do not explain need neither.
    """
    alerts = [*alerts]
    for own in found:
        if own.n_not_reproduced:
            alerts.append(Alert("not_reproducible", own.column, "", _not_reproduced(own)))
        tolerance = settings.tolerance(own.column, "mean") or 0.0
        p = own.p_adjusted
        if own.is_few or not (abs(own.effect) >= tolerance and p <= settings.alpha):
            continue
        moved = "rose" if own.difference > 0 else "fell"
        text = (
            f"{own.column} {moved} by {abs(own.difference):.4g} on average of {own.n_both:,} rows "
            f"that both runs have: {own.share_up:.1%} rose, {own.share_down:.1%} fell (p {p:.3f})"
        )
        alerts.append(Alert("paired", own.column, "", text))
    return sorted(alerts, key=lambda own: own.kind != "not_reproducible")


def _not_reproduced(own: PairedColumn) -> str:
    named = [
        f"{one.id} was {_shown(one.reference)} and is {_shown(one.current)}"
        for one in own.not_reproduced[:_MAX_NAMED]
    ]
    left = own.n_not_reproduced - len(named)
    return (
        f"{own.n_not_reproduced:,} of {own.n_same:,} values of {own.column} differ, though neither "
        f"their input nor how they were made did: {'; '.join(named)}"
        f"{f'; and {left:,} more' if left else ''}"
    )


def _shown(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.6g}"
