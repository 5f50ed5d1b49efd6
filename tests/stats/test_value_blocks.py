"""Values by blocks of rows: near in rank for any values, and the same for any parts of the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from qaeval_core.stats.value_blocks import MOST_VALUES, ROWS_PER_BLOCK, ValueBlocks

N = 10_000
KINDS = ["anywhere", "few", "one", "a third is one", "ascending", "descending", "in turn", "crowds"]


def drawn(kind: str) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    values = {
        "anywhere": rng.normal(size=N),
        "few": rng.integers(0, 30, N) / 7,
        "one": np.full(N, 0.1),
        "a third is one": np.where(rng.random(N) < 0.3, 0.2, rng.normal(size=N)),
        "ascending": np.arange(N) / N,
        "descending": -np.arange(N) / N,
        "in turn": np.where(np.arange(N) % 2, np.arange(N), -np.arange(N)).astype(float),
        "crowds": np.exp(40 * rng.normal(size=N)) * rng.choice([-1, 1], N),
    }[kind]
    return np.where(rng.random(N) < 0.1, np.nan, values)


def blocks(values: NDArray[np.float64], rows_per_block: int, most_values: int) -> ValueBlocks:
    found = ValueBlocks(rows_per_block, most_values)
    for start in range(0, N, 77):
        found.add(values[start : start + 77], start)
    return found


@pytest.mark.parametrize(("rows_per_block", "most_values"), [(64, 64), (100, 32), (7, 5), (N, 200)])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_within_the_bound(kind: str, rows_per_block: int, most_values: int) -> None:
    """Independent: all values, sorted. The bound is one share of a block for each level at most."""
    values = drawn(kind)
    found = blocks(values, rows_per_block, most_values)
    ascending = np.sort(values[~np.isnan(values)])
    n_levels = math.log2(N / rows_per_block) + 1
    assert found.n_off <= n_levels * len(ascending) / most_values
    for rank in range(len(ascending)):
        value = found.at(rank)
        first, stop = (np.searchsorted(ascending, value, side) for side in ("left", "right"))
        assert first - found.n_off <= rank < stop + found.n_off
    if kind in ("few", "one") and most_values >= 30:
        assert found.n_off == 0


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_any_order_make_the_same_blocks(kind: str) -> None:
    values, rng = drawn(kind), np.random.default_rng(1)
    whole = blocks(values, 64, 20).arrays()
    for n_parts in (1, 2, 40):
        cuts = [0, *np.sort(rng.integers(0, N, n_parts - 1)).tolist(), N]
        total = ValueBlocks(64, 20)
        for i in rng.permutation(n_parts).tolist():
            own = ValueBlocks(64, 20)
            own.add(values[cuts[i] : cuts[i + 1]], cuts[i])
            total.take(own)
        assert {name: own.tolist() for name, own in total.arrays().items()} == {
            name: own.tolist() for name, own in whole.items()
        }


def test_a_billion_rows_are_few_blocks_within_a_thousandth() -> None:
    """The blocks of a billion rows of any values, by those of 2^20, whose next ones are theirs."""
    most, rows = 1 << 5, 1 << 6
    found, rng = ValueBlocks(rows, most), np.random.default_rng(2)
    n = rows << 14
    for start in range(0, n, 1 << 16):
        found.add(rng.random(1 << 16), start)
    arrays = found.arrays()
    assert len(arrays["blocks"]) == 1 and len(arrays["block_values"]) <= most
    # One share of a block for each level: of 1/32 here, of 1/32,768 by default.
    assert found.n_off / n <= 15 / most
    n_levels = math.ceil(math.log2(1e9 / ROWS_PER_BLOCK)) + 1
    assert n_levels == 15 and n_levels / MOST_VALUES < 0.0005
