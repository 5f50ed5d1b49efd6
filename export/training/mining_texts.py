"""Texts: the public datasets of a folder -> labelled pairs, sentences and answer-like phrases.

Pairs of gold answers of SQuAD judge the trained model. So passages are cut where a gold answer
lies, and pairs from elsewhere that coincide with two answers to one question can be recognised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from export.training.tables import check_file, read_columns

__all__ = [
    "Labelled",
    "answers_with_references",
    "check_data",
    "clauses_outside_answers",
    "hotpot_texts",
    "judged_pairs",
    "name_pairs",
    "number_pairs",
    "pair_key",
    "sentence_pairs",
]

_STSB = Path("stsb/stsb_en_train_dev.parquet")
_NAMES = Path("sas/name_pairs.parquet")
_NUMBERS = Path("sas/number_pairs.parquet")
_HOTPOT = Path("hotpotqa/dev_question_answer.parquet")
_MS_MARCO = Path("ms_marco/eval_dev_pairs.parquet")
_SQUAD = Path("squad/squad_v2_dev.parquet")
_JUDGED = Path("sas/squad_pairs.jsonl")
_STSB_HIGHEST = 5.0
_MAX_WORDS = 25
_WORD = re.compile(r"\w+")


class Labelled(NamedTuple):
    """A pair of texts and how much they agree, in [0, 1]."""

    text_a: str
    text_b: str
    score: float


def check_data(data: Path) -> None:
    """Raise if a dataset is missing, before any is read.

    Raises
    ------
    InputError
        If a file is not there; names the nearest one in its folder.
    """
    for name in (_STSB, _NAMES, _NUMBERS, _HOTPOT, _MS_MARCO, _SQUAD, _JUDGED):
        check_file(data / name, option="--data:")


def sentence_pairs(data: Path, *, split: str) -> list[Labelled]:
    """Return the pairs of STS-B's ``train`` or ``dev`` with people's scores."""
    rows = _rows(data / _STSB, "split", "sentence1", "sentence2", "score")
    return [
        Labelled(one, other, score / _STSB_HIGHEST)
        for part, one, other, score in rows
        if part == split
    ]


def name_pairs(data: Path, *, split: str) -> list[Labelled]:
    """Return pairs of persons' names with the scores of a large cross-encoder."""
    rows = _rows(data / _NAMES, "split", "name1", "name2", "score")
    return [Labelled(one, other, _unit(score)) for part, one, other, score in rows if part == split]


def number_pairs(data: Path) -> list[Labelled]:
    """Return pairs of numbers with the scores of a large cross-encoder."""
    rows = _rows(data / _NUMBERS, "number1", "number2", "score")
    return [Labelled(one, other, _unit(score)) for one, other, score in rows]


def hotpot_texts(data: Path) -> tuple[list[str], list[str]]:
    """Return the questions of HotpotQA and its answers, yes and no left out."""
    rows = list(_rows(data / _HOTPOT, "question", "answer"))
    return (
        [question for question, _ in rows],
        [answer for _, answer in rows if answer.lower() not in ("yes", "no")],
    )


def answers_with_references(data: Path) -> list[tuple[str, str]]:
    """Return (reference, candidate or other reference) of MS MARCO's evaluator self-test."""
    pairs = []
    for references, candidate in _rows(data / _MS_MARCO, "references", "candidate"):
        texts = [text for text in (*references, candidate) if 0 < len(text.split()) <= _MAX_WORDS]
        pairs += [(texts[0], other) for other in texts[1:]]
    return [(one, other) for one, other in dict.fromkeys(pairs) if one != other]


def clauses_outside_answers(data: Path) -> list[list[str]]:
    """Return for each passage of SQuAD its stretches of text between gold answers."""
    spans: dict[str, set[tuple[int, int]]] = {}
    rows = _rows(data / _SQUAD, "context", "answers", "answer_starts")
    for context, answers, starts in rows:
        passage = spans.setdefault(context, set())
        for answer, start in zip(answers, starts, strict=True):
            passage.add((start, start + len(answer)))
    return [_cut(context, sorted(spans[context])) for context in spans]


def judged_pairs(data: Path) -> set[frozenset[str]]:
    """Return the pairs that judge a cross-encoder, as keys of ``pair_key``; no label is read.

    Those that people have scored, and all pairs of gold answers to one question of SQuAD.
    """
    keys = {pair_key(*pair) for pair in _rows(data / _JUDGED, "answer1", "answer2")}
    for (answers,) in _rows(data / _SQUAD, "answers"):
        keys.update(pair_key(*pair) for pair in combinations(answers, 2))
    return keys


def pair_key(one: str, other: str) -> frozenset[str]:
    """Return what two pairs share that differ in order, case, articles or punctuation.

    Examples
    --------
    >>> pair_key("The Nile", "a river.") == pair_key("river", "nile")
    True
    """
    return frozenset(
        " ".join(word for word in _WORD.findall(text.lower()) if word not in ("a", "an", "the"))
        for text in (one, other)
    )


def _cut(context: str, spans: list[tuple[int, int]]) -> list[str]:
    """Return the texts between spans, which are in order and may overlap.

    >>> _cut("one two three four", [(4, 7), (4, 13)])
    ['one', 'four']
    """
    parts, start = [], 0
    for left, right in spans:
        parts.append(context[start:left])
        start = max(start, right)
    parts.append(context[start:])
    return [part.strip() for part in parts if part.strip()]


def _rows(path: Path, *names: str) -> Iterator[tuple[Any, ...]]:
    columns = read_columns(path, names)
    return zip(*(columns[name] for name in names), strict=True)


def _unit(score: float) -> float:
    return min(max(score, 0.0), 1.0)
