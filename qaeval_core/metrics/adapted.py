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
