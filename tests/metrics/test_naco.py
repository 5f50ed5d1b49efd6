"""NACo, from runs to scores, against the rules in nested loops; and its settings."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from qaeval_core.errors import ConfigError, InputError
from qaeval_core.metrics.naco import Naco, NacoSettings, expected_complexity, naco, naturalness

TOLERANCE = 1e-12

Run = tuple[bool, float, float, int]  # counts, n, a, steps
n_values = st.sampled_from([0.0, 0.5, 1.0])
run = st.tuples(
    st.booleans(), n_values, st.sampled_from([0.0, 1.0]) | st.floats(0, 1), st.integers(0, 9)
)
rows_of_runs = st.integers(1, 4).flatmap(
    lambda n_runs: st.lists(st.lists(run, min_size=n_runs, max_size=n_runs), max_size=5)
)


def score(rows: list[list[Run]], e: float, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Naco:
    """Call `naco` with lists of runs."""
    n_runs = len(rows[0]) if rows else 1
    values = np.array(rows, dtype=float).reshape(len(rows), n_runs, 4)
    return naco(
        naturalness=values[:, :, 1],
        answerability=values[:, :, 2],
        n_steps=values[:, :, 3],
        is_counted=values[:, :, 0] > 0,
        expected_complexity=e,
        weights=weights,
    )


def _reference_naco(runs: list[Run], e: float, weights: tuple[float, ...]) -> list[float]:
    counted = [one for one in runs if one[0]]
    if not counted:
        return [math.nan] * 5 + [0]
    n = sum(n for _, n, _, _ in counted) / len(counted)
    a = sum(a for _, n, a, _ in counted if n > 0) / len(counted)
    steps = [max(s, 1) for _, n, _, s in counted if n > 0]
    if not steps:
        return [0.0, n, a, math.nan, math.nan, len(counted)]
    s = sum(steps) / len(steps)
    c = s / e if s < e else e / s
    parts = sum(w * part for w, part in zip(weights, (n, a, c), strict=True)) / sum(weights)
    return [parts if n > 0 and a > 0 else 0.0, n, a, c, s, len(counted)]


@settings(max_examples=150, deadline=None)
@given(
    rows=rows_of_runs,
    e=st.floats(1, 9),
    weights=st.tuples(st.floats(0.1, 3), st.floats(0, 3), st.floats(0, 3)),
)
def test_scores_are_those_of_nested_loops(
    rows: list[list[Run]], e: float, weights: tuple[float, ...]
) -> None:
    """Runs that do not count, runs with n = 0, rows without any run, weights, other rows."""
    scores = score(rows, e, weights)
    for i, runs in enumerate(rows):
        expected = _reference_naco(runs, e, weights)
        np.testing.assert_allclose([part[i] for part in scores], expected, atol=TOLERANCE)
        alone = score([runs], e, weights)
        np.testing.assert_array_equal([part[0] for part in alone], [part[i] for part in scores])
    for part in scores[:4]:
        assert np.all((part >= 0) & (part <= 1 + TOLERANCE) | np.isnan(part))


@pytest.mark.parametrize(
    ("n", "a", "steps", "e", "expected"),
    [
        (1, 1, [2], 3, 0.8889),  # figure 2 of the paper
        (1, 1, [1, 1, 2], 3, 0.8148),  # figure 3: 4/3 steps in three runs
        # The authors' program prints these for its demo, means over three runs.
        (1, 1, [4, 5, 5], 29 / 6, 0.98851),
        (1, 1, [3, 3, 4], 29 / 6, 0.89655),
    ],
)
def test_published_values_are_met(
    n: float, a: float, steps: list[int], e: float, expected: float
) -> None:
    """The paper prints no equation for c; its figures and the demo tell whether ours is it."""
    found = score([[(True, n, a, s) for s in steps]], e).naco[0]
    digits = len(str(expected)) - 2
    assert round(found, digits) == expected


def test_no_run_that_counts_is_undefined() -> None:
    """Replies that cannot be read say nothing of the question: not 0."""
    scores = score([[(False, 1.0, 1.0, 3)] * 2, [(True, 1.0, 1.0, 3), (False, 0.0, 0.0, 0)]], 3)
    assert [math.isnan(part[0]) for part in scores[:5]] == [True] * 5
    assert [part[1] for part in scores] == [1, 1, 1, 1, 3, 1]
    assert scores.n_runs.tolist() == [0, 1]


def test_an_unreadable_run_may_hold_anything() -> None:
    """NaN times False is NaN: one unreadable run would make its row undefined."""
    nan = math.nan
    scores = naco(
        naturalness=np.array([[1.0, nan]]),
        answerability=np.array([[0.5, nan]]),
        n_steps=np.array([[3.0, nan]]),
        is_counted=np.array([[True, False]]),
        expected_complexity=3,
    )
    np.testing.assert_allclose(scores.naco, [(1 + 0.5 + 1) / 3])


def test_a_question_that_is_none_has_no_complexity() -> None:
    """Counted as one step, non-questions would pull the mean of a corpus of simple ones up."""
    scores = score([[(True, 0.0, 0.8, 1)]], 1)
    assert (scores.naco[0], scores.naturalness[0], scores.answerability[0]) == (0, 0, 0)
    assert math.isnan(scores.complexity[0]) and math.isnan(scores.steps[0])


def test_no_rows_have_no_scores() -> None:
    """A shard whose rows are all quarantined."""
    assert all(part.shape == (0,) for part in score([], 2))


def test_unnatural_questions_differ_by_profile() -> None:
    """The program grants half a point for a question with errors, the paper nothing."""
    verdicts: dict[str, Any] = {
        "is_question": np.array([[True, True], [False, False]]),
        "is_natural": np.array([[True, False], [False, True]]),
    }
    assert naturalness(**verdicts, profile="paper").tolist() == [[1, 0], [0, 0]]
    assert naturalness(**verdicts, profile="authors").tolist() == [[1, 0.5], [0, 0]]
    with pytest.raises(ConfigError, match="'author'.*QA0202"):
        naturalness(**verdicts, profile="author")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=8))
def test_expected_complexity_is_the_mode_or_the_median_of_means(n_steps: list[list[int]]) -> None:
    """Ties, questions without a run, an even number of questions."""
    answered = [own for own in n_steps if own]
    if not answered:
        with pytest.raises(InputError, match=f"{len(n_steps)}.*QA0217"):
            expected_complexity(n_steps, profile="paper")
        return
    counts = Counter(itertools.chain(*answered))
    mode = min(counts, key=lambda steps: (-counts[steps], steps))
    assert expected_complexity(n_steps, profile="paper") == mode
    median = statistics.median(sum(own) / len(own) for own in answered)
    assert expected_complexity(n_steps, profile="authors") == pytest.approx(median)


@pytest.mark.parametrize("e", [0, 0.99, -1, math.nan, math.inf])
def test_an_expectation_below_one_step_is_refused(e: float) -> None:
    """A c above 1, or one that is always 0 or NaN, would be published."""
    with pytest.raises(ConfigError, match="1.*QA0202"):
        score([[(True, 1, 1, 1)]], e)


@pytest.mark.parametrize("weights", [(0, 0, 0), (1, -1, 1), (1, math.nan, 1), (math.inf, 1, 1)])
def test_weights_without_a_sum_are_refused(weights: tuple[float, ...]) -> None:
    """Divided by 0, or by less than its parts, a score leaves its range."""
    with pytest.raises(ConfigError, match="QA0202"):
        score([[(True, 1, 1, 1)]], 2, weights)


def test_weights_that_are_not_thirds_count_by_their_ratios() -> None:
    """2, 1, 1 are halves and quarters; undivided, the best question would score 4."""
    assert score([[(True, 1, 0.5, 2)]], 2, (2, 1, 1)).naco[0] == 0.5 + 0.125 + 0.25


def make(**given: object) -> NacoSettings:
    """Return settings of NACo."""
    return NacoSettings.model_validate({"metric": "naco", **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base_url": "localhost:8000/v1"}, "takes a URL such as http://127.0.0.1:8000/v1"),
        ({"base_url": "http://host/v1?key=1"}, "key may be a credential"),
        ({"base_url": "http://host:x/v1"}, "takes a URL"),
        ({"base_url": "https://me:secret@host/v1"}, "put the key into api_key_file"),
        ({"base_url": "https://host/v1/chat/completions"}, "ends before /chat/completions"),
        ({"model": " "}, "it is empty"),
        ({"api_key_file": "sk-secret"}, "the path of a file that holds the key, not the key"),
        ({"budget_usd": 5}, "budget_usd needs prices"),
        ({"prices": {"prompt": -1, "completion": 1}}, "greater than or equal to 0"),
        ({"tokens_per_minute": 512, "max_tokens": 512}, "tokens_per_minute is 512, but one call"),
        ({"requests_per_minute": 0}, "greater than or equal to 1"),
        ({"expected_complexity": 0.5}, "a number of steps, 1 or more, or a file"),
        ({"expected_complexity": "0"}, "a number of steps, 1 or more, or a file"),
        ({"expected_complexity": True}, "a number of steps, 1 or more, or a file"),
        ({"expected_complexity": " "}, "a number of steps, 1 or more, or a file"),
        ({"runs": 0}, "greater than or equal to 1"),
        ({"profile": "author"}, "'paper' or 'authors'"),
        ({"top_p": 0}, "greater than 0"),
        (
            {"weights": {"naturalness": 0, "answerability": 0, "complexity": 0}},
            "one of the three weights must be above 0",
        ),
        ({"temprature": 0}, "Extra inputs are not permitted"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    """Found at the first call, they would cost a cluster's start, or money."""
    with pytest.raises(ValidationError, match=message) as caught:
        make(**given)
    assert "secret" not in str(caught.value)


def test_settings_that_can_be_are_kept() -> None:
    """A trailing slash would make another journal key of the same endpoint."""
    assert make(base_url="http://[::1]:8000/v1/ ").base_url == "http://[::1]:8000/v1"
    assert make(expected_complexity="2").expected_complexity == 2.0
    assert make(expected_complexity="steps.json").expected_complexity == "steps.json"
    found = make(budget_usd=5, prices={"prompt": 0.15, "completion": 0.6})
    assert found.prices is not None and found.prices.completion == 0.6
    plain = make()
    assert (plain.temperature, plain.top_p, plain.profile, plain.runs) == (0.7, 1.0, "paper", 1)
