"""The weighted LCS against the table of a textbook and against all subsequences there are."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.text import lcs as module
from qaeval_core.text.lcs import weighted_lcs

TOLERANCE = 1e-12

Pair = tuple[list[int], list[int], list[float]]
ids = st.lists(st.integers(-2, 3), max_size=9)


@st.composite
def pair_lists(draw: st.DrawFn) -> list[Pair]:
    """Draw pairs of short texts over few tokens, with weights that tie and that do not."""
    weight = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1, width=32)
    pairs = []
    for candidate in draw(st.lists(ids, max_size=6)):
        own = draw(st.lists(weight, min_size=len(candidate), max_size=len(candidate)))
        pairs.append((candidate, draw(ids), own))
    return pairs


def compute(pairs: list[Pair]) -> list[tuple[int, float]]:
    """Call `weighted_lcs` with arrays."""
    length, weight = weighted_lcs(
        candidates=[np.array(candidate, dtype=np.int64) for candidate, _, _ in pairs],
        references=[np.array(reference, dtype=np.int64) for _, reference, _ in pairs],
        weights=[np.array(own, dtype=np.float64) for _, _, own in pairs],
    )
    assert (length.dtype, weight.dtype) == (np.int64, np.float64)
    return list(zip(length.tolist(), weight.tolist(), strict=True))


def _reference_weighted_lcs(
    candidate: list[int], reference: list[int], weights: list[float]
) -> tuple[int, float]:
    """The table, cell by cell; tuples compare length first."""
    table = [[(0, 0.0)] * (len(reference) + 1) for _ in range(len(candidate) + 1)]
    for i, j in itertools.product(range(len(candidate)), range(len(reference))):
        best = max(table[i][j + 1], table[i + 1][j])
        if candidate[i] == reference[j]:
            length, weight = table[i][j]
            best = max(best, (length + 1, weight + weights[i]))
        table[i + 1][j + 1] = best
    return table[-1][-1]


def _reference_by_enumeration(
    candidate: list[int], reference: list[int], weights: list[float]
) -> tuple[int, float]:
    """All choices of candidate tokens; the table above could share a mistake with the code."""
    best = (0, 0.0)
    for n in range(1, len(candidate) + 1):
        for places in itertools.combinations(range(len(candidate)), n):
            rest = iter(reference)
            if all(candidate[i] in rest for i in places):
                best = max(best, (n, math.fsum(weights[i] for i in places)))
    return best


@settings(max_examples=80, deadline=None)
@given(pairs=pair_lists())
def test_length_and_weight_are_those_of_the_table(pairs: list[Pair]) -> None:
    """Any sizes in one batch, either side the longer one, repeated tokens, empty texts."""
    for found, pair in zip(compute(pairs), pairs, strict=True):
        length, weight = _reference_weighted_lcs(*pair)
        assert found[0] == length
        assert found[1] == pytest.approx(weight, abs=TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(pairs=pair_lists())
def test_length_and_weight_are_the_best_of_all_subsequences(pairs: list[Pair]) -> None:
    """A rule that is wrong in the code and in the table alike."""
    for found, pair in zip(compute(pairs), pairs, strict=True):
        length, weight = _reference_by_enumeration(*pair)
        assert found[0] == length
        assert found[1] == pytest.approx(weight, abs=TOLERANCE)


def test_length_comes_before_weight() -> None:
    """The heaviest common subsequence here is "c" alone; LCS is the longest one."""
    assert compute([([0, 1, 2], [2, 0, 1], [0.1, 0.1, 0.9])]) == [(2, pytest.approx(0.2))]


def test_a_repeated_token_counts_where_it_weighs_most() -> None:
    """A table that takes the diagonal at every match, as KPQA's program does, says 0.25."""
    assert compute([([7, 7], [7], [1.0, 0.25])]) == [(1, 1.0)]
    assert compute([([7, 7], [7], [0.25, 1.0])]) == [(1, 1.0)]


@pytest.mark.parametrize("sizes", [(40, 3), (3, 40), (64, 64), (1, 1)])
def test_batch_mates_change_nothing(sizes: tuple[int, int]) -> None:
    """Neither the padding nor the scale of the weights may come from another pair."""
    chance = np.random.default_rng(4)

    def random_pair(n_cand: int, n_ref: int, scale: float) -> Pair:
        candidate, reference = chance.integers(0, 5, n_cand), chance.integers(0, 5, n_ref)
        return candidate.tolist(), reference.tolist(), (chance.random(n_cand) * scale).tolist()

    pair = random_pair(*sizes, 1.0)
    mates = [
        random_pair(*chance.integers(1, 90, 2).tolist(), 10.0 ** chance.integers(-8, 8))
        for _ in range(60)
    ]
    among = compute([*mates[:30], pair, *mates[30:]])
    assert among[30] == compute([pair])[0]
    length, weight = _reference_weighted_lcs(*pair)
    assert among[30] == (length, pytest.approx(weight, rel=TOLERANCE))


def test_weights_of_one_sum_to_the_length_exactly() -> None:
    """Plain ROUGE-L is the weighted one with weights of 1: rounding would break its ties."""
    chance = np.random.default_rng(5)
    pairs = [
        (chance.integers(0, 9, n).tolist(), chance.integers(0, 9, 3 * n).tolist(), [1.0] * n)
        for n in range(1, 50)
    ]
    assert all(length == weight for length, weight in compute(pairs))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_weights_of_any_magnitude_keep_their_digits(scale: float) -> None:
    """Weights become integers; a fixed unit would round small ones to 0."""
    (length, weight), *_ = compute([([1, 2, 3], [1, 3], [scale, scale, scale / 3])])
    assert (length, weight) == (2, pytest.approx(scale * 4 / 3, rel=TOLERANCE))


def test_long_texts_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of two texts of 50,000 tokens has 2.5e9 cells."""
    chance = np.random.default_rng(6)
    candidate, reference = chance.integers(0, 50, 3000), chance.integers(0, 50, 2000)
    weights = chance.random(3000)
    tracemalloc.start()
    length, weight = weighted_lcs(candidates=[candidate], references=[reference], weights=[weights])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    monkeypatch.setattr(module, "MAX_PLACES", 1)
    swapped, _ = weighted_lcs(
        candidates=[reference], references=[candidate], weights=[np.ones(2000)]
    )
    assert swapped.tolist() == length.tolist()
    assert 0 < weight[0] < length[0]


def test_no_pairs_and_empty_texts_score_nothing() -> None:
    """A batch needs a longest text; there may be none."""
    assert compute([]) == []
    assert compute([([], [], []), ([1], [], [1.0]), ([], [1], [])]) == [(0, 0.0)] * 3


def test_wrong_weights_are_refused() -> None:
    """A negative or missing weight would spill into the bits that hold the length."""
    for weights, message in [
        ([1.0], "pair 0 has 2 candidate tokens and 1 weights"),
        ([1.0, -0.5], "pair 0 has a weight that is negative or not finite"),
        ([1.0, math.nan], "pair 0 has a weight that is negative or not finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            compute([([1, 2], [1], weights)])
