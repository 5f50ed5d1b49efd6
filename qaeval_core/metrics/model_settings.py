"""Settings of metrics that judge answers by models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from qaeval_core.metrics.settings import Settings

_ENCODER = "embedded name, folder or hub id of the encoder"
_LAYER = "hidden state whose vectors are matched: last, or a number; 0 is the embeddings"

Layer = Literal["last"] | int


class AnswerSettings(Settings):
    """Settings of a metric that judges answers by a model."""


class SasSettings(AnswerSettings):
    """Settings of ``sas``."""

    cross_encoder: str = Field(
        "sas-minilm", description="embedded name, folder or hub id of the cross-encoder"
    )
    activation: Literal["model", "sigmoid", "identity"] = Field(
        "model", description="of the logit; model: what its configuration says"
    )


class BiEncoderSettings(AnswerSettings):
    """Settings of ``bi_encoder``."""

    encoder: str = Field("minilm", description=_ENCODER)


class TokenSettings(AnswerSettings):
    """Settings of metrics that match tokens by their vectors."""

    encoder: str = Field("minilm", description=_ENCODER)
    layer: Layer = Field("last", description=_LAYER, union_mode="left_to_right")
    idf: bool = Field(
        False, description="weigh tokens by how few of the corpus's references have them"
    )

    @model_validator(mode="after")
    def _check_layer(self) -> TokenSettings:
        if isinstance(self.layer, int) and self.layer < 0:
            raise ValueError(f"layer is {self.layer}; it is last, or 0 and more")
        return self


class BertScoreSettings(TokenSettings):
    """Settings of ``bertscore``; layer 2 is "vanilla" in the SAS paper, last is "trained"."""

    special_tokens: Literal["match", "exclude"] = Field(
        "match",
        description="whether tokens may be matched to [CLS] and [SEP], which weigh nothing "
        "themselves; the authors' program: match",
    )
    baseline: str | None = Field(
        None, description="file of bert-score's baselines (LAYER,P,R,F) to rescale with"
    )


class BertScoreFreeSettings(BertScoreSettings):
    """Settings of ``bertscore_free``."""

    @model_validator(mode="after")
    def _check_idf(self) -> BertScoreFreeSettings:
        if self.idf:
            raise ValueError("idf counts references; bertscore_free reads none")
        return self


class MoverScoreSettings(TokenSettings):
    """Settings of ``moverscore``."""


class KpqaSettings(AnswerSettings):
    """Settings of ``kpqa``."""

    keyphrase_classifier: str = Field(
        "kpqa-minilm", description="embedded name, folder or hub id of the keyphrase classifier"
    )
    encoder: str = Field("minilm", description=_ENCODER + " of kpqa_bertscore")
    layer: Layer = Field("last", description=_LAYER, union_mode="left_to_right")
    profile: Literal["paper", "authors"] = Field(
        "paper",
        description="the paper's equations, or the authors' program: brevity penalty, the "
        "reference's weights in ROUGE-L, weights times idf in BERTScore",
    )
    weights: Literal["keyphrase", "plain"] = Field(
        "keyphrase", description="plain: the same metrics with all weights 1, for comparison"
    )
    beta: float = Field(1.2, gt=0.0, description="weight of recall in ROUGE-L; authors: 1")
    show_weights: bool = Field(
        False, description="write the candidate's tokens and weights: <instance>_weights, as JSON"
    )

    @model_validator(mode="after")
    def _check_layer(self) -> KpqaSettings:
        if isinstance(self.layer, int) and self.layer < 0:
            raise ValueError(f"layer is {self.layer}; it is last, or 0 and more")
        return self
