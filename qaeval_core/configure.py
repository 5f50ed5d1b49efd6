"""Configure: strict YAML and ``key=value`` overrides in, one checked configuration out.

Unknown keys name the nearest valid one. Reads no data and resolves no model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, ValidationError

from qaeval_core.errors import ConfigError, UnknownMetricError, nearest
from qaeval_core.metrics.base import AnyMetric, Metric, Section, Settings
from qaeval_core.metrics.catalog import METRICS, metric_name
from qaeval_core.metrics.chat import SENT_FILES
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.metrics.unknown import UnknownMetric
from qaeval_core.models.record import GRAPHS
from qaeval_core.yaml_files import StrictYamlError, explained, load_yaml, read_yaml

INSTANCE_NAME = r"^[a-z][a-z0-9_]{0,62}$"
DEFAULT_METRIC = "qrelscore"


def _default_metrics() -> dict[str, Settings]:
    return {DEFAULT_METRIC: METRICS[DEFAULT_METRIC].settings(metric=DEFAULT_METRIC)}


class ModelSettings(Section):
    """How one model role runs (``models.<role>``)."""

    max_batch_tokens: int | None = Field(
        None, ge=128, description="tokens in a batch after padding; default by device and role"
    )
    max_batch_s: float = Field(
        900.0, gt=0.0, description="stop the run if a batch takes longer than this many seconds"
    )
    precision: Literal["auto", "fp32", "fp16", "bf16"] = Field(
        "auto", description="precision; auto: fp16 on a GPU, fp32 on a CPU; bf16: CPUs that have it"
    )
    allow_lossy: bool = Field(
        False, description="use an exported graph even if it differs too much from torch"
    )
    onnx_file: str | None = Field(
        None,
        description="ONNX file of a cross-encoder or sentence encoder to use instead of an export, "
        "e.g. onnx/model.onnx; null: only if the model has no safetensors",
    )
    max_export_s: float = Field(
        3600.0, gt=0.0, description="stop an export that takes longer than this many seconds"
    )
    max_export_gb: float | None = Field(
        None,
        gt=0.0,
        description="memory that an export may use in GB; default 8 and 16 times the model's files",
    )
    one_row_batches: bool = Field(
        False,
        description="run one row a batch: for an ONNX file that gives a row other values beside "
        "other rows",
    )


class ModelsSection(Section):
    """Models by role, and where their artifacts lie (``models``).

    Roles are those of graphs: a plugin's graph may bring one of its own.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, ModelSettings]

    encoder: ModelSettings = ModelSettings()
    causal_lm: ModelSettings = ModelSettings()
    cross_encoder: ModelSettings = ModelSettings()
    keyphrase_classifier: ModelSettings = ModelSettings()
    reader: ModelSettings = ModelSettings()
    artifacts_path: str | None = Field(
        None, description="folder of exported models; default QAEVAL_ARTIFACTS, else the cache"
    )
    build: bool = Field(True, description="export a missing model on first use")
    check_device: bool = Field(True, description="compare 40 rows with a CPU before using a GPU")
    exact_batches: bool = Field(
        False,
        description="give each row the same bits whatever runs beside it, on CPUs; slower",
    )

    def of(self, role: str) -> ModelSettings:
        """Return how the models of a role run."""
        settings: ModelSettings | None = getattr(self, role, None)
        return settings or ModelSettings()


class InputSection(Section):
    """What is read (``input``)."""

    paths: tuple[str, ...] = Field(
        (), description="files, folders, globs, or URIs of an object store"
    )
    columns: dict[str, str] = Field({}, description="column name of each role")
    binary_as_text: bool = Field(
        False, description="read binary columns as text, as written by Impala and old Spark"
    )
    unanswerable: Literal["undefined", "empty"] = Field(
        "undefined",
        description="meaning of an empty list of references: undefined (no score), or empty (no "
        "answer is right, as in SQuAD 2.0)",
    )
    encoding: str | None = Field(
        None,
        description="encoding of text files, such as cp1252. Default: UTF-8, or UTF-16 where a "
        "byte order mark says so",
    )
    predictions: tuple[str, ...] = Field(
        (),
        description="[NAME=]FILE of each system: {id: text}, or a table; joined by id",
    )
    no_answer: tuple[str, ...] = Field(
        (),
        description="[NAME=]FILE of no-answer scores, {id: score}, for the best thresholds",
    )
    missing: Literal["undefined", "empty"] = Field(
        "undefined",
        description="meaning of a row without a prediction: undefined (no score), or empty",
    )
    limit: int | None = Field(None, ge=0, description="score only the first N rows")
    sample_groups: int | None = Field(
        None,
        ge=1,
        description="score only the rows of N contexts, chosen by hash; other rows are "
        "`not_sampled`",
    )
    skip_unreadable: bool = Field(
        False, description="skip files that are not readable Parquet, instead of stopping"
    )


class OutputSection(Section):
    """What is written (``output``)."""

    path: str | None = Field(
        None, description="OUT folder: a path, or a URI of an object store (s3, gs, az)"
    )
    lock: bool = Field(
        True,
        description="refuse a second run into OUT; turn it off if the store cannot lock",
    )
    wait_s: float = Field(
        0.0, ge=0, description="seconds to wait for another run that writes to OUT"
    )
    carry: tuple[str, ...] = Field((), description="input columns to copy beside the scores")
    cluster: str | None = Field(
        None,
        description="column, or role, whose values rows share, for intervals; none: rows are "
        "independent. Default: the context, else the question",
    )
    statistics: bool = Field(
        False, description="write the statistics of corpus scores: <instance>_statistics"
    )
    replies: bool = Field(
        True, description="store the texts of LLM replies; false: only the values read from them"
    )
    texts: bool = Field(
        True, description="show texts of the lowest and highest rows in report.html"
    )


class ScoringSection(Section):
    """How work is cut and watched (``scoring``)."""

    rows_per_shard: int | None = Field(
        None, ge=1, description="rows to score and commit at once; default by metric and device"
    )
    max_shard_bytes: int = Field(64 << 20, ge=1024, description="largest shard in decoded bytes")
    max_text_bytes: int = Field(
        16 << 20,
        ge=1024,
        description="largest text, or list of texts, in bytes; rows with a larger one are "
        "quarantined (text_too_large)",
    )
    max_quarantined: float = Field(
        1.0, ge=0.0, le=1.0, description="stop if a larger share of rows is quarantined"
    )
    retry_quarantined: bool = Field(
        False, description="score quarantined rows again, and repeat failed LLM calls"
    )
    retry_storage_s: float = Field(
        300.0, ge=0.0, description="seconds to retry a disk or store that does not answer"
    )
    progress_s: float = Field(5.0, gt=0.0, description="seconds between progress lines")


class ClusterSection(Section):
    """Where work runs (``cluster``)."""

    address: str | None = Field(None, description="address of a Ray cluster; default: a local one")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device that models run on")
    actors: int | None = Field(
        None, ge=1, description="number of scoring actors; default one per GPU, else one per 4 CPUs"
    )
    llm_actors: int = Field(
        1, ge=1, description="number of actors that call LLMs; one makes hundreds of calls/s"
    )
    cpus_per_actor: float | None = Field(
        None,
        gt=0.0,
        description="CPUs and threads of one actor; default 4, with a GPU a share of the node",
    )
    start_timeout_s: float = Field(
        300.0, gt=0.0, description="seconds to wait until the cluster has started the actors"
    )
    blind_nodes: Literal["leave_out", "refuse"] = Field(
        "leave_out",
        description="run without the few nodes that do not see OUT, journal or input, or refuse",
    )
    no_progress_s: float = Field(
        600.0,
        ge=60.0,
        description="seconds without any work after which what is left begins anew, once",
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


# Of what was given instead of a setting: it may be a secret in the wrong place.
_N_SHOWN = 20
_MAX_VALUE_CHARS = 1 << 20


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
    tree = read_yaml(Path(path)) if path is not None else {}
    tree["metrics"] = _with_own_names(tree.get("metrics"))
    given = _sent_files(tree)
    told: list[tuple[str, ...]] = []
    for key, value in (overrides or {}).items():
        parts = _full_key(key, tree)
        _put(tree, parts, value)
        told.append(tuple(parts))
    config = make_config(tree)
    if path is not None:
        _check_sent_files(given, told, config=config, path=Path(path))
    return config


def _sent_files(tree: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return instance, setting and path of the files that a YAML file has sent to a server."""
    metrics = tree.get("metrics")
    items = metrics.items() if isinstance(metrics, Mapping) else ()
    return [
        (str(name), setting, own[setting])
        for name, own in items
        if isinstance(own, Mapping)
        for setting in SENT_FILES
        if isinstance(own.get(setting), str)
    ]


def _check_sent_files(
    given: Sequence[tuple[str, str, str]],
    told: Sequence[tuple[str, ...]],
    *,
    config: RunConfig,
    path: Path,
) -> None:
    """Raise ConfigError where a YAML file has a file sent that is not its own.

    A file of settings comes from others more often than a command does: one that names
    ``~/.ray/auth_token`` beside a server of its author would send it there. What it allows itself
    does not count; what the command line says does.
    """
    folder = os.path.realpath(path.parent)
    for name, setting, file in given:
        full = ("metrics", name, setting)
        allowed = ("metrics", name, "allow_insecure")
        if any(parts == full[: len(parts)] for parts in told):
            continue
        if allowed in told and getattr(config.metrics[name], "allow_insecure", False):
            continue
        if not Path(os.path.realpath(os.path.expanduser(file))).is_relative_to(folder):
            raise ConfigError(
                f"metrics.{name}.{setting} of {path} is not below {folder}. It could be somebody "
                "else's secret, and would go to this file's server. Name it yourself: --set "
                f"{name}.{setting}=FILE [QA0210]"
            )


def make_config(tree: Mapping[str, Any], *, packages: Mapping[str, str] | None = None) -> RunConfig:
    """Return the checked configuration of a plain tree of sections.

    Parameters
    ----------
    tree : mapping
    packages : mapping of metric to package, optional
        Of a finished run, whose metrics need not be known here.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value not allowed.
    """
    tree = dict(tree)
    problems: list[str] = []
    if packages is None:
        problems += _unknown_roles(tree.get("models"))
    if tree.get("metrics") is not None:
        if not isinstance(tree["metrics"], Mapping):
            raise ConfigError("metrics must be a mapping of instance names to settings [QA0202]")
        given = {
            str(name): {"metric": name, **_settings_of(str(name), settings)}
            for name, settings in tree["metrics"].items()
        }
        kinds = {
            name: _kind_of(name, settings["metric"], packages) for name, settings in given.items()
        }
        metrics: dict[str, Settings] = {}
        for name, settings in given.items():
            metric, is_ours = kinds[name]
            try:
                own = metric.settings.model_validate({**settings, "metric": metric.name})
                metrics[name] = own if is_ours else own.of(metric)
            except ValidationError as error:
                problems += explained(error, metric.settings, where=("metrics", name))
        tree["metrics"] = metrics
    else:
        tree.pop("metrics", None)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems += explained(error, RunConfig)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    if not config.metrics:
        raise ConfigError(f"no metric is named; choose from: {', '.join(METRICS)} [QA0206]")
    return config


def _unknown_roles(models: object) -> list[str]:
    """Return a line for each key of ``models`` that is no setting and no role of a graph."""
    fields = ModelsSection.model_fields
    given = [str(key) for key in models] if isinstance(models, Mapping) else []
    unknown = [key for key in given if key not in fields]
    if not unknown:
        return []
    known = dict.fromkeys([*fields, *(facts.role for facts in GRAPHS.values())])
    return [
        f"unknown key 'models.{key}'{nearest(key, known)} [QA0203]"
        for key in unknown
        if key not in known
    ]


def _kind_of(
    instance: str, given: object, packages: Mapping[str, str] | None
) -> tuple[AnyMetric, bool]:
    """Return the metric of an instance, and whether it is one of the catalog.

    Raises
    ------
    ConfigError
        If there is none of that name, or the instance has the name of another one.
    """
    own: AnyMetric | None = given if isinstance(given, Metric) else None
    if own is None and callable(given):
        own = FunctionMetric(given)
    if isinstance(own, FunctionMetric) and METRICS.is_own(own.name):
        raise ConfigError(
            f"{own.shown_function} has the name of qaeval's metric {own.name}; rename it [QA0208]"
        )
    name = metric_name(str(given)) if own is None else own.name
    if own is None and name not in METRICS:
        if packages is not None:
            return UnknownMetric(name, packages.get(name, "a package that it does not name")), False
        where = "" if instance == name else f"metrics.{instance}.metric: "
        hint = nearest(name, METRICS)
        raise UnknownMetricError(f"{where}unknown metric {name!r}{hint} [QA0204]", name)
    if instance in METRICS and instance != name:
        raise ConfigError(
            f"metrics.{instance}.metric is {name!r}, but {instance!r} is the name of another "
            "metric; choose a name that is not a metric [QA0208]"
        )
    return METRICS[name] if own is None else own, own is None


def _with_own_names(metrics: object) -> object:
    """Return instances under the catalog's names of metrics; what is no mapping or list as it is.

    Raises
    ------
    ConfigError
        If a metric is given under two of its names.
    """
    if isinstance(metrics, Sequence) and not isinstance(metrics, str):
        metrics = {str(name): {} for name in metrics}
    if not isinstance(metrics, Mapping):
        return metrics
    named: dict[str, object] = {}
    for given, settings in metrics.items():
        name = metric_name(str(given))
        if name in named:
            raise ConfigError(
                f"metrics.{given}: {name} is given twice, under two of its names [QA0208]"
            )
        named[name] = settings
    return named


def _settings_of(name: str, settings: object) -> Mapping[str, Any]:
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        kind = type(settings).__name__
        raise ConfigError(f"metrics.{name} must be a mapping of settings, not {kind} [QA0202]")
    return settings


def parse_setting(text: str) -> tuple[str, object]:
    """Return (key, value) of a ``key=value`` text; the value is read as YAML.

    Examples
    --------
    >>> parse_setting("qrelscore.exponent=2")
    ('qrelscore.exponent', 2)
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set takes key=value, not {text[:_N_SHOWN]!r} [QA0104]")
    if len(value) > _MAX_VALUE_CHARS:
        raise ConfigError(f"--set {key.strip()}: its value has {len(value):,} characters [QA0104]")
    try:
        return key.strip(), load_yaml(value) if value.strip() else value
    except StrictYamlError as error:
        # Globs and the like are no YAML; what cannot be held is not what was meant.
        if error.is_beyond:
            raise ConfigError(f"--set {key.strip()}: {error} [QA0104]") from None
        return key.strip(), value


def _full_key(key: str, tree: Mapping[str, Any]) -> list[str]:
    parts = key.split(".")
    if parts[0] == "metrics":
        return [parts[0], *map(metric_name, parts[1:2]), *parts[2:]]
    if parts[0] in RunConfig.model_fields:
        return parts
    known = {*METRICS, *(tree.get("metrics") or {})}
    parts[0] = metric_name(parts[0])
    if parts[0] in known:
        return ["metrics", *parts]
    raise ConfigError(
        f"unknown key {key!r}{nearest(parts[0], [*RunConfig.model_fields, *known])} [QA0203]"
    )


def _put(tree: dict[str, Any], parts: Sequence[str], value: object) -> None:
    for part in parts[:-1]:
        child = tree.get(part)
        if not isinstance(child, dict):
            child = {}
        tree[part] = child
        tree = child
    tree[parts[-1]] = value
