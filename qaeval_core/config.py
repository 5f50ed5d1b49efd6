"""Configuration of a run: its sections, their defaults and what may not go together.

``configure`` makes it from YAML and ``key=value`` overrides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny

from qaeval_core.metrics.base import Section, Settings
from qaeval_core.metrics.catalogue import METRICS

INSTANCE_NAME = r"^[a-z][a-z0-9_]{0,62}$"
DEFAULT_METRIC = "qrelscore"


def _default_metrics() -> dict[str, Settings]:
    return {DEFAULT_METRIC: METRICS[DEFAULT_METRIC].settings(metric=DEFAULT_METRIC)}


class ModelSettings(Section):
    """How one model role runs (``models.<role>``)."""

    max_batch_tokens: int | None = Field(
        None, ge=128, description="tokens of a batch after padding; default by device and role"
    )
    max_batch_s: float = Field(
        900.0, gt=0.0, description="seconds after which a batch ends the run: a graph may never end"
    )
    precision: Literal["auto", "fp32", "fp16"] = Field(
        "auto", description="auto: fp16 on a GPU, fp32 on a CPU"
    )
    allow_lossy: bool = Field(False, description="use a graph whose parity gate failed")


class ModelsSection(Section):
    """Models by role, and where their artifacts lie (``models``)."""

    encoder: ModelSettings = ModelSettings()
    causal_lm: ModelSettings = ModelSettings()
    cross_encoder: ModelSettings = ModelSettings()
    keyphrase_classifier: ModelSettings = ModelSettings()
    artifacts_path: str | None = Field(
        None, description="folder of exported artifacts; default $QAEVAL_ARTIFACTS or the cache"
    )
    build: bool = Field(True, description="export a missing artifact on first use")


class InputSection(Section):
    """What is read (``input``)."""

    paths: tuple[str, ...] = Field((), description="files, folders, globs or filesystem URIs")
    columns: dict[str, str] = Field({}, description="role -> column name")
    limit: int | None = Field(None, ge=0, description="score only the first rows")
    skip_unreadable: bool = Field(
        False, description="leave files out that are not readable Parquet, instead of stopping"
    )
    accept_old_commits: bool = Field(
        False,
        description="use commits of versions that knew a file by name, size and time alone; only "
        "where the files are those that were scored",
    )


class OutputSection(Section):
    """What is written (``output``)."""

    path: str | None = Field(None, description="the OUT folder, local or on a shared file system")
    carry: tuple[str, ...] = Field((), description="input columns to copy into the scores")
    statistics: bool = Field(
        False, description="write what corpus scores are summed from: <instance>_statistics"
    )
    replies: bool = Field(
        True, description="keep the texts of language models' replies; false: what was read of them"
    )


class ScoringSection(Section):
    """How work is cut and watched (``scoring``)."""

    rows_per_shard: int | None = Field(
        None, ge=1, description="rows scored and committed at once; default by family and device"
    )
    max_shard_bytes: int = Field(
        64 << 20,
        ge=1024,
        description="bytes of a shard: planned by a file's statistics, cut where more are decoded",
    )
    max_text_bytes: int = Field(
        16 << 20,
        ge=1024,
        description="bytes of one text or list of texts; rows with a longer one are quarantined "
        "(text_too_large)",
    )
    max_quarantined: float = Field(
        1.0, ge=0.0, le=1.0, description="stop when a larger share of rows is quarantined"
    )
    retry_quarantined: bool = Field(
        False,
        description="score quarantined rows once more, and ask again where "
        "calls to a language model failed",
    )
    retry_storage_s: float = Field(
        300.0, ge=0.0, description="seconds that a disk or store which does not answer is tried"
    )
    progress_s: float = Field(5.0, gt=0.0, description="seconds between progress lines")


class ClusterSection(Section):
    """Where work runs (``cluster``)."""

    address: str | None = Field(None, description="Ray cluster; default: a local one")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where models run")
    actors: int | None = Field(
        None, ge=1, description="scoring actors; default one per GPU, else one per 4 CPUs"
    )
    llm_actors: int = Field(
        1, ge=1, description="actors that call language models; one makes hundreds of calls/s"
    )
    cpus_per_actor: float | None = Field(
        None, gt=0.0, description="CPUs (and threads) of one actor on a CPU cluster"
    )
    start_timeout_s: float = Field(
        300.0, gt=0.0, description="wait this long for the cluster to offer the actors"
    )


class RunConfig(Section):
    """A whole run, resolved and checked."""

    metrics: dict[Annotated[str, Field(pattern=INSTANCE_NAME)], SerializeAsAny[Settings]] = Field(
        default_factory=_default_metrics
    )
    input: InputSection = InputSection()
    output: OutputSection = OutputSection()
    models: ModelsSection = ModelsSection()
    scoring: ScoringSection = ScoringSection()
    cluster: ClusterSection = ClusterSection()
