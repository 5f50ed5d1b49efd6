"""BERTScore: match candidate and reference tokens greedily by cosine.

Best cosines and weights of tokens in, scores out. Matches nothing itself, loads no model.

Source
------
Zhang, Kishore, Wu, Weinberger, Artzi. BERTScore: Evaluating Text Generation with BERT. ICLR 2020,
arXiv:1904.09675, section 3. With reference tokens x_i of weight v_i and candidate tokens y_j of
weight w_j, vectors of unit length::

    P = sum_j w_j max_i x_i . y_j / sum_j w_j
    R = sum_i v_i max_j x_i . y_j / sum_i v_i
    F = 2 P R / (P + R)
    rescaled = (score - b) / (1 - b)
    idf(token) = log((N + 1) / (n + 1)), n of N reference texts having the token

Several references: the largest P, the largest R and the largest F, each for itself, as bert-score
has it; with ``over_references=best_f1``, P and R of the reference with the best F.

Differs from the authors' program (bert_score 0.3.13, ``greedy_cos_idf``)
-------------------------------------------------------------------------
- Best cosines come from allowed tokens alone. Theirs multiplies padding by 0, so a negative best
  cosine becomes 0 beside a longer batch mate.
- A text without weight is NaN, and so are all three scores. Theirs prints a warning and scores 0.
- Whether special tokens may be matched is the caller's choice. Theirs lets them, at weight 0.

P and R lie in [-1, 1], where cosines do. Subtle: F is a harmonic mean only where both are
positive; with P = .5 and R = -.4 it is -4. Rescaled scores have no lower bound.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import Metric, PassFacts, Read, Scores, Settings, columns
from qaeval_core.metrics.bi_encoder import ENCODER
from qaeval_core.metrics.targets import BoolArray, Targets
from qaeval_core.signature import hash_file
from qaeval_core.storage.wary import read_given

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TokenArray = NDArray[np.float32] | NDArray[np.float64]


class BertScores(NamedTuple):
    """Scores of each pair; float ndarrays of shape (n_pairs,), unitless, higher is better."""

    precision: FloatArray
    recall: FloatArray
    f1: FloatArray


def bertscore(
    *,
    best_candidate: TokenArray,
    candidate_weights: TokenArray,
    n_candidate: IntArray,
    best_reference: TokenArray,
    reference_weights: TokenArray,
    n_reference: IntArray,
) -> BertScores:
    """Return P, R and F of pairs.

    Parameters
    ----------
    best_candidate : float ndarray of shape (sum of n_candidate,)
        max_i x_i . y_j of each candidate token, pairs one after another; in [-1, 1], or NaN where
        there was none to match.
    candidate_weights : float ndarray of shape (sum of n_candidate,)
        w_j >= 0; a token of weight 0 takes no part.
    n_candidate : int ndarray of shape (n_pairs,)
        Candidate tokens of each pair; may be 0.
    best_reference, reference_weights, n_reference
        The same for the references.

    Returns
    -------
    BertScore
        All three are NaN where either side's weights sum to 0, or where a token that has weight
        has no best cosine. F is 0 where P + R is 0.

    Examples
    --------
    >>> scores = bertscore(
    ...     best_candidate=np.array([1.0, 0.4]), candidate_weights=np.array([1.0, 1.0]),
    ...     n_candidate=np.array([2]), best_reference=np.array([1.0]),
    ...     reference_weights=np.array([1.0]), n_reference=np.array([1]),
    ... )
    >>> [round(score.item(), 4) for score in scores]
    [0.7, 1.0, 0.8235]
    """
    precision = _weighted_mean(best_candidate, candidate_weights, n_candidate)  # P
    recall = _weighted_mean(best_reference, reference_weights, n_reference)  # R
    total = precision + recall
    f1 = np.where(total == 0, 0.0, 2 * precision * recall / np.where(total == 0, 1.0, total))  # F
    undefined = np.isnan(total)
    return BertScores(*(np.where(undefined, np.nan, score) for score in (precision, recall, f1)))


def _weighted_mean(best: TokenArray, weights: TokenArray, counts: IntArray) -> FloatArray:
    """Return each pair's mean by weight; NaN where the weights sum to 0."""
    owner = np.repeat(np.arange(len(counts)), counts)
    products = np.where(weights > 0, best, 0.0) * weights.astype(np.float64)
    total = np.bincount(owner, weights=products, minlength=len(counts))
    weight = np.bincount(owner, weights=weights, minlength=len(counts))
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def rescale(score: FloatArray, *, baseline: float) -> FloatArray:
    """Return (score - b) / (1 - b): 0 for texts no nearer than random ones, 1 for equal ones.

    Parameters
    ----------
    score : float ndarray
        P, R or F; each has a baseline of its own.
    baseline : float
        b < 1: the mean score of pairs of random texts, by the same model and layer.

    Examples
    --------
    >>> rescale(np.array([0.9, 0.7]), baseline=0.8).round(4)
    array([ 0.5, -0.5])
    """
    return (score - baseline) / (1 - baseline)


def inverse_document_frequencies(n_documents_with: IntArray, *, n_documents: int) -> FloatArray:
    """Return log((N + 1) / (n + 1)) of tokens that n of N documents have.

    Parameters
    ----------
    n_documents_with : int ndarray of shape (n_tokens,)
        n, from 0 to N; 0 for a token that no document has.
    n_documents : int
        N: reference texts of the corpus.

    Returns
    -------
    float ndarray of shape (n_tokens,)
        In nats, from 0 (in every document) to log(N + 1).

    Examples
    --------
    >>> inverse_document_frequencies(np.array([0, 1, 3]), n_documents=3).round(4)
    array([1.3863, 0.6931, 0.    ])
    """
    return np.log((n_documents + 1) / (n_documents_with + 1))


Rescaling = tuple[float, float, float]  # b of P, R and F


def _check_layer(layer: str | int) -> str | int:
    if isinstance(layer, int) and layer < 0:
        raise ValueError(f"layer is {layer}; it is last, or 0 and more [QA0202]")
    return layer


Layer = Annotated[
    Literal["last"] | int,
    Field(union_mode="left_to_right"),
    AfterValidator(_check_layer),
    Field(description="hidden layer to match: last, or a number; 0 is the embeddings"),
]


class TokenSettings(Settings):
    """Settings of metrics that match tokens by their vectors."""

    encoder: str = Field("minilm", description=ENCODER)
    layer: Layer = "last"
    idf: bool = Field(
        False, description="weight tokens by inverse document frequency in the references"
    )


class GreedySettings(TokenSettings):
    """Settings of greedy matches; layer 2 is "vanilla" in the SAS paper, last is "trained"."""

    files: ClassVar[tuple[str, ...]] = ("baseline",)

    special_tokens: Literal["match", "exclude"] = Field(
        "match",
        description="whether tokens may match [CLS] and [SEP], which have no weight; the authors "
        "use match",
    )
    baseline: str | None = Field(
        None, description="baseline file of bert-score for rescaling (LAYER,P,R,F)"
    )
    _rescaling: Rescaling | None = PrivateAttr(None)  # Resolved: of the file.


class BertScoreSettings(GreedySettings):
    """Settings of ``bertscore``."""

    over_references: Literal["each", "best_f1"] = Field(
        "each",
        description="several references; each: maximum of P, of R and of F, as in bert-score; "
        "best_f1: P, R and F of the reference with the best F",
    )


class BertScoreFreeSettings(GreedySettings):
    """Settings of ``bertscore_free``."""

    @model_validator(mode="after")
    def _check_idf(self) -> BertScoreFreeSettings:
        if self.idf:
            raise ValueError("idf counts references; bertscore_free reads none [QA0202]")
        return self


B = TypeVar("B", bound=GreedySettings)


class _BertScore(Metric[B]):
    source = "Zhang et al. BERTScore. ICLR 2020, arXiv:1904.09675, section 3"
    needs = ("encoder",)
    columns = columns("precision", "recall", "f1")
    low = -1.0
    family: ClassVar[str]
    empty_target: ClassVar[str]

    def reads(self, settings: B) -> tuple[Read, ...]:
        """Return best cosines and weights of tokens."""
        options = {"special_tokens": settings.special_tokens, "idf": settings.idf}
        return (token_read(self.family, settings, options),)

    def resolve(self, settings: B, passes: Mapping[str, PassFacts]) -> B:
        """Return settings that hold the baselines of the layer."""
        if settings.baseline is None:
            return settings
        found = settings.model_copy()
        layer = passes[self.family].n_layers
        found._rescaling = read_rescaling(settings.baseline, layer=layer)
        return found

    def signed(self, settings: B) -> dict[str, object]:
        """Return the settings, a file of baselines by its content."""
        shown = super().signed(settings)
        if settings.baseline is not None:
            shown["baseline"] = hash_file(settings.baseline)
        return shown

    def score(self, settings: B, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        tokens = read[self.family]
        matches = token_matches(tokens)
        each = bertscore(**matches)
        if settings._rescaling is not None:
            parts = zip(each, settings._rescaling, strict=True)
            each = BertScores(*(rescale(part, baseline=b) for part, b in parts))
        f1 = tokens.best(each.f1)
        if getattr(settings, "over_references", "best_f1") == "each":
            precision, recall = tokens.best(each.precision), tokens.best(each.recall)
        else:
            best = tokens.first_best(each.f1)
            precision, recall = best(each.precision), best(each.recall)
        reasons = tokens.reasons(
            f1, empty_target=self.empty_target, has_weight=have_weight(matches)
        )
        values = {"precision": precision, "recall": recall, "f1": f1}
        return Scores(values, reasons)


class BertScore(_BertScore[BertScoreSettings]):
    """BERTScore."""

    name = "bertscore"
    title = "greedy matches of tokens by the cosine of their vectors"
    settings = BertScoreSettings
    over_references = "largest P, R and F"
    family = "token_match"
    empty_target = "empty_reference"


class BertScoreFree(_BertScore[BertScoreFreeSettings]):
    """BERTScore against the context."""

    name = "bertscore_free"
    title = "BERTScore with the context in place of the references"
    source = _BertScore.source + "; Wang et al. QRelScore, section 4"
    settings = BertScoreFreeSettings
    roles = ("candidate", "context")
    over_references = "none"
    family = "token_match_context"
    empty_target = "empty_context"


def token_read(family: str, settings: TokenSettings, options: Mapping[str, object]) -> Read:
    """Return a family that reads the vectors of tokens, and document frequencies for idf."""
    return Read(
        family=family,
        model=settings.encoder,
        options=options,
        graph_options={"layer": str(settings.layer)},
        corpus_counts="token_frequencies" if settings.idf else "",
    )


def token_matches(tokens: Targets) -> dict[str, Any]:
    """Return what `bertscore` reads: one value a token, and the tokens of every target."""
    found: dict[str, Any] = {}
    for side in ("candidate", "reference"):
        found[f"best_{side}"] = tokens[f"best_{side}"]
        found[f"{side}_weights"] = tokens[f"{side}_weights"]
        found[f"n_{side}"] = tokens.ints(f"n_{side}")
    return found


def have_weight(matches: Mapping[str, Any]) -> BoolArray:
    """Return whether both sides of every target have a token that counts; (n_targets,)."""
    found = np.ones(len(matches["n_candidate"]), dtype=bool)
    for side in ("candidate", "reference"):
        n_tokens, weights = matches[f"n_{side}"], matches[f"{side}_weights"]
        owner = np.repeat(np.arange(len(n_tokens)), n_tokens)
        found &= np.bincount(owner, weights=weights, minlength=len(n_tokens)) > 0
    return found


def read_rescaling(path: str, *, layer: int) -> Rescaling:
    """Return the baselines of P, R and F of a layer from a file as bert-score has them.

    Parameters
    ----------
    path : str
        Comma-separated, with the header ``LAYER,P,R,F``.
    layer : int
        Hidden state that is matched.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has no such layer.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_given(path), newline="")))
        found = {int(row["LAYER"]): row for row in rows}
    except OSError as error:
        raise ConfigError(f"cannot read baselines {path}: {error.strerror} [QA0216]") from None
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ConfigError(
            f"{path} is not a file of baselines: its header must be LAYER,P,R,F [QA0216]"
        ) from None
    if layer not in found:
        known = ", ".join(map(str, sorted(found)))
        raise ConfigError(f"{path} has no baseline of layer {layer}; it has {known} [QA0216]")
    try:
        precision, recall, f1 = (float(found[layer][name]) for name in ("P", "R", "F"))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: layer {layer} has no numbers P, R and F [QA0216]") from None
    if not all(-1 <= value < 1 for value in (precision, recall, f1)):  # Nor is NaN.
        raise ConfigError(
            f"{path}: baselines of layer {layer} are {precision:g}, {recall:g} and {f1:g}; they "
            "must be cosines, at least -1 and below 1 [QA0216]"
        )
    return precision, recall, f1
