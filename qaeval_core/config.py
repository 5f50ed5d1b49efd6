"""Configuration of a run: YAML and ``key=value`` overrides in, one checked object out.

Unknown keys name the nearest valid one. Reads no data and resolves no model.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.catalogue import METRICS

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


def nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Return a hint that names the nearest known name, or all of them if none is near.

    Examples
    --------
    >>> nearest("exponnent", ["exponent", "layers"])
    "; did you mean 'exponent'?"
    >>> nearest("zzz", ["exponent", "layers"])
    '; choose one of: exponent, layers'
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of: {', '.join(sorted(known))}"


def load_config(
    *, path: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> RunConfig:
    """Return the configuration of a YAML file with overrides applied.

    Parameters
    ----------
    path : str or Path, optional
        A YAML file with the sections of `RunConfig`.
    overrides : mapping of str to object, optional
        Dotted key -> value, applied in order. ``qrelscore.profile`` is short for
        ``metrics.qrelscore.profile``.

    Returns
    -------
    RunConfig

    Raises
    ------
    ConfigError
        If a key is unknown (the nearest valid one is named) or a value is not allowed.

    Examples
    --------
    >>> load_config(overrides={"qrelscore.profile": "authors"}).metrics["qrelscore"].profile
    'authors'
    """
    tree = _read_yaml(Path(path)) if path is not None else {}
    metrics = tree.get("metrics")
    if isinstance(metrics, Sequence) and not isinstance(metrics, str):
        tree["metrics"] = {str(name): {} for name in metrics}
    for key, value in (overrides or {}).items():
        _put(tree, _full_key(key, tree), value)
    return make_config(tree)


def make_config(tree: Mapping[str, Any]) -> RunConfig:
    """Return the checked configuration of a plain tree of sections."""
    tree = dict(tree)
    if tree.get("metrics") is not None:
        if not isinstance(tree["metrics"], Mapping):
            raise ConfigError("metrics must map instance names to settings")
        tree["metrics"] = {
            str(name): {"metric": name, **_settings_of(str(name), settings)}
            for name, settings in tree["metrics"].items()
        }
    else:
        tree.pop("metrics", None)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    if not config.metrics:
        raise ConfigError(f"no metric is asked for; choose from: {', '.join(METRICS)}")
    return config


def _settings_of(name: str, settings: object) -> Mapping[str, Any]:
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"metrics.{name} must be a mapping of settings, not {settings!r}")
    return settings


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold a mapping of sections")
    return tree


def parse_setting(text: str) -> tuple[str, object]:
    """Return (key, value) of a ``key=value`` text; the value is read as YAML.

    Examples
    --------
    >>> parse_setting("qrelscore.exponent=2")
    ('qrelscore.exponent', 2)
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set takes key=value, not {text!r}")
    try:
        return key.strip(), yaml.safe_load(value) if value.strip() else value
    except yaml.YAMLError:
        return key.strip(), value


def _full_key(key: str, tree: Mapping[str, Any]) -> list[str]:
    parts = key.split(".")
    if parts[0] in RunConfig.model_fields:
        return parts
    known = {*METRICS, *(tree.get("metrics") or {})}
    if parts[0] in known:
        return ["metrics", *parts]
    raise ConfigError(f"unknown key {key!r}{nearest(parts[0], [*RunConfig.model_fields, *known])}")


def _put(tree: dict[str, Any], parts: Sequence[str], value: object) -> None:
    for part in parts[:-1]:
        child = tree.get(part)
        if not isinstance(child, dict):
            child = {}
        tree[part] = child
        tree = child
    tree[parts[-1]] = value


def _explain(error: ValidationError) -> str:
    lines = []
    items = error.errors(include_url=False)
    for item in items:
        if item["loc"][-1:] == ("str",) and len(items) > 1:
            continue  # The other branch of a union says what is wrong.
        where = [str(part) for part in item["loc"] if part not in ("str", "Baseline", "[key]")]
        if item["type"] == "extra_forbidden":
            known = _fields_at(where[:-1])
            lines.append(f"unknown key {'.'.join(where)!r}{nearest(where[-1], known)}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            lines.append(f"{'.'.join(where)}: {message}" if where else message)
    return "\n".join(dict.fromkeys(lines))


def _fields_at(parts: Sequence[str]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in parts:
        if part == "metrics":
            model = MetricSettings
            continue
        field = model.model_fields.get(part)
        if field is None:
            continue  # The instance name below metrics.
        kind = Baseline if part == "baseline" else field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
    return list(model.model_fields)
