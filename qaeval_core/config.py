"""Configuration of a run: its sections, their defaults and what may not go together.

``configure`` makes it from YAML and ``key=value`` overrides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.suggest import nearest

INSTANCE_NAME = r"^[a-z][a-z0-9_]{0,62}$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Baseline(_Section):
    """Given baselines b of eq. 5; None leaves that part raw."""

    lrm: Annotated[float, Field(ge=-1.0, lt=1.0)] | None = None
    grg: Annotated[float, Field(ge=-1.0, lt=1.0)] | None = None


class MetricSettings(_Section):
    """Settings of one metric instance (``metrics.<instance>``)."""

    metric: str = Field(description="metric of the catalogue; default: the instance's own name")
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
    def _check_options(self) -> MetricSettings:
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}{nearest(self.metric, METRICS)}")
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


class ModelSettings(_Section):
    """How one model role runs (``models.<role>``)."""

    max_batch_tokens: int | None = Field(
        None, ge=128, description="tokens of a batch after padding; default by device and role"
    )
    precision: Literal["auto", "fp32", "fp16"] = Field(
        "auto", description="auto: fp16 on a GPU, fp32 on a CPU"
    )
    allow_lossy: bool = Field(False, description="use a graph whose parity gate failed")


class ModelsSection(_Section):
    """Models by role, and where their artifacts lie (``models``)."""

    encoder: ModelSettings = ModelSettings()
    causal_lm: ModelSettings = ModelSettings()
    artifacts_path: str | None = Field(
        None, description="folder of exported artifacts; default $QAEVAL_ARTIFACTS or the cache"
    )
    build: bool = Field(True, description="export a missing artifact on first use")


class InputSection(_Section):
    """What is read (``input``)."""

    paths: tuple[str, ...] = Field((), description="files, folders, globs or filesystem URIs")
    columns: dict[str, str] = Field({}, description="role -> column name")
    limit: int | None = Field(None, ge=0, description="score only the first rows")
    skip_unreadable: bool = Field(
        False, description="leave files out that are not readable Parquet, instead of stopping"
    )


class OutputSection(_Section):
    """What is written (``output``)."""

    path: str | None = Field(None, description="the OUT folder, local or on a shared file system")
    carry: tuple[str, ...] = Field((), description="input columns to copy into the scores")


class ScoringSection(_Section):
    """How work is cut and watched (``scoring``)."""

    rows_per_shard: int | None = Field(
        None, ge=1, description="rows scored and committed at once; default by family and device"
    )
    max_shard_bytes: int = Field(
        64 << 20, ge=1024, description="text bytes of a shard, by the file's statistics"
    )
    max_quarantined: float = Field(
        1.0, ge=0.0, le=1.0, description="stop when a larger share of rows is quarantined"
    )
    retry_quarantined: bool = Field(False, description="score quarantined rows once more")
    progress_s: float = Field(5.0, gt=0.0, description="seconds between progress lines")


class ClusterSection(_Section):
    """Where work runs (``cluster``)."""

    address: str | None = Field(None, description="Ray cluster; default: a local one")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where models run")
    actors: int | None = Field(
        None, ge=1, description="scoring actors; default one per GPU, else one per 4 CPUs"
    )
    cpus_per_actor: float | None = Field(
        None, gt=0.0, description="CPUs (and threads) of one actor on a CPU cluster"
    )
    start_timeout_s: float = Field(
        300.0, gt=0.0, description="wait this long for the cluster to offer the actors"
    )


class RunConfig(_Section):
    """A whole run, resolved and checked."""

    metrics: dict[Annotated[str, Field(pattern=INSTANCE_NAME)], MetricSettings] = Field(
        default_factory=lambda: {"qrelscore": MetricSettings(metric="qrelscore")}
    )
    input: InputSection = InputSection()
    output: OutputSection = OutputSection()
    models: ModelsSection = ModelsSection()
    scoring: ScoringSection = ScoringSection()
    cluster: ClusterSection = ClusterSection()
