"""Windows tile the text, fit the model and have equal length."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from qaeval_core.models.artifact import ArtifactRequest, find_artifact
from qaeval_core.text.encode import TextEncoder, equal_cuts, equal_windows


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


@pytest.fixture(scope="module")
def word_pieces(artifacts_root: Path) -> Path:
    """A tokenizer of BERT's."""
    request = ArtifactRequest("relevance_matching", "minilm", "fp32")
    return find_artifact(artifacts_root, request).tokenizer_path


@cache
def _both(path: Path) -> tuple[Tokenizer, TextEncoder]:
    whole = Tokenizer.from_file(str(path))
    whole.no_truncation()
    whole.no_padding()
    return whole, TextEncoder(path)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text("aB [SEP]'\x00\t\x1f\x7fé\u0301İ中", max_size=12)
        | st.text(st.characters(max_codepoint=127), max_size=12)
        | st.sampled_from(["[SEP]", "a [mask] b", "Don't STOP", "x" * 101, "don't [MASK]", ""]),
        max_size=6,
    )
)
def test_texts_of_ascii_have_the_tokens_that_the_whole_tokenizer_gives(
    word_pieces: Path, texts: list[str]
) -> None:
    """Protects from what its normalizer does and a shorter way leaves out."""
    whole, encoder = _both(word_pieces)
    found = encoder.encode(texts)
    expected = [whole.encode(text, add_special_tokens=False).ids for text in texts]
    assert [ids.tolist() for ids in found] == expected
