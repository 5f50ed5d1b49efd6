"""Windows tile the text, fit the model and have equal length."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from qaeval_core.models.artifact import ArtifactRequest, find_artifact
from qaeval_core.text import known_tokens
from qaeval_core.text.encode import TextEncoder, equal_cuts, equal_windows
from qaeval_core.text.known_tokens import KnownTokens


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


# Graphs whose tokenizers are BERT's and GPT-2's.
GRAPHS = {"bert": ("relevance_matching", "minilm"), "gpt": ("token_logprobs", "smollm2-135m")}
SIGNS = "aB [SEP]<|im_end|>'\x00\t\n\x1c\x1f\x7f\x85\xa0é\u0301\u200b\u2028\u3000İΣ中1,"


@pytest.fixture(scope="module")
def tokenizer_paths(artifacts_root: Path) -> dict[str, Path]:
    """Files of tokenizers, by their kind."""
    requests = {kind: ArtifactRequest(*graph, "fp32") for kind, graph in GRAPHS.items()}
    return {
        kind: find_artifact(artifacts_root, request).tokenizer_path
        for kind, request in requests.items()
    }


@cache
def _both(path: Path) -> tuple[Tokenizer, TextEncoder]:
    whole = Tokenizer.from_file(str(path))
    whole.no_truncation()
    whole.no_padding()
    return whole, TextEncoder(path)


def ids_of(whole: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return what the tokenizer itself makes of each text."""
    return [whole.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.parametrize("kind", GRAPHS)
@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(
        st.text(SIGNS, max_size=12)
        | st.text(max_size=12)
        | st.sampled_from(["[SEP]", "a [mask] b", "Don't STOP", "x" * 101, "don't [MASK]", ""])
        | st.sampled_from(["a  b", " a", "a ", "a \n b", "<|im_end|> b", "a 's 12 B2", " " * 70]),
        max_size=6,
    )
)
def test_texts_have_the_tokens_that_the_whole_tokenizer_gives(
    tokenizer_paths: dict[str, Path], kind: str, texts: list[str]
) -> None:
    """Protects from a piece of a text that has other tokens there than alone."""
    whole, encoder = _both(tokenizer_paths[kind])
    assert [ids.tolist() for ids in encoder.encode(texts)] == ids_of(whole, texts)


@pytest.mark.parametrize("kind", GRAPHS)
def test_no_sign_beside_a_space_makes_a_piece_another_one(
    tokenizer_paths: dict[str, Path], kind: str
) -> None:
    """Protects from white space that one library knows and another does not."""
    whole, encoder = _both(tokenizer_paths[kind])
    points = [point for point in range(0x3100) if not 0xD800 <= point < 0xE000]
    texts = [f"b{sign} {sign}b {sign} a" for sign in map(chr, points)]
    assert [ids.tolist() for ids in encoder.encode(texts)] == ids_of(whole, texts)


def test_much_is_forgotten_behind_its_shard(
    tokenizer_paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a process that keeps the pieces of a hundred million rows."""
    whole, _ = _both(tokenizer_paths["gpt"])
    encoder = TextEncoder(tokenizer_paths["gpt"])
    assert isinstance(encoder._reader, KnownTokens)
    monkeypatch.setattr(known_tokens, "_MAX_PIECES", 4)
    for texts in (["a b c d e f g"], ["b a", "g"], ["c"]):
        assert [ids.tolist() for ids in encoder.encode(texts)] == ids_of(whole, texts)
    assert encoder._reader._first._numbers.names == ["b", "g", "c"]


def _changed(path: Path, tokenizer_path: Path, change: str) -> Path:
    """Write a tokenizer that may look across spaces."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    if change == "stripping":
        tokenizer.add_special_tokens([AddedToken("<x>", lstrip=True)])
        tokenizer.add_special_tokens([AddedToken("<y>", rstrip=True)])
        tokenizer.add_tokens([AddedToken("barn", single_word=True)])
    elif change == "space":
        tokenizer.add_special_tokens([AddedToken("red barn")])
    elif change == "normalizer":
        tokenizer.normalizer = normalizers.Replace("  ", " ")
    elif change == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif change == "whole":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)
    elif change == "prefix":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save(str(path))
    return path


# Of BERT's, white space is dropped wherever it stands.
HAVE_PIECES = {("bert", "stripping"), ("gpt", "stripping"), ("gpt", "space")}
CHANGES = ("stripping", "space", "normalizer", "metaspace", "whole", "prefix")


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("change", CHANGES)
def test_tokenizers_that_may_look_across_spaces_read_whole_texts(
    tokenizer_paths: dict[str, Path], tmp_path: Path, kind: str, change: str
) -> None:
    """Protects from pieces where they are no pieces: numbers would be wrong in silence."""
    path = _changed(tmp_path / "tokenizer.json", tokenizer_paths[kind], change)
    whole, encoder = _both(path)
    assert isinstance(encoder._reader, KnownTokens) == ((kind, change) in HAVE_PIECES)
    texts = ["the red barn", "a  <x> the  red barns,", " b", "", "a<x> <y>  b <x>", "b <x>", "barn"]
    for own in (texts, texts[1:2]):
        assert [ids.tolist() for ids in encoder.encode(own)] == ids_of(whole, own)
