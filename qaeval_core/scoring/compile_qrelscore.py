"""Compile QRelScore: an instance to the model passes it reads, with its baselines."""

from __future__ import annotations

from collections.abc import Mapping

from qaeval_core.config import RunConfig
from qaeval_core.metrics.settings import Baseline, QRelScoreSettings
from qaeval_core.models.artifact import ArtifactRequest
from qaeval_core.scoring.baselines import read_baseline
from qaeval_core.scoring.compile_models import (
    ResolveArtifact,
    model_family,
    model_request,
    pass_settings,
)
from qaeval_core.scoring.families import FAMILIES, FamilyKind
from qaeval_core.scoring.plans import InstancePlan, ModelFamilyPlan
from qaeval_core.signature import Signature


def qrelscore_requests(
    settings: QRelScoreSettings, config: RunConfig, *, device: str
) -> list[ArtifactRequest]:
    """Return the artifacts that an instance runs."""
    return [_request(kind, settings, config, device=device) for kind in _kinds(settings)]


def compile_qrelscore(
    name: str,
    settings: QRelScoreSettings,
    config: RunConfig,
    *,
    columns: Mapping[str, str],
    device: str,
    resolve_artifact: ResolveArtifact,
) -> tuple[list[ModelFamilyPlan], InstancePlan]:
    """Return the families and the instance of a QRelScore; see `compile_run`."""
    own = {}
    for kind in _kinds(settings):
        artifact = resolve_artifact(_request(kind, settings, config, device=device))
        own[kind.name] = model_family(
            kind, artifact, config, options=_options(kind, settings), columns=columns
        )
    return list(own.values()), _instance(name, settings, own)


def _kinds(settings: QRelScoreSettings) -> list[FamilyKind]:
    names = ["lrm", "grg"]
    if settings.metric == "ref_qrelscore":
        names += ["lrm_references", "grg_references"]
    return [FAMILIES[name] for name in names]


def _request(
    kind: FamilyKind, settings: QRelScoreSettings, config: RunConfig, *, device: str
) -> ArtifactRequest:
    options: dict[str, str] = {}
    if kind.graph == "relevance_matching":
        options = {"matching": settings.matching, "aggregate": settings.aggregate}
    model = getattr(settings, kind.model_role)
    return model_request(kind, model, config, device=device, options=options)


def _options(kind: FamilyKind, settings: QRelScoreSettings) -> dict[str, object]:
    options: dict[str, object] = {"profile": settings.profile}
    if kind.graph == "token_logprobs":
        options["max_window_tokens"] = settings.max_window_tokens
    return options


def formula_settings(kind_name: str, settings: QRelScoreSettings) -> dict[str, object]:
    """Return what of the join-time formula before rescaling decides its numbers."""
    if kind_name.startswith("lrm"):
        return {"layers": settings.layers, "exponent": settings.exponent}
    return {"gain": settings.gain}


def baseline_key(family: ModelFamilyPlan, settings: QRelScoreSettings) -> str:
    """Return what a baseline belongs to: model pass and formula, not columns."""
    made_from = {
        **pass_settings(family.artifact, family.options),
        **formula_settings(family.kind.name, settings),
    }
    return str(Signature(family.kind.name.split("_")[0], made_from, family.kind.version))


def _instance(
    name: str, settings: QRelScoreSettings, families: Mapping[str, ModelFamilyPlan]
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
