"""Tokens, shown as pieces, are the text again: no letter of it is lost or shown twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.explain.tokens import TextPieces, cut_at
from qaeval_core.models.artifact import ArtifactRequest, find_artifact
from qaeval_core.sample import sample_table
from qaeval_core.text.encode import TextEncoder

_REQUESTS = [
    ArtifactRequest("relevance_matching", "minilm", "fp32"),
    ArtifactRequest("token_logprobs", "smollm2-135m", "fp32"),
]
_ODD = [
    "",
    " ",
    "  two  spaces ",
    "naïve café",
    "θάλασσα 灯台 👩‍👩‍👧 é",
    "a\x00b\u200bc\nd\te",
    "½ﬁ",
]


@pytest.fixture(scope="module")
def tokenizers(artifacts_root: Path) -> list[Path]:
    """Files of a tokenizer of word pieces, and of one of byte pairs."""
    return [find_artifact(artifacts_root, request).tokenizer_path for request in _REQUESTS]


def test_pieces_join_to_the_text_one_per_token(tokenizers: list[Path]) -> None:
    """Protects from text that a page does not show, such as accents that the model strips."""
    texts = [*_ODD, *(row["context"] for row in sample_table().to_pylist()[::40])]
    for path in tokenizers:
        pieces, encoder = TextPieces(path), TextEncoder(path)
        for text in texts:
            n_tokens = len(encoder.encode([text])[0])
            found = pieces.cut(text)
            assert len(found) == n_tokens
            assert "".join(found) == (text if n_tokens else "")
            spaced = pieces.cut(f" {text}", n_before=1)
            assert len(spaced) == len(encoder.encode([f" {text}"])[0])
            assert "".join(spaced) == (text if spaced else "")


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=20), stops=st.lists(st.integers(-2, 25), max_size=8))
def test_any_stops_cut_the_whole_text(text: str, stops: list[int]) -> None:
    """Protects from a tokenizer whose offsets overlap, go back, or end early."""
    pieces = cut_at(text, stops)
    assert len(pieces) == len(stops)
    assert "".join(pieces) == (text if stops else "")
