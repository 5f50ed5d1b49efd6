"""Design effects against loops, scipy, and draws of contexts whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qaeval_core.stats.certificate import certify, kept_rows
from qaeval_core.stats.design_effect import binomial_bound, binomial_tail, effective_counts

DELTA = 0.05


def counts_of(is_good: np.ndarray, clusters: np.ndarray) -> tuple[float, float, float]:
    """Return n*, k* and deff of labels in one share."""
    counts = np.bincount(clusters).astype(np.float64)[:, None]
    good = np.bincount(clusters, weights=is_good).astype(np.float64)[:, None]
    n, k, deff = effective_counts(counts, good, DELTA)
    return float(n[0]), float(k[0]), float(deff[0])


def tail(n: float, k: float, chance: float) -> float:
    return float(binomial_tail(np.array(n), np.array(k), np.array(chance)))


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_bounds_are_those_of_scipy(n: int, share: float, delta: float) -> None:
    """Protects from a two-sided bound, and from a bound that contradicts the p value."""
    k = round(share * n)
    interval = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - delta, "exact")
    bound = float(binomial_bound(np.array(float(n)), np.array(float(k)), delta))
    assert bound == pytest.approx(interval.low, abs=1e-9)
    if k:
        assert tail(n, k, bound) == pytest.approx(delta, rel=1e-6)


@given(st.floats(0.5, 200), st.floats(0, 1), st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_part_of_a_good_label_lies_between_whole_ones(n: float, share: float, t: float) -> None:
    """Protects from effective counts that are rounded, to the good side or at all."""
    k = share * math.floor(n)
    below, at, above = (tail(n, i, t) for i in (math.floor(k), k, k + 0.01))
    assert 0 <= above <= at + 1e-12 and at <= below + 1e-12 <= 1 + 1e-12


def _reference_counts(
    is_good: list[bool], clusters: list[int], delta: float
) -> tuple[float, float]:
    """Return n* and k*: loops, as the docstring of the module has them."""
    n, k, contexts = len(is_good), sum(is_good), sorted(set(clusters))
    m = len(contexts)
    if n == m:
        return float(n), float(k)
    if m == 1:
        return 0.0, 0.0
    parts = [
        (clusters.count(c), sum(g for g, own in zip(is_good, clusters, strict=True) if own == c))
        for c in contexts
    ]
    one_more = [*parts, (sum(size**2 for size, _ in parts) / n, 0)]
    effects = [1.0]
    for drawn in (parts, one_more):
        total = sum(size for size, _ in drawn)
        p = k / total
        if 0 < p < 1:
            squares = sum((good - p * size) ** 2 for size, good in drawn)
            v = len(drawn) / (len(drawn) - 1) * squares / total**2
            effects.append(v * total / (p * (1 - p)))
    factor = (stats.norm.ppf(delta) / stats.t.ppf(delta, m - 1)) ** 2 / max(effects)
    return n * factor, k * factor


labeled = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30)


@given(labeled)
@settings(max_examples=100, deadline=None)
def test_effective_counts_are_those_of_loops(drawn: list[tuple[bool, int]]) -> None:
    """Protects from contexts that hold no label of a share but count as contexts of it."""
    is_good, clusters = (list(side) for side in zip(*drawn, strict=True))
    n, k, deff = counts_of(np.array(is_good), np.array(clusters))
    assert (n, k) == pytest.approx(_reference_counts(is_good, clusters, DELTA))
    assert deff >= 1 and n <= len(drawn)


def test_all_good_labels_of_a_context_count_once() -> None:
    """Protects from failing open: no variance between contexts is no evidence that there is none.

    28 contexts of 15 good labels are 28 labels at the most, and 29 are needed.
    """
    clusters = np.repeat(np.arange(28), 15)
    n, k, _ = counts_of(np.ones(420, dtype=bool), clusters)
    assert 20 < n <= 28 and n == k
    places = np.zeros(420, dtype=np.intp)
    good = np.ones(420, dtype=bool)
    given_ = {"counts": kept_rows(100_000)[:1], "target": 0.9, "delta": DELTA}
    assert certify(places, good, clusters=clusters, **given_).chosen is None
    assert certify(places, good, **given_).chosen is not None


@given(labeled, st.data())
@settings(max_examples=60, deadline=None)
def test_order_of_labels_and_names_of_contexts_do_not_matter(
    drawn: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """Protects from numbers that depend on how a file of labels is sorted."""
    is_good, clusters = (np.array(side) for side in zip(*drawn, strict=True))
    order = np.array(data.draw(st.permutations(range(len(drawn)))))
    names = np.array(data.draw(st.permutations(range(9))))
    one = counts_of(is_good, clusters)
    other = counts_of(is_good[order], names[clusters[order]])
    assert one == pytest.approx(other)


@pytest.mark.parametrize("n_contexts", [10, 40])
@pytest.mark.parametrize("likeness", [0.05, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("target", [0.8, 0.9])
def test_p_values_of_labels_by_context_keep_their_level(
    n_contexts: int, likeness: float, target: float
) -> None:
    """Protects from counts that certify too often where the precision is the target, no more.

    Contexts are alike inside from hardly to wholly; at .99 many draws are all good. The levels are
    those of a single test and of one of twenty.
    """
    n_draws, levels = 1000, np.array([DELTA, DELTA / 20])
    rng = np.random.default_rng(n_contexts)
    shape = 1 / likeness - 1
    found, careless = np.zeros(2), np.zeros(2)
    for _ in range(n_draws):
        sizes = np.maximum(1, rng.poisson(5, size=n_contexts))
        quality = rng.beta(target * shape, (1 - target) * shape, size=n_contexts)
        clusters = np.repeat(np.arange(n_contexts), sizes)
        is_good = rng.random(len(clusters)) < quality[clusters]
        n, k, _ = counts_of(is_good, clusters)
        found += tail(n, k, target) <= levels
        careless += tail(len(is_good), is_good.sum(), target) <= levels
    error = np.sqrt(levels * (1 - levels) / n_draws)
    assert (found / n_draws <= levels + 3 * error).all()
    if likeness >= 0.3:
        assert careless[0] / n_draws > 2 * DELTA, "draws that need no correction test none"
