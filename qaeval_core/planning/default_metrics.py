"""Default metrics: which metrics a run has where none is named.

An OUT keeps those of its first run. Else the columns decide: references are compared with a
candidate; without references, a question with context and answer is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_origin

from qaeval_core.configure import RunConfig, make_config
from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import Settings
from qaeval_core.metrics.catalog import METRICS, metric_of
from qaeval_core.models.engine import Device
from qaeval_core.planning.columns import present_roles, resolve_columns
from qaeval_core.planning.job import FoundFiles
from qaeval_core.planning.packages import missing_packages
from qaeval_core.planning.usual_columns import check_clear, kinds_of, usual_columns
from qaeval_core.planning.usual_names import ANSWERS_OF_SYSTEMS, usual_form
from qaeval_core.storage.path import read_json

_N_COLUMNS = 20


def with_default_metrics(
    config: RunConfig, found: FoundFiles, *, device: Device, may_guess: bool = True
) -> tuple[RunConfig, str]:
    """Return a configuration that has metrics, and a line that says which were chosen and why.

    Parameters
    ----------
    config : RunConfig
        It comes back as it is, with an empty line, where metrics are named.
    device : {"cpu", "cuda"}
        Where models would run: a model metric is chosen only if its packages are installed.
    may_guess : bool, default True
        False where settings were given: who tunes a run names what it computes.

    Raises
    ------
    ConfigError
        If the columns do not decide, or may not; names the metrics that fit.
    """
    if "metrics" in config.model_fields_set:
        return config, ""
    kept = _metrics_of_out(config, found)
    if kept:
        line = f"{_listed(list(kept))}, as in {found.store.out}"
        return config.model_copy(update={"metrics": kept}), f"metrics: {line}"
    names, reason = _by_columns(config, found, device=device)
    if not may_guess:
        raise ConfigError(
            "no metric is named, and with --set the columns choose none; add --metrics "
            f"{','.join(names)}, for {reason} [QA0206]"
        )
    chosen = make_config({"metrics": {name: {} for name in names}}).metrics
    line = f"metrics: {_listed(names)}, because {reason}. --metrics names others"
    return config.model_copy(update={"metrics": chosen}), line


def _metrics_of_out(config: RunConfig, found: FoundFiles) -> dict[str, Settings]:
    """Return the metrics that a run before this one wrote down in OUT.

    OUT may come from anybody: models, files and servers that it names must be named again.
    """
    if config.output.path is None:
        return {}
    content = read_json(found.store.out / "run.json") or {}
    written = content.get("config")
    if not isinstance(written, Mapping) or not written.get("metrics"):
        return {}
    kept = make_config({"metrics": written["metrics"]}, packages=packages_of_out(content)).metrics
    for name, settings in kept.items():
        metric_of(settings).reads(settings)  # One that is not installed says so.
        for key in _named_outside(settings):
            raise ConfigError(
                f"{found.store.out} was scored with its own value of {name}.{key}; name its "
                f"metrics and settings again, with --metrics {','.join(kept)} and --set [QA0206]"
            )
    return kept


def packages_of_out(content: Mapping[str, object]) -> dict[str, str]:
    """Return which package brought each metric of a run, as its run.json says."""
    written = content.get("packages")
    given = written.items() if isinstance(written, Mapping) else ()
    return {str(metric): str(package) for metric, package in given}


def _named_outside(settings: Settings) -> list[str]:
    """Return the settings that name a model, a file or a server, other than the default ones."""
    return [
        key
        for key, field in type(settings).model_fields.items()
        if key != "metric"
        and get_origin(field.annotation) is not Literal
        and isinstance(value := getattr(settings, key), str | dict | list | tuple)
        and value != field.get_default(call_default_factory=True)
    ]


def _by_columns(config: RunConfig, found: FoundFiles, *, device: Device) -> tuple[list[str], str]:
    given = config.input.columns
    resolve_columns(found.files, roles=given, mapping=given)  # A wrong name decides nothing.
    usual = usual_columns(kinds_of(found.files), given)
    for role in ("candidate", "references"):
        check_clear(usual, role)
    mapping = {**usual.columns, **given}
    roles = present_roles(found.files, mapping)
    names = list(dict.fromkeys(name for file in found.files for name in file.schema.names))
    if {"candidate", "references"} <= roles.keys():
        if roles["candidate"] not in ("candidate", mapping.get("candidate")):
            _check_reference_questions(roles, names)
        read = _read(roles, "candidate", "references")
        with_sas = make_config({"metrics": {"sas": {}}})
        with_sas = config.model_copy(update={"metrics": with_sas.metrics})
        if missing_packages(with_sas, device=device, hub=False):
            return ["f1"], f"the input has references ({read}); sas needs packages that are missing"
        return ["f1", "sas"], f"the input has references ({read})"
    for role in ("context", "answer", "question"):
        check_clear(usual, role)
    if {"candidate", "context", "answer"} <= roles.keys():
        read = _read(roles, "candidate", "context", "answer")
        return ["roundtrip"], f"the input has contexts and answers ({read})"
    fitting = [
        metric.name
        for metric in METRICS.values()
        if metric.roles and roles.keys() >= set(metric.roles)
    ]
    if fitting:
        raise ConfigError(
            "no metric is named, and these columns have no default. Metrics that fit: "
            f"{', '.join(fitting)}. Choose with --metrics, such as --metrics {fitting[0]} [QA0206]"
        )
    shown = ", ".join(names[:_N_COLUMNS]) + (", ..." if len(names) > _N_COLUMNS else "")
    raise ConfigError(
        f"no metric is named, and none fits the columns {shown}. Say what they are, such as "
        "--column candidate=NAME --column references=NAME, or choose with --metrics [QA0206]"
    )


def _check_reference_questions(roles: Mapping[str, str], names: list[str]) -> None:
    """Raise ConfigError where a question would be compared with what may be answers to it."""
    others = [name for name in names if usual_form(name) in ANSWERS_OF_SYSTEMS]
    if "answer" in roles and not others:
        return
    hint = others[0] if others else "NAME"
    raise ConfigError(
        f"no metric is named, and it is unclear what is compared with {roles['references']}: "
        f"--column candidate={hint} for answers, --column candidate={roles['candidate']} for "
        "questions [QA0206]"
    )


def _read(roles: Mapping[str, str], *named: str) -> str:
    return ", ".join(f"{role}={roles[role]}" for role in named)


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
