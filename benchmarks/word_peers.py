"""Peers of lexical metrics: public programs, called row by row as their users call them.

The SQuAD script is written anew, as the published one computes; the others are the libraries.
"""

from __future__ import annotations

import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from rouge_score import rouge_scorer
from sacrebleu.metrics.bleu import BLEU

Row = tuple[str, list[str]]
Scores = dict[str, list[float]]


def squad_f1(rows: Sequence[Row]) -> Scores:
    """F1 of SQuAD's evaluation script v1.1."""
    return {"f1": [max(_f1(text, own) for own in references) for text, references in rows]}


def _f1(candidate: str, reference: str) -> float:
    left, right = _normalized(candidate), _normalized(reference)
    n_common = sum((Counter(left) & Counter(right)).values())
    if not left or not right:
        return float(left == right)
    if n_common == 0:
        return 0.0
    precision, recall = n_common / len(left), n_common / len(right)
    return 2 * precision * recall / (precision + recall)


def _normalized(text: str) -> list[str]:
    excluded = set(string.punctuation)
    text = "".join(sign for sign in text.lower() if sign not in excluded)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def rouge_score_rouge_l(rows: Sequence[Row]) -> Scores:
    """ROUGE-L of rouge-score; the best F over references."""
    scorer = rouge_scorer.RougeScorer(["rougeL"])
    found = [scorer.score_multi(references, text)["rougeL"].fmeasure for text, references in rows]
    return {"rouge_l": found}


def sacrebleu_bleu(rows: Sequence[Row]) -> Scores:
    """BLEU-1 to 4 of sacrebleu: sentence scores with its own tokenizer and smoothing."""
    scores: Scores = {}
    for order in (1, 2, 3, 4):
        scorer = BLEU(effective_order=True, max_ngram_order=order)
        found = [scorer.sentence_score(text, references).score / 100 for text, references in rows]
        scores[f"bleu_{order}"] = found
    return scores


def nltk_bleu(rows: Sequence[Row]) -> Scores:
    """BLEU-1 to 4 of NLTK in one call a row: words between spaces, smoothing method1."""
    weights = [tuple([1 / order] * order) for order in (1, 2, 3, 4)]
    smooth = SmoothingFunction().method1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            sentence_bleu([own.split() for own in references], text.split(), weights, smooth)
            for text, references in rows
        ]
    return {f"bleu_{i + 1}": [own[i] for own in found] for i in range(4)}


# Which peers a setting is compared with, and the settings that give their numbers.
PEERS: Mapping[str, Sequence[Callable[[Sequence[Row]], Scores]]] = {
    "sacrebleu": (squad_f1, rouge_score_rouge_l, sacrebleu_bleu),
    "nltk": (squad_f1, rouge_score_rouge_l, nltk_bleu),
}
BLEU_SETTINGS: Mapping[str, dict[str, object]] = {
    "sacrebleu": {"tokenizer": "13a", "lowercase": False, "smoothing": "exponential"},
    "nltk": {"tokenizer": "whitespace", "lowercase": False, "smoothing": "floor"},
}


def largest_difference(own: Mapping[str, Sequence[float]], other: Mapping[str, object]) -> float:
    """Return the largest difference of any score of any metric."""
    gaps = [np.abs(np.subtract(own[name], other[name])).max() for name in own]
    return float(max(gaps))
