"""QRelScore: relevance of a question to its context from an encoder and a causal LM.

Raw statistics of model passes in, scores out: layer-wise matching precisions (LRM) and context
likelihoods with and without the question as a prompt (GRG). Loads no model, reads no file.

Source
------
Wang et al. QRelScore: Better Evaluating Generated Questions with Deeper Understanding of
Context-aware Relevance. EMNLP 2022, arXiv:2204.13921, section 2. For one window::

    LRM = ( mean_l Prec_l^p )^(1/p)                                        eq. 3
    GRG = max( (conf_prompt - conf_base) / |conf_base|, 0 )                eq. 9
    rescaled = (raw - b) / (1 - b), clipped to [0, 1]                      eq. 5
    QRelScore = 2 LRM GRG / (LRM + GRG)                                    eq. 1
    Ref-QRelScore = ( QRelScore(X, C) + max_r QRelScore(X, r) ) / 2        eq. 10

Raw LRM and raw GRG are averaged over windows before they are rescaled.

Differs from the authors' code (evalpackage/qrelscore)
------------------------------------------------------
- GRG there is a ratio of mean token probabilities, EOS included: profile ``authors``.
- Its combination adds 1e-8 to the denominator; here 0 where either part is <= 0.
- It has no windows and no baselines: constants are commented out there.

But: eq. 2 and 4 are reduced inside the graph (``qaeval_export.graphs.relevance_matching``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import (
    Calibration,
    Column,
    Metric,
    PassFacts,
    Read,
    Scores,
    Settings,
    Values,
)
from qaeval_core.metrics.calibrated import Baseline, read_baseline
from qaeval_core.metrics.targets import EMPTY_TARGET, NO_REFERENCES, Targets
from qaeval_core.signature import Signature

FloatArray = NDArray[np.float64]
NO_DEFINED_REFERENCE = "no_defined_reference"
ZERO_BASE = "zero_base_likelihood"
LAYERS = ("all", "first", "middle", "last", "specific")


def layer_indices(layers: str, *, n_layers: int) -> list[int]:
    """Return the layers (from 0) that a choice names.

    Parameters
    ----------
    layers : {"all", "first", "middle", "last", "specific"}
        First, middle and last third, or four layers spread from the first to the last.
    n_layers : int
        Layers of the encoder.

    Returns
    -------
    list of int
        Ascending, without repeats.

    Examples
    --------
    >>> layer_indices("specific", n_layers=12)
    [0, 3, 7, 11]
    >>> layer_indices("specific", n_layers=6)
    [0, 2, 3, 5]
    >>> layer_indices("middle", n_layers=12)
    [4, 5, 6, 7]
    """
    third = n_layers / 3
    match layers:
        case "all":
            return list(range(n_layers))
        case "first":
            return list(range(0, max(round(third), 1)))
        case "middle":
            return list(range(round(third), max(round(2 * third), round(third) + 1)))
        case "last":
            return list(range(min(round(2 * third), n_layers - 1), n_layers))
        case "specific" if n_layers == 12:
            return [0, 3, 7, 11]  # The paper's M5; the general rule below would give 4, not 3.
        case "specific":
            return sorted({round(i * (n_layers - 1) / 3) for i in range(4)})
    raise ConfigError(f"layers is {layers!r}; choose one of {', '.join(LAYERS)} [QA0202]")


def lrm_per_window(
    layer_precision: FloatArray, *, layers: Sequence[int], exponent: float
) -> FloatArray:
    """Return raw LRM of each window: the power mean of Prec_l over layers (eq. 3).

    Parameters
    ----------
    layer_precision : float ndarray of shape (n_windows, n_layers)
        Prec_l, in [-1, 1].
    layers : sequence of int
        Layers that count, from 0.
    exponent : float
        p > 0. With p != 1 negative precisions count as 0.

    Returns
    -------
    float ndarray of shape (n_windows,)

    Examples
    --------
    >>> lrm_per_window(np.array([[0.6, 0.8]]), layers=[0, 1], exponent=1.0)
    array([0.7])
    """
    chosen = np.asarray(layer_precision, dtype=np.float64)[:, list(layers)]
    if exponent == 1.0:
        return np.asarray(chosen.mean(axis=1))
    powered = np.maximum(chosen, 0.0) ** exponent
    return np.asarray(powered.mean(axis=1) ** (1.0 / exponent))  # eq. 3


def grg_per_window(
    base: FloatArray, prompted: FloatArray, *, profile: str, gain: str
) -> FloatArray:
    """Return raw GRG of each window.

    Parameters
    ----------
    base, prompted : float ndarray of shape (n_windows,)
        Profile ``paper``: summed log-probabilities of the context, in nats, <= 0, without and
        with the candidate as a prompt. Profile ``authors``: mean token probabilities, in (0, 1].
    profile : {"paper", "authors"}
    gain : {"ratio", "absolute"}
        ``absolute`` (ablation M9) is the difference alone, unbounded.

    Returns
    -------
    float ndarray of shape (n_windows,)
        NaN where the base is 0 and a ratio is asked for.

    Examples
    --------
    >>> grg_per_window(np.array([-100.0]), np.array([-90.0]), profile="paper", gain="ratio")
    array([0.1])
    """
    base, prompted = np.asarray(base, dtype=np.float64), np.asarray(prompted, dtype=np.float64)
    if gain == "absolute":
        return prompted - base  # M9
    scale = np.abs(base) if profile == "paper" else base
    scale = np.where(scale == 0.0, np.nan, scale)
    return np.maximum((prompted - base) / scale, 0.0)  # eq. 9


def mean_over_windows(values: FloatArray, n_windows: NDArray[np.int64]) -> FloatArray:
    """Return the mean of each text's windows; NaN where a text has no window.

    Parameters
    ----------
    values : float ndarray of shape (n_windows,)
        All windows of all texts, in order.
    n_windows : int ndarray of shape (n_texts,)
        Windows of each text; may be 0.

    Returns
    -------
    float ndarray of shape (n_texts,)

    Examples
    --------
    >>> mean_over_windows(np.array([1.0, 3.0, 5.0]), np.array([2, 0, 1]))
    array([ 2., nan,  5.])
    """
    owner = np.repeat(np.arange(len(n_windows)), n_windows)
    total = np.bincount(owner, weights=values, minlength=len(n_windows))
    return np.where(n_windows > 0, total / np.maximum(n_windows, 1), np.nan)


def rescale(raw: FloatArray, baseline: float | None) -> FloatArray:
    """Return (raw - b) / (1 - b) clipped to [0, 1] (eq. 5); raw itself without a baseline.

    Examples
    --------
    >>> rescale(np.array([0.9, 0.5]), 0.6)
    array([0.75, 0.  ])
    """
    if baseline is None:
        return raw
    return np.clip((raw - baseline) / (1.0 - baseline), 0.0, 1.0)


def combine(lrm: FloatArray, grg: FloatArray) -> FloatArray:
    """Return the harmonic mean (eq. 1), 0 where either part is <= 0, NaN where either is NaN.

    Examples
    --------
    >>> combine(np.array([0.5, 0.5]), np.array([0.5, 0.0]))
    array([0.5, 0. ])
    """
    positive = (lrm > 0) & (grg > 0)
    safe_lrm, safe_grg = np.where(positive, lrm, 1.0), np.where(positive, grg, 1.0)
    harmonic = 2 * safe_lrm * safe_grg / (safe_lrm + safe_grg)  # eq. 1
    score = np.where(positive, harmonic, 0.0)
    return np.where(np.isnan(lrm) | np.isnan(grg), np.nan, score)


class QRelScoreSettings(Settings):
    """Settings of ``qrelscore`` and ``ref_qrelscore``."""

    files: ClassVar[tuple[str, ...]] = ("baseline",)

    profile: Literal["paper", "authors"] = Field(
        "paper", description="equations of the paper, or of the authors' released program"
    )
    encoder: str = Field("minilm", description="bundled model, folder or hub id of the encoder")
    causal_lm: str = Field(
        "smollm2-135m", description="bundled model, folder or hub id of the causal LM"
    )
    matching: Literal["attended", "weighted"] = Field(
        "attended", description="reading of equation 4: cosine at the argmax, or attention x cosine"
    )
    aggregate: Literal["max", "average", "mover"] = Field(
        "max",
        description="aggregation of matching=weighted over context tokens; mover is optimal "
        "transport, and slow",
    )
    layers: Literal["all", "first", "middle", "last", "specific"] = Field(
        "all", description="encoder layers to use"
    )
    exponent: float = Field(1.0, gt=0.0, description="exponent of the power mean over layers")
    gain: Literal["ratio", "absolute"] = Field(
        "ratio",
        description="GRG relative to the base likelihood, or absolute in nats (then not combined)",
    )
    baseline: Baseline | str | None = Field(
        None, description="rescaling constants: {lrm: b, grg: b}, or a file of `qaeval calibrate`"
    )
    max_window_tokens: int = Field(
        1024, ge=128, description="tokens in a window of the causal LM, with special tokens"
    )
    # Resolved: the numbers of a file, the corpus they are of, and the encoder's layers.
    _baseline: Baseline = PrivateAttr(Baseline())
    _baseline_corpus: str = PrivateAttr("none")
    _n_layers: int = PrivateAttr(0)

    @model_validator(mode="after")
    def _check_options(self) -> QRelScoreSettings:
        if self.matching == "attended" and self.aggregate != "max":
            raise ValueError(
                f"aggregate={self.aggregate} needs matching=weighted: attended matching takes "
                "one context token per candidate token"
            )
        if self.profile == "authors" and self.baseline is not None:
            raise ValueError("profile=authors never rescales: leave baseline out")
        if self.gain == "absolute" and self.profile == "authors":
            raise ValueError("gain=absolute (ablation M9) belongs to profile=paper")
        if self.gain == "absolute" and self.metric == "ref_qrelscore":
            raise ValueError("gain=absolute is unbounded and not combined: no ref_qrelscore")
        given = self.baseline
        if self.gain == "absolute" and isinstance(given, Baseline) and given.grg is not None:
            raise ValueError("gain=absolute is never rescaled: leave baseline.grg out")
        return self


@dataclass(frozen=True, slots=True)
class PartScores:
    """Scores of one family for every target of every row."""

    raw: FloatArray
    rescaled: FloatArray
    n_windows: NDArray[np.int64]
    reasons: list[str | None]


class QRelScore(Metric[QRelScoreSettings]):
    """QRelScore."""

    name = "qrelscore"
    title = "relevance of a question to its context, without references"
    source = "Wang et al. QRelScore. EMNLP 2022, arXiv:2204.13921, section 2"
    settings = QRelScoreSettings
    needs = ("encoder", "causal_lm")
    calibrated = "baseline"
    roles: tuple[str, ...] = ("candidate", "context")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(""),
        Column("lrm"),
        Column("lrm_raw"),
        Column("lrm_windows", "count"),
        Column("grg"),
        Column("grg_raw", is_share=False),
        Column("grg_windows", "count"),
    )
    over_references = "none"

    def calibrated_parts(self, settings: QRelScoreSettings) -> tuple[str, ...]:
        """Return the parts that have a baseline: an unbounded GRG is never rescaled."""
        return ("lrm",) if settings.gain == "absolute" else ("lrm", "grg")

    def calibrate(
        self, settings: QRelScoreSettings, part: str, read: Targets, facts: PassFacts
    ) -> Calibration:
        """Return the raw scores of rows, of which b is the mean."""
        raw = part_scores(part, settings, read).raw
        return Calibration(key=baseline_key(part, settings, facts), raw=raw)

    def reads(self, settings: QRelScoreSettings) -> tuple[Read, ...]:
        """Return matches of tokens, and likelihoods."""
        return _parts(settings, "lrm", "grg")

    def resolve(
        self, settings: QRelScoreSettings, passes: Mapping[str, PassFacts]
    ) -> QRelScoreSettings:
        """Return settings with the baselines of these models and options."""
        found = settings.model_copy()
        found._n_layers = passes["lrm"].n_layers
        if isinstance(settings.baseline, Baseline):
            found._baseline, found._baseline_corpus = settings.baseline, "given"
        elif settings.baseline is not None:
            keys = {part: baseline_key(part, settings, passes[part]) for part in ("lrm", "grg")}
            found._baseline, found._baseline_corpus = read_baseline(settings.baseline, keys=keys)
        return found

    def signed(self, settings: QRelScoreSettings) -> dict[str, object]:
        """Return what the formula reads; what passes read is in the keys of families."""
        baseline = settings._baseline
        return {
            "baseline_corpus": settings._baseline_corpus,
            "baseline_lrm": baseline.lrm if baseline.lrm is not None else "no",
            "baseline_grg": baseline.grg if baseline.grg is not None else "no",
            "exponent": settings.exponent,
            "gain": settings.gain,
            "layers": settings.layers,
            "profile": settings.profile,
        }

    def shown_columns(self, settings: QRelScoreSettings) -> tuple[Column, ...]:
        """Return the columns that an instance writes; an unbounded GRG is not combined."""
        is_unbounded = settings.gain == "absolute"
        return tuple(column for column in self.columns if column.name or not is_unbounded)

    def score(self, settings: QRelScoreSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        lrm, grg = (part_scores(part, settings, read[part]) for part in ("lrm", "grg"))
        values: dict[str, Values] = {
            "": combine(lrm.rescaled, grg.rescaled),
            "lrm": lrm.rescaled,
            "lrm_raw": lrm.raw,
            "lrm_windows": lrm.n_windows,
            "grg": grg.rescaled,
            "grg_raw": grg.raw,
            "grg_windows": grg.n_windows,
        }
        return Scores(values, _first_reason(lrm.reasons, grg.reasons))


class RefQRelScore(QRelScore):
    """Ref-QRelScore."""

    name = "ref_qrelscore"
    title = "QRelScore averaged with its best value over reference questions"
    source = QRelScore.source + ".3, eq. 10"
    roles = ("candidate", "context", "references")
    columns = (Column(""), Column("context"), Column("reference"))
    over_references = "max"

    def reads(self, settings: QRelScoreSettings) -> tuple[Read, ...]:
        """Return matches and likelihoods, of contexts and of references."""
        return _parts(settings, "lrm", "grg", "lrm_references", "grg_references")

    def score(self, settings: QRelScoreSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        of_context = super().score(settings, read)
        parts = ("lrm_references", "grg_references")
        lrm, grg = (part_scores(part, settings, read[part]) for part in parts)
        references = read["lrm_references"]
        score = np.asarray(of_context.columns[""])
        best = references.best(combine(lrm.rescaled, grg.rescaled))
        reasons = [
            None if not np.isnan(value) else (NO_DEFINED_REFERENCE if n else NO_REFERENCES)
            for value, n in zip(best.tolist(), references.per_row.tolist(), strict=True)
        ]
        values: dict[str, Values] = {
            "": (score + best) / 2,  # eq. 10
            "context": score,
            "reference": best,
        }
        return Scores(values, _first_reason(of_context.reasons, reasons))


def _is_lrm(part: str) -> bool:
    return part.startswith("lrm")


def _parts(settings: QRelScoreSettings, *parts: str) -> tuple[Read, ...]:
    matching = {"matching": settings.matching, "aggregate": settings.aggregate}
    options = {"profile": settings.profile}
    windows = {**options, "max_window_tokens": settings.max_window_tokens}
    return tuple(
        Read(family=part, model=settings.encoder, options=options, graph_options=matching)
        if _is_lrm(part)
        else Read(family=part, model=settings.causal_lm, options=windows)
        for part in parts
    )


def baseline_key(part: str, settings: QRelScoreSettings, facts: PassFacts) -> str:
    """Return what a baseline belongs to: model pass and formula, not columns.

    Parameters
    ----------
    part : {"lrm", "grg", "lrm_references", "grg_references"}
    facts : PassFacts
        Of the part's family.
    """
    formula: dict[str, object] = {"gain": settings.gain}
    if _is_lrm(part):
        formula = {"layers": settings.layers, "exponent": settings.exponent}
    made_from = {**facts.settings, **formula}
    return str(Signature(part.split("_", maxsplit=1)[0], made_from, facts.version))


def part_scores(part: str, settings: QRelScoreSettings, read: Targets) -> PartScores:
    """Return raw and rescaled scores of one family, for every target of every row.

    Parameters
    ----------
    part : {"lrm", "grg", "lrm_references", "grg_references"}
    settings : QRelScoreSettings
        Resolved.
    """
    n_windows = read.ints("n_windows")
    if _is_lrm(part):
        precision = read["layer_precision"].reshape(-1, settings._n_layers)
        layers = layer_indices(settings.layers, n_layers=settings._n_layers)
        per_window = lrm_per_window(precision, layers=layers, exponent=settings.exponent)
        baseline = settings._baseline.lrm
    else:
        unit = "probability" if settings.profile == "authors" else "nats"
        per_window = grg_per_window(
            read[f"base_{unit}"],
            read[f"prompted_{unit}"],
            profile=settings.profile,
            gain=settings.gain,
        )
        baseline = settings._baseline.grg
    raw = mean_over_windows(per_window, n_windows)
    reasons = read.own_reasons()
    for i in np.flatnonzero(np.isnan(raw)).tolist():
        reasons[i] = reasons[i] or ZERO_BASE
    raw[[reason is not None for reason in reasons]] = np.nan
    empty = "empty_reference" if part.endswith("references") else "empty_context"
    reasons = [empty if reason == EMPTY_TARGET else reason for reason in reasons]
    return PartScores(raw, rescale(raw, baseline), n_windows, reasons)


def _first_reason(first: list[str | None], second: list[str | None]) -> list[str | None]:
    return [a or b for a, b in zip(first, second, strict=True)]
