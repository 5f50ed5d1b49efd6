"""Win-lose agreement against loops over pairs of answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.stats.ranking import rank_pairs, weighted_share, win_lose

NAN = float("nan")
rows = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([1.0, 2.0, 3.0, 5.0, NAN]),
        st.sampled_from([0.1, 0.2, 0.9, NAN]),
    ),
    min_size=1,
    max_size=20,
)


def _reference_win_lose(drawn: list[tuple[int, float, float]], min_gap: float) -> dict[str, int]:
    counts = {"agree": 0, "tied": 0, "disagree": 0, "undefined": 0}
    for i, (question, human, score) in enumerate(drawn):
        for other_question, other_human, other_score in drawn[:i]:
            gap = human - other_human
            if question != other_question or not abs(gap) > min_gap:
                continue
            difference = score - other_score
            if np.isnan(difference):
                counts["undefined"] += 1
            elif difference == 0:
                counts["tied"] += 1
            else:
                counts["agree" if difference * gap > 0 else "disagree"] += 1
    return counts


@given(rows, st.sampled_from([0.0, 1.0, 2.0, 3.5]))
@settings(max_examples=80, deadline=None)
def test_counts_are_those_of_a_loop_over_pairs(
    drawn: list[tuple[int, float, float]], min_gap: float
) -> None:
    """Protects from pairs across questions, pairs counted twice and a gap that is inclusive."""
    questions, human, scores = (np.array(side) for side in zip(*drawn, strict=True))
    pairs = rank_pairs(human=human, questions=questions, min_gap=min_gap)
    found = win_lose(scores, pairs)
    expected = _reference_win_lose(drawn, min_gap)
    assert (found.n_agree, found.n_tied) == (expected["agree"], expected["tied"])
    assert (found.n_disagree, found.n_undefined) == (expected["disagree"], expected["undefined"])
    n_defined = expected["agree"] + expected["tied"] + expected["disagree"]
    assert found.share == pytest.approx(
        expected["agree"] / n_defined if n_defined else NAN, nan_ok=True
    )


def test_a_resample_of_questions_brings_all_pairs_of_a_question() -> None:
    """Protects from pairs drawn one by one: pairs of one question share answers."""
    human = np.array([1.0, 5.0, 3.0, 1.0, 5.0])
    questions = np.array([0, 0, 0, 1, 1])
    scores = np.array([0.1, 0.9, 0.5, 0.8, 0.2])
    pairs = rank_pairs(human=human, questions=questions, min_gap=1.0)
    weights = np.array([[1.0, 2.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0]])
    shares = weighted_share(scores, pairs, weights)
    assert shares == pytest.approx(np.array([3 / 4, 1.0, 0.0, NAN]), nan_ok=True)
