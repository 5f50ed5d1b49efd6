"""Adapted BLEU and ROUGE-L: a bonus for the right opinion, or for the right entities.

Counts in, scores out. Which references agree in opinion, and which entities occur, is the caller's
to find.

Source
------
Yang et al. Adaptations of ROUGE and BLEU to Better Evaluate Machine Reading Comprehension Task.
MRQA 2018, section 3. Section 3.1, BLEU: m_i, t_i as in ``metrics.bleu``::

    yes/no:  b_i = alpha (candidate n-grams clipped against references of the candidate's opinion)
    entity:  b_i = beta (candidate n-grams clipped at their largest count in an entity string)
    P_i = (m_i + b_i) / (t_i + b_i)

Section 3.2, ROUGE-L::

    yes/no:  b = alpha LCS(r, c) where r has the candidate's opinion, else 0
    entity:  b = beta (words of all distinct gold entities that the candidate holds as sequences)
    P = (LCS + b) / (|c| + b)       R = (LCS + b) / (|r| + b)
    ROUGE-L = (1 + gamma^2) P R / (R + gamma^2 P)

with the largest P and the largest R over references, each on its own. A corpus's adapted BLEU
takes sums of m_i + b_i, t_i + b_i, c and r. A row without type or opinion is scored by the plain
metric, and the column ``<instance>_bonus`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Column, Scores, Section
from qaeval_core.metrics.bleu import BleuSettings, best_bleu, corpus_bleu
from qaeval_core.metrics.rouge_l import f_score
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import (
    MAX_ORDER,
    WordMetric,
    WordSettings,
    by_order,
    lengths,
    scored,
    totals,
    without_words,
)

FloatArray = NDArray[np.float64]

YES_NO = "yes_no"
ENTITY = "entity"
DESCRIPTION = "description"
ANSWER_TYPES = (YES_NO, ENTITY, DESCRIPTION)
OPINIONS = ("yes", "no", "depends")

# What the column ``<instance>_bonus`` says of a row without a bonus.
NO_TYPE = "missing_answer_type"
UNKNOWN_TYPE = "unknown_answer_type"
NO_CANDIDATE_OPINION = "missing_candidate_opinion"
NO_REFERENCE_OPINIONS = "missing_reference_opinions"
UNKNOWN_OPINION = "unknown_opinion"
UNEQUAL_OPINIONS = "opinions_do_not_pair_with_references"
NO_ENTITIES = "missing_entities"


def add_bonus(
    *, matches: FloatArray, totals: FloatArray, bonus: FloatArray, weight: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return numerator and denominator of P_i with the weighted bonus in both.

    Parameters
    ----------
    matches, totals, bonus : ndarray of one shape
        m_i, t_i, and the counts of the bonus before they are weighted.
    weight : float or ndarray that broadcasts
        alpha or beta.

    Examples
    --------
    The paper's example 1, bigrams: 4 of 6 match, 3 of them in the agreeing reference.

    >>> above, below = add_bonus(
    ...     matches=np.array([4.0]), totals=np.array([6.0]), bonus=np.array([3.0]), weight=1.0
    ... )
    >>> (above / below).round(3)
    array([0.778])
    """
    weighted = weight * bonus
    return matches + weighted, totals + weighted


def bonus_kind(
    *,
    answer_type: str | None,
    candidate_opinion: str | None,
    reference_opinions: Sequence[str | None] | None,
    entities: Sequence[str | None] | None,
    n_references: int,
) -> str:
    """Return which bonus a row has: ``yes_no``, ``entity``, ``description``, or why none.

    Parameters
    ----------
    answer_type : str or None
        Case, spaces and hyphens do not matter.
    candidate_opinion : str or None
        Yes, No or Depends, in any case.
    reference_opinions : sequence of str or None
        One per reference; a null agrees with nothing.
    entities : sequence of str or None
        Gold entity strings.
    n_references : int

    Examples
    --------
    >>> bonus_kind(answer_type="YES_NO", candidate_opinion="Yes", reference_opinions=["No"],
    ...            entities=None, n_references=1)
    'yes_no'
    >>> bonus_kind(answer_type="entity", candidate_opinion=None, reference_opinions=None,
    ...            entities=[], n_references=1)
    'missing_entities'
    """
    if answer_type is None or not answer_type.strip():
        return NO_TYPE
    kind = _ALIASES.get("".join(sign for sign in answer_type.lower() if sign.isalnum()))
    if kind == YES_NO:
        return _opinion_kind(candidate_opinion, reference_opinions, n_references)
    if kind == ENTITY:
        return ENTITY if any(entities or ()) else NO_ENTITIES
    return kind or UNKNOWN_TYPE


_ALIASES = {kind.replace("_", ""): kind for kind in ANSWER_TYPES}


def _opinion_kind(
    candidate_opinion: str | None,
    reference_opinions: Sequence[str | None] | None,
    n_references: int,
) -> str:
    if not candidate_opinion or not candidate_opinion.strip():
        return NO_CANDIDATE_OPINION
    given = [opinion for opinion in reference_opinions or () if opinion]
    if not given:
        return NO_REFERENCE_OPINIONS
    if len(reference_opinions or ()) != n_references:
        return UNEQUAL_OPINIONS
    if any(plain(opinion) not in OPINIONS for opinion in [candidate_opinion, *given]):
        return UNKNOWN_OPINION
    return YES_NO


def plain(opinion: str | None) -> str:
    """Return an opinion without case and space around it.

    >>> plain(" Yes ")
    'yes'
    """
    return (opinion or "").strip().lower()


_SOURCE = "Yang et al. Adaptations of ROUGE and BLEU. MRQA 2018, section 3"
_OPINION_ROLES = ("answer_type", "candidate_opinion", "reference_opinions", "entities")
_COLUMNS = (Column("", "exact"), Column("bonus", "word"))


class BonusSettings(Section):
    """Weights of the bonus of adapted metrics."""

    alpha: float = Field(2.0, ge=0.0, description="weight of the bonus for a yes/no opinion")
    beta: float = Field(1.0, ge=0.0, description="weight of the bonus for entities")

    def bonus_weights(self, kinds: Sequence[str]) -> FloatArray:
        """Return what a bonus of each row's kind weighs; of shape (n_rows,)."""
        weights = {YES_NO: self.alpha, ENTITY: self.beta}
        return np.array([weights.get(kind, 0.0) for kind in kinds], dtype=np.float64)


class AdaptedBleuSettings(BonusSettings, BleuSettings):
    """Settings of ``adapted_bleu_4``."""


class AdaptedBleu4(WordMetric[AdaptedBleuSettings]):
    """BLEU-4 with a bonus."""

    name = "adapted_bleu_4"
    title = "BLEU-4 with a bonus for the right opinion and the right entities"
    source = _SOURCE + ".1"
    settings = AdaptedBleuSettings
    statistic = "bonus_ngrams"
    optional_roles = _OPINION_ROLES
    columns = _COLUMNS
    over_references = "clip"
    over_examples = "sum_of_statistics"

    def pass_options(self, settings: AdaptedBleuSettings) -> dict[str, object]:
        """Return how n-grams are clipped."""
        return {"over_references": settings.over_references}

    def score_words(self, settings: AdaptedBleuSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        kinds = words.lists("bonus")
        matches, with_bonus = add_bonus(
            matches=by_order(words, "matches"),
            totals=totals(words),
            bonus=by_order(words, "bonus"),
            weight=words.spread(settings.bonus_weights(kinds))[:, None],
        )
        found = best_bleu(
            words,
            matches=matches,
            totals=with_bonus,
            order=MAX_ORDER,
            smoothing=settings.smoothing,
        )
        return Scores({**found.columns, "bonus": kinds}, found.reasons, found.sums)

    def corpus(self, settings: AdaptedBleuSettings, sums: FloatArray) -> FloatArray:
        """Return adapted BLEU of corpora."""
        return corpus_bleu(sums, order=MAX_ORDER, smoothing=settings.smoothing)


class AdaptedRougeSettings(BonusSettings, WordSettings):
    """Settings of ``adapted_rouge_l``."""

    gamma: float = Field(1.2, gt=0.0, description="weight of recall")


class AdaptedRougeL(WordMetric[AdaptedRougeSettings]):
    """ROUGE-L with a bonus."""

    name = "adapted_rouge_l"
    title = "ROUGE-L with a bonus for the right opinion and the right entities"
    source = _SOURCE + ".2"
    settings = AdaptedRougeSettings
    statistic = "bonus_lcs"
    optional_roles = _OPINION_ROLES
    columns = _COLUMNS
    over_references = "max of each part"

    def score_words(self, settings: AdaptedRougeSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        kinds = words.lists("bonus")
        weight = words.spread(settings.bonus_weights(kinds))
        is_entity = words.spread(np.array([kind == ENTITY for kind in kinds], dtype=bool))
        lcs = words["lcs"]
        agreed = lcs * (words["agrees"] > 0)
        bonus = np.where(is_entity, words.per_target("n_entity_words"), agreed)
        n_words = lengths(words)
        both_empty = (n_words["n_candidate"] == 0) & (n_words["n_reference"] == 0)
        parts: list[FloatArray] = []
        for total in n_words.values():
            above, below = add_bonus(matches=lcs, totals=total, bonus=bonus, weight=weight)
            part = np.where(both_empty, 1.0, above / np.where(below > 0, below, 1.0))
            parts.append(without_words(words, part))
        precision, recall = parts
        if settings.over_references == "max":
            score = words.best(f_score(precision, recall, beta=settings.gamma))
        else:
            best_p, best_r = words.best(precision), words.best(recall)
            score = f_score(best_p, best_r, beta=settings.gamma)
        return scored(words, {"": score, "bonus": kinds})
