"""Windows tile the text, fit the model and have equal length."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaeval_core.text.encode import equal_cuts, equal_windows


@given(st.integers(1, 5_000), st.integers(1, 600))
def test_windows_are_the_fewest_that_fit(n_tokens: int, max_tokens: int) -> None:
    """Protects from a token lost, doubled, or in a window that is too long."""
    windows = equal_windows(n_tokens, max_tokens=max_tokens)
    sizes = [stop - start for start, stop in windows]
    assert sizes == [len(part) for part in np.array_split(range(n_tokens), len(windows))]
    assert windows[0][0] == 0
    assert all(left[1] == right[0] for left, right in pairwise(windows))
    assert max(sizes) <= max_tokens
    assert len(windows) == -(-n_tokens // max_tokens)


def test_no_tokens_give_no_window_and_no_room_is_an_error() -> None:
    """Protects from a window of length zero, which every graph refuses."""
    assert equal_windows(0, max_tokens=5) == []
    with pytest.raises(ValueError, match="at least 1"):
        equal_windows(3, max_tokens=0)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=5))
def test_windows_of_many_texts_are_those_of_each(texts: list[tuple[int, int]]) -> None:
    sizes, rooms = np.array(texts, dtype=np.int64).reshape(-1, 2).T
    found = zip(*(each.tolist() for each in equal_cuts(sizes, max_tokens=rooms)), strict=True)
    assert [(text, start, start + n) for text, start, n in found] == [
        (i, *window)
        for i, (n_tokens, room) in enumerate(texts)
        for window in equal_windows(n_tokens, max_tokens=room)
    ]
