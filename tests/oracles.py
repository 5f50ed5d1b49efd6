"""What brute-force oracles of several test files share: random rows, counts and a comparison."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

# Both sides compute in 64 bits; sums run in another order.
TOLERANCE = 1e-12
Words = list[str]
Grams = Counter[tuple[str, ...]]


def random_text(chance: np.random.Generator, vocabulary: Sequence[str], *, most: int = 10) -> str:
    """Return up to so many words, joined by blanks."""
    return " ".join(chance.choice(list(vocabulary), size=chance.integers(0, most + 1)))


def random_rows(
    n_rows: int = 200, *, vocabulary: Sequence[str] = "abcd", seed: int = 5
) -> list[dict[str, object]]:
    """Return rows of up to ten words and up to four references, some of them empty."""
    chance = np.random.default_rng(seed)
    return [
        {
            "candidate": random_text(chance, vocabulary),
            "references": [
                random_text(chance, vocabulary) for _ in range(int(chance.integers(0, 5)))
            ],
        }
        for _ in range(n_rows)
    ]


def split_row(row: Mapping[str, object]) -> tuple[Words, list[Words]]:
    """Return candidate and references as words."""
    references = row["references"]
    assert isinstance(references, list)
    return str(row["candidate"]).split(), [reference.split() for reference in references]


def assert_scores(found: Sequence[object], expected: Sequence[float | None]) -> None:
    """Assert equal values, and undefined ones in the same rows."""
    assert [value is None for value in found] == [value is None for value in expected]
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a is None or a == pytest.approx(b, abs=TOLERANCE, rel=TOLERANCE), (i, a, b)


def grams(words: Words, order: int) -> Grams:
    """Count the n-grams of a text, one slice at a time."""
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def n_clipped(candidate: Words, others: Sequence[Words], order: int) -> int:
    """Count the candidate's n-grams, each at most as often as the other that has it most."""
    limits: Grams = Counter()
    for other in others:
        limits |= grams(other, order)
    return sum(min(count, limits[gram]) for gram, count in grams(candidate, order).items())


def lcs_length(left: Words, right: Words) -> int:
    """Fill the textbook table of common subsequences, one cell at a time."""
    table: defaultdict[tuple[int, int], int] = defaultdict(int)
    for i in range(len(left)):
        for j in range(len(right)):
            longer = max(table[i - 1, j], table[i, j - 1])
            table[i, j] = table[i - 1, j - 1] + 1 if left[i] == right[j] else longer
    return table[len(left) - 1, len(right) - 1]
