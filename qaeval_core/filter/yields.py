"""Yields: what each of twenty kept shares holds: rows, groups, means, and what labels say of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.filter.decide import CorpusRows, Shares
from qaeval_core.filter.labels import LabeledRows, is_sheet
from qaeval_core.filter.write import NO_BIN, MetricSums, share_of_rows
from qaeval_core.stats.certificate import N_SHARES, Certificate, certify

_STEP = 1 << 20


def smallest_shares(rows: CorpusRows, shares: Shares) -> NDArray[np.uint8]:
    """Return the smallest share that keeps each row, 0 to 19; ``NO_BIN`` of dropped rows.

    Call it after the last stage but one: what that dropped is in no share.
    """
    found = np.full(len(rows), NO_BIN, np.uint8)
    for start in range(0, len(rows), _STEP):
        own = slice(start, min(start + _STEP, len(rows)))
        share = share_of_rows(rows.rank[own], rows.tie[own], shares.cuts, first_row=start)
        found[own] = np.where(rows.is_eligible(own), share, NO_BIN)
    return found


def certificate(
    rows: CorpusRows,
    share: NDArray[np.uint8],
    labeled: LabeledRows,
    *,
    target: float,
    confidence: float,
) -> Certificate:
    """Return what labels of rows that could be kept say of each share.

    Labels of other rows say nothing of these. Where labels share a group they count as fewer, but
    for those of a whole label sheet: its rows were drawn one by one. Whether it is a sheet of these
    rows is not looked at here: `is_other_sheet`.
    """
    is_eligible = share[labeled.rows] != NO_BIN
    chosen = labeled.rows[is_eligible]
    clusters = None
    if rows.group is not None and not is_sheet(rows, labeled.rows):
        _, codes = np.unique(rows.group[chosen], return_inverse=True)
        clusters = codes if len(chosen) and np.bincount(codes).max() > 1 else None
    return certify(
        share[chosen].astype(np.intp),
        labeled.is_good[is_eligible],
        target=target,
        confidence=confidence,
        clusters=clusters,
    )


def yield_table(
    shares: Shares,
    sums: MetricSums,
    metrics: Sequence[str],
    *,
    n_groups: Sequence[int] | None,
    higher_is_better: bool,
    certificate: Certificate | None,
    has_target: bool,
) -> pl.DataFrame:
    """Return a row for each share; empty where no row reaches the last stage."""
    n = len(shares.counts)
    cut = np.array([own.rank for own in shares.cuts])
    if not higher_is_better:
        cut = -cut
    table = pl.DataFrame(
        {
            "share": [(j + 1) / N_SHARES for j in range(n)],
            "cut": np.where(np.isfinite(cut), cut, np.nan),
            "rows": pl.Series(shares.counts, dtype=pl.Int64),
            "groups": pl.Series(
                [None] * n if n_groups is None else list(n_groups)[:n], dtype=pl.Int64
            ),
        }
    ).with_columns(pl.col("cut").fill_nan(None))
    for i, name in enumerate(metrics):
        total, count = np.cumsum(sums.by_share[i]), np.cumsum(sums.n_by_share[i])
        means = pl.Series(np.where(count > 0, total / np.maximum(count, 1), np.nan)[:n])
        table = table.with_columns(means.fill_nan(None).alias(f"mean_{name}"))
    return table.with_columns(_certified(certificate, n, has_target=has_target))


def _certified(certificate: Certificate | None, n: int, *, has_target: bool) -> list[pl.Series]:
    shares = certificate.shares[:n] if certificate is not None else ()
    blank = [None] * (n - len(shares))
    tested = has_target and certificate is not None
    return [
        pl.Series("n_labels", [*(own.n_labels for own in shares), *blank], pl.Int64),
        pl.Series("precision", [*(own.precision for own in shares), *blank], pl.Float64),
        pl.Series(
            "lower_bound",
            [*(own.lower_bound if own.n_labels else None for own in shares), *blank],
            pl.Float64,
        ),
        pl.Series(
            "p_value", [*(own.p_value if tested else None for own in shares), *blank], pl.Float64
        ),
        pl.Series(
            "certified",
            [*(own.is_certified if tested else None for own in shares), *blank],
            pl.Boolean,
        ),
    ]
