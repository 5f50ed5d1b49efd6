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

Several references: P and R of BERTScore-KPQA are those of the reference with the best F; bert-score
takes the largest of each for itself, as ``bertscore`` does.

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

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import Column, Metric, PassFacts, Read, Scores, Settings
from qaeval_core.metrics.bertscore import (
    BertScores,
    IntArray,
    Layer,
    bertscore,
    have_weight,
    token_matches,
)
from qaeval_core.metrics.bi_encoder import ENCODER
from qaeval_core.metrics.targets import Targets

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


def _check_profile(profile: str) -> None:
    if profile not in PROFILES:
        raise ConfigError(f"profile is {profile!r}; choose one of {', '.join(PROFILES)} [QA0202]")


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


class KpqaSettings(Settings):
    """Settings of ``kpqa``."""

    keyphrase_classifier: str = Field(
        "kpqa-minilm", description="bundled model, folder or hub id of the keyphrase classifier"
    )
    encoder: str = Field("minilm", description=ENCODER + " for kpqa_bertscore")
    layer: Layer = "last"
    profile: Literal["paper", "authors"] = Field(
        "paper",
        description="equations of the paper, or of the authors' program: brevity penalty, "
        "reference weights in ROUGE-L, weights times idf in BERTScore",
    )
    weights: Literal["keyphrase", "plain"] = Field(
        "keyphrase", description="word weights; plain: all weights are 1, for comparison"
    )
    beta: float = Field(1.2, gt=0.0, description="weight of recall in ROUGE-L; the authors use 1")
    show_weights: bool = Field(
        False, description="write tokens and weights of the candidate as JSON: <instance>_weights"
    )


class Kpqa(Metric[KpqaSettings]):
    """KPQA's three metrics."""

    name = "kpqa"
    title = "BLEU-1, ROUGE-L and BERTScore with words weighed by the question"
    source = "Lee et al. KPQA. NAACL 2021, arXiv:2005.00192, section 3"
    settings = KpqaSettings
    needs = ("keyphrase_classifier", "encoder")
    roles = ("question", "candidate", "references")
    columns = (
        Column("bleu_1"),
        Column("rouge_l"),
        Column("bertscore"),
        Column("bertscore_precision"),
        Column("bertscore_recall"),
        Column("weights", "detail"),
    )
    low = -1.0
    over_references = "max of each part"

    def reads(self, settings: KpqaSettings) -> tuple[Read, ...]:
        """Return weights of word pieces, and best cosines of the same pieces."""
        has_idf = settings.profile == "authors"
        return (
            Read(
                family="kpqa_weights",
                model=settings.keyphrase_classifier,
                options={"show_weights": True} if settings.show_weights else {},
            ),
            Read(
                family="token_match",
                model=settings.encoder,
                options={"special_tokens": "match", "idf": has_idf},
                graph_options={"layer": str(settings.layer)},
                corpus_counts="token_frequencies" if has_idf else "",
            ),
        )

    def resolve(self, settings: KpqaSettings, passes: Mapping[str, PassFacts]) -> KpqaSettings:
        """Check that weights and vectors are of the same tokens."""
        weights, vectors = passes["kpqa_weights"], passes["token_match"]
        if weights.tokenizer_hash != vectors.tokenizer_hash:
            raise ConfigError(
                f"weights belong to word pieces, and keyphrase_classifier {weights.model!r} splits "
                f"texts differently than encoder {vectors.model!r}; choose models with the same "
                "tokenizer.json [QA0209]"
            )
        return settings

    def shown_columns(self, settings: KpqaSettings) -> tuple[Column, ...]:
        """Return the columns that an instance writes."""
        return self.columns if settings.show_weights else super().shown_columns(settings)

    def score(self, settings: KpqaSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        weights = read["kpqa_weights"]
        bleu, rouge = _weighted_words(settings, weights)
        matches = _weighted_matches(settings, weights, read["token_match"])
        match = _judge_empty(bertscore(**matches), weights)
        best = weights.first_best(match.f1)
        f1 = best(match.f1)
        values: dict[str, Any] = {
            "bleu_1": weights.best(bleu),
            "rouge_l": weights.best(rouge),
            "bertscore": f1,
            "bertscore_precision": best(match.precision),
            "bertscore_recall": best(match.recall),
        }
        if settings.show_weights:
            values["weights"] = _shown_weights(weights)
        return Scores(values, weights.reasons(f1, has_weight=have_weight(matches)))


# What a weighted count becomes where every token weighs 1.
_PLAIN_COUNTS = {
    "matched_weight": "n_matched",
    "candidate_weight": "n_candidate",
    "reference_weight": "n_reference",
    "lcs_weight": "lcs_length",
    "lcs_reference_weight": "lcs_length",
}


def _weighted_words(settings: KpqaSettings, weights: Targets) -> tuple[FloatArray, FloatArray]:
    """Return BLEU-1-KPQA and ROUGE-L-KPQA of every target; plain ones weigh every token 1."""
    is_plain = settings.weights == "plain"
    sums = {name: weights[plain if is_plain else name] for name, plain in _PLAIN_COUNTS.items()}
    n_tokens = {name: weights[name] for name in ("n_candidate", "n_reference")}
    bleu = kpqa_bleu_1(
        matched_weight=sums["matched_weight"],
        candidate_weight=sums["candidate_weight"],
        profile=settings.profile,
        **n_tokens,
    )
    rouge = kpqa_rouge_l(
        lcs_weight=sums["lcs_weight"],
        lcs_reference_weight=sums["lcs_reference_weight"],
        candidate_weight=sums["candidate_weight"],
        reference_weight=sums["reference_weight"],
        beta=1.0 if settings.profile == "authors" else settings.beta,
        profile=settings.profile,
        **n_tokens,
    )
    return bleu, rouge


def _weighted_matches(settings: KpqaSettings, weights: Targets, tokens: Targets) -> dict[str, Any]:
    """Return what BERTScore-KPQA (eq. 6-8) reads: cosines, with the classifier's weights."""
    found = token_matches(tokens)
    for side in ("candidate", "reference"):
        keyphrase = weights[f"{side}_weights"]
        if settings.weights == "plain":
            keyphrase = np.ones_like(keyphrase)
        # Both families hold the tokens of targets that have a score in both; the others get NaN.
        n_weights = np.nan_to_num(weights[f"n_{side}"]).astype(np.int64)
        keyphrase = _aligned(keyphrase, n_weights, found[f"n_{side}"])
        found[f"{side}_weights"] = found[f"{side}_weights"] * keyphrase
    return found


def _aligned(values: FloatArray, n_values: IntArray, n_wanted: IntArray) -> FloatArray:
    """Return the values of targets that are wanted; NaN for those that have none.

    A target has as many values as are wanted, or none, or none is wanted.
    """
    found = np.full(int(n_wanted.sum()), np.nan)
    is_kept = n_values == n_wanted
    found[np.repeat(is_kept, n_wanted)] = values[np.repeat(is_kept, n_values)]
    return found


def _judge_empty(scores: BertScores, weights: Targets) -> BertScores:
    """Return scores with 1 for two empty texts and 0 for one, as BLEU and ROUGE-L have them."""
    sizes = weights["n_candidate"], weights["n_reference"]
    return BertScores(*(_with_empty_texts(score, *sizes) for score in scores))


def _shown_weights(weights: Targets) -> list[str | None]:
    """Return the candidate's tokens and weights as JSON; None where it has no weights."""
    shown: list[str | None] = []
    for tokens, own in zip(
        weights.lists("shown_tokens"), weights.lists("shown_weights"), strict=True
    ):
        row = [[token, round(weight, 6)] for token, weight in zip(tokens, own, strict=True)]
        # NaN is no JSON.
        shown.append(json.dumps(row, ensure_ascii=False) if np.isfinite(own).all() else None)
    return shown
