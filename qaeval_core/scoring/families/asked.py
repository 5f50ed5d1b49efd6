"""Families that ask a language model over HTTP, beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.metrics.naco import NacoSettings
from qaeval_core.scoring.families.chat.naco_prompt import prompt_name
from qaeval_core.scoring.families.naco import STATISTICS_SCHEMA
from qaeval_core.scoring.pass_stats import PassStats
from qaeval_core.scoring.plans import Context, Engine, Family, FamilyPlan, Resources, Runner
from qaeval_core.scoring.store import check_out_path
from qaeval_core.signature import Signature

# A unit of work: what is lost of open shards is asked again from the journal, at no cost.
_ROWS_PER_SHARD = 128
# What calls of one server and key share, those with one journal, and metrics of one family.
_OF_ACCOUNT = ("requests_per_minute", "tokens_per_minute", "limit_window_s", "ledger_path")
_OF_BUDGET = ("budget_usd",)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFamilyPlan(FamilyPlan):
    """A family that asks a language model over HTTP; it runs beside the others.

    Attributes
    ----------
    settings : NacoSettings
        The endpoint, its limits, and what is asked.
    journal_path : str or None
        Folder of paid replies; None only where nothing is asked.
    keeps_replies : bool
        Whether the journal keeps the texts of replies.
    """

    settings: NacoSettings
    journal_path: str | None
    keeps_replies: bool = True

    @property
    def resources(self) -> Resources:
        """What its pass needs."""
        return "calls"

    @property
    def given_files(self) -> tuple[str, ...]:
        """The file of its key."""
        key_file = self.settings.api_key_file
        return (key_file,) if key_file is not None else ()

    @property
    def journal_folder(self) -> Path | None:
        """Where replies are kept."""
        return Path(self.journal_path).expanduser() if self.journal_path is not None else None

    @property
    def counts_money(self) -> bool:
        """Whether prices of its calls are known."""
        return self.settings.prices is not None

    @property
    def pending_schema(self) -> pa.Schema:
        """Statistics of rows that were not asked: it may have ended early."""
        return STATISTICS_SCHEMA

    def open_runner(self, engine: Engine) -> Runner:
        """Return what asks, in this process."""
        # Imported here: HTTP takes a tenth of a second that other runs need not pay.
        from qaeval_core.scoring.asked_locally import AskedRunner

        return AskedRunner(self)

    def report(self, committed: PassStats) -> dict[str, Any]:
        """Return what all its commits cost."""
        return {
            "rows": committed.n_rows,
            "requests": committed.n_units,
            "requests_avoided": committed.n_units_unshared - committed.n_units,
            "calls": _calls(committed.calls, has_prices=self.counts_money),
        }

    @property
    def facts(self) -> PassFacts:
        """What a metric may know of the pass."""
        return PassFacts(version=self.signature.version, settings=self.options)


@dataclass(frozen=True, slots=True)
class AskedFamily(Family):
    """What is asked of a language model."""

    name: str
    # Raise it when other fields are read of a reply, or answers are compared otherwise.
    version: str
    roles: tuple[str, ...]

    def plan(self, read: Read, context: Context) -> tuple[AskedFamilyPlan, ...]:
        """Return the family.

        Raises
        ------
        ConfigError
            If there is no endpoint or no model.
        """
        assert isinstance(read.settings, NacoSettings)
        settings, config = read.settings, context.config
        for key in ("base_url", "model"):
            if getattr(settings, key) is None:
                name = context.instance
                raise ConfigError(f"metrics.{name}.{key} is missing: --set {name}.{key}=...")
        columns = context.columns_of(self.roles)
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
        plan = AskedFamilyPlan(
            name=self.name,
            options=options,
            columns=columns,
            signature=Signature(self.name, {**options, "columns": columns}, self.version),
            rows_per_shard={"cpu": _ROWS_PER_SHARD, "cuda": _ROWS_PER_SHARD},
            settings=settings,
            journal_path=_absolute(journal_path),
            keeps_replies=config.output.replies,
        )
        return (plan,)


ASKED_FAMILIES: Mapping[str, AskedFamily] = {
    "naco": AskedFamily("naco", "1", ("candidate", "context", "answer"))
}


def _absolute(path: str | None) -> str | None:
    """Return a path from the root, or from the home of whichever node reads it."""
    return path if path is None or path.startswith("~") else str(Path(path).absolute())


def check_agreement(plans: Sequence[AskedFamilyPlan]) -> None:
    """Raise ConfigError where families share a server, a journal or calls, and disagree on it."""
    known: dict[tuple[object, ...], AskedFamilyPlan] = {}
    for plan in plans:
        settings = plan.settings
        url = settings.base_url
        for sharing, keys, what in (
            ((url, settings.api_key_file), _OF_ACCOUNT, f"ask {url}"),
            ((plan.journal_path,), _OF_BUDGET, f"pay from {plan.journal_path}"),
            ((plan.key, "family"), _OF_FAMILY, f"ask {settings.model} the same"),
        ):
            other = known.setdefault(sharing, plan)
            for key in keys:
                if getattr(other.settings, key) != getattr(settings, key):
                    raise ConfigError(
                        f"two metrics {what} with other values of {key}; they share it"
                    )


def _calls(calls: Mapping[str, int], *, has_prices: bool) -> dict[str, Any]:
    """Return what came of the calls that committed shards needed.

    Failures were tried again, or given up. What a stopped run had paid for comes from the journal
    in the next one.
    """

    def by_reason(kind: str) -> dict[str, int]:
        own = {key.removeprefix(kind): n for key, n in calls.items() if key.startswith(kind)}
        return dict(sorted(own.items()))

    return {
        "paid": calls.get("paid", 0),
        "from_journal": calls.get("from_journal", 0),
        "prompt_tokens": calls.get("prompt_tokens", 0),
        "completion_tokens": calls.get("completion_tokens", 0),
        "usd": calls.get("nano_usd", 0) / 1e9 if has_prices else None,
        "reminders": calls.get("reminders", 0),
        "unparsable_runs": calls.get("unparsable", 0),
        "failed": by_reason("failed:"),
        "given_up": by_reason("given_up:"),
        "noted": by_reason("noted:"),
    }


def is_asked(plan: FamilyPlan) -> TypeGuard[AskedFamilyPlan]:
    """Whether a family makes calls, for which there are workers of their own."""
    return plan.resources == "calls"
