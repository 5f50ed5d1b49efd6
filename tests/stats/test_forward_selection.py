"""Forward selection: a known order, and errors against plain least squares."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import KFold

from qaeval_core.stats.ranking import forward_selection


def _reference_mse(features: np.ndarray, human: np.ndarray, *, n_repeats: int, seed: int) -> float:
    """Mean held-out error of least squares with an intercept, fold by fold."""
    squares = []
    for repeat in range(n_repeats):
        folds = KFold(5, shuffle=True, random_state=seed + repeat)
        for train, test in folds.split(human):
            ones = np.ones((len(human), 1))
            design = np.hstack([ones, features])
            weights = np.linalg.lstsq(design[train], human[train], rcond=None)[0]
            squares += ((design[test] @ weights - human[test]) ** 2).tolist()
    return float(np.mean(squares))


def test_metrics_are_chosen_in_the_order_of_what_they_add() -> None:
    """A strong metric, its noisy copy and a weaker independent one: the copy must come last."""
    rng = np.random.default_rng(0)
    strong, weak = rng.normal(size=200), rng.normal(size=200)
    human = 3 * strong + weak + 0.3 * rng.normal(size=200)
    copy = strong + 0.1 * rng.normal(size=200)
    metrics = np.column_stack([copy, weak, strong])
    steps = forward_selection(["copy", "weak", "strong"], metrics=metrics, human=human, seed=4)
    assert [step.n_chosen for step in steps] == [{"strong": 10}, {"weak": 10}, {"copy": 10}]
    for step, columns in zip(steps, ([2], [2, 1], [2, 1, 0]), strict=True):
        expected = _reference_mse(metrics[:, columns], human, n_repeats=10, seed=4)
        assert step.mse == pytest.approx(expected, rel=1e-9)
        assert step.r2 == pytest.approx(1 - expected / human.var(), rel=1e-9)


def test_a_seed_of_more_than_32_bits_is_one() -> None:
    """The folds of the last repeats ended with scikit-learn's own error."""
    rng = np.random.default_rng(2)
    metrics, human = rng.normal(size=(60, 2)), rng.normal(size=60)
    steps = [
        forward_selection(["a", "b"], metrics=metrics, human=human, seed=seed, n_repeats=2)
        for seed in (2**32 - 1, 2**33 - 1)
    ]
    assert steps[0] == steps[1]


def test_scale_and_direction_do_not_matter() -> None:
    """Protects from choosing a metric for its units."""
    rng = np.random.default_rng(1)
    metrics = rng.normal(size=(60, 3))
    human = metrics @ np.array([1.0, 0.5, 0.0]) + rng.normal(size=60)
    names = ["a", "b", "c"]
    scaled = metrics * np.array([-1e-3, 50.0, 1.0]) + 7
    first, second = (
        forward_selection(names, metrics=side, human=human, seed=0, n_repeats=2)
        for side in (metrics, scaled)
    )
    assert [step.n_chosen for step in first] == [step.n_chosen for step in second]
    assert [step.mse for step in first] == pytest.approx([step.mse for step in second])
