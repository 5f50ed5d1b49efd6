"""METEOR: word matches by form, stem and synonym, with a penalty for matches out of order.

Words in, an alignment and its score out. Tokenizes nothing and knows no stemmer or WordNet: the
caller brings both.

Source
------
Lavie, Agarwal. METEOR: An Automatic Metric for MT Evaluation with High Levels of Correlation with
Human Judgments. WMT 2007, section 2. With m matches that form ch chunks of adjacent words::

    P = m / |candidate|
    R = m / |reference|
    F = P R / (alpha P + (1 - alpha) R)
    METEOR = F (1 - gamma (ch / m)^beta)

Several references: the best. Equal texts score below 1: one chunk has a penalty too.

The alignment is NLTK's: three stages (form, stem, synonym), each from the candidate's last word to
its first, each word to the last word that is free; synonyms are looked up for stems. It finds
matches, not the fewest crossings. Linear in the words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Scores
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import WordMetric, WordSettings, lengths, scored, without_words
from qaeval_core.schema import TokenizerName

FloatArray = NDArray[np.float64]


def meteor(
    *,
    n_matches: FloatArray,
    n_chunks: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    alpha: float = 0.9,
    beta: float = 3.0,
    gamma: float = 0.5,
) -> FloatArray:
    """Return METEOR of aligned pairs.

    Parameters
    ----------
    n_matches, n_chunks, n_candidate, n_reference : ndarray of shape (n_pairs,)
        m, ch, and words of both sides.
    alpha, beta, gamma : float
        Weight of recall, exponent and size of the penalty.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [0, 1], higher is better; 1 where neither side has a word, 0 without a match.

    Examples
    --------
    >>> one, two = np.array([1.0]), np.array([2.0])
    >>> meteor(n_matches=two, n_chunks=one, n_candidate=two, n_reference=two)
    array([0.9375])
    """
    matched = np.maximum(n_matches, 1.0)
    precision = matched / np.maximum(n_candidate, 1)  # P
    recall = matched / np.maximum(n_reference, 1)  # R
    f_mean = precision * recall / (alpha * precision + (1 - alpha) * recall)  # F
    score = f_mean * (1 - gamma * (n_chunks / matched) ** beta)
    both_empty = (n_candidate == 0) & (n_reference == 0)
    return np.where(both_empty, 1.0, np.where(n_matches > 0, score, 0.0))


def align(
    candidate: Sequence[str],
    reference: Sequence[str],
    *,
    stem: Callable[[str], str],
    synonyms: Callable[[str], Set[str]],
) -> tuple[int, int]:
    """Return how many words match and how many chunks they form.

    Parameters
    ----------
    candidate, reference : sequence of str
        Words, without case if case shall not count.
    stem : callable
        Word -> stem.
    synonyms : callable
        Word -> its synonyms.

    Examples
    --------
    >>> align(["a", "big", "dog"], ["the", "big", "dogs"], stem=lambda w: w.rstrip("s"),
    ...       synonyms=lambda w: set())
    (2, 1)
    """
    matches: list[tuple[int, int]] = []
    left, right = list(enumerate(candidate)), list(enumerate(reference))
    left, right = _match(left, right, matches, lambda word: (word,))
    left = [(i, stem(word)) for i, word in left]
    right = [(j, stem(word)) for j, word in right]
    left, right = _match(left, right, matches, lambda word: (word,))
    _match(left, right, matches, lambda word: (word, *synonyms(word)))
    return len(matches), _n_chunks(sorted(matches))


def _match(
    left: list[tuple[int, str]],
    right: list[tuple[int, str]],
    matches: list[tuple[int, int]],
    forms: Callable[[str], tuple[str, ...]],
) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Add matches from the last word to the first; return what is left of both sides."""
    if not left or not right:
        return left, right
    free: dict[str, list[int]] = {}
    for j, word in right:
        free.setdefault(word, []).append(j)
    kept = []
    for i, word in reversed(left):
        places = [free[form] for form in forms(word) if free.get(form)]
        if places:
            matches.append((i, max(places, key=lambda place: place[-1]).pop()))
        else:
            kept.append((i, word))
    still_free = {j for place in free.values() for j in place}
    return kept[::-1], [(j, word) for j, word in right if j in still_free]


def _n_chunks(matches: Sequence[tuple[int, int]]) -> int:
    """Return the runs of matches that are adjacent on both sides."""
    starts = (later != (earlier[0] + 1, earlier[1] + 1) for earlier, later in pairwise(matches))
    return sum(starts) + 1 if matches else 0


class MeteorSettings(WordSettings):
    """Settings of ``meteor``."""

    tokenizer: TokenizerName = Field(
        "treebank", description="tokenizer that splits texts into words"
    )
    stemming: Literal["none"] = Field(
        "none", description="always none: METEOR has its own stemming"
    )
    synonyms: Literal["wordnet", "none"] = Field(
        "wordnet", description="source of synonyms: WordNet 3.0 (English), or none"
    )
    alpha: float = Field(0.9, ge=0.0, le=1.0, description="weight of recall in the mean")
    beta: float = Field(3.0, ge=0.0, description="exponent of the penalty")
    gamma: float = Field(0.5, ge=0.0, le=1.0, description="maximum penalty")


class Meteor(WordMetric[MeteorSettings]):
    """METEOR."""

    name = "meteor"
    title = "harmonic mean of word matches by form, stem and synonym, less a penalty for order"
    source = "Lavie, Agarwal. METEOR. WMT 2007, section 2"
    settings = MeteorSettings
    statistic = "alignment"

    def pass_options(self, settings: MeteorSettings) -> dict[str, object]:
        """Return where synonyms come from."""
        return {"synonyms": settings.synonyms}

    def score_words(self, settings: MeteorSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        each = meteor(
            n_matches=words["n_matches"],
            n_chunks=words["n_chunks"],
            alpha=settings.alpha,
            beta=settings.beta,
            gamma=settings.gamma,
            **lengths(words),
        )
        return scored(words, {"": words.best(without_words(words, each))})
