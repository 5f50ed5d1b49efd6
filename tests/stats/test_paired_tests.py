"""Paired tests: error rates of few clusters, and the same numbers wherever they are asked for."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from scipy import stats

from audit_runs import hashes_of, paired_columns
from qaeval_core import audit_tables
from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.compare.table import compare_tables
from qaeval_core.stats.bootstrap import scaled_bootstrap
from qaeval_core.stats.paired_tests import PairedTests

N_COLUMNS, N_CLUSTERS, N_AUDITS = 8, 30, 2000


def audited(changes: np.ndarray, codes: np.ndarray, seed: int = 0) -> list[PairedColumn]:
    """Compare columns with zeros, by changes of shape (n_columns, n_rows)."""
    ids = pa.chunked_array([[str(i) for i in range(len(codes))]])
    values = {str(i): (np.zeros(len(codes)), own) for i, own in enumerate(changes)}
    return paired_columns(values, ids, hashes_of(codes, seed), AuditSettings(seed=seed))


@pytest.mark.long
def test_few_clusters_raise_few_more_alarms_than_promised() -> None:
    """Draws that nothing moves outward alarmed in 3.9 % of audits of thirty contexts, at .01.

    Of eight columns it is 1.5 % now, of 12,000 audits.
    """
    rng = np.random.default_rng(0)
    n_found = 0
    for seed in range(N_AUDITS):
        codes = np.repeat(np.arange(N_CLUSTERS), rng.integers(1, 9, size=N_CLUSTERS))
        shared = rng.normal(size=(N_COLUMNS, N_CLUSTERS))[:, codes]
        found = audited(shared + rng.normal(size=(N_COLUMNS, len(codes))), codes, seed)
        n_found += min(own.p_adjusted for own in found) <= 0.01
    known = 0.015
    assert n_found / N_AUDITS <= known + 3 * math.sqrt(known * (1 - known) / N_AUDITS)


def test_audits_and_comparisons_find_the_same() -> None:
    """One test of paired rows: the same difference, interval and p."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 60, size=400)
    before, now = rng.normal(size=(2, 400)) + rng.normal(size=60)[codes]
    rows = pl.DataFrame({"id": map(str, range(400)), "context": map(str, codes)})
    tables = {name: rows.with_columns(x=own) for name, own in (("a", before), ("b", now))}
    compared = compare_tables(tables, metrics="x", baseline="a").systems
    (other,) = compared.filter(pl.col("system") == "b").iter_rows(named=True)
    drawn = {"n_draws": 1000, "alpha": 0.05, "cluster": "context"}  # As comparisons do.
    (own,) = audit_tables(*tables.values(), watch="x", **drawn).paired
    assert own.difference == pytest.approx(other["difference"], rel=1e-9)
    assert own.low == pytest.approx(other["difference_low"], rel=1e-9)
    assert own.high == pytest.approx(other["difference_high"], rel=1e-9)
    assert own.p == own.p_adjusted == other["p"]


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_draws_are_moved_as_far_as_their_level_needs(level: float) -> None:
    """Student's t: at the ends of a level its draws are as far out as the mean may be."""
    n = 40
    rows = stats.norm.ppf((np.arange(n) + 0.5) / n)

    def mean(weights: np.ndarray) -> np.ndarray:
        return (rows @ weights / weights.sum(axis=0))[None]

    drawn = scaled_bootstrap(mean, np.zeros(1), n, n_resamples=20_000, seed=0, level=level)
    reach = np.quantile(np.abs(drawn), level)
    assert reach == pytest.approx(stats.t.ppf((1 + level) / 2, n - 1) * stats.sem(rows), rel=0.02)


def test_what_all_clusters_have_alike_is_corrected_beside_what_varies() -> None:
    """A sign test is corrected for all; one bucket alone tells nothing, and no row less."""
    tests = PairedTests(n_resamples=199, seed=0)
    varies = np.arange(10.0) - 3
    (alike, other) = tests.add(np.stack([np.full(10, 2.0), varies]), np.full(10, 4.0))
    (alone,) = tests.add(np.eye(10)[:1], np.eye(10)[0])
    (none,) = tests.add(np.zeros((1, 10)), np.zeros(10))
    assert (alike.difference, alike.p_value) == (0.5, 2.0**-9)
    assert math.isnan(alike.interval.low) and other.interval.low < other.interval.high
    assert math.isnan(alone.p_value) and math.isnan(none.p_value)
    of_alike, of_other, *undefined = tests.corrected()
    assert of_alike == 4 * 2.0**-9 and of_other == other.p_value
    assert np.isnan(undefined).all()
    (empty,) = PairedTests(n_resamples=99, seed=0).add(np.zeros((1, 0)), np.zeros(0))
    assert math.isnan(empty.difference) and math.isnan(empty.p_value)
