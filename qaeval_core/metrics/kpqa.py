"""KPQA-metric: BLEU-1, ROUGE-L and BERTScore in which words that answer the question count.

Summed weights in, scores out. The weights are a classifier's; it is not known here.

Source
------
Lee, Yoon, Dernoncourt, Kim, Bui, Shin, Jung. KPQA: A Metric for Generative Question Answering
Using Keyphrase Weights. NAACL 2021, arXiv:2005.00192, section 3.2. Weights w_j of the candidate's
tokens and v_i of the reference's are probabilities of being part of the answer, given the
question. With m(t) the mean weight of the candidate's tokens t, n(t) how many it has of them, at
most as many as the reference has, and LCS a longest common subsequence, the heaviest of several::

    BLEU-1-KPQA = sum_t n(t) m(t) / sum_j w_j                               eq. 1
    L = sum_j w_j [j in LCS]                                                eq. 5
    P = L / sum_j w_j,  R = min(L / sum_i v_i, 1)                           eq. 2, 3
    ROUGE-L-KPQA = (1 + beta^2) P R / (R + beta^2 P)                        eq. 4
    P = sum_j w_j max_i x_i . y_j / sum_j w_j                               eq. 6
    R = sum_i v_i max_j x_i . y_j / sum_i v_i                               eq. 7
    BERTScore-KPQA = 2 P R / (P + R)                                        eq. 8

With all weights 1 they are BLEU-1's precision, ROUGE-L and BERTScore: their plain twins. Eq. 1 as
printed counts a candidate token once for each equal token of the reference; here, as in the
program, counts are clipped.

Empty texts: two score 1, one scores 0, in BLEU-1 and ROUGE-L; BERTScore is undefined. Weights that
sum to 0 leave a score undefined.

Differs from the authors' program (hwanheelee1993/KPQA)
-------------------------------------------------------
Profile ``authors`` follows these:

- BLEU-1 has a penalty for brevity, exp(1 - r / c) for c < r word pieces.
- L sums the reference's weights, beta is 1, and nothing is clipped: a candidate of little weight
  can score above 1, though below 2.

Neither profile follows these:

- Its table of the LCS takes every match at once and compares weights alone, so that what it finds
  need be neither the longest nor the heaviest.
- It keeps weights by text: a text that occurs with two questions is weighed for the second one in
  both (BERTScore alone).
- An empty text scores 0, two as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.bertscore import BertScore, IntArray, TokenArray, bertscore

FloatArray = NDArray[np.float64]
PROFILES = ("paper", "authors")


def kpqa_bleu_1(
    *,
    matched_weight: FloatArray,
    candidate_weight: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    profile: str = "paper",
) -> FloatArray:
    """Return BLEU-1-KPQA of pairs (eq. 1).

    Parameters
    ----------
    matched_weight : float ndarray of shape (n_pairs,)
        Weight of the candidate's tokens that the reference has, counts clipped.
    candidate_weight : float ndarray of shape (n_pairs,)
        Sum of the candidate's weights.
    n_candidate, n_reference : float ndarray of shape (n_pairs,)
        Tokens of both texts.
    profile : {"paper", "authors"}, default "paper"
        ``authors`` multiplies by the penalty for brevity.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [0, 1], higher is better. NaN where the candidate has tokens but no weight.

    Examples
    --------
    >>> weights = {"matched_weight": np.array([1.5]), "candidate_weight": np.array([2.0])}
    >>> sizes = {"n_candidate": np.array([4]), "n_reference": np.array([5])}
    >>> kpqa_bleu_1(**weights, **sizes), kpqa_bleu_1(**weights, **sizes, profile="authors").round(4)
    (array([0.75]), array([0.5841]))
    """
    _check_profile(profile)
    # Rounding of sums: the same weights in another order.
    score = np.minimum(_ratio(matched_weight, candidate_weight), 1.0)  # eq. 1
    if profile == "authors":
        score = score * np.exp(np.minimum(0.0, 1 - n_reference / np.maximum(n_candidate, 1)))
    return _with_empty_texts(score, n_candidate, n_reference)


def kpqa_rouge_l(
    *,
    lcs_weight: FloatArray,
    lcs_reference_weight: FloatArray,
    candidate_weight: FloatArray,
    reference_weight: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    beta: float = 1.2,
    profile: str = "paper",
) -> FloatArray:
    """Return ROUGE-L-KPQA of pairs (eq. 2-5).

    Parameters
    ----------
    lcs_weight, lcs_reference_weight : float ndarray of shape (n_pairs,)
        L by the candidate's weights (profile ``paper``) and by the reference's (``authors``).
    candidate_weight, reference_weight : float ndarray of shape (n_pairs,)
        Sums of all weights of both texts.
    n_candidate, n_reference : float ndarray of shape (n_pairs,)
        Tokens of both texts.
    beta : float, default 1.2
        Weight of recall; coco-caption's. Profile ``authors`` has 1, whatever is given.
    profile : {"paper", "authors"}, default "paper"

    Returns
    -------
    float ndarray of shape (n_pairs,)
        Higher is better; in [0, 1], with ``authors`` in [0, 2). NaN where a text has tokens but
        no weight.

    Examples
    --------
    >>> weights = {
    ...     "lcs_weight": np.array([1.5]), "lcs_reference_weight": np.array([0.5]),
    ...     "candidate_weight": np.array([2.0]), "reference_weight": np.array([1.0]),
    ... }
    >>> sizes = {"n_candidate": np.array([4]), "n_reference": np.array([5])}
    >>> kpqa_rouge_l(**weights, **sizes, beta=1.0).round(4)  # P = .75, R = 1
    array([0.8571])
    >>> kpqa_rouge_l(**weights, **sizes, profile="authors").round(4)  # P = .25, R = .5
    array([0.3333])
    """
    _check_profile(profile)
    if profile == "authors":
        common, beta = lcs_reference_weight, 1.0
        below_p, below_r = candidate_weight, reference_weight
    else:
        common = lcs_weight
        # min(L / v, 1) = L / max(v, L)
        below_p = np.maximum(candidate_weight, common)
        below_r = np.maximum(reference_weight, common)
    # (1 + beta^2) P R / (R + beta^2 P) as one fraction: it is 0 where L is, and equal scores tie.
    score = _ratio((1 + beta**2) * common, below_p + beta**2 * below_r)  # eq. 4
    is_weighty = (candidate_weight > 0) & (reference_weight > 0)
    return _with_empty_texts(np.where(is_weighty, score, np.nan), n_candidate, n_reference)


def kpqa_bertscore(
    *,
    best_candidate: TokenArray,
    candidate_weights: TokenArray,
    n_candidate: IntArray,
    best_reference: TokenArray,
    reference_weights: TokenArray,
    n_reference: IntArray,
) -> BertScore:
    """Return BERTScore-KPQA of pairs (eq. 6-8): `bertscore` with keyphrase weights.

    The parameters are those of `bertscore`.

    Examples
    --------
    >>> scores = kpqa_bertscore(
    ...     best_candidate=np.array([1.0, 0.4]), candidate_weights=np.array([0.75, 0.25]),
    ...     n_candidate=np.array([2]), best_reference=np.array([1.0]),
    ...     reference_weights=np.array([0.5]), n_reference=np.array([1]),
    ... )
    >>> [round(score.item(), 4) for score in scores]
    [0.85, 1.0, 0.9189]
    """
    return bertscore(
        best_candidate=best_candidate,
        candidate_weights=candidate_weights,
        n_candidate=n_candidate,
        best_reference=best_reference,
        reference_weights=reference_weights,
        n_reference=n_reference,
    )


def _check_profile(profile: str) -> None:
    if profile not in PROFILES:
        raise ConfigError(f"profile is {profile!r}; choose one of {', '.join(PROFILES)}")


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return above / below, NaN where below is 0."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)


def _with_empty_texts(
    score: FloatArray, n_candidate: FloatArray, n_reference: FloatArray
) -> FloatArray:
    """Return scores with 1 for two empty texts and 0 for one."""
    is_empty = (n_candidate == 0) | (n_reference == 0)
    both = (n_candidate == 0) & (n_reference == 0)
    return np.where(is_empty, both.astype(np.float64), score)
