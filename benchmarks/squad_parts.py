"""SQuAD's answerable questions on short passages, in parts that share no article.

Rows in, rows out; nothing is trained or scored. Passages are cut into stretches of whole sentences,
so that training on them is cheap: a stretch is a passage from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

_SENTENCE_END = re.compile(r"(?<=[.!?])[ \n]+(?=[A-Z0-9\"'(])")


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
    found: list[tuple[int, int]] = []
    for start, end in sentences(text):
        if found and count_tokens(text[found[-1][0] : end]) <= max_tokens:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return [(start, end) for start, end in found if count_tokens(text[start:end]) <= max_tokens]


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the places of a text's sentences.

    Examples
    --------
    >>> text = "Ann left. The mill closed."
    >>> [text[a:b] for a, b in sentences(text)]
    ['Ann left.', 'The mill closed.']
    """
    gaps = [match.span() for match in _SENTENCE_END.finditer(text)]
    starts, ends = [0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)]
    return list(zip(starts, ends, strict=True))


def split_articles(
    rows: pl.DataFrame, *, sizes: Mapping[str, int], seed: int
) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Return parts that share no article, and the articles that are left.

    Parameters
    ----------
    rows : DataFrame
        SQuAD's columns.
    sizes : mapping of part to questions
        Parts are filled in this order, with whole articles; what is cut off one is nobody's.

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
    return parts, left
