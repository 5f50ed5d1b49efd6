"""Matches: statistics of METEOR's alignments, Q-BLEU's kinds of words, and spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from qaeval_core.metrics.meteor import align
from qaeval_core.metrics.q_bleu import KINDS, word_kinds
from qaeval_core.metrics.top_n_accuracy import first_overlap
from qaeval_core.scoring.families.words.counts import shared_counts, single_ngrams
from qaeval_core.scoring.families.words.rows import (
    Compute,
    ShardTexts,
    Statistics,
    lists,
    numbers,
)
from qaeval_core.text.tokenise import make_tokeniser, porter_stem
from qaeval_core.text.wordnet import load_wordnet

Values = Mapping[str, Sequence[Any]]


def alignment(values: Values, options: Mapping[str, Any], texts: ShardTexts) -> Compute:
    """Align words with each reference, by form, stem and synonym."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])
    no_synonyms: frozenset[str] = frozenset()
    synonyms = (
        load_wordnet().synonyms if options["synonyms"] == "wordnet" else lambda _: no_synonyms
    )

    def compute() -> Statistics:
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


def question_words(values: Values, options: Mapping[str, Any], texts: ShardTexts) -> Compute:
    """Count words of each kind, and n-grams, in common with each reference or the context."""
    candidates = values["candidate"]
    has_references = "references" in values
    others = values["references"] if has_references else [[text] for text in values["context"]]
    pairs = texts.pairs(texts.table(options), candidates, others)
    # Kinds depend on capital letters, whatever the words of BLEU do.
    rule = options["tokeniser"], options.get("language", "none")
    cased = make_tokeniser(rule[0], lowercase=False, language=rule[1])
    by_kind = {
        kind: texts.pairs(
            texts.table_of((kind, *rule), partial(_words_of_kind, cased, kind)),
            candidates,
            others,
        )
        for kind in KINDS
    }

    def compute() -> Statistics:
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


def _words_of_kind(tokenise: Any, kind: str, text: str) -> list[str]:
    return word_kinds(tokenise(text))[kind]


def spans(values: Values, _: Mapping[str, Any], __: ShardTexts) -> Compute:
    """Find the first predicted span that overlaps a gold one."""
    pairs = zip(values["predicted_spans"], values["gold_spans"], strict=True)
    found = [first_overlap(predicted, gold) for predicted, gold in pairs]
    return lambda: {"first_overlap": numbers(np.array(found, dtype=np.int64))}
