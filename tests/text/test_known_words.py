"""Known words: what is kept over shards gives the words that each text has alone."""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.families.words.rows import Tokenizers, WordTables
from qaeval_core.schema import TokenizerName
from qaeval_core.text import known_words
from qaeval_core.text.known_words import KnownWords
from qaeval_core.text.table import RawTexts, TokenTable
from qaeval_core.text.tokenize import make_tokenizer

SIGNS = "aThé1.,-&<'²東\u0130\u3000\x1c\x85 \t\n"
shards = st.lists(st.lists(st.text(SIGNS, max_size=12), max_size=6), min_size=1, max_size=3)
RULES: tuple[TokenizerName, ...] = ("13a", "rouge", "squad", "whitespace", "words")


def words_of(table: TokenTable, place: int) -> list[str]:
    """Return the words of one text of a table."""
    words = table.words
    return [words[i] for i in table.ids[table.offsets[place] : table.offsets[place + 1]]]


@settings(deadline=None, max_examples=60)
@given(shards, st.booleans(), st.sampled_from(["none", "porter"]))
@pytest.mark.parametrize("name", RULES)
def test_words_do_not_depend_on_the_shards_before(
    name: TokenizerName, given_shards: list[list[str]], lowercase: bool, stemming: str
) -> None:
    """Protects from scores that depend on what a worker has read before."""
    rule = make_tokenizer(name, lowercase=lowercase, stemming=stemming)  # type: ignore[arg-type]
    known = KnownWords()
    for texts in given_shards:
        table = TokenTable(rule, raw=RawTexts(known), key=name)
        places = [*table.add(texts[:2]), *table.add(texts[2:])]
        assert [words_of(table, place) for place in places] == [rule(text) for text in texts]
        fresh = TokenTable(rule)
        fresh.add(texts[:2])
        fresh.add(texts[2:])
        assert (table.words, table.ids.tolist()) == (fresh.words, fresh.ids.tolist())


def test_arrow_splits_at_the_white_space_of_python() -> None:
    """Protects from words that are divided by some rules alone, at a sign nobody thought of."""
    points = [point for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    texts = [f"a{chr(point)}b" for point in points]
    n_pieces = pc.list_value_length(pc.utf8_split_whitespace(pa.array(texts)))
    assert n_pieces.to_pylist() == [len(text.split()) for text in texts]


def test_a_text_may_hold_half_of_a_pair() -> None:
    """Protects from a crash on a Python text that no Arrow array can hold."""
    table = TokenTable(make_tokenizer("whitespace"))
    places = table.add(["a \ud800 b", "", " b a "])
    assert [words_of(table, i) for i in places] == [["a", "\ud800", "b"], [], ["b", "a"]]


def test_much_is_forgotten_behind_its_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from a process that keeps every word of a hundred million rows."""
    monkeypatch.setattr(known_words, "_MAX_KNOWN", 4)
    tokenizers = Tokenizers()
    options = {"tokenizer": "whitespace", "lowercase": True, "stemming": "none"}
    for texts in (["a b"], ["c d e"], ["a f"]):
        tables = WordTables(tokenizers)
        pairs = tables.pairs(tables.table(options), texts, [[]])
        assert [words_of(pairs.table, i) for i in pairs.candidate] == [texts[0].split()]
    assert tokenizers.known().pieces == ["a", "f"]
