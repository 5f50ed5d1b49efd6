"""Tables of words: ids, offsets, and texts as sequences that libraries can compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.text import table as table_module
from qaeval_core.text.lcs import lcs_lengths
from qaeval_core.text.table import TokenTable

texts = st.lists(st.text("abcd ", max_size=8), max_size=8)


def many_words(n_words: int) -> TokenTable:
    """Return a table with so many distinct words, its first text."""
    table = TokenTable(str.split)
    table.add([" ".join(f"w{i}" for i in range(n_words))])
    return table


@settings(deadline=None)
@given(texts, texts)
def test_ids_and_offsets_give_every_text_back(first: list[str], second: list[str]) -> None:
    """Protects from words of one text counted for its neighbor."""
    table = TokenTable(str.split)
    places = [*table.add(first), *table.add(second)]
    words, ids, offsets = table.words, table.ids, table.offsets
    for text, place in zip([*first, *second], places, strict=True):
        start, stop = offsets[place], offsets[place + 1]
        assert [words[i] for i in ids[start:stop]] == text.split()
        assert table.texts[place] == text
    assert table.n_texts == len({*first, *second}) == len(table.lengths)


def test_a_text_is_tokenized_once() -> None:
    """Protects from paying for a reference once for every candidate."""
    seen = []

    def tokenize(text: str) -> Sequence[str]:
        seen.append(text)
        return text.split()

    table = TokenTable(tokenize)
    table.add(["a b", "c", "a b"])
    table.add(["c", "a b", ""])
    assert seen == ["a b", "c", ""]


@settings(deadline=None)
@given(texts)
def test_sequences_are_equal_where_words_are(given_texts: list[str]) -> None:
    """Protects from two words that share a character, and one word that has two."""
    table = TokenTable(str.split)
    places = table.add(given_texts)
    sequences = table.sequences()
    for text, i in zip(given_texts, places, strict=True):
        for other, j in zip(given_texts, places, strict=True):
            assert (sequences[i] == sequences[j]) == (text.split() == other.split())


@settings(deadline=None)
@given(texts)
def test_equal_texts_have_the_same_words_in_the_same_order(given_texts: list[str]) -> None:
    table = TokenTable(str.split)
    both = [(left, right) for left in given_texts for right in given_texts]
    left, right = (table.add([pair[side] for pair in both]) for side in (0, 1))
    expected = [one.split() == other.split() for one, other in both]
    assert table.are_equal(left, right).tolist() == expected


@pytest.mark.parametrize("first", [0xD800 - 2, 0xDFFF - 0x800 - 2, 0xFEFF - 0x800 - 2])
def test_words_step_over_surrogates(first: int) -> None:
    """Protects from a shard whose 55,297th word is no character, or is dropped as a byte mark."""
    table = many_words(0xFEFF + 8)
    around = [f"w{i}" for i in range(first, first + 6)]
    (place,) = table.add([" ".join(around)])
    sequences = table.sequences()
    assert len(sequences[place]) == 6
    assert len(set(sequences[place])) == 6
    assert [len(sequence) for sequence in sequences] == table.lengths.tolist()
    assert sequences[0][first : first + 6] == sequences[place]
    assert not any(0xD800 <= ord(sign) < 0xE000 for sign in sequences[0])


def test_common_subsequences_are_the_same_beyond_the_surrogates() -> None:
    """Protects from ROUGE-L that changes with how many words a shard has."""
    pairs = [("a b c d e", "b x d e a"), ("c c a", "a c c"), ("", "a"), ("e", "e")]
    found = []
    for table in (TokenTable(str.split), many_words(0xD7FE)):
        left, right = (table.add([pair[side] for pair in pairs]) for side in (0, 1))
        found.append(lcs_lengths(table, left, right).tolist())
    assert found == [[3, 2, 0, 1]] * 2


@settings(deadline=None)
@given(texts)
def test_lists_serve_where_words_outnumber_characters(given_texts: list[str]) -> None:
    """Protects from a failure at the 1,112,065th word: lists must compare like texts."""
    table = TokenTable(str.split)
    places = table.add([*given_texts, "a b c d"])
    left, right = places, places[::-1].copy()
    as_text = lcs_lengths(table, left, right)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "_MAX_CHARACTERS", 3)
        sequences = table.sequences()
        assert all(isinstance(sequence, list) for sequence in sequences)
        assert [len(sequence) for sequence in sequences] == table.lengths.tolist()
        assert np.array_equal(lcs_lengths(table, left, right), as_text)


def test_no_pairs_have_no_lengths() -> None:
    """Protects from a crash where every row of a shard is quarantined."""
    none = np.zeros(0, dtype=np.int64)
    assert lcs_lengths(TokenTable(str.split), none, none).tolist() == []
    assert TokenTable(str.split).sequences() == []
