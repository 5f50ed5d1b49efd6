"""Compile: a configuration to the families to run and the instances to score from them.

Resolves artifacts and files, so that everything that can be wrong is wrong here, before any row is
read. Two instances whose pass-changing options agree share a family.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from qaeval_core.configure import ModelsSection, RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.families.catalog import FAMILIES, chat_family, pass_order
from qaeval_core.families.chat.family import ChatFamilyPlan, check_agreement, header_names
from qaeval_core.families.contract import Context, FamilyPlan, ResolveArtifact
from qaeval_core.llm.key import KEY_VARIABLE, check_address, check_key_file, is_loopback
from qaeval_core.metrics.base import AnyMetric, Settings
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.chat import ChatSettings, chat_settings
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.export_process import ExportLimits
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.planning.run_plan import CompiledRun, InstancePlan
from qaeval_core.secret_names import is_secret_header
from qaeval_core.signature import Signature


def needed_roles(config: RunConfig) -> tuple[str, ...]:
    """Return the input roles that the configured metrics need, each once."""
    roles = [role for item in config.metrics.values() for role in metric_of(item).roles_of(item)]
    return tuple(dict.fromkeys(roles))


def optional_roles(config: RunConfig) -> tuple[str, ...]:
    """Return the input roles that the configured metrics read where there is such a column."""
    given = (metric_of(item).optional_roles for item in config.metrics.values())
    return tuple(dict.fromkeys(role for roles in given for role in roles))


def needed_requests(config: RunConfig, *, device: str) -> list[ArtifactRequest]:
    """Return the artifacts that the configured metrics run, each once."""
    requests = [
        request
        for settings in config.metrics.values()
        for read in metric_of(settings).reads(settings)
        for request in FAMILIES[read.family].requests(read, config, device=device)
    ]
    return list({request.folder_name: request for request in requests}.values())


def export_limits(models: ModelsSection, request: ArtifactRequest) -> ExportLimits:
    """Return what the export of a request may take."""
    own = models.of(request.role)
    return ExportLimits(own.max_export_s, own.max_export_gb)


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
    check_chat(config)
    families: dict[str, FamilyPlan] = {}
    instances = []
    for name, settings in config.metrics.items():
        context = Context(
            config=config,
            instance=name,
            columns=columns,
            device=device,
            resolve_artifact=resolve_artifact,
            corpus=corpus,
        )
        plans, read = _plan_families(metric_of(settings), settings, context)
        for plan in plans:
            families.setdefault(plan.key, plan)
        keys = ",".join(plan.key for plan in plans)
        instances.append(_instance(name, metric_of(settings), settings, read, keys))
    ordered = sorted(families.values(), key=lambda plan: pass_order(plan.name))
    return CompiledRun(tuple(ordered), tuple(instances))


def _plan_families(
    metric: AnyMetric, settings: Settings, context: Context
) -> tuple[list[FamilyPlan], dict[str, FamilyPlan]]:
    """Return the families to run, and those of them that the metric reads by name."""
    counted: list[FamilyPlan] = []
    read: dict[str, FamilyPlan] = {}
    for one in metric.reads(settings):
        *before, read[one.family] = FAMILIES[one.family].plan(one, context)
        counted += before
    return [*counted, *read.values()], read


def _instance(
    name: str,
    metric: AnyMetric,
    settings: Settings,
    read: Mapping[str, FamilyPlan],
    keys: str,
) -> InstancePlan:
    try:
        resolved = metric.resolve(settings, {key: plan.facts for key, plan in read.items()})
    except ConfigError as error:
        raise ConfigError(f"metrics.{name}: {error}") from None
    shown = {**metric.signed(resolved), "families": keys}
    signature = Signature(settings.metric, shown, metric.version)
    return InstancePlan(name, metric, resolved, read, signature)


def check_chat(config: RunConfig) -> None:
    """Raise ConfigError for whatever is wrong with the settings of what asks a language model.

    Needs no rows, models or cluster: it is called before any of them takes its time.
    """
    plans: list[ChatFamilyPlan] = []
    for name, settings in config.metrics.items():
        metric = metric_of(settings)
        own = plan_chat(name, config, columns={})
        if own and len(own) == len(metric.reads(settings)):
            _instance(name, metric, settings, own, "")
        plans += own.values()
    check_agreement(plans)


def plan_chat(
    name: str, config: RunConfig, *, columns: Mapping[str, str]
) -> dict[str, ChatFamilyPlan]:
    """Return the families of an instance that ask a language model."""
    settings = config.metrics[name]
    context = Context(
        config=config,
        instance=name,
        columns=columns,
        device="cpu",
        resolve_artifact=_resolve_nothing,
        corpus="",
    )
    return {
        read.family: family.plan(read, context)[0]
        for read in metric_of(settings).reads(settings)
        if (family := chat_family(read.family)) is not None
    }


def _resolve_nothing(request: ArtifactRequest) -> Artifact:
    raise ConfigError(
        f"{request.folder_name}: a family that calls a language model runs no model of its own "
        "[QA0007]"
    )


_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def check_key_use(config: RunConfig) -> list[str]:
    """Return what to tell people of each key and host of a run, each once.

    Raises
    ------
    ConfigError
        If a key would go to another machine in clear, or lies in a file that others may open, and
        that is not allowed.
    """
    lines: dict[str, None] = {}
    asking = [
        (f"{name}.", chat_settings(read))
        for name, settings in config.metrics.items()
        if "endpoint" in metric_of(settings).needs
        for read in metric_of(settings).reads(settings)
    ]
    for section, settings in asking:
        if settings.base_url is None:
            continue
        if not settings.allow_insecure:
            check_address(settings.base_url, proxy=settings.proxy, section=section)
            if settings.api_key_file is not None:
                check_key_file(settings.api_key_file, section=section)
        lines |= dict.fromkeys(_lines(settings, settings.base_url, section))
    return list(lines)


def _lines(settings: ChatSettings, base_url: str, section: str) -> Iterator[str]:
    url = urlsplit(base_url)
    is_far = not is_loopback(url.hostname or "")
    headers = header_names(settings, section=section)
    source = f"the file {settings.api_key_file}"
    if settings.api_key_file is None:
        source = f"the variable {KEY_VARIABLE}"
        if KEY_VARIABLE not in os.environ:
            source += ", on nodes that have it,"
    through = f", through the proxy {urlsplit(settings.proxy).netloc}" if settings.proxy else ""
    if headers:
        yield f"the headers in {settings.headers_file} go to {url.netloc}{through}"
    # To a server on this machine without a key in sight there is nothing to tell.
    is_given = is_far or settings.api_key_file is not None or KEY_VARIABLE in os.environ
    secrets = [] if settings.api_key_file else [*filter(is_secret_header, headers)]
    if secrets and KEY_VARIABLE in os.environ:
        # Its name alone says that a header is a secret, and may be wrong.
        yield f"{KEY_VARIABLE} is not sent, because headers_file has {secrets[0]}"
    if is_given and not secrets:
        yield f"the key from {source} goes to {url.netloc}{through}"
    variables = [
        name for name in _PROXY_VARIABLES if name in os.environ or name.lower() in os.environ
    ]
    if is_far and variables and settings.proxy is None:
        proxy = f"{section}proxy"
        yield f"{variables[0]} is ignored; set {proxy} to use a proxy"
