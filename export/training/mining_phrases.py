"""Phrases: running text -> answer-like stretches of words, and pairs of them that overlap.

A phrase is a run of content words between function words and punctuation, or two such runs with
the function words between them. No parser is needed, and the same text gives the same phrases.

But: no named entities and no grammar; what is no phrase for a reader costs little in training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Run", "overlapping", "phrases", "runs"]

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
    return list(dict.fromkeys(_phrases(runs(text))))


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


def _phrases(found: Sequence[Run]) -> Iterator[str]:
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
