"""Comparisons with the best: how often what is not worse is called so, and by which family."""

from __future__ import annotations

import numpy as np

from benchmarks.against_best import behind_best, by_family


def test_the_best_is_seldom_shown_worse() -> None:
    """Of eight equal metrics each may be the best one; a ninth is worse, and seen to be."""
    rng = np.random.default_rng(0)
    n_wrong, n_careless, n_found = 0, 0, 0
    for _ in range(300):
        values = rng.normal(size=8) + 2 * rng.normal()
        # Resamples share rows, so that all of them move together.
        resampled = values[:, None] + rng.normal(size=(8, 300)) + 2 * rng.normal(size=300)
        n_wrong += behind_best(values, resampled)[0][1] < 0.05
        gaps = resampled - resampled[0]
        n_careless += (np.quantile(gaps[1:], 0.05, axis=1) > 0).any()
        worse = np.append(values, values.max() - 6)
        drawn = np.vstack([resampled, resampled[:1] - values[0] + worse[-1]])
        n_found += behind_best(worse, drawn)[-1][1] < 0.05
    assert n_wrong / 300 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300) < n_careless / 300
    assert n_found / 300 > 0.9


def test_equal_columns_are_not_worse_than_each_other() -> None:
    resampled = np.tile(np.random.default_rng(0).normal(size=50), (2, 1))
    assert behind_best(np.zeros(2), resampled) == [(0.0, 1.0), (0.0, 1.0)]


def test_families_hold_what_can_do_the_same_work() -> None:
    """By main columns; a column without a figure is in none."""
    columns = {
        "f1": "f1", "f1_recall": "f1", "rouge_l": "rouge_l", "sas": "sas", "bertscore_f1":
        "bertscore", "bertscore_free_f1": "bertscore_free", "roundtrip": "roundtrip",
    }  # fmt: skip
    rng = np.random.default_rng(0)
    values = np.array([0.5, 0.9, 0.6, 0.8, np.nan, 0.4, 0.7])
    found = by_family(columns, values, values[:, None] + 0.01 * rng.normal(size=(7, 200)))
    assert set(found["all"]) == {"f1", "rouge_l", "sas", "bertscore_free_f1", "roundtrip"}
    assert set(found["no reference"]) == {"bertscore_free_f1", "roundtrip"}
    assert set(found["words"]) == {"f1", "rouge_l"}
    assert found["words"]["f1"][0] < 0 and found["words"]["f1"][1] < 0.05
    assert found["all"]["sas"][0] > 0 and found["all"]["sas"][1] > 0.5
