"""Certificates against exact sums, scipy, MAPIE, and draws of labels whose truth is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from qaeval_core.errors import ConfigError
from qaeval_core.filter.decide import n_of
from qaeval_core.stats.certificate import (
    N_SHARES,
    certify,
    effective_counts,
    holm,
    kept_rows,
    labels_needed,
    least_labels,
    lower_bound,
    outlook,
    precision_p_value,
    share_index,
)

DELTA = 0.05


def _reference_tail(n: int, k: int, target: Fraction) -> Fraction:
    terms = (math.comb(n, i) * target**i * (1 - target) ** (n - i) for i in range(k, n + 1))
    return sum(terms, Fraction(0))


@pytest.mark.parametrize("n", [0, 1, 2, 7, 29, 60])
@pytest.mark.parametrize("target", [Fraction(1, 2), Fraction(4, 5), Fraction(9, 10)])
def test_p_values_are_tails_of_the_binomial(n: int, target: Fraction) -> None:
    """Protects from k + 1 in place of k, and from 0 labels that show something."""
    for k in range(n + 1):
        expected = float(_reference_tail(n, k, target))
        assert float(precision_p_value(n, k, float(target))) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_bounds_are_those_of_scipy(n: int, share: float, delta: float) -> None:
    """Protects from a two-sided bound, and from a bound that contradicts the p value."""
    k = round(share * n)
    interval = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - delta, "exact")
    bound = float(lower_bound(n, k, delta))
    assert bound == pytest.approx(interval.low, abs=1e-9)
    if k:
        assert float(precision_p_value(n, k, bound)) == pytest.approx(delta, rel=1e-6)


@given(st.floats(0.5, 200), st.floats(0, 1), st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_part_of_a_good_label_lies_between_whole_ones(n: float, share: float, t: float) -> None:
    """Protects from effective counts that are rounded, to the good side or at all."""
    k = share * math.floor(n)
    below, at, above = (float(precision_p_value(n, i, t)) for i in (math.floor(k), k, k + 0.01))
    assert 0 <= above <= at + 1e-12 and at <= below + 1e-12 <= 1 + 1e-12


def _reference_holm(p_values: list[float], delta: float) -> list[bool]:
    left = dict(enumerate(p_values))
    rejected = set()
    while left:
        smallest = min(left, key=lambda i: left[i])
        if left[smallest] > delta / len(left):
            break
        rejected.add(smallest)
        del left[smallest]
    return [i in rejected for i in range(len(p_values))]


tails = st.lists(st.sampled_from([0.0, 0.0025, 0.003, 0.01, 0.02, 0.05, 0.4, 1.0]), max_size=20)


@given(tails)
@settings(max_examples=80, deadline=None)
def test_holm_is_its_definition(p_values: list[float]) -> None:
    """Protects from a step-up, which certifies more than the level allows."""
    found = holm(np.array(p_values), DELTA)
    assert found.tolist() == _reference_holm(p_values, DELTA)


def test_fewest_labels_are_those_that_pass_one_test() -> None:
    """Protects from a number that is one off where a power of the target is the level."""
    assert least_labels(0.9, 0.05) == 29
    for target in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99):
        for delta in (0.5, 0.25, 0.125, 0.1, 0.05, 0.01, 0.0025):
            n = least_labels(target, delta)
            assert target**n <= delta < target ** (n - 1) or n == 1


def test_shares_keep_whole_rows() -> None:
    """Protects from .15 * 20 rows being 2, from rows that no share keeps, and from two rules."""
    for n_rows in (0, 1, 7, 20, 100, 1500, 10**8 + 1):
        shares = [Fraction(j, N_SHARES) for j in range(1, N_SHARES + 1)]
        # As the filter rounds whatever share is asked for.
        assert kept_rows(n_rows).tolist() == [n_of(share, n_rows) for share in shares]
        assert kept_rows(n_rows)[-1] == n_rows
    ranks = np.arange(1500)
    found = share_index(ranks, n_rows=1500)
    assert (np.bincount(found) == 75).all() and (np.diff(found) >= 0).all()
    places = share_index(ranks[::-1], n_rows=1500)
    shares = certify(places, places < 3, target=0.5, confidence=0.95).shares
    assert [share.share for share in shares] == [float(Fraction(j, 20)) for j in range(1, 21)]
    assert [share.n_labels for share in shares] == kept_rows(1500).tolist()


# Effective counts of labels that share contexts


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
    found = effective_counts(np.array(is_good), np.array(clusters), DELTA)
    assert (found.n, found.n_good) == pytest.approx(_reference_counts(is_good, clusters, DELTA))
    assert found.deff >= 1 and found.n <= len(drawn)


@given(labeled, st.integers(0, N_SHARES - 1))
@settings(max_examples=40, deadline=None)
def test_each_share_has_the_counts_of_its_own_labels(
    drawn: list[tuple[bool, int]], place: int
) -> None:
    """Protects from effects of all labels, or of rows outside a share, in place of its own."""
    is_good, clusters = (np.array(side) for side in zip(*drawn, strict=True))
    places = (np.arange(len(drawn)) * 7 + place) % N_SHARES
    found = certify(places, is_good, target=0.3, confidence=1 - DELTA, clusters=clusters)
    for j, share in enumerate(found.shares):
        inside = places <= j
        assert share.n_labels == inside.sum() and share.n_good == is_good[inside].sum()
        assert share.precision == (share.n_good / share.n_labels if inside.any() else None)
        if inside.any():
            own = effective_counts(is_good[inside], clusters[inside], DELTA)
            assert (share.n_effective, share.n_good_effective) == pytest.approx(own[:2])
            assert share.deff == pytest.approx(own.deff)
    expected = holm(np.array([share.p_value for share in found.shares]), DELTA)
    assert [share.is_certified for share in found.shares] == expected.tolist()
    certified = [share for share in found.shares if share.is_certified]
    assert found.chosen == (certified[-1] if certified else None)


def test_labels_of_one_context_each_are_independent() -> None:
    """Protects from a correction that costs labels where there is nothing to correct."""
    places, is_good = np.arange(60) % N_SHARES, np.arange(60) % 7 > 0
    by_row = certify(places, is_good, target=0.5, confidence=0.95)
    by_context = certify(places, is_good, target=0.5, confidence=0.95, clusters=np.arange(60))
    assert by_row.shares == by_context.shares
    assert (by_row.n_contexts, by_context.n_contexts) == (None, 60)


def test_one_context_certifies_nothing() -> None:
    """Protects from a passage that is labeled 1,000 times."""
    zeros = np.zeros(1000, dtype=np.intp)
    found = certify(zeros, zeros == 0, target=0.1, confidence=0.9, clusters=zeros)
    assert found.chosen is None
    assert {share.p_value for share in found.shares} == {1.0}
    assert {share.lower_bound for share in found.shares} == {0.0}


def test_all_good_labels_of_a_context_count_once() -> None:
    """Protects from failing open: no variance between contexts is no evidence that there is none.

    28 contexts of 15 good labels are 28 labels at the most, and 29 are needed.
    """
    clusters = np.repeat(np.arange(28), 15)
    found = effective_counts(np.ones(420, dtype=bool), clusters, DELTA)
    assert 20 < found.n <= 28 and found.n == found.n_good
    places = np.zeros(420, dtype=np.intp)
    good = np.ones(420, dtype=bool)
    assert certify(places, good, target=0.9, confidence=0.95, clusters=clusters).chosen is None
    assert certify(places, good, target=0.9, confidence=0.95).chosen is not None


@given(labeled, st.data())
@settings(max_examples=60, deadline=None)
def test_order_of_labels_and_names_of_contexts_do_not_matter(
    drawn: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """Protects from numbers that depend on how a file of labels is sorted."""
    is_good, clusters = (np.array(side) for side in zip(*drawn, strict=True))
    order = np.array(data.draw(st.permutations(range(len(drawn)))))
    names = np.array(data.draw(st.permutations(range(9))))
    one = effective_counts(is_good, clusters, DELTA)
    other = effective_counts(is_good[order], names[clusters[order]], DELTA)
    assert one == pytest.approx(other)


@given(labeled, st.data())
@settings(max_examples=60, deadline=None)
def test_without_contexts_a_good_label_more_never_hurts(
    drawn: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """Protects from a chosen share that shrinks when a label turns out good."""
    is_good, places = (np.array(side) for side in zip(*drawn, strict=True))
    bad = np.flatnonzero(~is_good)
    assume(len(bad))
    better = is_good.copy()
    better[data.draw(st.sampled_from(bad.tolist()))] = True
    before, after = (
        certify(places, labels, target=0.4, confidence=0.9) for labels in (is_good, better)
    )
    for old, new in zip(before.shares, after.shares, strict=True):
        assert new.p_value <= old.p_value and new.lower_bound >= old.lower_bound
        assert new.is_certified or not old.is_certified


def test_what_labels_could_show_is_said_before_anybody_labels() -> None:
    """Protects from 29 as the number to label: 20 shares are tested, not one."""
    for n_labels in (0, 20, 56, 57, 100, 400, 2000):
        found = outlook(n_labels, target=0.9, confidence=0.95)
        assert found.least_labels == 57
        places = share_index(np.arange(n_labels), n_rows=n_labels)
        best = certify(places, np.ones(n_labels, dtype=bool), target=0.9, confidence=0.95)
        certified = [share.share for share in best.shares if share.is_certified]
        assert found.smallest_share == (certified[0] if certified else None)
        assert (found.smallest_share is None) == (n_labels < 57)


def test_labels_needed_are_those_that_would_pass() -> None:
    """Protects from hope where there is none, and from a number that would not do."""
    rng = np.random.default_rng(3)
    places = rng.integers(N_SHARES, size=300)
    is_good = rng.random(300) < 0.97 - 0.02 * places
    found = certify(places, is_good, target=0.9, confidence=0.95)
    needed = labels_needed(found)
    for share, n in zip(found.shares, needed, strict=True):
        if share.is_certified or share.precision is None or share.precision <= 0.9:
            assert n is None
            continue
        assert n is not None
        for times, passes in ((n / 300, True), ((n - 2) / 300 * 0.999, False)):
            p_value = precision_p_value(times * share.n_labels, times * share.n_good, 0.9)
            assert bool(p_value <= DELTA / N_SHARES) == passes
    assert any(needed) and None in needed


@pytest.mark.parametrize("target", [0.0, 1.0, 1.2, float("nan")])
def test_targets_that_no_labels_show_are_refused(target: float) -> None:
    """Protects from a precision of 1, which no sample shows."""
    with pytest.raises(ConfigError, match="precision of"):
        outlook(100, target=target, confidence=0.95)


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0, 95.0, float("nan")])
def test_confidences_out_of_range_are_refused(confidence: float) -> None:
    """Protects from 95 for 0.95."""
    with pytest.raises(ConfigError, match="confidence must be"):
        certify(
            np.zeros(1, dtype=np.intp), np.ones(1, dtype=bool), target=0.8, confidence=confidence
        )


def test_places_are_numbers_of_shares() -> None:
    """Protects from shares or ranks that are taken for places."""
    for place in (-1, N_SHARES):
        with pytest.raises(ValueError, match="0..19"):
            certify(np.array([place]), np.array([True]), target=0.8, confidence=0.95)


def test_no_labels_certify_nothing() -> None:
    """Protects from a crash on an empty file of labels."""
    none = np.zeros(0, dtype=np.intp)
    for clusters in (None, none):
        found = certify(none, none == 0, target=0.8, confidence=0.95, clusters=clusters)
        assert found.chosen is None and found.n_labels == 0
        assert labels_needed(found) == (None,) * N_SHARES


# A peer: MAPIE


@pytest.fixture(scope="module")
def draws() -> list[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
    """Labels with precision falling along the ranking, many and few."""
    rng = np.random.default_rng(5)
    places = [rng.integers(N_SHARES, size=n) for n in (5, 40, 150, 400, 1000)]
    return [(own, rng.random(len(own)) < 0.99 - 0.02 * own) for own in places]


@pytest.mark.parametrize("target", [0.75, 0.8, 0.85, 0.9])
def test_p_values_and_certified_shares_are_those_of_mapie(
    draws: list[tuple[NDArray[np.intp], NDArray[np.bool_]]], target: float
) -> None:
    """Protects from a procedure that is not that of Learn then Test."""
    from mapie.risk_control import control_fwer
    from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value

    n_certified = []
    for places, is_good in draws:
        found = certify(places, is_good, target=target, confidence=1 - DELTA)
        shares = [share for share in found.shares if share.n_labels]
        n = np.array([share.n_labels for share in shares])
        n_bad = n - np.array([share.n_good for share in shares])
        # It computes ceil(n r) of r = n_bad / n, which is n_bad + 1 where rounding goes up.
        is_whole = np.ceil(n * (n_bad / n)) == n_bad
        peer = compute_hoeffding_bentkus_p_value(n_bad / n, n, 1 - target, binary=True)[:, 0]
        own = np.array([share.p_value for share in shares])
        assert is_whole.mean() > 0.7
        assert own[is_whole] == pytest.approx(peer[is_whole], rel=1e-9)
        # All tests, those of shares without labels too.
        p_values = np.array([share.p_value for share in found.shares])
        certified = [j for j, share in enumerate(found.shares) if share.is_certified]
        assert control_fwer(p_values, DELTA, "bonferroni_holm").tolist() == certified
        n_certified.append(len(certified))
    assert min(n_certified) == 0 < max(n_certified)


# Draws of labels whose truth is known


@pytest.mark.parametrize("n_contexts", [10, 40])
@pytest.mark.parametrize("likeness", [0.05, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("target", [0.8, 0.9])
def test_p_values_of_labels_by_context_keep_their_level(
    n_contexts: int, likeness: float, target: float
) -> None:
    """Protects from counts that certify too often where the precision is the target, no more.

    Contexts are alike inside from hardly to wholly; at .99 many draws are all good. The levels are
    those of a single test and of Holm's first step.
    """
    n_draws, levels = 1000, np.array([DELTA, DELTA / N_SHARES])
    rng = np.random.default_rng(n_contexts)
    shape = 1 / likeness - 1
    found, careless = np.zeros(2), np.zeros(2)
    for _ in range(n_draws):
        sizes = np.maximum(1, rng.poisson(5, size=n_contexts))
        quality = rng.beta(target * shape, (1 - target) * shape, size=n_contexts)
        clusters = np.repeat(np.arange(n_contexts), sizes)
        is_good = rng.random(len(clusters)) < quality[clusters]
        n, k, _ = effective_counts(is_good, clusters, DELTA)
        found += precision_p_value(n, k, target) <= levels
        careless += precision_p_value(len(is_good), is_good.sum(), target) <= levels
    error = np.sqrt(levels * (1 - levels) / n_draws)
    assert (found / n_draws <= levels + 3 * error).all()
    if likeness >= 0.3:
        assert careless[0] / n_draws > 2 * DELTA, "draws that need no correction test none"


@pytest.mark.parametrize("ranked_by", ["row", "context"])
@pytest.mark.parametrize(
    ("n_contexts", "size", "likeness", "target"),
    [(20, 15, 0.5, 0.9), (40, 10, 0.7, 0.85), (40, 4, 0.9, 0.85)],
)
def test_shares_that_miss_the_target_are_rarely_certified(
    n_contexts: int, size: int, likeness: float, target: float, ranked_by: str
) -> None:
    """Protects from the luckiest of 20 shares, each as precise as the target: any one is a miss.

    With Korn and Graubard's deff alone, 2 to 20 % of such draws are certified (DECISIONS.md, 103).
    """
    n_draws = 500
    rng = np.random.default_rng(size)
    shape = 1 / likeness - 1
    n_missed = n_careless = 0
    for _ in range(n_draws):
        sizes = np.maximum(1, rng.poisson(size, size=n_contexts))
        quality = rng.beta(target * shape, (1 - target) * shape, size=n_contexts)
        clusters = np.repeat(np.arange(n_contexts), sizes)
        is_good = rng.random(len(clusters)) < quality[clusters]
        places = rng.integers(N_SHARES, size=len(clusters))
        if ranked_by == "context":
            places = rng.integers(N_SHARES, size=n_contexts)[clusters]
        by_context = certify(
            places, is_good, target=target, confidence=1 - DELTA, clusters=clusters
        )
        n_missed += by_context.chosen is not None
        by_row = certify(places, is_good, target=target, confidence=1 - DELTA)
        n_careless += by_row.chosen is not None
    assert n_missed / n_draws <= DELTA
    assert n_careless / n_draws > 2 * DELTA, "draws that need no correction test none"
