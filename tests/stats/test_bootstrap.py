"""Bootstrap: intervals and paired comparisons against a naive loop over the same draws."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from qaeval_core.stats.bootstrap import paired_comparison, percentile_interval, resample_weights
from qaeval_core.stats.correlation import COEFFICIENTS, weighted_correlations
from qaeval_core.stats.ranking import auc, weighted_auc

N_RESAMPLES = 200
SEED = 11


def _sample(n_rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    human = rng.integers(1, 6, size=n_rows).astype(float)
    return human + rng.normal(scale=2.0, size=n_rows), human


def _reference_draws(n_units: int) -> list[NDArray[np.intp]]:
    rng = np.random.default_rng(SEED)
    return [rng.integers(n_units, size=n_units) for _ in range(N_RESAMPLES)]


def _weights(n_rows: int, clusters: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
    chunks = resample_weights(n_rows, n_resamples=N_RESAMPLES, seed=SEED, clusters=clusters)
    return np.concatenate(list(chunks), axis=1)


def _resampled(
    metric: NDArray[np.float64], human: NDArray[np.float64], weights: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    found = weighted_correlations(metric=metric, human=human, weights=weights)
    return dict(zip(COEFFICIENTS, found, strict=True))


def test_interval_is_that_of_a_naive_loop_over_the_same_draws() -> None:
    """Protects from resamples that are no resamples of rows."""
    metric, human = _sample(60)
    found = _resampled(metric, human, _weights(60))
    naive = {
        "pearson": [stats.pearsonr(metric[i], human[i]).statistic for i in _reference_draws(60)],
        "spearman": [stats.spearmanr(metric[i], human[i]).statistic for i in _reference_draws(60)],
        "kendall": [stats.kendalltau(metric[i], human[i]).statistic for i in _reference_draws(60)],
    }
    for name, values in naive.items():
        assert found[name] == pytest.approx(np.array(values), abs=1e-12)
        interval = percentile_interval(found[name])
        assert interval.low == pytest.approx(np.quantile(values, 0.025), abs=1e-12)
        assert interval.high == pytest.approx(np.quantile(values, 0.975), abs=1e-12)


def test_whole_clusters_are_drawn() -> None:
    """Protects from intervals too narrow where rows of one passage resemble each other."""
    clusters = np.array([0, 1, 1, 2, 2, 2])
    weights = _weights(6, clusters)
    for i, drawn in enumerate(_reference_draws(3)):
        expected = [int((drawn == cluster).sum()) for cluster in clusters]
        assert weights[:, i].tolist() == expected


def test_clusters_of_equal_rows_widen_the_interval() -> None:
    """A copy of every row is no new evidence: drawing rows would say it is."""
    metric, human = (np.repeat(side, 10) for side in _sample(40))
    clusters = np.repeat(np.arange(40), 10)
    by_row, by_cluster = (
        percentile_interval(_resampled(metric, human, _weights(400, own))["pearson"])
        for own in (None, clusters)
    )
    assert by_cluster.high - by_cluster.low > 2 * (by_row.high - by_row.low)


def test_resamples_do_not_depend_on_how_many_are_made_at_once() -> None:
    """Protects from results that change with the size of a table's chunks."""
    few = np.concatenate(list(resample_weights(30_000, n_resamples=20, seed=1)), axis=1)
    assert few.shape == (30_000, 20)
    rng = np.random.default_rng(1)
    for i in range(20):
        drawn = rng.integers(30_000, size=30_000)
        assert (few[:, i] == np.bincount(drawn, minlength=30_000)).all()


def test_undefined_resamples_are_counted_and_left_out() -> None:
    """Protects from NaN in an interval, and from hiding that resamples were lost."""
    human = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    metric = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    values = _resampled(metric, human, _weights(6))["pearson"]
    expected = sum(not 0 < (human[i] == 1).sum() < 6 for i in _reference_draws(6))
    interval = percentile_interval(values)
    assert interval.n_undefined_resamples == expected > 0
    assert interval.n_resamples == N_RESAMPLES
    assert -1 <= interval.low <= interval.high <= 1


def test_paired_comparison_is_that_of_a_naive_loop() -> None:
    """Protects the p-value: (b + 1) / (B + 1), doubled, b counted against the difference."""
    metric, human = _sample(50)
    other = metric + np.random.default_rng(9).normal(scale=1.0, size=50)
    first, second = (_resampled(side, human, _weights(50))["pearson"] for side in (metric, other))
    a, b = (stats.pearsonr(side, human).statistic for side in (metric, other))
    found = paired_comparison(first=a, second=b, first_resampled=first, second_resampled=second)
    differences = [
        stats.pearsonr(metric[i], human[i]).statistic - stats.pearsonr(other[i], human[i]).statistic
        for i in _reference_draws(50)
    ]
    against = sum((d <= 0) if a > b else (d >= 0) for d in differences)
    assert found.p_value == pytest.approx(min(1.0, 2 * (against + 1) / (N_RESAMPLES + 1)))
    assert found.interval.low == pytest.approx(np.quantile(differences, 0.025), abs=1e-12)
    assert found.difference == pytest.approx(a - b)


def test_a_metric_does_not_differ_from_its_rescaled_copy() -> None:
    """Protects from p = 0.001 made of rounding errors that all have one sign."""
    metric, human = _sample(80)
    copy = metric * 0.37 + 12.1
    weights = _weights(80)
    values, others = (_resampled(side, human, weights)["pearson"] for side in (metric, copy))
    one = np.ones((80, 1))
    a, b = (float(_resampled(side, human, one)["pearson"][0]) for side in (metric, copy))
    found = paired_comparison(first=a, second=b, first_resampled=values, second_resampled=others)
    assert found.p_value == 1.0


def test_comparison_with_an_undefined_metric_is_undefined() -> None:
    """Protects from a winner by default."""
    nothing = np.full(5, np.nan)
    found = paired_comparison(
        first=0.5, second=np.nan, first_resampled=np.full(5, 0.5), second_resampled=nothing
    )
    assert np.isnan([found.difference, found.p_value, found.interval.low]).all()
    assert found.interval.n_undefined_resamples == 5


def test_area_under_the_curve_of_resamples_is_that_of_rows_written_out() -> None:
    """Protects from ties that count as wins."""
    metric, human = _sample(40)
    scores, is_positive = np.round(metric), human >= 4
    found = weighted_auc(scores, is_positive, _weights(40))
    for value, rows in zip(found, _reference_draws(40), strict=True):
        drawn, positive = scores[rows], is_positive[rows]
        expected = auc(positive=drawn[positive], negative=drawn[~positive])
        assert value == pytest.approx(expected, abs=1e-12)
    only = weighted_auc(scores, np.ones(40, dtype=bool), np.ones((40, 1)))
    assert np.isnan(only).all()
