"""Q-BLEU: BLEU together with how much of what makes a question answerable is kept.

Words of one text in, their kinds out; counts by kind and BLEU in, scores out.

Source
------
Nema, Khapra. Toward a Better Metric for Evaluating Question Generation Systems. EMNLP 2018,
section 4. With the F-score F_k of the words of kind k that candidate and reference have in common::

    A = w_r F_r + w_n F_n + w_q F_q + w_f F_f
    Q-BLEU = delta A + (1 - delta) BLEU

Kinds: r content words, n named entities (words with a capital letter, a leading question word
aside), q question words with the word after what and which, f function words. A function word with
a capital letter counts as both. Weights of Wang et al. (QRelScore): .1, .6, .2, .1; delta .7.
Several references: the best Q-BLEU. ``q_bleu_free`` reads the context in place of the reference;
a context is many times longer than a question, so brevity leaves little of BLEU there.

A kind that neither side has is left out and the weights renormalized (``absent=renormalize``);
the answerability of texts without words of any kind is 1 if both have none.

Differs from the authors' code (PrekshaNema25/Answerability-Metric)
-------------------------------------------------------------------
- It gives a kind that neither side has F = 0: ``absent=zero``.
- It applies the entities' weight to question words and the other way round; to meet its printed
  values, swap ``entity_weight`` and ``question_weight``.
- Its F-scores are of BLEU-1, brevity penalty included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from qaeval_core.metrics.base import Scores, columns
from qaeval_core.metrics.bleu import bleu
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import (
    WordMetric,
    WordSettings,
    by_order,
    lengths,
    scored,
    totals,
    without_words,
)
from qaeval_core.schema import Smoothing

FloatArray = NDArray[np.float64]

KINDS = ("relevant", "entity", "question", "function")
QUESTION_WORDS = frozenset(["what", "which", "why", "who", "whom", "whose", "where", "when", "how"])
_WITH_NEXT_WORD = frozenset(["what", "which"])
# Function words of English: articles, pronouns, prepositions, conjunctions, auxiliaries.
_FUNCTION_WORDS = """
a about above after again against all am an and any are as at be because been before being below
between both but by can could did do does doing don down during each few for from further had has
have having he her here hers herself him himself his i if in into is it its itself just may me might
more most must my myself no nor not now of off on once only or other our ours ourselves out over own
s same shall she should so some such t than that the their theirs them themselves then there these
they this those through to too under until up very was we were while will with would you your yours
yourself yourselves
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def word_kinds(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each kind, in lower case.

    Parameters
    ----------
    words : sequence of str
        Words of a question with their case; those without a letter or digit are left out.

    Examples
    --------
    >>> kinds = word_kinds(["What", "river", "runs", "through", "Paris", "?"])
    >>> kinds["question"], kinds["entity"], kinds["relevant"], kinds["function"]
    (['what', 'river'], ['paris'], ['runs'], ['through'])
    """
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    kept = [word for word in words if any(sign.isalnum() for sign in word)]
    belongs_to_question = False
    for i, word in enumerate(kept):
        lower = word.lower()
        is_question_word = lower in QUESTION_WORDS
        is_entity = word[0].isupper() and not (i == 0 and is_question_word)
        if is_question_word or belongs_to_question:
            kinds["question"].append(lower)
        if is_entity:
            kinds["entity"].append(lower)
        if lower in FUNCTION_WORDS:
            kinds["function"].append(lower)
        elif not (is_entity or is_question_word or belongs_to_question):
            kinds["relevant"].append(lower)
        belongs_to_question = lower in _WITH_NEXT_WORD
    return kinds


def answerability(
    *,
    n_common: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    weights: Sequence[float],
    absent: str = "renormalize",
) -> FloatArray:
    """Return A of pairs.

    Parameters
    ----------
    n_common, n_candidate, n_reference : ndarray of shape (n_pairs, 4)
        Words by kind, in the order of ``KINDS``.
    weights : sequence of 4 float
        w_r, w_n, w_q, w_f; their sum need not be 1.
    absent : {"renormalize", "zero"}, default "renormalize"
        What a kind on neither side does.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [0, 1], higher is better; 1 where neither side has a word, NaN where all words are of
        kinds with weight 0 and ``absent`` is "renormalize".

    Examples
    --------
    >>> common, sizes = np.array([[1, 0, 1, 0]]), np.array([[2, 0, 1, 0]])
    >>> answerability(n_common=common, n_candidate=sizes, n_reference=sizes,
    ...               weights=(0.1, 0.6, 0.2, 0.1)).round(4)
    array([0.8333])
    """
    total = n_candidate + n_reference
    f_score = 2 * n_common / np.maximum(total, 1)  # F_k = 2 n / (|c| + |r|)
    weight = np.broadcast_to(np.asarray(weights, dtype=np.float64), f_score.shape)
    if absent == "renormalize":
        weight = np.where(total > 0, weight, 0.0)
    below = weight.sum(axis=1)
    score = (weight * f_score).sum(axis=1) / np.where(below > 0, below, 1.0)
    # Words there are, but of kinds without weight alone: nothing to be said.
    score = np.where(below > 0, score, np.nan)
    return np.where(total.sum(axis=1) == 0, 1.0, score)


def q_bleu(*, answerability: FloatArray, bleu: FloatArray, delta: float = 0.7) -> FloatArray:
    """Return delta A + (1 - delta) BLEU.

    Examples
    --------
    >>> q_bleu(answerability=np.array([0.35]), bleu=np.array([0.8])).round(3)
    array([0.485])
    """
    return delta * answerability + (1 - delta) * bleu


class QBleuSettings(WordSettings):
    """Settings of ``q_bleu`` and ``q_bleu_free``."""

    order: int = Field(4, ge=1, le=4, description="maximum n-gram order of the BLEU part")
    smoothing: Smoothing = Field("floor", description="smoothing of the BLEU part, as in bleu_4")
    relevant_weight: float = Field(0.1, ge=0.0, le=1.0, description="weight of content words (w_r)")
    entity_weight: float = Field(0.6, ge=0.0, le=1.0, description="weight of named entities (w_n)")
    question_weight: float = Field(
        0.2, ge=0.0, le=1.0, description="weight of question type words (w_q)"
    )
    function_weight: float = Field(
        0.1, ge=0.0, le=1.0, description="weight of function words (w_f)"
    )
    delta: float = Field(
        0.7, ge=0.0, le=1.0, description="weight of answerability; BLEU has the rest"
    )
    absent: Literal["renormalize", "zero"] = Field(
        "renormalize",
        description="word types absent from both texts: renormalize the weights, or F = 0",
    )

    @model_validator(mode="after")
    def _check_weights(self) -> QBleuSettings:
        if not self.weights or sum(self.weights) == 0.0:
            raise ValueError("one of the four weights must be above 0")
        return self

    @property
    def weights(self) -> tuple[float, float, float, float]:
        """w_r, w_n, w_q, w_f."""
        return (
            self.relevant_weight,
            self.entity_weight,
            self.question_weight,
            self.function_weight,
        )


class QBleu(WordMetric[QBleuSettings]):
    """Q-BLEU."""

    name = "q_bleu"
    title = "BLEU with the answerability of a question"
    source = "Nema, Khapra. Toward a Better Metric for Question Generation. EMNLP 2018, section 4"
    settings = QBleuSettings
    statistic = "question_words"
    columns = columns("", "answerability", kind="exact")

    def score_words(self, settings: QBleuSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        common, candidate, reference = (
            np.stack([words[f"{kind}_{side}"] for kind in KINDS], axis=1)
            for side in ("common", "candidate", "reference")
        )
        answerable = answerability(
            n_common=common,
            n_candidate=candidate,
            n_reference=reference,
            weights=settings.weights,
            absent=settings.absent,
        )
        own_bleu = bleu(
            matches=by_order(words, "matches"),
            totals=totals(words),
            order=settings.order,
            smoothing=settings.smoothing,
            **lengths(words),
        )
        each = q_bleu(answerability=answerable, bleu=own_bleu, delta=settings.delta)
        each = without_words(words, each)
        best = words.first_best(each)
        return scored(words, {"": best(each), "answerability": best(answerable)})


class QBleuFree(QBleu):
    """Q-BLEU against the context."""

    name = "q_bleu_free"
    title = "Q-BLEU with the context in place of the references"
    source = QBleu.source + "; Wang et al. QRelScore, section 4"
    roles = ("candidate", "context")
    over_references = "none"
