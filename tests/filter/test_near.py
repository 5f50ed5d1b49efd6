"""Near-duplicates against ROUGE-L by its definition, and the counts known of QGEval."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.filter.near import near_duplicates
from qaeval_core.filter.texts import token_text
from qaeval_core.text.column_hashes import column_hashes


def rouge_l(left: list[str], right: list[str]) -> Fraction:
    """F1 by a plain table of longest common subsequences; two empty texts are equal."""
    if not left and not right:
        return Fraction(1)
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return Fraction(2 * table[-1][-1], len(left) + len(right))


questions = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(" ".join)


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), questions), min_size=1),
    threshold=st.sampled_from(["0.5", "0.7", "1", "0.01"]),
)
@settings(max_examples=150, deadline=None)
def test_one_of_each_kind_stays_the_best(rows: list[tuple[int, int, str]], threshold: str) -> None:
    group = np.array([own for own, _, _ in rows], np.uint64)
    rank = np.array([own for _, own, _ in rows], float)
    number = np.arange(len(rows)) * 3
    texts = [own for _, _, own in rows]
    duplicates, twins = near_duplicates(
        group=group,
        rank=rank,
        tie=np.zeros(len(rows), np.uint64),
        row=number,
        tokens=texts,
        threshold=Fraction(threshold),
    )
    found = dict(zip((duplicates // 3).tolist(), (twins // 3).tolist(), strict=True))
    kept: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: (group[i], -rank[i], i)):
        near = [
            j
            for j in kept
            if group[i] == group[j]
            and rouge_l(texts[i].split(), texts[j].split()) >= Fraction(threshold)
        ]
        assert found.get(i) == (near[0] if near else None)
        if not near:
            kept.append(i)


@pytest.mark.shared_data
def test_qgeval_keeps_646_below_rouge_l_of_0_7(shared_data: Path) -> None:
    table = pl.read_parquet(shared_data / "qgeval" / "qgeval_squad.parquet")
    group, _ = column_hashes(pa.chunked_array([table["passage"].to_arrow()]))
    n = table.height
    duplicates, _ = near_duplicates(
        group=group,
        rank=-np.arange(n, dtype=float),
        tie=np.zeros(n, np.uint64),
        row=np.arange(n),
        tokens=token_text(table["question"]).to_list(),
        threshold=Fraction("0.7"),
    )
    assert n - len(duplicates) == 646
