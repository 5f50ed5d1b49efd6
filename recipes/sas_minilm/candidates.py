"""Candidates: texts of the datasets -> pairs worth scoring, each kind in its number.

A pair carries what a rule knows of its score; the rest is the teacher's to say.

Short answers come from running text. A phrase is a run of content words between function words and
punctuation, or two such runs with the function words between them. No parser is needed, and the
same text gives the same phrases.

But: no named entities and no grammar; what is no phrase for a reader costs little in training.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

import numpy as np

from recipes.sas_minilm import sources
from recipes.sas_minilm.rules import rule_pairs

__all__ = ["N_PAIRS", "Candidate", "Run", "make_candidates", "overlapping", "phrases", "runs"]

T = TypeVar("T")
NearPairs = Callable[[Sequence[str]], Iterable[tuple[str, str]]]

# Pairs of each source; about half are short answers of running text.
N_PAIRS: Mapping[str, int] = {
    "stsb": 10_000,  # All 5,749.
    "stsb_near": 3_000,
    "name": 2_000,
    "number": 1_800,
    "near": 8_000,
    "overlap": 4_000,
    "lead": 1_000,
    "passage": 2_000,
    "answer": 2_500,
    "number_changed": 1_200,
    "rule": 3_500,
    "random": 1_200,
    "synonym": 3_000,
    "hypernym": 600,
    "class": 600,
    "derived": 700,
    "pertains": 400,
    "antonym": 700,
    "sibling": 1_200,
    "gloss": 1_200,
    "similar": 500,
}
_N_PHRASES = {"question": 4_500, "answer": 2_500, "web": 2_500, "passage": 2_500}
_MAX_ANSWER_WORDS = 12
# Words that lead to an answer without changing it: "in 1969", "the Nile".
_EMPTY_WORDS = frozenset(
    ("a", "an", "the", "of", "in", "on", "at", "by", "for", "from", "to", "as")
)
_NUMBER = re.compile(r"\d[\d,]*")
_MAX_WORDS = 7
_PIECE = re.compile(r"\w+(?:[.,'’&/–-]\w+)*%?|[$£€]\d[\d.,]*|[^\w\s]")
_FUNCTION_WORDS_TEXT = """
    a about above across after again all along also although am among an and any are as at be
    because been before being between both but by can could did do does during each either for from
    had has have he her here him his how i if in into is it its itself just many may might more most
    much must near nor not of off on onto or other our out over own per she should since so some
    such than that the their them then there these they this those through thus to too toward under
    until up upon us very was we were what when where whether which while who whom whose why will
    with within without would you your
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORDS_TEXT.split())


class Candidate(NamedTuple):
    """Two texts, the score that is known without a teacher (NaN: none), and where they are from."""

    text_a: str
    text_b: str
    score: float
    source: str


def make_candidates(
    *, data: Path, wordnet: Path, seed: int, near: NearPairs, n_pairs: Mapping[str, int] = N_PAIRS
) -> list[Candidate]:
    """Return pairs of every source, in a fixed order, less those that judge.

    Parameters
    ----------
    data : Path
        Folder of the datasets.
    wordnet : Path
        Folder of WordNet's files.
    near : callable
        Texts -> pairs of them that lie near each other, nearest kinds mixed with far ones.
    n_pairs : mapping of str to int, default N_PAIRS
        At most, of each source.

    Raises
    ------
    InputError, SchemaError
        If a file or column of the data is missing.
    """
    sources.check_data(data)
    drawer = _Drawer(seed, n_pairs)
    found = _labeled(data, drawer)
    stsb = [text for pair in found if pair.source == "stsb" for text in (pair.text_a, pair.text_b)]
    found += drawer.draw("stsb_near", near(list(dict.fromkeys(stsb))))

    questions, answers = sources.hotpot_texts(data)
    replies = sources.answers_with_references(data)
    web = [text for pair in replies for text in pair]
    passages = sources.clauses_outside_answers(data)
    clauses = [clause for passage in passages for clause in passage]
    pool = drawer.pool(questions=questions, answers=answers, web=web, clauses=clauses)
    found += drawer.draw("near", near(pool))
    found += drawer.draw("random", _shuffled_pairs(pool, drawer.random("random")))
    found += drawer.draw("answer", replies)
    found += _overlaps([*questions, *web, *clauses], drawer)
    found += drawer.draw("passage", _same_passage(passages, drawer.random("same passage")))
    numbered = [phrase for phrase in pool if _NUMBER.search(phrase)]
    found += drawer.draw("number_changed", _changed(numbered, drawer.random("changed")))
    found += _relations(wordnet, texts=[*questions, *web, *clauses], drawer=drawer)
    judged = sources.judged_pairs(data)
    return [pair for pair in found if sources.pair_key(pair.text_a, pair.text_b) not in judged]


class _Drawer:
    """Draws pairs at random; each source has a stream of its own."""

    def __init__(self, seed: int, n_pairs: Mapping[str, int]) -> None:
        self._seed = seed
        self.n_pairs = n_pairs

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, crc32(purpose.encode())])

    def sample(self, items: Iterable[T], n_items: int, *, purpose: str) -> list[T]:
        pool = list(items)
        if len(pool) <= n_items:
            return pool
        rows = self.random(purpose).choice(len(pool), size=n_items, replace=False)
        return [pool[row] for row in sorted(rows)]

    def draw(self, source: str, pairs: Iterable[tuple[str, str]]) -> list[Candidate]:
        """Draw pairs without a score; the same text twice says nothing."""
        distinct = (pair for pair in dict.fromkeys(pairs) if pair[0].lower() != pair[1].lower())
        drawn = self.sample(distinct, self.n_pairs[source], purpose=source)
        return [Candidate(one, other, float("nan"), source) for one, other in drawn]

    def pool(
        self, *, questions: list[str], answers: list[str], web: list[str], clauses: list[str]
    ) -> list[str]:
        """Return distinct answer-like phrases of all texts."""
        short = [text for text in answers if len(text.split()) <= _MAX_ANSWER_WORDS]
        kinds = {
            "question": _distinct_phrases(questions),
            "answer": list(dict.fromkeys(short)),
            "web": _distinct_phrases(web),
            "passage": _distinct_phrases(clauses),
        }
        drawn = [self.sample(kinds[kind], n, purpose=kind) for kind, n in _N_PHRASES.items()]
        return list(dict.fromkeys(phrase for phrases in drawn for phrase in phrases))


def _labeled(data: Path, drawer: _Drawer) -> list[Candidate]:
    rules = drawer.random("rule")
    kinds: dict[str, Sequence[tuple[str, str, float]]] = {
        "stsb": sources.sentence_pairs(data, split="train"),
        "name": sources.name_pairs(data, split="train"),
        "number": sources.number_pairs(data),
        "rule": list(dict.fromkeys(rule_pairs(2 * drawer.n_pairs["rule"], random=rules))),
    }
    return [
        Candidate(one, other, score, source)
        for source, pairs in kinds.items()
        for one, other, score in drawer.sample(pairs, drawer.n_pairs[source], purpose=source)
    ]


def _distinct_phrases(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(phrase for text in texts for phrase in phrases(text)))


def _overlaps(texts: Iterable[str], drawer: _Drawer) -> list[Candidate]:
    pairs = {pair for text in texts for pair in overlapping(text)}
    lead: list[tuple[str, str]] = []
    other: list[tuple[str, str]] = []
    for one, two in sorted(pairs):
        before = two[: -len(one)].lower().split() if two.endswith(f" {one}") else []
        (lead if before and _EMPTY_WORDS.issuperset(before) else other).append((one, two))
    return [*drawer.draw("lead", lead), *drawer.draw("overlap", other)]


def _same_passage(
    passages: Iterable[Sequence[str]], random: np.random.Generator
) -> Iterable[tuple[str, str]]:
    for clauses in passages:
        found = _distinct_phrases(clauses)
        if len(found) > 1:
            yield from _shuffled_pairs(found, random)


def _shuffled_pairs(texts: Sequence[str], random: np.random.Generator) -> Iterable[tuple[str, str]]:
    order = random.permutation(len(texts))
    return [(texts[i], texts[j]) for i, j in zip(order, np.roll(order, 1), strict=True)]


def _changed(texts: Iterable[str], random: np.random.Generator) -> Iterable[tuple[str, str]]:
    """Yield texts beside themselves with one number changed; the number of digits stays."""
    for text in texts:
        spans = [match.span() for match in _NUMBER.finditer(text)]
        start, end = spans[int(random.integers(len(spans)))]
        digits = list(text[start:end])
        places = [i for i, letter in enumerate(digits) if letter.isdigit()]
        place = places[int(random.integers(len(places)))]
        digits[place] = str((int(digits[place]) + int(random.integers(1, 9))) % 10 or 1)
        yield text, text[:start] + "".join(digits) + text[end:]


def _relations(wordnet: Path, *, texts: Iterable[str], drawer: _Drawer) -> list[Candidate]:
    """Return pairs of WordNet whose words readers of these texts meet."""
    counts = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    known = {word for word, count in counts.items() if count > 1}
    pairs = defaultdict(list)
    for one, other, relation in sources.related_pairs(sources.read_synsets(wordnet)):
        sides = (one,) if relation == "gloss" else (one, other)
        if all(known.issuperset(re.findall(r"\w+", side.lower())) for side in sides):
            pairs[relation].append((one, other))
    return [pair for relation in sorted(pairs) for pair in drawer.draw(relation, pairs[relation])]


class Run(NamedTuple):
    """Content words in a row, and the function words that lead to them in the same clause."""

    lead: tuple[str, ...]
    words: tuple[str, ...]
    starts_clause: bool


def runs(text: str) -> list[Run]:
    """Return the runs of content words of a text.

    Examples
    --------
    >>> [" ".join(run.words) for run in runs("The capital of northern France, in 1,200 words.")]
    ['capital', 'northern France', '1,200 words']
    >>> runs("The capital of northern France")[1].lead
    ('of',)
    """
    found: list[Run] = []
    lead: list[str] = []
    words: list[str] = []
    starts_clause = True

    def close() -> None:
        nonlocal lead, words, starts_clause
        if words:
            found.append(Run(tuple(lead), tuple(words), starts_clause))
            lead, words, starts_clause = [], [], False

    for piece in _PIECE.findall(text):
        if not any(letter.isalnum() for letter in piece):
            close()
            lead, starts_clause = [], True
        elif piece.lower() in _FUNCTION_WORDS:
            close()
            lead.append(piece)
        else:
            words.append(piece)
    close()
    return found


def phrases(text: str) -> list[str]:
    """Return the distinct phrases of a text, of at most 7 words.

    Examples
    --------
    >>> phrases("the capital of northern France")
    ['capital', 'capital of northern France', 'northern France']
    """
    return list(dict.fromkeys(_phrases_of_runs(runs(text))))


def overlapping(text: str) -> list[tuple[str, str]]:
    """Return pairs of phrases that share words: one holds the other, or both share a run.

    Examples
    --------
    >>> for pair in overlapping("the capital of northern France"):
    ...     print(pair)
    ('capital', 'the capital')
    ('northern France', 'of northern France')
    ('northern France', 'France')
    ('northern France', 'northern')
    ('capital', 'capital of northern France')
    ('northern France', 'capital of northern France')
    """
    found = runs(text)
    return list(dict.fromkeys([*_shortened(found), *_joined(found)]))


def _phrases_of_runs(found: Sequence[Run]) -> Iterator[str]:
    for i, run in enumerate(found):
        if len(run.words) <= _MAX_WORDS:
            yield " ".join(run.words)
        if i + 1 < len(found) and (both := _join(run, found[i + 1])):
            yield both


def _shortened(found: Sequence[Run]) -> Iterator[tuple[str, str]]:
    for run in found:
        whole = " ".join(run.words)
        if len(run.words) <= _MAX_WORDS:
            if 1 <= len(run.lead) <= 2:
                yield whole, " ".join([*run.lead, *run.words])
            if len(run.words) > 1:
                yield whole, " ".join(run.words[1:])
                yield whole, " ".join(run.words[:-1])


def _joined(found: Sequence[Run]) -> Iterator[tuple[str, str]]:
    joined = [_join(left, right) for left, right in pairwise(found)]
    for i, both in enumerate(joined):
        if both:
            yield " ".join(found[i].words), both
            yield " ".join(found[i + 1].words), both
            if i + 1 < len(joined) and (following := joined[i + 1]):
                yield both, following


def _join(left: Run, right: Run) -> str:
    """Return two runs with the words between them; empty where they are apart or too long."""
    words = (*left.words, *right.lead, *right.words)
    if right.starts_clause or len(right.lead) > 2 or len(words) > _MAX_WORDS:
        return ""
    return " ".join(words)
