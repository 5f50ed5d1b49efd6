"""Counts: statistics of words in common, n-grams in common and common subsequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qaeval_core.scoring.families.words.rows import (
    MAX_ORDER,
    Compute,
    Pairs,
    ShardTexts,
    Statistics,
    lay_out,
    lists,
    numbers,
)
from qaeval_core.text.lcs import lcs_lengths
from qaeval_core.text.ngrams import GramCounts, IntArray

Values = Mapping[str, Sequence[Any]]


def overlap(values: Values, options: Mapping[str, Any], texts: ShardTexts) -> Compute:
    """Count words in common with each reference, and say which pairs are equal."""
    pairs = lay_out(texts.table(options), values["candidate"], values["references"])

    def compute() -> Statistics:
        lengths = pairs.table.lengths
        candidate, other, places = pairs.distinct()
        n_common = texts.counts(pairs.table, max_order=1)[0].clipped(candidate, other)
        is_equal = (n_common == lengths[candidate]) & (n_common == lengths[other])
        sequences = pairs.table.sequences()
        for i in np.flatnonzero(is_equal).tolist():
            is_equal[i] = sequences[candidate[i]] == sequences[other[i]]
        return {
            "n_candidate": numbers(lengths[pairs.candidate]),
            "n_reference": lists(lengths[pairs.other], pairs.n_others),
            "n_common": lists(n_common[places], pairs.n_others),
            "is_equal": lists(is_equal[places], pairs.n_others),
        }

    return compute


def lcs(values: Values, options: Mapping[str, Any], texts: ShardTexts) -> Compute:
    """Measure the longest common subsequence with each reference."""
    pairs = lay_out(texts.table(options), values["candidate"], values["references"])
    return lambda: lcs_statistics(pairs, options)


def lcs_statistics(pairs: Pairs, options: Mapping[str, Any]) -> Statistics:
    """Return lengths of texts and of their longest common subsequences."""
    lengths = pairs.table.lengths
    candidate, other, places = pairs.distinct()
    return {
        "n_candidate": numbers(lengths[pairs.candidate]),
        "n_reference": lists(lengths[pairs.other], pairs.n_others),
        "lcs": lists(lcs_lengths(pairs.table, candidate, other)[places], pairs.n_others),
        "no_words": lists(pairs.no_words(options), pairs.n_others),
    }


def ngrams(values: Values, options: Mapping[str, Any], texts: ShardTexts) -> Compute:
    """Count n-grams in common, over all references of a row or with each."""
    pairs = lay_out(texts.table(options), values["candidate"], values["references"])

    def compute() -> Statistics:
        counts = texts.counts(pairs.table)
        if options["over_references"] == "max":
            return single_ngrams(pairs, counts, options)
        return pooled_ngrams(pairs, counts, options)

    return compute


def single_ngrams(
    pairs: Pairs, counts: Sequence[GramCounts], options: Mapping[str, Any]
) -> Statistics:
    """Return n-grams in common with each reference."""
    lengths = pairs.table.lengths
    candidate, other, places = pairs.distinct()
    found = {
        f"matches_{order.order}": lists(order.clipped(candidate, other)[places], pairs.n_others)
        for order in counts
    }
    return {
        "n_candidate": numbers(lengths[pairs.candidate]),
        "n_reference": lists(lengths[pairs.other], pairs.n_others),
        **found,
        "no_words": lists(pairs.no_words(options), pairs.n_others),
    }


def pooled_ngrams(
    pairs: Pairs, counts: Sequence[GramCounts], options: Mapping[str, Any]
) -> Statistics:
    """Return n-grams in common with all references of a row: one value per row that has any."""
    lengths = pairs.table.lengths
    n_pooled = np.minimum(pairs.n_others, 1)
    has_any = n_pooled > 0
    all_lost = np.bincount(
        pairs.row, weights=pairs.no_words(options), minlength=len(has_any)
    ) == np.maximum(pairs.n_others, 1)
    closest = closest_lengths(lengths[pairs.candidate], lengths[pairs.other], pairs.n_others)
    return {
        "n_candidate": numbers(lengths[pairs.candidate]),
        "n_reference": lists(closest[has_any], n_pooled),
        **{
            f"matches_{order}": lists(matches[has_any], n_pooled)
            for order, matches in pooled_matches(pairs, counts).items()
        },
        "no_words": lists(all_lost[has_any], n_pooled),
    }


def pooled_matches(pairs: Pairs, counts: Sequence[GramCounts]) -> dict[int, IntArray]:
    """Return, by order, each row's n-grams clipped at their largest count in any other text."""
    return {
        order.order: order.clipped_over(pairs.candidate, pairs.other, pairs.n_others)
        for order in counts[:MAX_ORDER]
    }


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
