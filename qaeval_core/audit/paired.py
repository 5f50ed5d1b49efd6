"""Paired: the rows that two runs share, value by value, which tell far smaller changes apart.

Where at least half the ids of both runs are in both: the mean difference with an interval over
clusters drawn again, how many values rose and fell, and the largest changes. And a tripwire: the
same input scored by the same signature has the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.compare import Alert
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.profile.column_profile import N_SUM_BUCKETS, FloatArray
from qaeval_core.stats.bootstrap import LEVEL, Comparison
from qaeval_core.stats.paired_rows import PARITY, Change, Changes, MatchedRows, largest_changes
from qaeval_core.stats.paired_tests import PairedTests

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
        For all columns together, see `PairedTests`; NaN where there are too few clusters.
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
    occupied, places = np.unique(clusters % np.uint64(N_SUM_BUCKETS), return_inverse=True)
    level = max(LEVEL, 1 - settings.alpha)
    new = partial(PairedTests, n_resamples=settings.n_draws, seed=settings.seed, level=level)
    tests, found = new(), []
    for name, (before, now) in values.items():
        changes = Changes.of(before, now)
        is_measured = np.isfinite(before) & np.isfinite(now) & np.isfinite(changes.size)
        summed = partial(np.bincount, places[is_measured], minlength=len(occupied))
        # Of the rows that have a difference: clusters of other rows tell nothing of it.
        is_few = len(np.unique(clusters[is_measured])) < settings.min_clusters
        apart, n = summed(changes.size[is_measured])[None], summed()
        # What has no verdict has no part in the correction.
        (test,) = (new() if is_few else tests).add(apart, n)
        effect = _effect(test.difference, before[is_measured])
        same = (is_same or {}).get(name, np.zeros(len(ids), dtype=bool))
        own = _pair(
            name, before, now, changes, ids=ids, same=same, test=test, effect=effect, is_few=is_few
        )
        found.append(own)
    p_values = iter(tests.corrected())
    return [own if own.is_few else replace(own, p_adjusted=next(p_values)) for own in found]


def _pair(
    name: str,
    before: FloatArray,
    now: FloatArray,
    changes: Changes,
    *,
    ids: pa.ChunkedArray,
    same: NDArray[np.bool_],
    test: Comparison,
    effect: float,
    is_few: bool,
) -> PairedColumn:
    there = [~np.isnan(own) for own in (before, now)]
    change, is_changed = changes.size, changes.is_changed
    n_both = int((there[0] & there[1]).sum())
    is_other = same & (is_changed | (there[0] != there[1]))
    is_alike = math.isnan(test.interval.low)
    return PairedColumn(
        column=name,
        n_pairs=len(before),
        n_both=n_both,
        difference=test.difference,
        low=test.difference if is_alike else test.interval.low,
        high=test.difference if is_alike else test.interval.high,
        p=test.p_value,
        effect=effect,
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
