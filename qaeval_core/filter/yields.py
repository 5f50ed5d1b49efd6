"""Yields: what each kept share holds: rows, groups, means, and what labels say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from qaeval_core.filter.shares import Shares
from qaeval_core.filter.write import MetricSums
from qaeval_core.stats.certificate import Certificate


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
            "share": np.array(shares.counts) / max(shares.n_eligible, 1),
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
    shares = certificate.shares if certificate is not None else ()
    blank = [None] * (n - len(shares))
    tested = [own if has_target and own.p_value is not None else None for own in shares]
    values: dict[str, tuple[list[Any], type[pl.DataType]]] = {
        "n_labels": ([own.n_labels for own in shares], pl.Int64),
        "precision": ([own.precision for own in shares], pl.Float64),
        "lower_bound": (
            [own.lower_bound if own.p_value is not None else None for own in shares],
            pl.Float64,
        ),
        "p_value": ([own.p_value if own else None for own in tested], pl.Float64),
        "certified": ([own.is_certified if has_target else None for own in shares], pl.Boolean),
    }
    return [pl.Series(name, [*own, *blank], kind) for name, (own, kind) in values.items()]
