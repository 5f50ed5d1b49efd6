"""Q-BLEU against nested loops over kinds of words."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from helpers import as_table
from oracles import Words, assert_scores, n_clipped, random_rows, split_row
from qaeval_core import Scorer

QUESTION_WORDS = {"what", "which", "why", "who", "where"}
FUNCTION_WORDS = {"the", "of", "is"}
QUESTION_VOCABULARY = (
    "What",
    "which",
    "who",
    "Who",
    "the",
    "The",
    "of",
    "mill",
    "river",
    "Ann",
    "?",
)


def _reference_kinds(words: Words) -> dict[str, Counter[str]]:
    kinds: dict[str, Counter[str]] = {kind: Counter() for kind in "rnqf"}
    words = [word for word in words if word != "?"]
    for i, word in enumerate(words):
        lower = word.lower()
        follows = i > 0 and words[i - 1].lower() in {"what", "which"}
        has_capital = word[0] in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        is_name = has_capital and not (i == 0 and lower in QUESTION_WORDS)
        is_question = lower in QUESTION_WORDS or follows
        is_function = lower in FUNCTION_WORDS
        kinds["q"][lower] += is_question
        kinds["n"][lower] += is_name
        kinds["f"][lower] += is_function
        kinds["r"][lower] += not (is_question or is_name or is_function)
    return kinds


def _reference_q_bleu(
    candidate: Words, reference: Words, weights: dict[str, float], *, delta: float, absent: str
) -> float:
    left, right = _reference_kinds(candidate), _reference_kinds(reference)
    total = below = 0.0
    for kind, weight in weights.items():
        size = left[kind].total() + right[kind].total()
        if size or absent == "zero":
            below += weight
            total += weight * (2 * (left[kind] & right[kind]).total() / size if size else 0.0)
    has_any = any(side[kind].total() for side in (left, right) for kind in weights)
    answerable = total / below if has_any else 1.0
    lower = [word.lower() for word in candidate], [word.lower() for word in reference]
    if not candidate:
        return delta * answerable + (1 - delta) * float(not reference)
    product = float(n_clipped(lower[0], [lower[1]], 1) > 0)
    for n in (1, 2):
        product *= (n_clipped(lower[0], [lower[1]], n) or 0.1) / max(len(candidate) - n + 1, 1)
    brevity = math.exp(min(0.0, 1 - len(reference) / len(candidate)))
    return delta * answerable + (1 - delta) * brevity * product**0.5


@pytest.mark.parametrize("absent", ["renormalize", "zero"])
def test_q_bleu_of_random_questions_is_brute_force(absent: str) -> None:
    """Protects from kinds of words mixed up, and from a weight given to a kind of another."""
    weights = {"r": 0.15, "n": 0.4, "q": 0.25, "f": 0.3}
    named = dict(zip(("relevant", "entity", "question", "function"), weights.values(), strict=True))
    options = {"tokenizer": "whitespace", "order": 2, "delta": 0.6, "absent": absent}
    metric = {**options, **{f"{kind}_weight": weight for kind, weight in named.items()}}
    rows = random_rows(vocabulary=QUESTION_VOCABULARY, seed=10)
    for row in rows:
        row["context"] = row["references"][0] if row["references"] else "Ann"  # type: ignore[index]
    scores = as_table(Scorer({"q_bleu": metric, "q_bleu_free": metric}).score(rows))
    expected, free = [], []
    for row in rows:
        candidate, references = split_row(row)
        own = [
            _reference_q_bleu(candidate, words, weights, delta=0.6, absent=absent)
            for words in [*references, ["Ann"]]
        ]
        expected.append(max(own[:-1], default=None))
        free.append(own[0])
    assert_scores(scores["q_bleu"].to_pylist(), expected)
    assert_scores(scores["q_bleu_free"].to_pylist(), free)


def test_languages_side_by_side_are_rules_of_their_own() -> None:
    """Protects from words of one language's rule taken for another instance's."""
    rows = [
        {"candidate": "The bee of the mill", "references": ["The hive of a mill"]},
        {"candidate": "der Mann an der Mühle", "references": ["die Mühle an dem Bach"]},
    ]
    for rule in ("squad", "spacy"):
        metrics = {
            language: {"metric": "q_bleu", "tokenizer": rule, "language": language}
            for language in ("en", "de", "none")
        }
        together = as_table(Scorer(metrics).score(rows))
        for name, options in metrics.items():
            alone = as_table(Scorer({name: options}).score(rows))
            assert together[name].to_pylist() == alone[name].to_pylist(), (rule, name)
        is_told_apart = together["en"].to_pylist() != together["de"].to_pylist()
        assert is_told_apart == (rule == "squad")
