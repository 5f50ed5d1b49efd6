"""How many labels to draw, and where: against certificates, and draws whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.stats.certificate import Certificate, certify, kept_rows
from qaeval_core.stats.label_plan import (
    best_part,
    labels_needed,
    least_labels,
    look_deltas,
    outlook,
)

DELTA = 0.05
ROWS = 10**6


def draw(
    precisions: NDArray[np.float64], n: int, rng: np.random.Generator, *, target: float = 0.8
) -> Certificate:
    """Return the certificate of labels of so many bins of a ranking, two to a share."""
    bins = rng.integers(len(precisions), size=n)
    is_good = rng.random(n) < precisions[bins]
    places = bins * 20 // len(precisions)
    return certify(places, is_good, counts=kept_rows(ROWS), target=target, delta=DELTA)


def test_fewest_labels_are_those_that_pass_one_test() -> None:
    """Protects from a number that is one off where a power of the target is the level."""
    assert least_labels(0.9, 0.05) == 29
    for target in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99):
        for delta in (0.5, 0.25, 0.125, 0.1, 0.05, 0.01, 0.0025):
            n = least_labels(target, delta)
            assert target**n <= delta < target ** (n - 1) or n == 1


def test_what_labels_could_show_is_said_before_anybody_labels() -> None:
    """Protects from hope for labels that cannot pass, even if all of them are good."""
    for n_labels in (0, 20, 28, 29, 57, 100, 400, 2000):
        found = outlook(n_labels, n_rows=ROWS, target=0.9, delta=DELTA)
        assert found.least_labels == 29
        places = np.searchsorted(kept_rows(n_labels), np.arange(n_labels), side="right")
        good = np.ones(n_labels, dtype=bool)
        best = certify(places, good, counts=kept_rows(ROWS), target=0.9, delta=DELTA)
        certified = [share.share for share in best.shares if share.is_certified]
        assert found.smallest_share == (certified[0] if certified else None)
        assert (found.smallest_share is None) == (n_labels < 29)
    # Who labels all rows knows all.
    assert outlook(500, n_rows=100, target=0.9, delta=DELTA).smallest_share == 0.05


def test_outlooks_of_impossible_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="QA0104"):
        outlook(100, n_rows=ROWS, target=1.0, delta=DELTA)


def test_looks_share_what_may_be_wrong() -> None:
    """Protects from looks that are each wrong as often as one may be."""
    for planned in ([400], [200, 400, 800], [400, 400], [100] * 10):
        parts = look_deltas(planned, DELTA)
        assert sum(parts) == pytest.approx(DELTA)
        assert [part / parts[0] for part in parts] == pytest.approx(
            [n / planned[0] for n in planned]
        )


@pytest.mark.slow
def test_labels_that_are_needed_do_in_four_of_five_draws() -> None:
    """Protects from a number that does in one of three, for it is the luckiest share's.

    The truth is a curve as the one that is fitted; advice is of 150 labels that certify nothing.
    """
    rng = np.random.default_rng(1)
    x = (np.arange(40) + 0.5) / 40
    truth = 1 / (1 + np.exp(-(1.55 - 1.6 * (2 * x - 1))))
    passed = []
    while len(passed) < 150:
        found = draw(truth, 150, rng)
        if found.chosen is not None:
            continue
        n = labels_needed(found, lambda _: DELTA)
        if n is not None and n < 50_000:
            passed.append(draw(truth, n, rng).chosen is not None)
    assert np.mean(passed) > 0.75


def test_a_look_that_costs_more_needs_more_labels() -> None:
    """Protects from advice without the price of a look."""
    rng = np.random.default_rng(4)
    found = draw(np.full(40, 0.85), 150, rng)
    assert found.chosen is None
    alone, second = (labels_needed(found, lambda _, own=own: own) for own in (DELTA, DELTA / 3))
    assert alone is not None and second is not None and 150 < alone < second
    assert labels_needed(draw(np.full(40, 0.5), 150, rng), lambda _: DELTA) is None


def test_a_second_sheet_is_drawn_where_precision_is() -> None:
    """Protects from labels of rows that nobody would keep, and from a part that is too small."""
    rng = np.random.default_rng(3)
    steep = np.r_[np.full(8, 0.95), np.full(32, 0.3)]  # A fifth of the ranking is good.
    flat = np.full(40, 0.9)
    parts = {
        name: np.mean([best_part(draw(own, 100, rng), 300) + 1 for _ in range(60)]) / 20
        for name, own in (("steep", steep), ("flat", flat))
    }
    assert 0.1 < parts["steep"] < 0.35 and parts["flat"] > 0.8
