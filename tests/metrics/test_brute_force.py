"""Lexical metrics against nested loops: BLEU, ROUGE-L, CIDEr-D, exact match and F1."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import as_table
from oracles import (
    Words,
    assert_scores,
    grams,
    lcs_length,
    n_clipped,
    random_rows,
    split_row,
)
from qaeval_core import Scorer

SMOOTHINGS = ("none", "floor", "add_one", "exponential", "coco")
Row = dict[str, object]

word_texts = st.text("abc ", max_size=12).map(" ".join)
row_lists = st.lists(
    st.fixed_dictionaries(
        {"candidate": word_texts, "references": st.lists(word_texts, max_size=4)}
    ),
    max_size=4,
)


def _reference_bleu(candidate: Words, references: list[Words], order: int, smoothing: str) -> float:
    closest = sorted((abs(len(words) - len(candidate)), len(words)) for words in references)[0][1]
    orders = range(1, order + 1)
    matches = [n_clipped(candidate, references, n) for n in orders]
    totals = [grams(candidate, n).total() for n in orders]
    if not candidate:
        return float(closest == 0)
    if smoothing == "coco":
        product = 1.0
        for m, t in zip(matches, totals, strict=True):
            product *= (m + 1e-15) / (t + 1e-9)
        ratio = (len(candidate) + 1e-15) / (closest + 1e-9)
        return product ** (1 / order) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)
    if matches[0] == 0:
        return 0.0
    precisions = _smoothed(matches, totals, smoothing)
    brevity = 1.0 if len(candidate) > closest else math.exp(1 - closest / len(candidate))
    return brevity * math.prod(precisions) ** (1 / len(precisions))


def _smoothed(matches: list[int], totals: list[int], smoothing: str) -> list[float]:
    """Return the precisions that count, by the rules of NLTK and of sacrebleu."""
    precisions = []
    n_missing = 0
    for n, (m, t) in enumerate(zip(matches, totals, strict=True), start=1):
        if smoothing == "add_one" and n > 1:
            precisions.append((m + 1) / (max(t, 1) + 1))
        elif m > 0:
            precisions.append(m / t)
        elif smoothing == "exponential" and t > 0:
            n_missing += 1
            precisions.append(1 / (2**n_missing * t))
        elif smoothing != "exponential":
            precisions.append({"floor": 0.1, "none": 0.0}[smoothing] / max(t, 1))
    return precisions


def _reference_bleu_of_row(
    row: Row, *, order: int, smoothing: str, over_references: str
) -> float | None:
    candidate, references = split_row(row)
    if not references:
        return None
    if over_references == "max":
        return max(_reference_bleu(candidate, [words], order, smoothing) for words in references)
    return _reference_bleu(candidate, references, order, smoothing)


@pytest.mark.parametrize("over_references", ["standard", "max"])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_bleu_of_random_rows_is_brute_force(smoothing: str, over_references: str) -> None:
    """Protects from clipping, lengths and smoothing mixed up between orders or references."""
    options = {"smoothing": smoothing, "over_references": over_references}
    metrics = {f"bleu_{order}": {"tokenizer": "whitespace", **options} for order in (1, 2, 3, 4)}
    rows = random_rows()
    scores = as_table(Scorer(metrics).score(rows))
    for order in (1, 2, 3, 4):
        expected = [_reference_bleu_of_row(row, order=order, **options) for row in rows]
        assert_scores(scores[f"bleu_{order}"].to_pylist(), expected)


_BLEU_4 = {
    f"{smoothing}_{over}": {
        "metric": "bleu_4",
        "tokenizer": "whitespace",
        "smoothing": smoothing,
        "over_references": over,
    }
    for smoothing in SMOOTHINGS
    for over in ("standard", "max")
}


@cache
def scorer(kind: str) -> Scorer:
    """Return a scorer that all examples of a test share."""
    metrics = {
        "bleu_4": _BLEU_4,
        "cider": {"cider": {"tokenizer": "whitespace"}},
        "squad": {"exact_match": {}, "f1": {}},
        "spans": {f"top_{n}": {"metric": "top_n_accuracy", "n": n} for n in (1, 2)},
    }
    return Scorer(metrics[kind])


@settings(deadline=None, max_examples=40)
@given(row_lists)
def test_bleu_of_any_rows_is_brute_force(rows: list[Row]) -> None:
    """Protects from rows of no word or no reference shifting the counts of their neighbors."""
    scores = as_table(scorer("bleu_4").score(rows))
    for name, given_settings in _BLEU_4.items():
        options = {key: given_settings[key] for key in ("smoothing", "over_references")}
        expected = [_reference_bleu_of_row(row, order=4, **options) for row in rows]
        assert_scores(scores[name].to_pylist(), expected)


def _reference_rouge_l(
    row: Row, *, beta: float, over_references: str
) -> tuple[float, float, float] | None:
    """Return ROUGE-L with its precision and recall."""
    candidate, references = split_row(row)
    parts = []
    for words in references:
        lcs = lcs_length(candidate, words)
        p = lcs / len(candidate) if candidate else float(not words)
        r = lcs / len(words) if words else float(not candidate)
        parts.append((p, r))
    if not parts:
        return None
    if over_references == "standard":
        parts = [(max(p for p, _ in parts), max(r for _, r in parts))]
    scored = [((1 + beta**2) * p * r / (r + beta**2 * p) if p + r else 0.0, p, r) for p, r in parts]
    return max(scored, key=lambda part: round(part[0], 12))


@pytest.mark.parametrize("over_references", ["standard", "max"])
@pytest.mark.parametrize("beta", [1.0, 1.2, 0.5])
def test_rouge_l_of_random_rows_is_brute_force(beta: float, over_references: str) -> None:
    """Protects from precision and recall swapped, which beta = 1 cannot show."""
    options = {"beta": beta, "over_references": over_references}
    rows = random_rows(seed=6)
    scores = as_table(Scorer({"rouge_l": {"tokenizer": "whitespace", **options}}).score(rows))
    expected = [_reference_rouge_l(row, **options) for row in rows]
    for place, name in enumerate(("rouge_l", "rouge_l_precision", "rouge_l_recall")):
        assert_scores(scores[name].to_pylist(), [own and own[place] for own in expected])


def _reference_ciders(
    rows: Sequence[Row], *, sigma: float, over_references: str
) -> list[float | None]:
    """Score a whole corpus by CIDEr-D with dictionaries, as coco-caption's cider_scorer does."""
    pairs = [split_row(row) for row in rows]
    documents: Counter[tuple[str, ...]] = Counter()
    n_documents = 0
    for _, references in pairs:
        own = {gram for words in references for n in (1, 2, 3, 4) for gram in grams(words, n)}
        documents.update(own)
        n_documents += bool(own)

    def vector(words: Words, order: int) -> dict[tuple[str, ...], float]:
        return {
            gram: count * (math.log(max(1, n_documents)) - math.log(max(1, documents[gram])))
            for gram, count in grams(words, order).items()
        }

    def score(candidate: Words, reference: Words) -> float:
        if not candidate and not reference:
            return 10.0
        total = 0.0
        for order in (1, 2, 3, 4):
            c, r = vector(candidate, order), vector(reference, order)
            norms = math.hypot(*c.values()) * math.hypot(*r.values())
            if norms:
                total += sum(min(c[gram], r[gram]) * r[gram] for gram in c if gram in r) / norms
        gap = max(len(candidate) - 1, 0) - max(len(reference) - 1, 0)  # Bigrams.
        return 10 * total / 4 * math.exp(-(gap**2) / (2 * sigma**2))

    def is_weightless(candidate: Words, reference: Words) -> bool:
        weights = [w for order in (1, 2, 3, 4) for w in vector(reference, order).values()]
        return bool(candidate and reference and not any(weights))

    found: list[float | None] = []
    for candidate, references in pairs:
        values = [score(candidate, reference) for reference in references]
        if all(is_weightless(candidate, reference) for reference in references):
            values = []  # Nothing can be said; there it is 0.
        reduced = (
            max(values, default=0.0) if over_references == "max" else float(np.mean(values or 0))
        )
        found.append(reduced if values else None)
    return found


@pytest.mark.parametrize("over_references", ["standard", "max"])
@pytest.mark.parametrize("sigma", [6.0, 1.5])
def test_cider_of_random_rows_is_brute_force(sigma: float, over_references: str) -> None:
    """Protects from document frequencies counted per reference, and from unclipped products."""
    options = {"sigma": sigma, "over_references": over_references}
    for vocabulary, n_rows in (("abcd", 200), ("abcdefghijklmnop", 30), ("ab", 1)):
        rows = random_rows(n_rows, vocabulary=vocabulary, seed=7)
        scores = as_table(Scorer({"cider": {"tokenizer": "whitespace", **options}}).score(rows))
        assert_scores(scores["cider"].to_pylist(), _reference_ciders(rows, **options))


@settings(deadline=None, max_examples=60)
@given(row_lists)
def test_cider_of_any_rows_is_brute_force(rows: list[Row]) -> None:
    """Protects from rows without words counted as documents."""
    expected = _reference_ciders(rows, sigma=6.0, over_references="standard")
    assert_scores(as_table(scorer("cider").score(rows))["cider"].to_pylist(), expected)


def _reference_squad(candidate: str, reference: str) -> tuple[float, float]:
    """Return exact match and F1 as the evaluation script computes them."""

    def normalize(text: str) -> str:
        kept = "".join(sign for sign in text.lower() if sign not in string.punctuation)
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())

    left, right = normalize(candidate).split(), normalize(reference).split()
    n_same = sum((Counter(left) & Counter(right)).values())
    if not left or not right:
        f1 = float(left == right)  # Version 2.0's rule; 1.1 has none.
    elif n_same == 0:
        f1 = 0.0
    else:
        precision, recall = n_same / len(left), n_same / len(right)
        f1 = 2 * precision * recall / (precision + recall)
    return float(normalize(candidate) == normalize(reference)), f1


squad_texts = st.one_of(st.text("aAnthe.' b-", max_size=12), st.text(max_size=8))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(squad_texts, st.lists(squad_texts, max_size=3)), max_size=3))
def test_exact_match_and_f1_are_those_of_the_squad_script(
    pairs: list[tuple[str, list[str]]],
) -> None:
    """Protects from numbers that no leaderboard would print."""
    rows = [{"candidate": text, "references": references} for text, references in pairs]
    scores = as_table(scorer("squad").score(rows))
    for place, name in enumerate(("exact_match", "f1")):
        expected = [
            max((_reference_squad(text, reference)[place] for reference in own), default=None)
            for text, own in pairs
        ]
        assert_scores(scores[name].to_pylist(), expected)


places = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 3)).map(lambda span: [span[0], sum(span)]),
    max_size=4,
)


def _reference_top_n_accuracy(
    predicted: list[list[int]], gold: list[list[int]], *, n: int
) -> float:
    """Compare sets of characters."""
    if not gold:
        return float(not predicted)
    covered = {place for start, end in gold for place in range(start, end)}
    return float(any(covered & set(range(start, end)) for start, end in predicted[:n]))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(places, places), max_size=6))
def test_top_n_accuracy_of_any_spans_is_brute_force(
    pairs: list[tuple[list[list[int]], list[list[int]]]],
) -> None:
    """Protects from spans that touch counted as overlapping, and from spans after the n-th."""
    rows = [{"predicted_spans": predicted, "gold_spans": gold} for predicted, gold in pairs]
    scores = as_table(scorer("spans").score(rows))
    for name, n in (("top_1", 1), ("top_2", 2)):
        expected = [_reference_top_n_accuracy(*pair, n=n) for pair in pairs]
        assert_scores(scores[name].to_pylist(), expected)
