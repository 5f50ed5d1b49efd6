"""System scores: scores of systems and draws of questions, against loops over rows."""

from __future__ import annotations

import numpy as np
import pytest

from qaeval_core.stats.system_scores import (
    common_questions,
    draw_weights,
    group_rows,
    group_scores,
    mean_of_sums,
    mean_statistics,
)

SYSTEMS = np.array(["b", "a", "b", "a", "c", "b"])


def test_system_scores_are_means_of_defined_rows() -> None:
    """Protects from an undefined row counted as 0, and from a system without rows as 0."""
    values = np.array([1.0, 2.0, np.nan, 4.0, np.nan, 3.0])
    weights = np.stack([np.ones(6), np.array([2.0, 0.0, 1.0, 1.0, 1.0, 1.0])], axis=1)
    statistics = mean_statistics(values)
    found = group_scores(group_rows(SYSTEMS), statistics, mean_of_sums, weights=weights)
    expected = [[(2 + 4) / 2, 4.0], [(1 + 3) / 2, (2 * 1 + 3) / 3], [np.nan, np.nan]]
    assert found == pytest.approx(np.array(expected), nan_ok=True)


def test_a_corpus_score_comes_from_sums_and_is_no_mean_of_rows() -> None:
    """Protects BLEU at system level: a ratio of sums, here (1 + 3) / (2 + 4)."""
    statistics = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 4.0], [1.0, 1.0], [np.nan] * 2, [0, 0]])
    found = group_scores(
        group_rows(SYSTEMS),
        statistics,
        lambda sums: sums[:, 0] / np.maximum(sums[:, 1], 1),
        weights=np.ones((6, 1)),
    )
    assert found.ravel() == pytest.approx([(0 + 1) / (1 + 1), (1 + 3 + 0) / 6, np.nan], nan_ok=True)


def test_draws_hold_different_questions_the_same_for_all_systems() -> None:
    """Protects the protocol: 30 questions without repetition, one set for all systems."""
    questions = np.tile(np.array([f"q{i}" for i in range(40)]), 3)
    systems = np.repeat(np.array(["a", "b", "c"]), 40)
    usable = np.ones(120, dtype=bool)
    usable[5] = False
    common = common_questions(systems=systems, questions=questions, usable=usable)
    assert len(common) == 39
    assert "q5" not in common
    draws = draw_weights(questions, common, n_draws=20, questions_per_draw=30, seed=2)
    assert draws.shape == (120, 20)
    per_system = draws.reshape(3, 40, 20)
    assert (per_system.sum(axis=1) == 30).all()
    assert (per_system == per_system[:1]).all()
    assert len({tuple(draw) for draw in draws.T}) == 20
    again = draw_weights(questions, common, n_draws=20, questions_per_draw=30, seed=2)
    assert (draws == again).all()
