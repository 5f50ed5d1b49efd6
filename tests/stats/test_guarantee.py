"""The guarantee of certificates: draws of labels from rows that are all labeled.

A miss is a draw whose chosen share is less precise, over all its rows, than the target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.label_draws import good_rows, passage_codes, ranked_places, read_questions
from qaeval_core.stats.certificate import N_SHARES, Certificate, certify

pytestmark = pytest.mark.shared_data

DELTA = 0.05
N_DRAWS = 2000
N_LABELS = 400
MOST = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / N_DRAWS)

Rows = NDArray[np.intp]


class Corpus:
    """Rows with places, labels and passages, and how precise each share really is."""

    def __init__(
        self, places: Rows, is_good: NDArray[np.bool_], passages: NDArray[np.intp]
    ) -> None:
        self.places, self.is_good, self.passages = places, is_good, passages
        self.precisions = [is_good[places <= j].mean() for j in range(N_SHARES)]
        self.n_passages = int(passages.max()) + 1

    def certificates(
        self, draw: Callable[[np.random.Generator], Rows], *, target: float, by_passage: bool
    ) -> list[Certificate]:
        """Return the certificate of each draw."""
        rng = np.random.default_rng(17)
        draws = (draw(rng) for _ in range(N_DRAWS))
        return [
            certify(
                self.places[rows],
                self.is_good[rows],
                target=target,
                confidence=1 - DELTA,
                clusters=self.passages[rows] if by_passage else None,
            )
            for rows in draws
        ]

    def draw_rows(self, rng: np.random.Generator) -> Rows:
        """Return rows drawn at random."""
        return rng.choice(len(self.places), N_LABELS, replace=False)

    def passage_drawer(self, n_passages: int) -> Callable[[np.random.Generator], Rows]:
        """Return what draws all rows of so many passages."""

        def draw(rng: np.random.Generator) -> Rows:
            drawn = rng.choice(self.n_passages, n_passages, replace=False)
            return np.flatnonzero(np.isin(self.passages, drawn))

        return draw

    def miss_rate(self, chosen: list[int | None], target: float) -> float:
        """Return how often the share chosen, by number, is less precise than the target."""
        return float(np.mean([j is not None and self.precisions[j] < target for j in chosen]))


def _certified(found: Certificate) -> int | None:
    return None if found.chosen is None else found.shares.index(found.chosen)


def _naive(found: Certificate) -> int | None:
    """Return the largest share whose precision on the labels reaches the target."""
    reached = [
        j
        for j, share in enumerate(found.shares)
        if share.precision is not None and share.precision >= found.target
    ]
    return max(reached, default=None)


@pytest.fixture(scope="module")
def corpus(shared_data: Path) -> Corpus:
    """The questions, ranked by a combination that did not learn from them."""
    questions = read_questions(shared_data)
    return Corpus(ranked_places(questions), good_rows(questions), passage_codes(questions))


@pytest.mark.parametrize(("target", "least_yield"), [(0.8, 0.4), (0.85, 0.05)], ids=["t80", "t85"])
def test_labels_of_rows_miss_no_more_than_they_may(
    corpus: Corpus, target: float, least_yield: float
) -> None:
    """Protects from shares that are less precise than was promised, and from promising nothing."""
    found = corpus.certificates(corpus.draw_rows, target=target, by_passage=False)
    assert corpus.miss_rate([_certified(own) for own in found], target) <= MOST
    assert corpus.miss_rate([_naive(own) for own in found], target) > 0.10, "a test without power"
    kept = np.mean([own.chosen.share if own.chosen else 0.0 for own in found])
    assert kept > least_yield


@pytest.mark.parametrize("target", [0.8, 0.85], ids=["t80", "t85"])
@pytest.mark.parametrize("n_passages", [20, 54])
def test_labels_of_passages_miss_no_more_than_they_may(
    corpus: Corpus, n_passages: int, target: float
) -> None:
    """Protects from passages labeled whole that count as so many labels."""
    draw = corpus.passage_drawer(n_passages)
    found = corpus.certificates(draw, target=target, by_passage=True)
    assert corpus.miss_rate([_certified(own) for own in found], target) <= MOST
    assert corpus.miss_rate([_naive(own) for own in found], target) > 0.10, "a test without power"


def test_many_passages_certify_something(corpus: Corpus) -> None:
    """Protects from a correction that never misses because it never certifies."""
    found = corpus.certificates(corpus.passage_drawer(80), target=0.8, by_passage=True)
    assert np.mean([own.chosen is not None for own in found]) > 0.5
    assert corpus.miss_rate([_certified(own) for own in found], 0.8) <= MOST
