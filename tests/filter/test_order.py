from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.filter import order
from qaeval_core.filter.order import Ranking, sorted_rows


@given(
    rank=st.lists(
        st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1e-300, 0.5, 0.5000001, 3e8]), min_size=1
    ),
    seed=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_nth_row_is_that_of_a_sort(rank: list[float], seed: int, data: st.DataObject) -> None:
    values = np.array(rank)
    tie = np.random.default_rng(seed).integers(0, 3, len(rank)).astype(np.uint64)
    member = np.array(data.draw(st.lists(st.booleans(), min_size=len(rank), max_size=len(rank))))
    rows = [row for row in range(len(rank)) if member[row]]
    rows.sort(key=lambda row: (-values[row], tie[row], row))
    ranking = Ranking(values, tie, lambda own: member[own])
    assert len(ranking) == len(rows)
    counts = list(range(1, len(rows) + 1))
    cuts = ranking.cuts(counts)
    assert [cut.row for cut in cuts] == rows
    for n, cut in zip(counts, cuts, strict=True):
        assert cut.rank == values[cut.row] and cut.tie == tie[cut.row]
        kept = ranking.is_kept(cut, slice(0, len(rank))) & member
        assert sorted(rows[:n]) == np.flatnonzero(kept).tolist()
    chosen = np.flatnonzero(member)
    assert sorted_rows(chosen, values, tie).tolist() == rows


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rank = rng.integers(0, 50, 5000) / 7
    tie = rng.integers(0, 2**63, 5000).astype(np.uint64)
    ranking = Ranking(rank, tie, lambda own: rank[own] > 1)
    counts = [1, 17, 1000, len(ranking)]
    whole = ranking.cuts(counts)
    monkeypatch.setattr(order, "_CHUNK", 37)
    assert ranking.cuts(counts) == whole
    monkeypatch.setattr(order, "_MAX_TIED", 0)
    assert ranking.cuts(counts) == whole


def test_groups_are_sorted_inside() -> None:
    rng = np.random.default_rng(1)
    rank, tie = rng.integers(0, 4, 200) / 2, rng.integers(0, 5, 200).astype(np.uint64)
    group = rng.integers(0, 9, 200).astype(np.uint64)
    rows = sorted(range(200), key=lambda row: (group[row], -rank[row], tie[row], row))
    assert sorted_rows(np.arange(200), rank, tie, group).tolist() == rows
