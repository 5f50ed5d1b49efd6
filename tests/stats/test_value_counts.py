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
]  # fmt: skip


def counted(values: NDArray[np.floating], ends: tuple[float, float], **given: int) -> ValueCounts:
    counts = ValueCounts(*ends, **given)
    for part in np.array_split(values, 7):
        counts.add(part)
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
        for part in np.array_split(rng.permutation(values), n_parts):
            own = ValueCounts(*ends)
            own.add(part)
            total.merge(own)
        ours, theirs = total.arrays(), whole.arrays()
        kept = {"shared", "n_shared"}  # of values near the limit, those that a part shows
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours.keys() - kept)
        assert total.quantiles(SHARES) == whole.quantiles(SHARES)


@pytest.mark.parametrize("most_cells", [1 << 16, 64, 3])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 500])
def test_few_values_are_exact(n: int, most_cells: int) -> None:
    """To the last bit, as numpy has them; with few cells the ends at least."""
    rng = np.random.default_rng(n)
    for values in (rng.random(n), rng.normal(size=n) * 1e9, np.round(rng.normal(size=n), 1)):
        counts = counted(values, (-math.inf, math.inf), most_cells=most_cells)
        found, true = counts.quantiles(SHARES), np.quantile(values, SHARES)
        if len(np.unique(values)) <= most_cells:
            assert found == true.tolist() and counts.rank_error(SHARES) == 0
        assert (found[0], found[-1]) == (values.min(), values.max())
        assert rank_error(values, found) <= counts.rank_error(SHARES) + 1 / n
        assert max(abs(found - true)) <= counts.value_error(SHARES)
        assert len(counts.arrays()["number"]) <= most_cells


def test_what_it_cannot_keep_is_said() -> None:
    """Half of all values lie within a millionth, and the others anywhere: both bounds hold."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random(N) < 0.5, 0.3 + 1e-6 * rng.random(N), rng.random(N))
    counts = counted(values, (0.0, 1.0), most_cells=1 << 10)
    found = counts.quantiles(SHARES)
    assert rank_error(values, found) > 0.001
    assert rank_error(values, found) <= counts.rank_error(SHARES)
    true = np.quantile(values, SHARES)
    assert 0 < max(abs(np.array(found) - true)) <= counts.value_error(SHARES) < 0.01


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-math.inf, math.inf)])
def test_awkward_values(ends: tuple[float, float]) -> None:
    """NaN is left out; zeros have no sign; what is infinite or beyond the range has a rank."""
    counts = ValueCounts(*ends)
    counts.add(np.array([np.nan, -0.0, 0.0, 1.0000001, -1e-9, np.inf, -np.inf]))
    assert counts.n == 6
    assert counts.quantiles([0.0, 0.2, 0.8, 1.0]) == pytest.approx(
        [-math.inf, -1e-9, 1.0000001, math.inf], abs=1e-12
    )
    none = ValueCounts(*ends)
    none.add(np.array([np.nan]))
    assert none.n == 0 and none.rank_error(SHARES) == 0
    with pytest.raises(ValueError, match="no values"):
        none.quantiles(SHARES)
    with pytest.raises(ValueError, match="ranges"):
        none.merge(ValueCounts(0.0, 2.0))
