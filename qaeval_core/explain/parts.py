"""Explain: what an explanation holds, as plain records: what JSON, page and terminal show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from qaeval_core.explain.naco_parts import NacoFormula, NacoRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMatches:
    """LRM of one window: which context token each candidate token is matched to, per layer.

    Attributes
    ----------
    window, n_windows : int
        Which window of the target this is, from 1.
    candidate, context : tuple of str
        Tokens that count, as pieces of their texts.
    is_cosine : bool
        Whether ``worth`` is the cosine; else it is attention x cosine (matching=weighted).
    matched : tuple of tuple of int, n_layers x n_cand
        Index into ``context``.
    worth : tuple of tuple of float, n_layers x n_cand
        Their mean over candidate tokens is ``layer_precision``. Unitless, in [-1, 1].
    layer_precision : tuple of float, n_layers
        As stored.
    used_layers : tuple of int
        Layers that the instances average over, from 0.
    """

    kind: str = "layer_matches"
    window: int
    n_windows: int
    candidate: tuple[str, ...]
    context: tuple[str, ...]
    is_cosine: bool
    matched: tuple[tuple[int, ...], ...]
    worth: tuple[tuple[float, ...], ...]
    layer_precision: tuple[float, ...]
    used_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodGains:
    """GRG of one window: what the candidate as a prompt adds to the likelihood of each token.

    Attributes
    ----------
    pieces : tuple of str
        The window's tokens, as pieces of the context.
    base_nats, prompted_nats, gain_nats : tuple of float
        log p of each token without and with the candidate before it, and their difference.
    base_sum_nats, prompted_sum_nats : float
        As stored.
    """

    kind: str = "likelihood_gains"
    window: int
    n_windows: int
    pieces: tuple[str, ...]
    base_nats: tuple[float, ...]
    prompted_nats: tuple[float, ...]
    gain_nats: tuple[float, ...]
    base_sum_nats: float
    prompted_sum_nats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProbabilities:
    """GRG of profile authors: probability of every token of one whole text.

    Attributes
    ----------
    text : str
        "context", or "question and context".
    pieces : tuple of str
        Its tokens; the last one is the end of text.
    probability : tuple of float
    mean : float
        As stored.
    """

    kind: str = "token_probabilities"
    text: str
    pieces: tuple[str, ...]
    probability: tuple[float, ...]
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMatches:
    """BERTScore of one pair: the best partner of each token of both texts.

    Attributes
    ----------
    candidate, reference : tuple of str
        Tokens, as pieces of their texts; special tokens are left out.
    candidate_matched, reference_matched : tuple of int or None
        Index of the partner in the other text; None is a special token such as [SEP].
    candidate_cosine, reference_cosine : tuple of float
        With the partner; in [-1, 1].
    candidate_weight, reference_weight : tuple of float
        What each token counts: 1, or its idf.
    precision, recall : float
        Means of the cosines by weight, before rescaling; None where no token has weight.
    """

    kind: str = "token_matches"
    candidate: tuple[str, ...]
    reference: tuple[str, ...]
    candidate_matched: tuple[int | None, ...]
    reference_matched: tuple[int | None, ...]
    candidate_cosine: tuple[float, ...]
    reference_cosine: tuple[float, ...]
    candidate_weight: tuple[float, ...]
    reference_weight: tuple[float, ...]
    precision: float | None
    recall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """KPQA of one text: how likely each token is in the answer to the question.

    Attributes
    ----------
    text : str
        "candidate" or "reference".
    pieces : tuple of str
    weight : tuple of float
        Probabilities, in [0, 1].
    """

    kind: str = "token_weights"
    text: str
    pieces: tuple[str, ...]
    weight: tuple[float, ...]


Part: TypeAlias = (
    LayerMatches
    | LikelihoodGains
    | TokenProbabilities
    | TokenMatches
    | TokenWeights
    | NacoRun
    | NacoFormula
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """What one family says of the candidate against one target (the context, or a reference).

    ``statistics``: what is stored of the target, where the family has no tokens to show.
    """

    target: int
    reason: str | None
    parts: tuple[Part, ...]
    statistics: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyExplanation:
    """One family of a row: which tokens, or replies, its numbers come from.

    ``artifact`` is None of a model that was asked over HTTP, ``endpoint`` of any other. ``note``:
    why there are no tokens to show, where there could be.
    """

    key: str
    family: str
    signature: str
    model: str
    artifact: str | None
    endpoint: str | None = None
    instances: tuple[str, ...]
    target_role: str
    targets: tuple[TargetParts, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """One score column of a row; values are None where the score is undefined."""

    column: str
    stored: float | int | str | None
    now: float | int | str | None
    is_compared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceExplanation:
    """The scores of one instance of a row."""

    name: str
    metric: str
    signature: str
    reason: str | None
    scores: tuple[ScoreLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One row of a finished run, explained.

    Attributes
    ----------
    texts : mapping of role to value
        As the input has them.
    is_equal : bool
        Whether all recomputed values equal the stored ones; None where nothing was recomputed.
    """

    out: str
    file: str
    row: int
    id: str | None
    texts: dict[str, object]
    instances: tuple[InstanceExplanation, ...]
    families: tuple[FamilyExplanation, ...]
    quarantine_reason: str | None
    quarantine_message: str | None
    is_equal: bool | None
    n_compared: int
    max_difference: float
    tolerance: float
    notes: tuple[str, ...]
    environment: dict[str, object]
