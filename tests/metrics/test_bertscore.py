"""BERTScore from best cosines, against nested loops and against bert_score's own function."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.metrics.bertscore import (
    BertScore,
    bertscore,
    inverse_document_frequencies,
    rescale,
)

TOLERANCE = 1e-12
# Both in 32 bits; sums run in another order.
TOLERANCE_32 = 2e-6

Side = list[tuple[float, float]]  # best cosine and weight of each token
tokens = st.lists(
    st.tuples(
        st.floats(-1, 1, allow_subnormal=False) | st.just(math.nan),
        st.sampled_from([0.0, 0.25, 1.0, 3.0]),
    ),
    max_size=5,
)


def score(pairs: list[tuple[Side, Side]]) -> BertScore:
    """Call `bertscore` with one list of (best, weight) per side."""
    sides = [[side for side, _ in pairs], [side for _, side in pairs]]
    flat = [np.array([t for side in one for t in side]).reshape(-1, 2) for one in sides]
    counts = [np.array([len(side) for side in one], dtype=np.int64) for one in sides]
    return bertscore(
        best_candidate=flat[0][:, 0],
        candidate_weights=flat[0][:, 1],
        n_candidate=counts[0],
        best_reference=flat[1][:, 0],
        reference_weights=flat[1][:, 1],
        n_reference=counts[1],
    )


def _reference_bertscore(candidate: Side, reference: Side) -> list[float]:
    means = []
    for side in (candidate, reference):
        total = weight = 0.0
        for best, w in side:
            if w > 0:
                total += w * best
                weight += w
        means.append(total / weight if weight > 0 else math.nan)
    p, r = means
    if math.isnan(p) or math.isnan(r):
        return [math.nan] * 3
    return [p, r, 2 * p * r / (p + r) if p + r != 0 else 0.0]


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(tokens, tokens), max_size=6))
def test_scores_are_those_of_nested_loops(pairs: list[tuple[Side, Side]]) -> None:
    """Any weights, empty sides, tokens without a match; and batch mates change nothing."""
    found = np.stack(score(pairs), axis=1)
    expected = np.array([_reference_bertscore(*pair) for pair in pairs]).reshape(-1, 3)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=1e-9)
    for i, pair in enumerate(pairs):
        np.testing.assert_array_equal(np.stack(score([pair]), axis=1)[0], found[i])


def test_a_side_without_weight_makes_all_three_undefined() -> None:
    """bert_score prints a warning and says 0: an average over rows then counts it as wrong."""
    full, empty, weightless = [(0.5, 1.0)], [], [(0.5, 0.0)]
    for pair in [(full, empty), (empty, full), (empty, empty), (weightless, full)]:
        assert np.isnan(np.stack(score([pair]))).all()


def test_a_token_of_weight_zero_needs_no_match() -> None:
    """0 x NaN is NaN: one special token without a match would undo its pair."""
    assert [float(x[0]) for x in score([([(math.nan, 0.0), (0.5, 2.0)], [(0.5, 1.0)])])] == [
        0.5
    ] * 3


def test_opposite_texts_score_zero_where_p_and_r_cancel() -> None:
    """2 P R / (P + R) divides by 0 there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert score([([(0.5, 1.0)], [(-0.5, 1.0)])]).f1.tolist() == [0.0]


@pytest.mark.slow  # torch and transformers take 4 s to import
def test_scores_equal_those_of_bert_score() -> None:
    """The authors' own function on the same vectors, idf weights and special tokens."""
    torch = pytest.importorskip("torch")
    greedy = pytest.importorskip("bert_score.utils").greedy_cos_idf
    chance = np.random.default_rng(11)
    n_pairs, n_cand, n_ref, dim = 4, 5, 7, 6
    # Vectors with a common part: all cosines are positive, so that multiplying padding by 0 is
    # as good as leaving it out. Where they are negative, see tests/scoring/test_matching.py.
    cand = chance.random((n_pairs, n_cand, dim)).astype(np.float32)
    ref = chance.random((n_pairs, n_ref, dim)).astype(np.float32)
    weights = [chance.random((n_pairs, n)).astype(np.float32) for n in (n_cand, n_ref)]
    weights[0][:, [0, -1]] = weights[1][:, [0, -1]] = 0  # [CLS] and [SEP]
    tensors = [torch.from_numpy(a.copy()) for a in (ref, weights[1], cand, weights[0])]
    ones = [torch.ones(n_pairs, n, dtype=torch.long) for n in (n_ref, n_cand)]
    theirs = greedy(tensors[0], ones[0], tensors[1], tensors[2], ones[1], tensors[3])

    unit = [a / np.linalg.norm(a, axis=2, keepdims=True) for a in (cand, ref)]
    cosine = unit[0] @ unit[1].swapaxes(1, 2)
    ours = bertscore(
        best_candidate=cosine.max(axis=2).ravel(),
        candidate_weights=weights[0].ravel(),
        n_candidate=np.full(n_pairs, n_cand),
        best_reference=cosine.max(axis=1).ravel(),
        reference_weights=weights[1].ravel(),
        n_reference=np.full(n_pairs, n_ref),
    )
    np.testing.assert_allclose(np.stack(ours), torch.stack(theirs).numpy(), atol=TOLERANCE_32)


def test_rescaling_keeps_one_and_maps_the_baseline_to_zero() -> None:
    """Clipped at 0 as QRelScore's rescaling is, scores below the baseline would all tie."""
    found = rescale(np.array([1.0, 0.8, 0.6, math.nan]), baseline=0.8)
    np.testing.assert_allclose(found, [1.0, 0.0, -1.0, math.nan], atol=TOLERANCE)


def test_idf_equals_that_of_bert_score() -> None:
    """log(N / n) would be infinite for a token that no reference has."""
    documents = [{1, 2, 3}, {2, 3}, {3}]
    counts = np.array([sum(token in d for d in documents) for token in range(5)])
    found = inverse_document_frequencies(counts, n_documents=3)
    expected = [math.log(4 / 1), math.log(4 / 2), math.log(4 / 3), math.log(4 / 4), math.log(4 / 1)]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
