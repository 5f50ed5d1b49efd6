"""Spoiled questions: SQuAD's answerable questions by article, and some of them spoiled on purpose.

Rows in, rows out, decided by a seed; nothing is trained or scored. Passages are cut into stretches
of whole sentences, so that training on them is cheap: a stretch is a passage from then on. Three
ways to spoil a row, each of which leaves the given answer a span of the passage:

- ``wrong_span``: the answer of another question on the passage, of the same type where there is
  one; no word of it is a word of a right answer.
- ``entity_swap``: a name, year or number of the question gives way to one of a question on another
  article where there is one; the passage does not have it.
- ``other_question``: a question on another passage, of the same article where there is one, none
  of whose answers stands in this passage.

But: "spoiled" says how a row was made. Nobody has read the rows; some are less wrong than others (a
swapped name may be one that the question does not need).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from qaeval_core.text.tokenize import make_tokenizer

KINDS = ("wrong_span", "entity_swap", "other_question")
CLEAN = "clean"

Row = dict[str, Any]
_WORDS = make_tokenizer("squad")
_SENTENCE_END = re.compile(r"(?<=[.!?])[ \n]+(?=[A-Z0-9\"'(])")
# A name is not looked for at a question's first word, which has a capital anyway.
_ENTITY = re.compile(
    r"(?P<year>\b(?:1\d{3}|20\d{2})\b)"
    r"|(?P<number>\b\d[\d,.]*\d\b|\b\d\b)"
    r"|(?<=[\w,;] )(?P<name>[A-Z][\w-]+(?: [A-Z][\w-]+)*)"
)


def shorten(
    squad: pl.DataFrame, *, count_tokens: Callable[[str], int], max_tokens: int
) -> pl.DataFrame:
    """Return answerable questions with the stretch of their passage that holds all their answers.

    Parameters
    ----------
    squad : DataFrame
        SQuAD's columns; questions without an answer, or with answers in several stretches, are
        left out.
    max_tokens : int
        Of a stretch; a single sentence that is longer is left out with its questions.
    """
    rows = []
    cut = {text: stretches(text, count_tokens, max_tokens) for text in squad["context"].unique()}
    for row in squad.filter(pl.col("answers").list.len() > 0).iter_rows(named=True):
        spans = list(zip(row["answers"], row["answer_starts"], strict=True))
        for start, end in cut[row["context"]]:
            if all(start <= first and first + len(answer) <= end for answer, first in spans):
                starts = [first - start for _, first in spans]
                rows.append({**row, "context": row["context"][start:end], "answer_starts": starts})
    return pl.DataFrame(rows, schema=squad.schema)


def stretches(
    text: str, count_tokens: Callable[[str], int], max_tokens: int
) -> list[tuple[int, int]]:
    """Return the places of a text's stretches: as many whole sentences as fit, one after another.

    Examples
    --------
    >>> text = "Ann left. The mill closed. Nobody came."
    >>> [text[a:b] for a, b in stretches(text, lambda words: len(words.split()), 5)]
    ['Ann left. The mill closed.', 'Nobody came.']
    """
    ends = [match.start() for match in _SENTENCE_END.finditer(text)] + [len(text)]
    starts = [0, *(match.end() for match in _SENTENCE_END.finditer(text))]
    found: list[tuple[int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        if found and count_tokens(text[found[-1][0] : end]) <= max_tokens:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return [(start, end) for start, end in found if count_tokens(text[start:end]) <= max_tokens]


def split_articles(
    rows: pl.DataFrame, *, sizes: Mapping[str, int], seed: int
) -> dict[str, pl.DataFrame]:
    """Return parts that share no article; each takes whole articles, and is cut to its size.

    Parameters
    ----------
    rows : DataFrame
        SQuAD's columns.
    sizes : mapping of part to questions
        Parts are filled in this order; what is cut off an article is nobody's.

    Raises
    ------
    ValueError
        If there are too few questions.
    """
    titles = rows["title"].unique().sort()
    left = titles.gather(np.random.default_rng([seed, 0]).permutation(len(titles))).to_list()
    parts = {}
    for name, size in sizes.items():
        taken: list[str] = []
        while left and rows.filter(pl.col("title").is_in(taken)).height < size:
            taken.append(left.pop(0))
        part = pl.concat(
            [rows.clear(), *(rows.filter(pl.col("title") == title) for title in taken)]
        )
        if part.height < size:
            raise ValueError(f"{part.height} questions are left for {name}, not {size}")
        parts[name] = part.head(size)
    return parts


def spoil(rows: pl.DataFrame, *, share: float, seed: int) -> pl.DataFrame:
    """Return rows with one answer each, a share of them spoiled, a third each way.

    Parameters
    ----------
    rows : DataFrame
        Answerable questions, SQuAD's columns.

    Returns
    -------
    DataFrame
        The rows in their order: ``id``, ``title``, ``context``, ``question``, ``answer``,
        ``answer_start``, ``how`` (one of `KINDS`, or `CLEAN`).

    Raises
    ------
    ValueError
        If too few rows can be spoiled.
    """
    records = list(rows.iter_rows(named=True))
    given = [_given(row) for row in records]
    draw = np.random.default_rng([seed, 1])
    n_spoiled = round(share * len(records))
    left = {
        kind: n_spoiled // len(KINDS) + (place < n_spoiled % len(KINDS))
        for place, kind in enumerate(KINDS)
    }
    corpus = _Corpus(records)
    for place in draw.permutation(len(records)):
        # Rows come by chance and take the way that is furthest behind: whether a row is spoiled
        # depends as little as possible on what it is.
        for kind in sorted(KINDS, key=lambda kind: -left[kind]):
            changed = _WAYS[kind](records[place], corpus, draw) if left[kind] else None
            if changed is not None:
                given[place] |= {**changed, "how": kind}
                left[kind] -= 1
                break
    if any(left.values()):
        raise ValueError(f"too few questions can be spoiled: {left} are missing")
    return pl.DataFrame(given)


def _given(row: Row) -> Row:
    return {
        **{name: row[name] for name in ("id", "title", "context", "question")},
        "answer": row["answers"][0],
        "answer_start": row["answer_starts"][0],
        "how": CLEAN,
    }


class _Corpus:
    """What rows are spoiled with: other rows, by passage and article, and entities by kind."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.by_context: dict[str, list[Row]] = {}
        self.by_title: dict[str, list[Row]] = {}
        self.entities: dict[str, set[tuple[str, str]]] = {}
        for row in rows:
            self.by_context.setdefault(row["context"], []).append(row)
            self.by_title.setdefault(row["title"], []).append(row)
            for kind, (start, end) in entities(row["question"]):
                known = self.entities.setdefault(kind, set())
                known.add((row["title"], row["question"][start:end]))


def entities(question: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield kind and place of each year, number and name of a question.

    Examples
    --------
    >>> text = "When did Ann Lee buy 12 boats in 1901?"
    >>> [(kind, text[start:end]) for kind, (start, end) in entities(text)]
    [('name', 'Ann Lee'), ('number', '12'), ('year', '1901')]
    """
    for match in _ENTITY.finditer(question):
        if match.lastgroup:
            yield match.lastgroup, match.span()


def answer_type(answer: str) -> str:
    """Return what an answer looks like: ``number``, ``name`` or ``phrase``.

    Examples
    --------
    >>> [answer_type(text) for text in ("in 1990", "Ann Lee", "the old mill")]
    ['number', 'name', 'phrase']
    """
    if any(sign.isdigit() for sign in answer):
        return "number"
    words = [word for word in answer.split() if word.lower() not in ("of", "the", "and")]
    return "name" if words and all(word[0].isupper() for word in words) else "phrase"


def _wrong_span(row: Row, corpus: _Corpus, draw: np.random.Generator) -> Row | None:
    right = [
        (start, start + len(answer))
        for answer, start in zip(row["answers"], row["answer_starts"], strict=True)
    ]
    found = []
    for other in corpus.by_context[row["context"]]:
        text, start = other["answers"][0], other["answer_starts"][0]
        overlaps = any(start < end and first < start + len(text) for first, end in right)
        if not overlaps and not shares_words(text, row["answers"]) and _WORDS(text):
            found.append((text, start))
    found = sorted(set(found))
    alike = [own for own in found if answer_type(own[0]) == answer_type(row["answers"][0])]
    chosen = _any_of(alike or found, draw)
    return chosen and {"answer": chosen[0], "answer_start": chosen[1]}


def _entity_swap(row: Row, corpus: _Corpus, draw: np.random.Generator) -> Row | None:
    question = row["question"]
    own = _any_of(list(entities(question)), draw)
    if own is None:
        return None
    kind, (start, end) = own
    seen = f"{row['context']} {question}".lower()
    known = sorted(own for own in corpus.entities[kind] if own[1].lower() not in seen)
    far = sorted({text for title, text in known if title != row["title"]})
    pool = far or sorted({text for _, text in known})
    n_words = len(question[start:end].split())
    alike = [text for text in pool if len(text.split()) == n_words]
    chosen = _any_of(alike or pool, draw)
    return chosen and {"question": question[:start] + chosen + question[end:]}


def _other_question(row: Row, corpus: _Corpus, draw: np.random.Generator) -> Row | None:
    passage = row["context"].lower()

    def is_foreign(other: Row) -> bool:
        return (
            other["context"] != row["context"]
            and other["question"] != row["question"]
            and not any(answer.lower() in passage for answer in other["answers"])
            and not shares_words(row["answers"][0], other["answers"])
        )

    near = [other["question"] for other in corpus.by_title[row["title"]] if is_foreign(other)]
    # The whole corpus is looked through only where the article has none.
    found = near or [other["question"] for other in corpus.rows if is_foreign(other)]
    chosen = _any_of(found, draw)
    return chosen and {"question": chosen}


def shares_words(answer: str, others: Sequence[str]) -> bool:
    """Return whether an answer has a word of one of the others, by SQuAD's rule.

    Examples
    --------
    >>> shares_words("the Mill", ["an old mill."]), shares_words("the mill", ["the boat"])
    (True, False)
    """
    words = set(_WORDS(answer))
    return any(words & set(_WORDS(other)) for other in others)


def _any_of(values: Sequence[Any], draw: np.random.Generator) -> Any | None:
    return values[int(draw.integers(len(values)))] if values else None


_WAYS: dict[str, Callable[[Row, _Corpus, np.random.Generator], Row | None]] = {
    "wrong_span": _wrong_span,
    "entity_swap": _entity_swap,
    "other_question": _other_question,
}
