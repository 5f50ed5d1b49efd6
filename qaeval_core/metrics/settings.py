"""Settings of metrics: what an instance may set, its default, and what may not go together.

One class per metric or group of metrics; the catalogue says which metric has which.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from qaeval_core.choices import Language, Smoothing, Stemming, Tokeniser

_OVER_REFERENCES = "standard: as the metric defines it; max: the best single reference"


class Section(BaseModel):
    """A part of a configuration: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(Section):
    """Settings of one metric instance (``metrics.<instance>``)."""

    metric: str = Field(description="metric of the catalogue; default: the instance's own name")


class Baseline(Section):
    """Given baselines b of QRelScore's eq. 5; None leaves that part raw."""

    lrm: Annotated[float, Field(ge=-1.0, lt=1.0)] | None = None
    grg: Annotated[float, Field(ge=-1.0, lt=1.0)] | None = None


class QRelScoreSettings(Settings):
    """Settings of ``qrelscore`` and ``ref_qrelscore``."""

    profile: Literal["paper", "authors"] = Field(
        "paper", description="the paper's equations, or the authors' released program"
    )
    encoder: str = Field("minilm", description="embedded name, folder or hub id of the encoder")
    causal_lm: str = Field("smollm2-135m", description="the same for the causal LM")
    matching: Literal["attended", "weighted"] = Field(
        "attended", description="reading of eq. 4: cosine at the argmax, or attention x cosine"
    )
    aggregate: Literal["max", "average", "mover"] = Field(
        "max", description="aggregation of matching=weighted over context tokens"
    )
    layers: Literal["all", "first", "middle", "last", "specific"] = Field(
        "all", description="encoder layers that count"
    )
    exponent: float = Field(1.0, gt=0.0, description="exponent of the power mean over layers")
    gain: Literal["ratio", "absolute"] = Field(
        "ratio", description="GRG relative to the base likelihood, or in nats (not combined)"
    )
    baseline: Baseline | str | None = Field(
        None, description="{lrm: b, grg: b}, or a file written by `qaeval calibrate`"
    )
    max_window_tokens: int = Field(
        1024, ge=128, description="causal LM tokens per window, special tokens included"
    )

    @model_validator(mode="after")
    def _check_options(self) -> QRelScoreSettings:
        if self.aggregate == "mover":
            raise ValueError(
                "aggregate=mover (ablation M7) is not available yet; use max or average"
            )
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


class WordSettings(Settings):
    """How texts become words; the same for every metric of words."""

    tokeniser: Tokeniser = Field("13a", description="rule that splits a text into words")
    lowercase: bool = Field(True, description="compare words without case")
    stemming: Stemming = Field(
        "none", description="compare Porter stems of words of four characters and more"
    )
    language: Language = Field(
        "en", description="articles of tokeniser=squad, rules of tokeniser=spacy"
    )
    over_references: Literal["standard", "max"] = Field("standard", description=_OVER_REFERENCES)


class OverlapSettings(WordSettings):
    """Settings of ``exact_match`` and ``f1``."""

    tokeniser: Tokeniser = Field("squad", description="rule that splits a text into words")


class BleuSettings(WordSettings):
    """Settings of ``bleu_1`` to ``bleu_4``."""

    smoothing: Smoothing = Field(
        "none",
        description="of orders without a match, per row; floor: NLTK's method1, add_one: its "
        "method2, exponential: sacrebleu's, coco: coco-caption's tiny numbers",
    )


class RougeSettings(WordSettings):
    """Settings of ``rouge_l``."""

    tokeniser: Tokeniser = Field("rouge", description="rule that splits a text into words")
    beta: float = Field(1.0, gt=0.0, description="weight of recall; 1.2 in coco-caption")
    cut_decimals: int | None = Field(
        None,
        ge=1,
        le=17,
        description="combine P and R as rouge-score does and cut after so many decimals: the ties "
        "of a published column",
    )


class MeteorSettings(WordSettings):
    """Settings of ``meteor``."""

    tokeniser: Tokeniser = Field("treebank", description="rule that splits a text into words")
    stemming: Literal["none"] = Field("none", description="METEOR has a stage of stems of its own")
    synonyms: Literal["wordnet", "none"] = Field(
        "wordnet", description="where synonyms come from: WordNet 3.0 (English), or nowhere"
    )
    alpha: float = Field(0.9, ge=0.0, le=1.0, description="weight of recall in the mean")
    beta: float = Field(3.0, ge=0.0, description="exponent of the penalty")
    gamma: float = Field(0.5, ge=0.0, le=1.0, description="largest penalty")


class CiderSettings(WordSettings):
    """Settings of ``cider``."""

    sigma: float = Field(6.0, gt=0.0, description="width of the length penalty, in words")
    document_frequencies: str | None = Field(
        None, description="OUT/corpus/*.parquet of another run; null: counted in this corpus"
    )

    @field_validator("document_frequencies", mode="before")
    @classmethod
    def _check_none(cls, given: object) -> object:
        return None if given == "none" else given


class QBleuSettings(WordSettings):
    """Settings of ``q_bleu`` and ``q_bleu_free``."""

    order: int = Field(4, ge=1, le=4, description="order of the BLEU part")
    smoothing: Smoothing = Field("floor", description="of the BLEU part, as in bleu_4")
    relevant_weight: float = Field(0.1, ge=0.0, le=1.0, description="w_r, content words")
    entity_weight: float = Field(0.6, ge=0.0, le=1.0, description="w_n, named entities")
    question_weight: float = Field(0.2, ge=0.0, le=1.0, description="w_q, question type words")
    function_weight: float = Field(0.1, ge=0.0, le=1.0, description="w_f, function words")
    delta: float = Field(0.7, ge=0.0, le=1.0, description="weight of answerability against BLEU")
    absent: Literal["renormalise", "zero"] = Field(
        "renormalise",
        description="a kind of word on neither side: weights renormalised, or F = 0",
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


class BonusSettings(Section):
    """Weights of the bonus of adapted metrics."""

    alpha: float = Field(2.0, ge=0.0, description="weight of the bonus for a yes/no opinion")
    beta: float = Field(1.0, ge=0.0, description="weight of the bonus for entities")


class AdaptedBleuSettings(BonusSettings, BleuSettings):
    """Settings of ``adapted_bleu_4``."""


class AdaptedRougeSettings(BonusSettings, WordSettings):
    """Settings of ``adapted_rouge_l``."""

    gamma: float = Field(1.2, gt=0.0, description="weight of recall")


class SpanSettings(Settings):
    """Settings of ``top_n_accuracy``."""

    n: int = Field(5, ge=1, description="predicted spans that count, best first")
