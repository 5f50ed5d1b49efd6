"""Compile models: what every metric that runs a model has in common: artifacts and families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qaeval_core.config import RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.models.artifact import Artifact, ArtifactRequest
from qaeval_core.scoring.families import FamilyKind
from qaeval_core.scoring.plans import ModelFamilyPlan
from qaeval_core.signature import Signature

ResolveArtifact = Callable[[ArtifactRequest], Artifact]


def model_request(
    kind: FamilyKind,
    model: str,
    config: RunConfig,
    *,
    device: str,
    options: Mapping[str, str] | None = None,
) -> ArtifactRequest:
    """Return the artifact that a family runs.

    Parameters
    ----------
    model : str
        As the user wrote it.
    device : {"cpu", "cuda"}
        Decides the precision where it is ``auto``.
    options : mapping, optional
        Of the graph.
    """
    settings = getattr(config.models, kind.model_role)
    precision = settings.precision
    if precision == "auto":
        precision = "fp16" if device == "cuda" else "fp32"
    return ArtifactRequest(
        graph=kind.graph,
        model=model,
        precision=precision,
        options=options or {},
        allow_lossy=settings.allow_lossy,
    )


def model_family(
    kind: FamilyKind,
    artifact: Artifact,
    config: RunConfig,
    *,
    options: Mapping[str, object],
    columns: Mapping[str, str],
    corpus: str = "",
    **given: Any,
) -> ModelFamilyPlan:
    """Return a family of an artifact.

    Parameters
    ----------
    options : mapping
        What changes the pass; part of the signature.
    columns : mapping of role to column
        Those that the family does not read are left out.
    corpus : str
        Hash of the rows, for statistics that depend on all of them.
    **given
        ``after``, ``frequencies_path`` and ``words`` of the plan.

    Raises
    ------
    ConfigError
        If a batch has room for less than one window.
    """
    own_columns = {role: columns[role] for role in kind.roles if role in columns}
    shown = {**pass_settings(artifact, options), "columns": own_columns}
    if corpus:
        shown["corpus"] = corpus
    plan = ModelFamilyPlan(
        name=kind.name,
        options=options,
        columns=own_columns,
        signature=Signature(kind.name, shown, kind.version),
        rows_per_shard=kind.rows_per_shard,
        max_shard_bytes=kind.max_shard_bytes,
        kind=kind,
        artifact=artifact,
        **given,
    )
    _check_batch_tokens(plan, config)
    return plan


def _check_batch_tokens(plan: ModelFamilyPlan, config: RunConfig) -> None:
    role = plan.kind.model_role
    given = getattr(config.models, role).max_batch_tokens
    if plan.kind.runs_model and given is not None and given < plan.max_unit_tokens:
        raise ConfigError(
            f"models.{role}.max_batch_tokens is {given}, but one window of "
            f"{plan.artifact.record.model.name} has up to {plan.max_unit_tokens} tokens"
        )


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
