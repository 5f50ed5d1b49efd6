"""Counts: statistics of words in common, n-grams in common and common subsequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.families.words.rows import (
    Compute,
    Pairs,
    WordStatistics,
    WordTables,
    lists,
    numbers,
)
from qaeval_core.metrics.meteor import align
from qaeval_core.metrics.q_bleu import KINDS, word_kinds
from qaeval_core.metrics.top_n_accuracy import first_overlap
from qaeval_core.metrics.words import MAX_ORDER
from qaeval_core.text.clipped import clipped_counts
from qaeval_core.text.lcs import lcs_lengths
from qaeval_core.text.ngrams import IntArray
from qaeval_core.text.tokenize import make_tokenizer, porter_stem
from qaeval_core.text.wordnet import load_wordnet

Values = Mapping[str, Sequence[Any]]


def overlap(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Count words in common with each reference, and say which pairs are equal."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])

    def compute() -> WordStatistics:
        lengths = pairs.table.lengths
        candidate, other, places = pairs.distinct()
        n_common = shared_counts(pairs, candidate, other, max_order=1)[:, 0]
        is_equal = (n_common == lengths[candidate]) & (n_common == lengths[other])
        is_equal[is_equal] = pairs.table.are_equal(candidate[is_equal], other[is_equal])
        found = {
            "n_candidate": numbers(lengths[pairs.candidate]),
            "n_reference": lists(lengths[pairs.other], pairs.n_others),
            "n_common": lists(n_common[places], pairs.n_others),
            "is_equal": lists(is_equal[places], pairs.n_others),
        }
        if "wordless" in options:
            found["no_words"] = lists(pairs.no_words(options), pairs.n_others)
        return found

    return compute


def lcs(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Measure the longest common subsequence with each reference."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])
    return lambda: lcs_statistics(pairs, options)


def lcs_statistics(pairs: Pairs, options: Mapping[str, Any]) -> WordStatistics:
    """Return lengths of texts and of their longest common subsequences."""
    lengths = pairs.table.lengths
    candidate, other, places = pairs.distinct()
    return {
        "n_candidate": numbers(lengths[pairs.candidate]),
        "n_reference": lists(lengths[pairs.other], pairs.n_others),
        "lcs": lists(lcs_lengths(pairs.table, candidate, other)[places], pairs.n_others),
        "no_words": lists(pairs.no_words(options), pairs.n_others),
    }


def ngrams(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Count n-grams in common, over all references of a row or with each."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])

    is_single = options["over_references"] == "max"
    count = single_ngrams if is_single else pooled_ngrams
    return lambda: count(pairs, options)


def single_ngrams(pairs: Pairs, options: Mapping[str, Any]) -> WordStatistics:
    """Return n-grams in common with each reference."""
    lengths = pairs.table.lengths
    candidate, other, places = pairs.distinct()
    matches = shared_counts(pairs, candidate, other, max_order=MAX_ORDER)[places]
    return {
        "n_candidate": numbers(lengths[pairs.candidate]),
        "n_reference": lists(lengths[pairs.other], pairs.n_others),
        **{
            f"matches_{order}": lists(matches[:, order - 1], pairs.n_others)
            for order in range(1, MAX_ORDER + 1)
        },
        "no_words": lists(pairs.no_words(options), pairs.n_others),
    }


def pooled_ngrams(pairs: Pairs, options: Mapping[str, Any]) -> WordStatistics:
    """Return n-grams in common with all references of a row: one value per row that has any."""
    lengths = pairs.table.lengths
    n_pooled = np.minimum(pairs.n_others, 1)
    has_any = n_pooled > 0
    is_lost = pairs.no_words(options)
    n_left = np.bincount(pairs.row[~is_lost], minlength=len(has_any))
    # A reference of which no word is known must not pass for one as short as the candidate.
    closest = closest_lengths(lengths[pairs.candidate], lengths[pairs.other[~is_lost]], n_left)
    return {
        "n_candidate": numbers(lengths[pairs.candidate]),
        "n_reference": lists(closest[has_any], n_pooled),
        **pooled_matches(pairs, "matches", has_any),
        "no_words": lists((n_left == 0)[has_any], n_pooled),
    }


def pooled_matches(pairs: Pairs, name: str, has_any: NDArray[np.bool_]) -> WordStatistics:
    """Return, by order, each row's n-grams clipped at their largest count in any other text."""
    matches = clipped(pairs, pairs.candidate, pairs.other, pairs.n_others)[has_any]
    return {
        f"{name}_{order}": lists(matches[:, order - 1], has_any.astype(np.int64))
        for order in range(1, MAX_ORDER + 1)
    }


def shared_counts(
    pairs: Pairs, candidate: IntArray, other: IntArray, *, max_order: int
) -> IntArray:
    """Return the n-grams that each pair's candidate shares with its other text, by order."""
    ones = np.ones(len(candidate), dtype=np.int64)
    return clipped(pairs, candidate, other, ones, max_order=max_order)


def clipped(
    pairs: Pairs,
    candidate: IntArray,
    other: IntArray,
    n_others: IntArray,
    *,
    max_order: int = MAX_ORDER,
) -> IntArray:
    """Return `clipped_counts` of texts of the pairs' table."""
    return clipped_counts(
        pairs.table.ids,
        pairs.table.offsets,
        candidate=candidate,
        other=other,
        n_others=n_others,
        max_order=max_order,
    )


def closest_lengths(candidate: IntArray, other: IntArray, n_others: IntArray) -> IntArray:
    """Return the length of each row's reference that is closest to the candidate's, ties shorter.

    Examples
    --------
    >>> closest_lengths(np.array([5, 2]), np.array([4, 6, 9]), np.array([3, 0])).tolist()
    [4, 0]
    """
    row = np.repeat(np.arange(len(candidate)), n_others)
    gap = np.abs(other - candidate[row])
    order = np.lexsort((other, gap, row))
    closest = np.zeros(len(candidate), dtype=np.int64)
    closest[row[order][::-1]] = other[order][::-1]  # The last write wins: the first of each row.
    return closest


def alignment(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Align words with each reference, by form, stem and synonym."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])
    no_synonyms: frozenset[str] = frozenset()
    synonyms = (
        load_wordnet().synonyms if options["synonyms"] == "wordnet" else lambda _: no_synonyms
    )

    def compute() -> WordStatistics:
        words, ids = pairs.table.words, pairs.table.ids.tolist()
        offsets = pairs.table.offsets.tolist()
        texts_words = [[words[i] for i in ids[start:stop]] for start, stop in pairwise(offsets)]
        candidate, other, places = pairs.distinct()
        found = [
            align(texts_words[i], texts_words[j], stem=porter_stem, synonyms=synonyms)
            for i, j in zip(candidate.tolist(), other.tolist(), strict=True)
        ]
        aligned = np.array(found, dtype=np.int64).reshape(-1, 2)[places]
        lengths = pairs.table.lengths
        return {
            "n_candidate": numbers(lengths[pairs.candidate]),
            "n_reference": lists(lengths[pairs.other], pairs.n_others),
            "n_matches": lists(aligned[:, 0], pairs.n_others),
            "n_chunks": lists(aligned[:, 1], pairs.n_others),
            "no_words": lists(pairs.no_words(options), pairs.n_others),
        }

    return compute


def question_words(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Count words of each kind, and n-grams, in common with each reference or the context."""
    candidates = values["candidate"]
    has_references = "references" in values
    others = values["references"] if has_references else [[text] for text in values["context"]]
    pairs = texts.pairs(texts.table(options), candidates, others)
    # Kinds depend on capital letters, whatever the words of BLEU do.
    rule = options["tokenizer"], options.get("language", "none")
    cased = make_tokenizer(rule[0], lowercase=False, language=rule[1])
    by_kind = {
        kind: texts.pairs(
            texts.table_of((kind, *rule), partial(_words_of_kind, cased, kind)),
            candidates,
            others,
        )
        for kind in KINDS
    }

    def compute() -> WordStatistics:
        found = single_ngrams(pairs, options)
        for kind, own in by_kind.items():
            lengths = own.table.lengths
            candidate, other, places = own.distinct()
            common = shared_counts(own, candidate, other, max_order=1)[places, 0]
            found[f"{kind}_common"] = lists(common, own.n_others)
            found[f"{kind}_candidate"] = lists(lengths[own.own_candidate], own.n_others)
            found[f"{kind}_reference"] = lists(lengths[own.other], own.n_others)
        return found

    return compute


def _words_of_kind(tokenize: Any, kind: str, text: str) -> list[str]:
    return word_kinds(tokenize(text))[kind]


def spans(values: Values, _: Mapping[str, Any], __: WordTables) -> Compute:
    """Find the first predicted span that overlaps a gold one."""
    pairs = zip(values["predicted_spans"], values["gold_spans"], strict=True)
    found = [first_overlap(predicted, gold) for predicted, gold in pairs]
    return lambda: {"first_overlap": numbers(np.array(found, dtype=np.int64))}
