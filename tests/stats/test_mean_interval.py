"""Intervals of a mean: other libraries', hand-made cases, and how often they hold the truth."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks.label_draws import passage_codes, read_questions
from helpers import REPOSITORY
from qaeval_core.stats.mean_interval import (
    NO_BOUND,
    ONE_CLUSTER,
    MeanInterval,
    ValueRange,
    mean_interval,
)

FloatArray = NDArray[np.float64]
N_BUCKETS = 1024


def interval_of(
    values: FloatArray, clusters: NDArray[np.intp], low: float = -math.inf, high: float = math.inf
) -> MeanInterval:
    """Return the interval of rows, each cluster in a bucket of its own."""
    n, sums = np.bincount(clusters).astype(float), np.bincount(clusters, values)
    ends = ValueRange(float(values.min()), float(values.max()), low, high)
    if set(np.unique(values)) <= {low, high}:
        ends = ValueRange(ends.lowest, ends.highest, low, high, has_ends_alone=True)
    return mean_interval(n, sums, ends)


def test_rows_of_their_own_have_the_intervals_of_scipy() -> None:
    rng = np.random.default_rng(0)
    values, alone = rng.normal(size=400), np.arange(400)
    expected = stats.t.interval(0.95, 399, loc=values.mean(), scale=stats.sem(values))
    assert interval_of(values, alone).interval == pytest.approx(expected)
    right = (rng.random(2000) < 0.03).astype(float)
    found = interval_of(right, np.arange(2000), 0.0, 1.0).interval
    wilson = stats.binomtest(int(right.sum()), 2000).proportion_ci(method="wilson")
    assert found == pytest.approx([wilson.low, wilson.high], rel=2e-3)  # z there, and t here


def test_clusters_have_the_variance_of_a_jackknife_that_leaves_them_out() -> None:
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(60), rng.integers(1, 40, size=60))
    values = rng.normal(size=60)[clusters] + rng.normal(size=len(clusters))
    without = [values[clusters != own].mean() for own in range(60)]
    spread = math.sqrt(59 / 60 * float(((without - np.mean(without)) ** 2).sum()))
    n = np.bincount(clusters)
    half = stats.t.ppf(0.975, n.sum() ** 2 / (n**2).sum() - 1) * spread
    found = interval_of(values, clusters)
    assert found.interval == pytest.approx([values.mean() - half, values.mean() + half], rel=0.05)
    # Rows all alike in a cluster count once.
    right = (rng.random(60) < 0.4).astype(float)[clusters]
    low, high = interval_of(right, clusters, 0.0, 1.0).interval or (0.0, 0.0)
    assert high - low > 2 * (2 * 1.96 * right.std() / math.sqrt(len(right)))


def test_a_column_of_one_value_has_an_interval_where_its_range_is_known() -> None:
    alone = np.arange(100)
    for value, expected in ((0.0, [0, 0.0379]), (1.0, [0.9621, 1]), (0.5, [0.481, 0.519])):
        found = interval_of(np.full(100, value), alone, 0.0, 1.0)
        assert found.mean == value and found.interval == pytest.approx(expected, abs=1e-4)
    # Ten contexts of ten rows are ten, and more of them than buckets are counted.
    few = interval_of(np.zeros(100), alone // 10, 0.0, 1.0).interval
    assert few == pytest.approx([0, 0.3385], abs=1e-3)
    n, sums, ends = np.full(N_BUCKETS, 50.0), np.zeros(N_BUCKETS), ValueRange(0, 0, 0, 1)
    for n_clusters, high in ((0, 3.75e-3), (20_000, 1.93e-4), (1 << 30, 7.5e-5)):
        full = mean_interval(n, sums, ends, n_clusters=n_clusters)
        assert full.interval == pytest.approx([0, high], rel=0.01)
    assert interval_of(np.full(100, 3.0), alone) == MeanInterval(3.0, None, NO_BOUND)
    assert interval_of(np.array([1.0, 2.0]), np.zeros(2, int)).method == ONE_CLUSTER
    assert mean_interval(np.zeros(4), np.zeros(4), ValueRange(0, 0)).mean is None


@pytest.fixture(scope="module")
def judged(shared_data: Path) -> tuple[pl.DataFrame, NDArray[np.intp]]:
    """Return kept scores of QGEval, and passages."""
    scores = pl.read_parquet(REPOSITORY / "docs/evidence/scores/qgeval.parquet")
    return scores, passage_codes(read_questions(shared_data))


def held(
    values: FloatArray, passages: NDArray[np.intp], n: int, sigma: float = 0.0, n_draws: int = 1500
) -> float:
    """Return how often an interval of passages drawn holds the truth of all.

    ``sigma`` > 0: passages have log-normal numbers of rows, drawn of their own.
    """
    rng = np.random.default_rng(n)
    values, passages = values[~np.isnan(values)], passages[~np.isnan(values)]
    passages = np.unique(passages, return_inverse=True)[1]
    is_share = set(np.unique(values)) <= {0.0, 1.0}
    ends = ValueRange(float(values.min()), float(values.max()), 0.0, 1.0, has_ends_alone=is_share)
    sizes = np.bincount(passages)
    sums = np.bincount(passages, values)
    rows = [values[passages == own] for own in range(len(sizes))]
    truth = sums.sum() / sizes.sum() if not sigma else np.mean([own.mean() for own in rows])
    n_held = 0
    for _ in range(n_draws):
        drawn = rng.integers(len(sizes), size=n)
        own_n, own_sums = sizes[drawn].astype(float), sums[drawn]
        if sigma:
            own_n = np.ceil(4 * rng.lognormal(sigma=sigma, size=n))
            many = zip(drawn, own_n.astype(int), strict=True)
            own_sums = np.array([rng.choice(rows[own], size=m).sum() for own, m in many])
        buckets = rng.integers(N_BUCKETS, size=n)
        n_of, sum_of = (np.bincount(buckets, own, minlength=N_BUCKETS) for own in (own_n, own_sums))
        if is_share and sum_of.sum() in (0.0, n_of.sum()):
            value = float(sum_of.sum() > 0)
            found = mean_interval(n_of, sum_of, ValueRange(value, value, 0.0, 1.0))
        else:
            found = mean_interval(n_of, sum_of, ends)
        assert found.interval is not None
        n_held += found.interval[0] <= truth <= found.interval[1]
    return n_held / n_draws


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("n_contexts", [30, 100, 400])
def test_intervals_hold_the_truth_as_often_as_they_say(
    judged: tuple[pl.DataFrame, NDArray[np.intp]], n_contexts: int
) -> None:
    """Rows as independent hold it in .55 to .6 of draws."""
    scores, passages = judged
    columns = ("rouge_l", "meteor", "roundtrip", "roundtrip_confidence", "bi_encoder")
    many = {name: scores[name].cast(pl.Float64).to_numpy() for name in columns}
    found = {name: held(own, passages, n_contexts) for name, own in many.items()}
    assert all(0.93 <= rate <= 0.97 for rate in found.values()), found
    uneven = {name: held(many[name], passages, n_contexts, 1.5, 400) for name in columns[:3]}
    assert all(0.89 <= rate <= 0.97 for rate in uneven.values()), uneven
    shares = ("exact_match", "roundtrip_exact")
    found = {
        name: held(scores[name].cast(pl.Float64).to_numpy(), passages, n_contexts)
        for name in shares
    }
    assert all(rate >= 0.92 for rate in found.values()), found
    wrong = {name: careless(many[name], passages, n_contexts) for name in ("rouge_l", "roundtrip")}
    assert all(0.45 <= rate < 0.7 for rate in wrong.values()), wrong


def careless(values: FloatArray, passages: NDArray[np.intp], n: int) -> float:
    """Return how often an interval that takes rows as independent holds the truth."""
    rng = np.random.default_rng(n)
    values, passages = values[~np.isnan(values)], passages[~np.isnan(values)]
    n_held = 0
    for _ in range(200):
        own = np.concatenate([values[passages == one] for one in rng.integers(100, size=n)])
        found = interval_of(own, np.arange(len(own))).interval
        assert found is not None
        n_held += found[0] <= values.mean() <= found[1]
    return n_held / 200
