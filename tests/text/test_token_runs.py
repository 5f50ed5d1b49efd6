"""Token runs against lists of lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qaeval_core.text.token_runs import TokenRuns

RUNS = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6)


def as_lists(runs: TokenRuns) -> list[list[int]]:
    return [run.tolist() for run in runs]


@given(RUNS, st.data())
def test_runs_are_taken_cut_and_padded_as_lists_are(
    texts: list[list[int]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=8))
    runs, own = TokenRuns.of(texts).take(chosen), [texts[i] for i in chosen]
    assert as_lists(runs) == own
    assert runs.flat().tolist() == [token for text in own for token in text]
    firsts = [data.draw(st.integers(0, len(text))) for text in own]
    counts = np.array([len(text) - first for text, first in zip(own, firsts, strict=True)])
    tails = [text[first:] for text, first in zip(own, firsts, strict=True)]
    assert as_lists(runs.cut(np.array(firsts), counts)) == tails
    rows = range(len(own))
    width = max(map(len, own))
    padded = [text + [0] * (width - len(text)) for text in own]
    assert runs.padded(list(rows)).tolist() == padded


@given(RUNS)
def test_runs_are_joined_run_by_run(texts: list[list[int]]) -> None:
    parts = [TokenRuns.repeated(np.array([7, 8]), len(texts)), TokenRuns.of(texts)]
    joined = TokenRuns.joined([*parts, parts[1].take(range(len(texts))[::-1])])
    pairs = zip(texts, texts[::-1], strict=True)
    assert as_lists(joined) == [[7, 8, *first, *second] for first, second in pairs]


def test_no_runs_are_joined_to_none() -> None:
    none = TokenRuns.of([])
    assert len(TokenRuns.joined([none, none])) == 0
    assert none.flat().tolist() == []
