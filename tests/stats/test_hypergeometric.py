"""The law of samples without replacement against exact fractions and scipy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qaeval_core.stats.hypergeometric import least_good, probabilities, tail, tails


def _reference(n: int, n_good: int, n_rows: int) -> list[Fraction]:
    return [
        Fraction(math.comb(n_good, k) * math.comb(n_rows - n_good, n - k), math.comb(n_rows, n))
        for k in range(n + 1)
    ]


@given(st.integers(0, 60), st.data())
@settings(max_examples=100, deadline=None)
def test_chances_and_tails_are_exact(n_rows: int, data: st.DataObject) -> None:
    """Protects from numbers of good rows that cannot be, and from tails without their first."""
    n, n_good = (data.draw(st.integers(0, n_rows)) for _ in range(2))
    expected = _reference(n, n_good, n_rows)
    first, values = probabilities(n, n_good=n_good, n_rows=n_rows)
    assert [float(own) for own in expected[first : first + len(values)]] == pytest.approx(values)
    assert sum(expected[first : first + len(values)]) == 1
    found = tails(n, n_good=n_good, n_rows=n_rows)
    assert found == pytest.approx([float(sum(expected[k:])) for k in range(n + 1)], rel=1e-9)
    assert (np.diff(found) <= 0).all()
    drawn, good, rows = np.array([[n], [n_good], [n_rows]]).repeat(n + 1, axis=1)
    together = tail(np.arange(n + 1), drawn, n_good=good, n_rows=rows)
    assert together == pytest.approx(found, rel=1e-9)


def test_of_very_many_rows_they_are_the_binomials() -> None:
    """Protects from differences of huge logarithms."""
    found = tails(400, n_good=8 * 10**11, n_rows=10**12)
    assert found == pytest.approx(stats.binom.sf(np.arange(-1, 400), 400, 0.8), rel=1e-6)


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.001, 0.05, 0.3]))
@settings(max_examples=100, deadline=None)
def test_the_bound_is_the_fewest_good_rows_that_are_no_surprise(
    n_rows: int, labeled: float, quality: float, level: float
) -> None:
    """Protects from a bound that is one off, or that contradicts the rows that were drawn."""
    n = round(labeled * n_rows)
    k = round(quality * n)
    one, drawn, rows = np.array([[k], [n], [n_rows]])
    found = least_good(drawn, one, n_rows=rows, level=level)
    good = np.arange(k, n_rows - (n - k) + 1)
    each = (own.repeat(len(good)) for own in (one, drawn))
    fits = good[tail(*each, n_good=good, n_rows=rows.repeat(len(good))) > level]
    assert found.tolist() == [fits.min()]
