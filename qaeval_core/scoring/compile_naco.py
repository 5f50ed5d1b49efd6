"""Compile NACo: its settings to the family that asks and the instance that is scored from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qaeval_core.config import RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.metrics.naco_settings import NacoSettings
from qaeval_core.metrics.settings import Baseline
from qaeval_core.scoring.complexities import complexity_key, read_complexity
from qaeval_core.scoring.families.chat.naco_prompt import prompt_name
from qaeval_core.scoring.plans import AskedFamilyPlan, InstancePlan
from qaeval_core.scoring.store import check_out_path
from qaeval_core.signature import Signature

# Of the family: raise it when other fields are read of a reply, or answers are compared otherwise.
_VERSION = "1"
# A unit of work: what is lost of open shards is asked again from the journal, at no cost.
_ROWS_PER_SHARD = 128
_FAMILY_ROLES = ("candidate", "context", "answer")
# What calls of one server and key share, those with one journal, and metrics of one family.
_OF_ACCOUNT = ("requests_per_minute", "tokens_per_minute", "limit_window_s", "ledger_path")
_OF_PURSE = ("budget_usd",)
_OF_FAMILY = (
    "allow_insecure",
    "api_key_file",
    "journal_path",
    "max_concurrent",
    "max_outage_s",
    "prices",
    "proxy",
    "timeout_s",
)


def compile_naco(
    name: str, settings: NacoSettings, config: RunConfig, *, columns: Mapping[str, str]
) -> tuple[list[AskedFamilyPlan], InstancePlan]:
    """Return the family and the instance of NACo.

    Raises
    ------
    ConfigError
        If there is no endpoint, no model or no expected complexity: nothing is paid before.
    """
    plan = asked_family(name, settings, config, columns=columns)
    given = settings.expected_complexity
    if given is None:
        raise ConfigError(
            f"metrics.{name}.expected_complexity is missing: how many steps questions of this "
            "corpus usually take. Find it with `qaeval calibrate --metrics naco`, or give a number"
        )
    key, corpus = complexity_key(settings), "no"
    if isinstance(given, str):
        given, corpus = read_complexity(given, key=key, profile=settings.profile)
    shown = {
        "complexity_corpus": corpus,
        "expected_complexity": given,
        "families": plan.key,
        "profile": settings.profile,
        "weights": ",".join(f"{w:g}" for w in settings.weights.as_tuple),
    }
    resolved = settings.model_copy(update={"expected_complexity": given})
    signature = Signature("naco", shown, "1")
    return [plan], InstancePlan(name, resolved, {"naco": plan}, Baseline(), signature)


def asked_family(
    name: str, settings: NacoSettings, config: RunConfig, *, columns: Mapping[str, str]
) -> AskedFamilyPlan:
    """Return the family that asks.

    Raises
    ------
    ConfigError
        If there is no endpoint or no model.
    """
    for key in ("base_url", "model"):
        if getattr(settings, key) is None:
            raise ConfigError(f"metrics.{name}.{key} is missing: --set {name}.{key}=...")
    own_columns = {role: columns[role] for role in _FAMILY_ROLES if role in columns}
    options: dict[str, object] = {
        "base_url": settings.base_url,
        "model": settings.model,
        "parameters": settings.parameters,
        "one_shot": settings.one_shot,
        "prompt": prompt_name(one_shot=settings.one_shot),
        "runs": settings.runs,
    }
    journal_path = settings.journal_path
    if journal_path is None and config.output.path is not None:
        journal_path = str(check_out_path(config.output.path) / "journal")
    # Made absolute here: an actor's working folder is another one.
    settings = settings.model_copy(
        update={
            "api_key_file": _absolute(settings.api_key_file),
            "ledger_path": _absolute(settings.ledger_path),
        }
    )
    return AskedFamilyPlan(
        name="naco",
        options=options,
        columns=own_columns,
        signature=Signature("naco", {**options, "columns": own_columns}, _VERSION),
        rows_per_shard={"cpu": _ROWS_PER_SHARD, "cuda": _ROWS_PER_SHARD},
        settings=settings,
        journal_path=_absolute(journal_path),
        keeps_replies=config.output.replies,
    )


def _absolute(path: str | None) -> str | None:
    """Return a path from the root, or from the home of whichever node reads it."""
    return path if path is None or path.startswith("~") else str(Path(path).absolute())


def check_naco(config: RunConfig) -> None:
    """Raise ConfigError for whatever is wrong with the settings of what asks a language model.

    Needs no rows, models or cluster: it is called before any of them takes its time.
    """
    known: dict[tuple[object, ...], AskedFamilyPlan] = {}
    for name, settings in config.metrics.items():
        if not isinstance(settings, NacoSettings):
            continue
        (plan,), _ = compile_naco(name, settings, config, columns={})
        url = settings.base_url
        for sharing, keys, what in (
            ((url, settings.api_key_file), _OF_ACCOUNT, f"ask {url}"),
            ((plan.journal_path,), _OF_PURSE, f"pay from {plan.journal_path}"),
            ((plan.key, "family"), _OF_FAMILY, f"ask {settings.model} the same"),
        ):
            other = known.setdefault(sharing, plan)
            for key in keys:
                if getattr(other.settings, key) != getattr(plan.settings, key):
                    raise ConfigError(
                        f"two metrics {what} with other values of {key}; they share it"
                    )
