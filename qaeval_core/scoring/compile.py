"""Compile: a configuration to the families to run and the instances to score from them.

Resolves artifacts and baselines, so that everything that can be wrong is wrong here, before any
row is read. Two instances whose pass-changing options agree share a family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qaeval_core.config import Baseline, MetricSettings, RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.models.artifact import Artifact, ArtifactRequest
from qaeval_core.scoring.baselines import read_baseline
from qaeval_core.scoring.families import FAMILIES, FamilyKind
from qaeval_core.signature import Signature

ResolveArtifact = Callable[[ArtifactRequest], Artifact]


@dataclass(frozen=True, slots=True)
class FamilyPlan:
    """One family of a run: what to compute and the key of its commits."""

    kind: FamilyKind
    artifact: Artifact
    options: Mapping[str, object]
    columns: Mapping[str, str]
    signature: Signature

    @property
    def key(self) -> str:
        """Folder name below ``families/``."""
        return f"{self.kind.name}-{self.signature.short_hash}"

    @property
    def max_unit_tokens(self) -> int:
        """Tokens of the longest unit that can occur: one window."""
        n_positions = self.artifact.record.max_positions
        return min(n_positions, int(str(self.options.get("max_window_tokens", n_positions))))


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One metric instance of a run and the families its formulas read."""

    name: str
    settings: MetricSettings
    families: Mapping[str, FamilyPlan]  # by family name
    baseline: Baseline
    signature: Signature

    @property
    def outputs(self) -> tuple[str, ...]:
        """Sub-scores, in column order; an unbounded GRG is not combined."""
        outputs = METRICS[self.settings.metric].outputs
        if self.settings.gain == "absolute":
            return tuple(output for output in outputs if output != "")
        return outputs

    def column(self, output: str) -> str:
        """Return the column name of a sub-score."""
        return f"{self.name}_{output}" if output else self.name

    @property
    def reason_column(self) -> str:
        """Column that says why a score is undefined."""
        return f"{self.name}_reason"


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """All families (each once) and instances of a run."""

    families: tuple[FamilyPlan, ...]
    instances: tuple[InstancePlan, ...]


def needed_roles(config: RunConfig) -> tuple[str, ...]:
    """Return the input roles that the configured metrics read, each once."""
    roles = [role for item in config.metrics.values() for role in METRICS[item.metric].roles]
    return tuple(dict.fromkeys(roles))


def needed_requests(config: RunConfig, *, device: str) -> list[ArtifactRequest]:
    """Return the artifacts that the configured metrics run, each once."""
    requests = {
        _request(kind, settings, config, device=device).folder_name: _request(
            kind, settings, config, device=device
        )
        for settings in config.metrics.values()
        for kind in _kinds(settings)
    }
    return list(requests.values())


def compile_run(
    config: RunConfig,
    *,
    columns: Mapping[str, str],
    device: str,
    resolve_artifact: ResolveArtifact,
) -> CompiledRun:
    """Return the families and instances of a run.

    Parameters
    ----------
    config : RunConfig
    columns : mapping of role to column
        What the roles are read from; part of a family's signature.
    device : {"cpu", "cuda"}
        Decides the precision where it is ``auto``.
    resolve_artifact : callable
        ArtifactRequest -> Artifact; may build it.

    Raises
    ------
    ConfigError
        If a baseline file has no baseline for these models and options.
    """
    families: dict[str, FamilyPlan] = {}
    instances = []
    for name, settings in config.metrics.items():
        own = {}
        for kind in _kinds(settings):
            artifact = resolve_artifact(_request(kind, settings, config, device=device))
            plan = _family(kind, settings, artifact, columns)
            _check_batch_tokens(plan, config)
            own[kind.name] = families.setdefault(plan.key, plan)
        instances.append(_instance(name, settings, own))
    # Families of one model beside each other, cheap ones first.
    order = list(FAMILIES)
    ordered = sorted(families.values(), key=lambda plan: order.index(plan.kind.name))
    return CompiledRun(tuple(ordered), tuple(instances))


def _check_batch_tokens(plan: FamilyPlan, config: RunConfig) -> None:
    role = plan.kind.model_role
    given = getattr(config.models, role).max_batch_tokens
    if given is not None and given < plan.max_unit_tokens:
        raise ConfigError(
            f"models.{role}.max_batch_tokens is {given}, but one window of "
            f"{plan.artifact.record.model.name} has up to {plan.max_unit_tokens} tokens"
        )


def _kinds(settings: MetricSettings) -> list[FamilyKind]:
    names = ["lrm", "grg"]
    if settings.metric == "ref_qrelscore":
        names += ["lrm_references", "grg_references"]
    return [FAMILIES[name] for name in names]


def _request(
    kind: FamilyKind, settings: MetricSettings, config: RunConfig, *, device: str
) -> ArtifactRequest:
    model_settings = getattr(config.models, kind.model_role)
    precision = model_settings.precision
    if precision == "auto":
        precision = "fp16" if device == "cuda" else "fp32"
    options: dict[str, str] = {}
    if kind.graph == "relevance_matching":
        options = {"matching": settings.matching, "aggregate": settings.aggregate}
    return ArtifactRequest(
        graph=kind.graph,
        model=getattr(settings, kind.model_role),
        precision=precision,
        options=options,
        allow_lossy=model_settings.allow_lossy,
    )


def _family(
    kind: FamilyKind, settings: MetricSettings, artifact: Artifact, columns: Mapping[str, str]
) -> FamilyPlan:
    options: dict[str, object] = {"profile": settings.profile}
    if kind.graph == "token_logprobs":
        options["max_window_tokens"] = settings.max_window_tokens
    own_columns = {role: columns[role] for role in kind.roles if role in columns}
    signature = Signature(
        kind.name, {**pass_settings(artifact, options), "columns": own_columns}, kind.version
    )
    return FamilyPlan(kind, artifact, options, own_columns, signature)


def pass_settings(artifact: Artifact, options: Mapping[str, object]) -> dict[str, object]:
    """Return what of a model pass decides its numbers: artifact, precision and options."""
    record = artifact.record
    return {
        **options,
        **record.options,
        "artifact": artifact.hash[:12],
        "model": record.model.name,
        "precision": record.precision,
        "lossy": record.lossy,
    }


def formula_settings(kind_name: str, settings: MetricSettings) -> dict[str, object]:
    """Return what of the join-time formula before rescaling decides its numbers."""
    if kind_name.startswith("lrm"):
        return {"layers": settings.layers, "exponent": settings.exponent}
    return {"gain": settings.gain}


def baseline_key(family: FamilyPlan, settings: MetricSettings) -> str:
    """Return what a baseline belongs to: model pass and formula, not columns."""
    made_from = {
        **pass_settings(family.artifact, family.options),
        **formula_settings(family.kind.name, settings),
    }
    return str(Signature(family.kind.name.split("_")[0], made_from, family.kind.version))


def _instance(
    name: str, settings: MetricSettings, families: Mapping[str, FamilyPlan]
) -> InstancePlan:
    keys = {part: baseline_key(families[part], settings) for part in ("lrm", "grg")}
    corpus = "none"
    baseline = Baseline()
    if isinstance(settings.baseline, Baseline):
        baseline, corpus = settings.baseline, "given"
    elif settings.baseline is not None:
        baseline, corpus = read_baseline(settings.baseline, keys=keys)
    shown = {
        "baseline_corpus": corpus,
        "baseline_lrm": baseline.lrm if baseline.lrm is not None else "no",
        "baseline_grg": baseline.grg if baseline.grg is not None else "no",
        "exponent": settings.exponent,
        "families": ",".join(family.key for family in families.values()),
        "gain": settings.gain,
        "layers": settings.layers,
        "profile": settings.profile,
    }
    return InstancePlan(name, settings, families, baseline, Signature(settings.metric, shown, "1"))
