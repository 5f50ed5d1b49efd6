"""N-gram counts against Counter, and hashes that do not depend on their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qaeval_core.text.clipped import clipped_counts
from qaeval_core.text.ngrams import GramCounts, gram_counts, gram_hashes, word_hashes
from qaeval_core.text.table import TokenTable

MAX_ORDER = 4
ORDERS = (1, 2, 3, 4)
texts = st.text("abc ", max_size=14)
rows = st.lists(st.tuples(texts, st.lists(texts, max_size=4)), max_size=6)


def _reference_grams(text: str, order: int) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _reference_clipped(candidate: str, others: Sequence[str], order: int) -> int:
    """Count the candidate's n-grams, each at most as often as the other that has it most."""
    limits: Counter[tuple[str, ...]] = Counter()
    for other in others:
        limits |= _reference_grams(other, order)
    return sum(
        min(count, limits[gram]) for gram, count in _reference_grams(candidate, order).items()
    )


def counted(table: TokenTable) -> list[GramCounts]:
    return list(gram_counts(table.ids, table.offsets, max_order=MAX_ORDER))


def spaced(text: str) -> str:
    """Return the letters of a text as words."""
    return " ".join(text.replace(" ", ""))


@settings(deadline=None)
@given(st.lists(texts, max_size=6))
@example([])
@example([""])
@example(["", "a a a a", ""])
def test_counts_of_every_text_are_those_of_counter(given_texts: list[str]) -> None:
    """Protects from n-grams that reach over the end of a text into the next one."""
    given_texts = [spaced(text) for text in given_texts]
    table = TokenTable(str.split)
    places = table.add(given_texts)
    words, ids = table.words, table.ids
    for counts in counted(table):
        for text, place in zip(given_texts, places, strict=True):
            own = slice(counts.offsets[place], counts.offsets[place + 1])
            found = {
                tuple(words[i] for i in ids[at : at + counts.order]): int(count)
                for at, count in zip(
                    counts.first_at[counts.grams[own]], counts.counts[own], strict=True
                )
            }
            assert found == _reference_grams(text, counts.order)


@settings(deadline=None, max_examples=200)
@given(rows)
@example([("a a b", ["a", "a a a", ""]), ("", ["a"]), ("b", []), ("c c", ["a", "b"])])
@example([("a a b", ["a"]), ("b b", ["b b b"])])
@example([])
def test_clipping_over_references_is_that_of_counter(
    given_rows: list[tuple[str, list[str]]],
) -> None:
    """Protects from counts added over references, and from references of a neighbor."""
    given_rows = [
        (spaced(candidate), [spaced(other) for other in others]) for candidate, others in given_rows
    ]
    table = TokenTable(str.split)
    candidate = table.add([row[0] for row in given_rows])
    others = table.add([other for row in given_rows for other in row[1]])
    n_others = np.array([len(row[1]) for row in given_rows], dtype=np.int64)
    found = clipped(table, candidate, others, n_others)
    expected = [[_reference_clipped(*row, order) for order in ORDERS] for row in given_rows]
    assert found.tolist() == expected
    ones = np.ones(len(others), dtype=np.int64)
    singly = [
        [_reference_clipped(text, [other], order) for order in ORDERS]
        for text, own in given_rows
        for other in own
    ]
    assert clipped(table, np.repeat(candidate, n_others), others, ones).tolist() == singly


def clipped(
    table: TokenTable,
    candidate: NDArray[np.int64],
    other: NDArray[np.int64],
    n_others: NDArray[np.int64],
) -> NDArray[np.int64]:
    return clipped_counts(
        table.ids,
        table.offsets,
        candidate=candidate,
        other=other,
        n_others=n_others,
        max_order=MAX_ORDER,
    )


@settings(deadline=None)
@given(rows)
def test_counts_are_the_same_beyond_32_bits(given_rows: list[tuple[str, list[str]]]) -> None:
    """Protects from keys of many words that no longer fit, or fit into each other."""
    table = TokenTable(str.split)
    candidate = table.add([text for text, _ in given_rows])
    other = table.add([text for _, own in given_rows for text in own])
    n_others = np.array([len(own) for _, own in given_rows], dtype=np.int64)
    for left, right, n in (
        (candidate, other, n_others),
        (np.repeat(candidate, n_others), other, np.ones(len(other), dtype=np.int64)),
    ):
        wide = clipped_counts(
            table.ids + 2**40,
            table.offsets,
            candidate=left,
            other=right,
            n_others=n,
            max_order=MAX_ORDER,
        )
        assert wide.tolist() == clipped(table, left, right, n).tolist()


def test_clipping_takes_the_most_of_any_reference() -> None:
    """The example of the BLEU paper: seven times "the", twice in the reference."""
    table = TokenTable(str.split)
    candidate = table.add(["the the the the the the the"])
    others = table.add(["the cat is on the mat", "there is a cat on the mat"])
    assert clipped(table, candidate, others, np.array([2])).tolist() == [[2, 0, 0, 0]]


def test_counts_are_the_same_under_other_numbers() -> None:
    """Protects from weights that go to another n-gram once sums are put in order."""
    table = TokenTable(str.split)
    table.add(["a b a c", "c a b"])
    for counts in counted(table):
        rank = np.random.default_rng(0).permutation(counts.n_grams)
        other = counts.renumbered(rank)
        for place in range(2):
            own = slice(counts.offsets[place], counts.offsets[place + 1])
            before = zip(counts.first_at[counts.grams[own]], counts.counts[own], strict=True)
            after = zip(other.first_at[other.grams[own]], other.counts[own], strict=True)
            assert sorted(before) == sorted(after)
            assert (np.diff(other.grams[own]) > 0).all()


def hashes_by_gram(table: TokenTable) -> dict[tuple[str, ...], int]:
    words, ids = table.words, table.ids
    hashed = word_hashes(words)
    return {
        tuple(words[i] for i in ids[at : at + counts.order]): int(number)
        for counts in counted(table)
        for at, number in zip(
            counts.first_at, gram_hashes(counts, ids=ids, words=hashed), strict=True
        )
    }


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=5), st.lists(texts, max_size=5))
def test_an_n_gram_has_one_hash_in_every_table(first: list[str], second: list[str]) -> None:
    """Protects from document frequencies that two shards count under two names."""
    first, second = ([spaced(text) for text in given] for given in (first, second))
    left, right = TokenTable(str.split), TokenTable(str.split)
    left.add(first)
    right.add([*second[::-1], "z y x", *first[::-1]])  # Other ids for the same words.
    known, more = hashes_by_gram(left), hashes_by_gram(right)
    assert known.items() <= more.items()
    assert len(set(more.values())) == len(more)


def test_different_n_grams_have_different_hashes() -> None:
    """Protects from a bigram that is a unigram, turned words, and words cut elsewhere."""
    table = TokenTable(lambda text: text.split("|"))
    table.add(["a", "b", "a|b", "b|a", "ab", "a|a", "a|a|a", "a|a|a|a", "", "é", "e\u0301", "a b"])
    found = hashes_by_gram(table)
    assert len(set(found.values())) == len(found)
    assert found[("a", "b")] != found[("b", "a")] != found[("ab",)]


def test_hashes_stay_the_same_over_versions() -> None:
    """Protects from a file of document frequencies that a later version cannot read.

    Python's own hash changes with every process; these numbers were printed by another one.
    """
    table = TokenTable(str.split)
    table.add(["who keeps bees"])
    found = hashes_by_gram(table)
    expected = {("who",): 3457860591585097193, ("who", "keeps"): 7307938331108241563}
    assert {gram: found[gram] for gram in expected} == expected


def test_words_of_any_unicode_have_a_hash() -> None:
    """Protects from a lone surrogate, which Python's texts may hold, stopping a run."""
    hashed = word_hashes(["\ud800", "\udfff", "👩‍👧", ""])
    assert len(set(hashed.tolist())) == 4
