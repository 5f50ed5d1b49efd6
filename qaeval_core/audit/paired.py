"""Paired: the rows that two runs share, value by value, which tell far smaller changes apart.

Where at least half the ids of both runs are in both: the mean difference with an interval over
clusters drawn again, how many values rose and fell, and the largest changes. And a tripwire: the
same input scored by the same signature has the same values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qaeval_core.audit.compare import Alert
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.stats.paired_rows import Change

MIN_SHARE = 0.5
_MAX_NAMED = 3


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
