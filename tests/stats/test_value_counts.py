"""Quantiles from counts: exact where values are few, near in rank else, in any order of parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from qaeval_core.stats.value_counts import ValueCounts

SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999, 1.0)
N = 200_000


def drawn(kind: str, seed: int = 0) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return values as metrics have them, and the range that is known of them."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=N)
    values = {
        "uniform": rng.random(N),
        "near one": 1 / (1 + np.exp(-9 - 4 * normal)),
        "near zero": 1 / (1 + np.exp(12 - 6 * normal)),
        "at both ends": 1 / (1 + np.exp(-9 * np.sign(normal) - 3 * normal)),
        "narrow": np.clip(0.88 + 0.03 * normal, -1, 1),
        "fractions": rng.integers(0, 20, N) / rng.integers(20, 40, N),
        "one value": np.full(N, 0.3),
        "half of one value": np.where(rng.random(N) < 0.5, 0.7, rng.random(N)),
        "some of three": np.where(
            rng.random(N) < 0.4, rng.choice([0.7, 0.700001, 0.12], N), rng.random(N)
        ),
        "cosines": np.tanh(normal),
        "crowded beyond all cells": np.where(
            rng.random(N) < 0.4, 0.3 + 1e-14 * rng.integers(0, 100, N), rng.random(N)
        ),
        "beyond the range": np.where(rng.random(N) < 0.9, 1 + rng.random(N), rng.random(N)),
        "nats": 3 + normal,
        "heavy tails": rng.standard_cauchy(N),
        "magnitudes": np.exp(9 * normal),
    }[kind]
    if kind in ("nats", "heavy tails", "magnitudes"):
        return values, (-math.inf, math.inf)
    return values, ((-1.0, 1.0) if kind in ("narrow", "cosines") else (0.0, 1.0))


KINDS = [
    "uniform", "near one", "near zero", "at both ends", "narrow", "fractions", "one value",
    "half of one value", "some of three", "cosines", "nats", "heavy tails", "magnitudes",
    "crowded beyond all cells", "beyond the range",
]  # fmt: skip


def counted(values: NDArray[np.floating], ends: tuple[float, float], **given: int) -> ValueCounts:
    counts = ValueCounts(*ends, **given)
    n_before = 0
    for part in np.array_split(values, 7):
        counts.add(part, n_before)
        n_before += len(part)
    return counts


def rank_error(values: NDArray[np.floating], found: list[float]) -> float:
    """Return by how much the ranks of quantiles are off at most, as a share of all."""
    ascending = np.sort(values.astype(np.float64))
    low, high = (
        np.searchsorted(ascending, found, side) / len(values) for side in ("left", "right")
    )
    off = np.maximum(low - np.array(SHARES), np.array(SHARES) - high)
    return float(off.max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_within_a_thousandth(kind: str, dtype: type[np.floating]) -> None:
    """Independent: all values, sorted. The bound that is said holds, and is as small."""
    values, ends = drawn(kind)
    counts = counted(values.astype(dtype), ends)
    found = counts.quantiles(SHARES)
    error = rank_error(values.astype(dtype), found)
    assert error <= counts.rank_error(SHARES) + 1 / N and counts.rank_error(SHARES) < 0.001
    assert counts.n == N and found == sorted(found)


@pytest.mark.parametrize("kind", KINDS)
def test_order_and_parts_change_nothing(kind: str) -> None:
    """For any files, tasks and kills: the same values have the same counts."""
    values, ends = drawn(kind)
    whole = counted(values, ends)
    rng = np.random.default_rng(1)
    for n_parts in (1, 2, 30):
        total = ValueCounts(*ends)
        for rows in np.array_split(rng.permutation(N), n_parts):
            own, first_row = ValueCounts(*ends), total.n
            own.add(values[rows], first_row)
            total.merge(own)
        ours, theirs = total.arrays(), whole.arrays()
        cells = ("number", "count", "lowest", "highest", "steps", "infinite")
        assert all(np.array_equal(ours[name], theirs[name]) for name in cells)
        if kind not in ("crowded beyond all cells", "beyond the range"):  # Those are by row order.
            assert total.quantiles(SHARES) == whole.quantiles(SHARES)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_any_order_have_the_same_quantiles(kind: str) -> None:
    """Of the same rows in the same order, for any values there could be."""
    values, ends = drawn(kind)
    whole = counted(values, ends)
    rng = np.random.default_rng(2)
    for n_parts in (2, 30):
        total = ValueCounts(*ends)
        cuts = [0, *np.sort(rng.integers(0, N, n_parts - 1)).tolist(), N]
        for i in rng.permutation(n_parts).tolist():
            own = ValueCounts(*ends)
            own.add(values[cuts[i] : cuts[i + 1]], cuts[i])
            total.merge(own)
        ours, theirs = total.arrays(), whole.arrays()
        assert all(np.array_equal(own, theirs[name]) for name, own in ours.items())
        assert total.quantiles(SHARES) == whole.quantiles(SHARES)


@pytest.mark.parametrize("most_cells", [1 << 16, 64, 3])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 500])
def test_few_values_are_exact(n: int, most_cells: int) -> None:
    """To the last bit, as numpy has them; with few cells the ends at least."""
    rng = np.random.default_rng(n)
    for values in (rng.random(n), rng.normal(size=n) * 1e9, np.round(rng.normal(size=n), 1)):
        counts = counted(values, (-math.inf, math.inf), most_cells=most_cells)
        found, true = counts.quantiles(SHARES), np.quantile(values, SHARES)
        assert found == true.tolist() and counts.rank_error(SHARES) == 0
        assert (found[0], found[-1]) == (values.min(), values.max())
        assert len(counts.arrays()["number"]) <= most_cells


def test_crowds_in_few_cells_are_within_a_thousandth() -> None:
    """Half of all values lie within a millionth, and the others anywhere."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random(N) < 0.5, 0.3 + 1e-6 * rng.random(N), rng.random(N))
    counts = counted(values, (0.0, 1.0), most_cells=1 << 4)
    found = counts.quantiles(SHARES)
    assert rank_error(values, found) <= counts.rank_error(SHARES) + 1 / N < 0.001


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-math.inf, math.inf)])
def test_awkward_values(ends: tuple[float, float]) -> None:
    """NaN is left out; zeros have no sign; what is infinite or beyond the range has a rank."""
    counts = ValueCounts(*ends)
    counts.add(np.array([np.nan, -0.0, 0.0, 1.0000001, -1e-9, np.inf, -np.inf]), 0)
    assert counts.n == 6
    assert counts.quantiles([0.0, 0.2, 0.8, 1.0]) == pytest.approx(
        [-math.inf, -1e-9, 1.0000001, math.inf], abs=1e-12
    )
    none = ValueCounts(*ends)
    none.add(np.array([np.nan]), 0)
    assert none.n == 0 and none.rank_error(SHARES) == 0
    with pytest.raises(ValueError, match="no values"):
        none.quantiles(SHARES)
    with pytest.raises(ValueError, match="ranges"):
        none.merge(ValueCounts(0.0, 2.0))
