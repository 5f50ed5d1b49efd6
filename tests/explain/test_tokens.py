"""Tokens, shown as pieces, are the text again: no letter of it is lost or shown twice."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.explain.tokens import MAX_HEAT, TextPieces, cut_at, heat_map
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


def test_a_heat_map_marks_what_is_most_without_color() -> None:
    """Of each row it is framed, of each column underlined; more color is more."""
    values = np.array([[0.25, 0.75, 0.5], [1.0, 0.5, -0.004]])
    table = heat_map("Cosines", "token", [" one", ""], ["a", "<b>", "c"], values)
    assert table.head == ["token", "a", "<b>", "c"]
    assert [row[0] for row in table.rows] == ["one", "·"]
    cells = [re.findall('class="(.*?)" style="--a:(.*?)">(.*?)<', own) for own in table.rows[0][1:]]
    assert cells == [
        [("heat", "0.15", ".25")],
        [("heat best last", "0.45", ".75")],
        [("heat last", "0.30", ".50")],
    ]
    assert ">1.0<" in table.rows[1][1] and ">.00<" in table.rows[1][3]
    assert "framed" in table.caption and "underlined" in table.caption


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_heat_map_of_long_texts_shows_what_is_nearest(is_sparse: bool) -> None:
    """A context of 25,000 tokens has 40 columns, and those are the ones that were matched."""
    values = np.random.default_rng(0).normal(size=(60, 25_000))
    if is_sparse:
        places = values.argmax(axis=1)
        sparse = np.full_like(values, np.nan)
        sparse[np.arange(60), places] = 0.5
        values = sparse
    names = [f"w{i}" for i in range(25_000)]
    table = heat_map("Cosines", "token", names[:60], names, values)
    assert len(table.rows) == MAX_HEAT and len(table.head) <= 1 + MAX_HEAT
    most = {names[i] for i in np.nan_to_num(values[:MAX_HEAT], nan=-9).argmax(axis=1)}
    assert most <= set(table.head[1:])
    assert table.head[1:] == sorted(table.head[1:], key=lambda name: int(name[1:]))
    assert f"{len(table.head) - 1:,} of 25,000 columns" in table.caption
    assert "40 of 60 rows" in table.caption
    assert ("underlined" in table.caption) != is_sparse


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_a_heat_map_of_hardly_anything_is_a_table(shape: tuple[int, int]) -> None:
    values = np.full(shape, np.nan)
    table = heat_map("Cosines", "token", ["a"] * shape[0], ["b"] * shape[1], values)
    assert table.head == ["token"] and len(table.rows) == shape[0]
