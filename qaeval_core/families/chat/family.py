"""Families that ask a language model over HTTP, beside the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeGuard

import pyarrow as pa

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.families.contract import (
    Context,
    DocumentFrequencies,
    Engine,
    Family,
    FamilyPlan,
    Layout,
    Resources,
    Runner,
    ShardTexts,
)
from qaeval_core.llm.chat_api import CHAT_APIS, DEFAULT_API
from qaeval_core.llm.key import read_headers
from qaeval_core.llm.limits import Message
from qaeval_core.llm.thoughts import without_thoughts
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.metrics.chat import OF_ACCOUNT, OF_BUDGET, OF_FAMILY, ChatSettings, chat_settings
from qaeval_core.secret_names import is_secret_header
from qaeval_core.signature import Signature
from qaeval_core.storage.path import StoragePath, as_path, check_lasting, open_out
from qaeval_core.store.pass_stats import PassStats

# A unit of work: what is lost of open shards is asked again from the journal, at no cost.
_ROWS_PER_SHARD = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFamilyPlan(FamilyPlan):
    """A family that asks a language model over HTTP; it runs beside the others.

    Attributes
    ----------
    instance : str
        The first one that reads it: messages name settings by it.
    settings : ChatSettings
        The endpoint, its limits, and what is asked.
    journal_path : str or None
        Folder of paid replies; None only where nothing is asked.
    keeps_replies : bool
        Whether the journal keeps the texts of replies.
    header_names : tuple of str
        Further headers that are sent, less those whose values are secrets.
    """

    family: ChatFamily
    instance: str
    settings: ChatSettings
    journal_path: str | None
    keeps_replies: bool = True
    header_names: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        """The section that messages name its settings by, with its dot."""
        return f"{self.instance}."

    @property
    def resources(self) -> Resources:
        """What its pass needs."""
        return "calls"

    @property
    def given_files(self) -> tuple[str, ...]:
        """The files of its key and its headers."""
        files = (self.settings.api_key_file, self.settings.headers_file)
        return tuple(file for file in files if file is not None)

    @property
    def journal_folder(self) -> StoragePath | None:
        """Where replies are kept."""
        return as_path(self.journal_path) if self.journal_path is not None else None

    @property
    def counts_money(self) -> bool:
        """Whether prices of its calls are known."""
        return self.settings.prices is not None

    @property
    def pending_schema(self) -> pa.Schema:
        """Statistics of rows that were not asked: it may have ended early."""
        return self.family.schema

    def open_layout(self, frequencies: DocumentFrequencies | None = None) -> ChatLayout:
        """Return what makes prompts."""
        return ChatLayout(self)

    def open_runner(self, engine: Engine) -> Runner:
        """Return what asks, in this process."""
        assert engine.open_calls is not None, "workers of their own make calls"
        return engine.open_calls(self)

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


class ParsedReply(Protocol):
    """What was read of a reply; a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def is_readable(self) -> bool:
        """Whether the reply has the form that was asked for."""

    @property
    def problem(self) -> str | None:
        """What an unreadable reply lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What came of one run of one request.

    Attributes
    ----------
    reply : ParsedReply or None
        What its reply says; None where there is none.
    problem : str or None
        Why the run does not count; None where it counts.
    message : str or None
        The same, for people.
    key : str or None
        Name of the reply in the journal.
    """

    reply: ParsedReply | None
    problem: str | None = None
    message: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One distinct prompt of a shard; all rows of it get the same readings."""

    messages: Sequence[Message]
    rows: list[int]


class ChatWork:
    """The requests of one shard, and what came of them.

    Parameters
    ----------
    family : ChatFamily
    requests : sequence of PromptRequest
    reasons : list of str or None
        Why a good row is not asked; None where it is.
    n_runs : int
        Replies asked for each request.
    values : mapping of role to values
        Of good rows.
    """

    def __init__(
        self,
        family: ChatFamily,
        requests: Sequence[PromptRequest],
        reasons: list[str | None],
        *,
        n_runs: int,
        values: Mapping[str, Sequence[Any]],
    ) -> None:
        self.requests = requests
        self.reasons = reasons
        self.n_runs = n_runs
        self.values = values
        self.family = family
        self._readings: dict[int, list[Reading]] = {}

    n_truncated = 0

    @property
    def n_units(self) -> int:
        """Requests, each run counted."""
        return self.n_runs * len(self.requests)

    @property
    def n_units_unshared(self) -> int:
        """Requests, had none been shared."""
        return self.n_runs * sum(len(request.rows) for request in self.requests)

    def take(self, request: PromptRequest, readings: Sequence[Reading]) -> None:
        """Keep what came of all runs of a request."""
        for row in request.rows:
            self._readings[row] = list(readings)

    def statistics(self) -> dict[str, pa.Array]:
        """Return the raw statistics of every row, in row order.

        Raises
        ------
        KeyError
            If a row that was to be asked has no reading.
        """
        per_row = [
            self._readings[i] if reason is None else [] for i, reason in enumerate(self.reasons)
        ]
        return self.family.statistics(self, per_row)


class ChatLayout(Layout[ChatWork]):
    """Makes the prompts of shards; a family reads passages one by one."""

    joins_passages = False

    def __init__(self, plan: ChatFamilyPlan) -> None:
        super().__init__(plan)
        self._plan = plan

    def lay_out(self, values: Mapping[str, Sequence[Any]], texts: ShardTexts | None) -> ChatWork:
        """Make the prompts of good rows."""
        return self._plan.family.lay_out(values, self._plan.settings)


class ChatFamily(Family):
    """What is asked of a language model: a prompt a row, and what its reply says."""

    roles: tuple[str, ...]
    schema: pa.Schema  # of its statistics
    required: ClassVar[tuple[str, ...]] = ("base_url", "model")  # settings of a run

    def bound(self, settings: ChatSettings) -> ChatFamily:
        """Return the family that asks and reads as these settings say."""
        return self

    @abstractmethod
    def asked(self, settings: ChatSettings) -> dict[str, object]:
        """Return what is asked besides model and parameters; part of the key of commits."""

    @abstractmethod
    def lay_out(self, values: Mapping[str, Sequence[Any]], settings: ChatSettings) -> ChatWork:
        """Return the requests of good rows."""

    @abstractmethod
    def read_reply(self, text: str) -> ParsedReply:
        """Return what a reply says; its thoughts are gone."""

    def read(self, text: str) -> ParsedReply:
        """Return what a reply says, thoughts aside: they weigh verdicts, and give none."""
        return self.read_reply(without_thoughts(text))

    def parsed(self, text: str) -> dict[str, Any]:
        """Return what a reply says as the journal keeps it."""
        return asdict(self.read(text))

    @abstractmethod
    def reply_of(self, parsed: Mapping[str, Any]) -> ParsedReply:
        """Return what a journal kept of a reply whose text is gone."""

    @abstractmethod
    def remind(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a prompt that asks once more, after a reply that could not be read."""

    @abstractmethod
    def statistics(
        self, work: ChatWork, readings: Sequence[Sequence[Reading]]
    ) -> dict[str, pa.Array]:
        """Return the statistics of every row from the readings of its runs."""

    def plan(self, read: Read, context: Context) -> tuple[ChatFamilyPlan, ...]:
        """Return the family.

        Raises
        ------
        ConfigError
            If there is no endpoint or no model.
        """
        settings, config = chat_settings(read), context.config
        _check_given(settings, self.required, instance=context.instance)
        family = self.bound(settings)
        columns = context.columns_of(family.roles)
        # In one order; names of secrets are left out, for keys change and scores do not.
        given = header_names(settings, section=f"{context.instance}.")
        names = tuple(sorted(name for name in given if not is_secret_header(name)))
        options = {**_asked(settings, names), **family.asked(settings)}
        journal_path = settings.journal_path
        if journal_path is None and config.output.path is not None:
            journal_path = str(open_out(config.output.path) / "journal")
        check_lasting(settings.ledger_path, "ledger_path")
        # Made absolute here: an actor's working folder is another one.
        settings = settings.model_copy(
            update={
                "api_key_file": _absolute(settings.api_key_file),
                "headers_file": _absolute(settings.headers_file),
                "ledger_path": _absolute(settings.ledger_path),
            }
        )
        plan = ChatFamilyPlan(
            name=self.name,
            options=options,
            columns=columns,
            signature=Signature(self.name, {**options, "columns": columns}, self.version),
            rows_per_shard={"cpu": _ROWS_PER_SHARD, "cuda": _ROWS_PER_SHARD},
            family=family,
            instance=context.instance,
            settings=settings,
            journal_path=_journal_place(journal_path),
            keeps_replies=config.output.replies,
            header_names=names,
        )
        return (plan,)


def _check_given(settings: ChatSettings, required: Sequence[str], *, instance: str) -> None:
    """Raise ConfigError where a setting is missing, or no API has the name that is given."""
    for key in required:
        if getattr(settings, key) is None:
            name = instance
            raise ConfigError(f"metrics.{name}.{key} is missing: --set {name}.{key}=... [QA0207]")
    if settings.api not in CHAT_APIS:
        hint = nearest(settings.api, CHAT_APIS)
        raise ConfigError(f"metrics.{instance}.api: unknown {settings.api!r}{hint} [QA0202]")


def _asked(settings: ChatSettings, headers: Sequence[str]) -> dict[str, object]:
    """Return what decides replies besides the prompt.

    What is rare stands there only where it is given: scores of runs without it stay comparable.
    """
    options: dict[str, object] = {
        "base_url": settings.base_url,
        "model": settings.model,
        "parameters": settings.parameters,
    }
    if settings.query:
        options["query"] = settings.query
    if settings.api != DEFAULT_API:
        options["api"] = settings.api
    if headers:
        options["headers"] = ",".join(headers)
    return options


def header_names(settings: ChatSettings, *, section: str) -> tuple[str, ...]:
    """Return the names of the headers in a file, in small letters.

    Parameters
    ----------
    section : str
        Of the settings that messages name, with its dot.

    Raises
    ------
    ConfigError
        If the file cannot be read here, or others may open it.
    """
    if settings.headers_file is None:
        return ()
    headers = read_headers(
        settings.headers_file, allow_insecure=settings.allow_insecure, section=section
    )
    return tuple(name.lower() for name in headers)


def _absolute(path: str | None) -> str | None:
    """Return a path from the root, or from the home of whichever node reads it."""
    return path if path is None or path.startswith("~") else str(Path(path).absolute())


def _journal_place(path: str | None) -> str | None:
    """Return a path as `_absolute` does, or the URI of a store that is known and installed.

    Raises
    ------
    ConfigError
        If it is none, or would be gone with this process.
    """
    check_lasting(path, "journal_path")
    if path is None or "://" not in path:
        return _absolute(path)
    return str(open_out(path))


def check_agreement(plans: Sequence[ChatFamilyPlan]) -> None:
    """Raise ConfigError where families share a server, a journal or calls, and disagree on it."""
    known: dict[tuple[object, ...], ChatFamilyPlan] = {}
    for plan in plans:
        settings = plan.settings
        url = settings.base_url
        for sharing, keys, what in (
            (
                (url, settings.api_key_file, settings.headers_file),
                OF_ACCOUNT,
                f"ask {url}",
            ),
            ((plan.journal_path,), OF_BUDGET, f"pay from {plan.journal_path}"),
            ((plan.key, "family"), OF_FAMILY, f"ask {settings.model} the same"),
        ):
            other = known.setdefault(sharing, plan)
            for key in keys:
                if getattr(other.settings, key) != getattr(settings, key):
                    raise ConfigError(
                        f"two metrics {what} with different values of {key}, which they share "
                        "[QA0209]"
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
        "no_verdict": by_reason("no_verdict:"),
        "failed": by_reason("failed:"),
        "given_up": by_reason("given_up:"),
        "noted": by_reason("noted:"),
    }


def is_chat(plan: FamilyPlan) -> TypeGuard[ChatFamilyPlan]:
    """Whether a family makes calls, for which there are workers of their own."""
    return plan.resources == "calls"
