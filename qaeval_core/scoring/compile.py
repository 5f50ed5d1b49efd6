"""Compile: a configuration to the families to run and the instances to score from them.

Resolves artifacts and baselines, so that everything that can be wrong is wrong here, before any
row is read. Two instances whose pass-changing options agree share a family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qaeval_core.config import RunConfig
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.metrics.model_settings import AnswerSettings
from qaeval_core.metrics.naco_settings import NacoSettings
from qaeval_core.metrics.settings import QRelScoreSettings
from qaeval_core.models.artifact import ArtifactRequest
from qaeval_core.scoring.compile_answers import answer_requests, compile_answers
from qaeval_core.scoring.compile_models import ResolveArtifact
from qaeval_core.scoring.compile_naco import check_naco, compile_naco
from qaeval_core.scoring.compile_qrelscore import compile_qrelscore, qrelscore_requests
from qaeval_core.scoring.compile_words import compile_words
from qaeval_core.scoring.families import FAMILIES
from qaeval_core.scoring.plans import CompiledRun, FamilyPlan


def needed_roles(config: RunConfig) -> tuple[str, ...]:
    """Return the input roles that the configured metrics need, each once."""
    roles = [role for item in config.metrics.values() for role in METRICS[item.metric].roles]
    return tuple(dict.fromkeys(roles))


def optional_roles(config: RunConfig) -> tuple[str, ...]:
    """Return the input roles that the configured metrics read where there is such a column."""
    given = (METRICS[item.metric].optional_roles for item in config.metrics.values())
    return tuple(dict.fromkeys(role for roles in given for role in roles))


def needed_requests(config: RunConfig, *, device: str) -> list[ArtifactRequest]:
    """Return the artifacts that the configured metrics run, each once."""
    requests: dict[str, ArtifactRequest] = {}
    for settings in config.metrics.values():
        own: list[ArtifactRequest] = []
        if isinstance(settings, QRelScoreSettings):
            own = qrelscore_requests(settings, config, device=device)
        elif isinstance(settings, AnswerSettings):
            own = answer_requests(settings, config, device=device)
        requests |= {request.folder_name: request for request in own}
    return list(requests.values())


def compile_run(
    config: RunConfig,
    *,
    columns: Mapping[str, str],
    device: str,
    resolve_artifact: ResolveArtifact,
    corpus: str = "",
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
    corpus : str
        Hash of the rows, for statistics that depend on all of them.

    Raises
    ------
    ConfigError
        If a baseline file has no baseline for these models and options, or something is wrong with
        what asks a language model.
    """
    check_naco(config)
    families: dict[str, FamilyPlan] = {}
    instances = []
    plans: Sequence[FamilyPlan]
    for name, settings in config.metrics.items():
        if isinstance(settings, QRelScoreSettings):
            plans, instance = compile_qrelscore(
                name,
                settings,
                config,
                columns=columns,
                device=device,
                resolve_artifact=resolve_artifact,
            )
        elif isinstance(settings, AnswerSettings):
            plans, instance = compile_answers(
                name,
                settings,
                config,
                columns=columns,
                device=device,
                resolve_artifact=resolve_artifact,
                corpus=corpus,
            )
        elif isinstance(settings, NacoSettings):
            plans, instance = compile_naco(name, settings, config, columns=columns)
        else:
            plans, instance = compile_words(name, settings, columns=columns, corpus=corpus)
        for plan in plans:
            families.setdefault(plan.key, plan)
        instances.append(instance)
    # Words first; then families of one model beside each other, cheap ones first.
    order = ["words", *FAMILIES, "naco"]
    ordered = sorted(families.values(), key=lambda plan: order.index(plan.name))
    return CompiledRun(tuple(ordered), tuple(instances))
