"""Paired: the rows that two runs share, value by value, which tell far smaller changes apart.

Where at least half the ids of both runs are in both: the mean difference with an interval over
clusters drawn again, how many values rose and fell, and the largest changes. And a tripwire: the
same input scored by the same signature has the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.compare import Alert
from qaeval_core.audit.drift import Drawn, Test, shift
from qaeval_core.audit.profile import N_BUCKETS, FloatArray
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.stats.bootstrap import resample_weights

MIN_SHARE = 0.5
MAX_CHANGES = 20
# Other orders of sums give other last digits: as far apart may the same values be.
PARITY = 1e-5


@dataclass(frozen=True, slots=True)
class Matched:
    """Rows with the same id.

    Attributes
    ----------
    reference, current : int ndarray of shape (n_pairs,)
        Numbers of their rows in each run.
    share : float
        Of the rows of the run that shares fewer.
    """

    reference: NDArray[np.intp]
    current: NDArray[np.intp]
    share: float

    @property
    def is_enough(self) -> bool:
        """Whether runs can be compared in pairs."""
        return self.share >= MIN_SHARE


def match_rows(reference: pa.ChunkedArray, current: pa.ChunkedArray) -> Matched:
    """Return the rows whose ids are in both runs; an id that stands there twice names no row.

    Parameters
    ----------
    reference, current : pyarrow.ChunkedArray of texts
        Ids; a null is none.

    Examples
    --------
    >>> ids = [pa.chunked_array([each]) for each in (["a", "b", "c"], ["c", "x", "a"])]
    >>> found = match_rows(*ids)
    >>> found.reference.tolist(), found.current.tolist(), round(found.share, 2)
    ([2, 0], [0, 2], 0.67)
    """
    frames = []
    for ids in (reference, current):
        own = pl.DataFrame({"id": pl.Series(pl.from_arrow(ids), dtype=pl.String)})
        own = own.with_row_index("row").filter(pl.col("id").is_not_null())
        frames.append(own.unique("id", keep="none"))
    before, now = frames
    pairs = now.join(before, on="id", how="inner", suffix="_before").sort("row")
    n_most = max(len(reference), len(current))
    return Matched(
        pairs["row_before"].to_numpy().astype(np.intp),
        pairs["row"].to_numpy().astype(np.intp),
        pairs.height / n_most if n_most else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One row whose value changed."""

    id: str
    reference: float
    current: float


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
        Whether there are too few clusters for a verdict.
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
    is_few = len(np.unique(clusters)) < settings.min_clusters
    found = []
    for name, (before, now) in values.items():
        same = (is_same or {}).get(name, np.zeros(len(ids), dtype=bool))
        draws = (places, weights)
        found.append(_pair(name, before, now, ids=ids, draws=draws, same=same, is_few=is_few))
    return found


def _pair(
    name: str,
    before: FloatArray,
    now: FloatArray,
    *,
    ids: pa.ChunkedArray,
    draws: tuple[NDArray[np.intp], FloatArray],
    same: NDArray[np.bool_],
    is_few: bool,
) -> PairedColumn:
    there = [~np.isnan(own) for own in (before, now)]
    # An infinite value has no difference from any other; the same one has not changed.
    with np.errstate(invalid="ignore"):
        change = np.where(before == now, 0.0, now - before)
    is_measured = np.isfinite(before) & np.isfinite(now)
    places, weights = draws
    n = weights.shape[1]
    sums = np.bincount(places[is_measured], change[is_measured], minlength=n)
    counts = np.bincount(places[is_measured], minlength=n)
    difference, drawn = Drawn.of(np.stack([sums, counts], axis=1), weights).ratio(0, 1)
    test = shift(Test(name, "", "mean", np.nan, np.nan, difference), drawn)
    spread = float(before[is_measured].std()) if is_measured.any() else 0.0
    is_changed = np.abs(change) > PARITY  # infinite ones too, not those of undefined values
    n_both = int((there[0] & there[1]).sum())
    order = np.argsort(-np.where(is_changed, np.abs(change), 0.0), kind="stable")[:MAX_CHANGES]
    return PairedColumn(
        column=name,
        n_pairs=len(before),
        n_both=n_both,
        difference=difference,
        low=test.low,
        high=test.high,
        p=test.p,
        effect=difference / spread if spread else float(np.sign(difference)),
        share_up=float((is_changed & (change > 0)).sum()) / max(n_both, 1),
        share_down=float((is_changed & (change < 0)).sum()) / max(n_both, 1),
        n_appeared=int((~there[0] & there[1]).sum()),
        n_vanished=int((there[0] & ~there[1]).sum()),
        largest=tuple(
            Change(str(ids[row]), float(before[row]), float(now[row]))
            for row in order.tolist()
            if is_changed[row]
        ),
        n_not_reproduced=int((same & (is_changed | (there[0] != there[1]))).sum()),
        is_few=is_few,
    )


def paired_alerts(found: Sequence[PairedColumn], settings: AuditSettings) -> list[Alert]:
    """Return what of the pairs must be looked at.

    A change needs effect and evidence, as without pairs; p is multiplied by the number of columns.
    Values that input and signature do not explain need neither.
    """
    alerts = []
    for own in found:
        if own.n_not_reproduced:
            text = f"{own.n_not_reproduced:,} of {own.n_pairs:,} values of {own.column} differ"
            text = f"{text}, though neither their input nor how they were made did"
            alerts.append(Alert("not_reproducible", own.column, "", text))
        tolerance = settings.tolerance(own.column, "mean") or 0.0
        p = min(1.0, own.p * len(found))
        if own.is_few or not (abs(own.effect) >= tolerance and p <= settings.alpha):
            continue
        moved = "rose" if own.difference > 0 else "fell"
        text = (
            f"{own.column} {moved} by {abs(own.difference):.4g} on average of {own.n_both:,} rows "
            f"that both runs have: {own.share_up:.1%} rose, {own.share_down:.1%} fell (p {p:.3f})"
        )
        alerts.append(Alert("paired", own.column, "", text))
    return alerts
