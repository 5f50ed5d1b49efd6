"""Tf-idf: statistics of CIDEr, and the document frequencies they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from qaeval_core.metrics.cider import idf, similarity
from qaeval_core.scoring.families.words.frequencies import DocumentFrequencies
from qaeval_core.scoring.families.words.rows import (
    Compute,
    Pairs,
    ShardTexts,
    Statistics,
    lists,
    numbers,
)
from qaeval_core.text.ngrams import GramCounts, HashArray, gram_hashes, word_hashes

Values = Mapping[str, Sequence[Any]]


def document_frequencies(values: Values, options: Mapping[str, Any], texts: ShardTexts) -> Compute:
    """List the distinct n-grams of each row's references, as hashes."""
    table = texts.table(options)
    pairs = texts.pairs(table, [""] * len(values["references"]), values["references"])

    def compute() -> Statistics:
        counts = texts.counts(table)
        words, ids = word_hashes(table.words), table.ids
        rows, hashes = [], []
        for order in counts:
            own = gram_hashes(order, ids=ids, words=words)
            owner, entries = order.entries_of(pairs.other)
            rows.append(pairs.row[owner])
            hashes.append(own[order.grams[entries]])
        return {"grams": _distinct_lists(rows, hashes, n_rows=len(pairs.candidate))}

    return compute


def _distinct_lists(
    rows: Sequence[np.ndarray[Any, Any]], hashes: Sequence[HashArray], *, n_rows: int
) -> pa.Array:
    """Return each row's distinct hashes as a list column."""
    row, found = np.concatenate(rows), np.concatenate(hashes)
    order = np.lexsort((found, row))
    row, found = row[order], found[order]
    is_new = np.ones(len(row), dtype=bool)
    is_new[1:] = (row[1:] != row[:-1]) | (found[1:] != found[:-1])
    return lists(found[is_new], np.bincount(row[is_new], minlength=n_rows))


def tf_idf(
    values: Values,
    options: Mapping[str, Any],
    texts: ShardTexts,
    frequencies: DocumentFrequencies,
) -> Compute:
    """Measure the cosine of weighted n-grams with each reference."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])

    def compute() -> Statistics:
        counts = texts.counts(pairs.table)
        lengths = pairs.table.lengths
        words, ids = word_hashes(pairs.table.words), pairs.table.ids
        cosines = []
        for order in counts:
            hashes = gram_hashes(order, ids=ids, words=words)
            # In the order of hashes, sums round alike in every shard: equal rows tie.
            by_hash = np.argsort(hashes, kind="stable")
            weight = idf(frequencies.of(hashes), n_documents=frequencies.n_documents)
            ranked = order.renumbered(np.argsort(by_hash, kind="stable"))
            cosines.append(_cosine(pairs, ranked, weight[by_hash]))
        return {
            "n_candidate": numbers(lengths[pairs.candidate]),
            "n_reference": lists(lengths[pairs.other], pairs.n_others),
            "similarity": lists(np.mean(cosines, axis=0), pairs.n_others),
            "no_words": lists(pairs.no_words(options), pairs.n_others),
        }

    return compute


def _cosine(pairs: Pairs, order: GramCounts, weight: np.ndarray[Any, Any]) -> Any:
    """Return sim_i of every candidate with every reference of its row."""
    text = np.repeat(np.arange(len(order.offsets) - 1), np.diff(order.offsets))
    weighted = order.counts * weight[order.grams]  # g_k
    squares = np.bincount(text, weights=weighted**2, minlength=len(order.offsets) - 1)
    candidate, other, places = pairs.distinct()
    found = order.pair_counts(candidate, other)
    gram_weight = weight[order.grams[found.entry]]
    common = np.minimum(found.candidate, found.other) * found.other * gram_weight**2
    totals = np.bincount(found.owner, weights=common, minlength=len(candidate))
    products = totals.astype(np.float64)
    norms = np.sqrt(squares)
    return similarity(
        products=products, candidate_norms=norms[candidate], reference_norms=norms[other]
    )[places]
