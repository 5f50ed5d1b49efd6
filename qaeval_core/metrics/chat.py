"""Settings of metrics that ask a language model: the endpoint, its limits, what a request says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from qaeval_core.metrics.base import Read, Section, Settings
from qaeval_core.metrics.targets import BoolArray, FloatArray, Targets
from qaeval_core.secret_names import secret_name_in

Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

# How keys of well-known services begin; no path does.
_KEY_STARTS = ("sk-", "sk_", "gsk_", "hf_", "Bearer ")


# Settings that name files whose content goes to the endpoint.
SENT_FILES = ("api_key_file", "headers_file", "prompt_file")
# What a request says by other settings, or must not say: one reply, whole.
_OWN_FIELDS = {
    "model": "model",
    "messages": "the prompt",
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n": "runs",
    "stream": "qaeval, which reads replies whole",
    "stream_options": "qaeval, which reads replies whole",
}

# What calls of one server and key share, those with one journal, and metrics of one family.
OF_ACCOUNT = ("requests_per_minute", "tokens_per_minute", "limit_window_s", "ledger_path")
OF_BUDGET = ("budget_usd",)
OF_FAMILY = (
    "allow_insecure",
    "api_key_file",
    "headers_file",
    "journal_linger_s",
    "journal_path",
    "max_concurrent",
    "max_outage_s",
    "prices",
    "proxy",
    "timeout_s",
)

_DEFAULT_API = "openai"

UNPARSABLE = "unparsable_reply"  # Of a run without a readable reply.
PENDING = "pending"  # Of a row that was not asked: its family ended early.


class ChatPrices(Section):
    """What tokens cost."""

    prompt: Price = Field(description="USD per million prompt tokens")
    completion: Price = Field(description="USD per million completion tokens")


class ChatSettings(Settings):
    """Settings of a metric that asks a language model."""

    without_effect: ClassVar[frozenset[str]] = frozenset({*OF_ACCOUNT, *OF_BUDGET, *OF_FAMILY})

    # A key given in the wrong place must not come back in a message.
    model_config = ConfigDict(hide_input_in_errors=True)

    base_url: str | None = Field(
        None, description="URL of an OpenAI-compatible endpoint, up to /v1; required"
    )
    model: str | None = Field(None, description="name of the model at the endpoint; required")
    api: str = Field(
        _DEFAULT_API, description="kind of the endpoint: openai, or one that a plugin brings"
    )
    api_key_file: str | None = Field(
        None,
        description="file with the API key; null: OPENAI_API_KEY of each node, or no key",
    )
    allow_insecure: bool = Field(
        False,
        description="allow http:// to other machines, and key files that others can read",
    )
    proxy: str | None = Field(
        None, description="HTTP proxy for the calls; null: none. HTTPS_PROXY is ignored"
    )
    body: dict[str, Any] | None = Field(
        None,
        description="extra fields of each request, e.g. {reasoning_effort: low} or "
        "{chat_template_kwargs: {enable_thinking: false}}",
    )
    query: dict[str, str] | None = Field(
        None, description="query of each URL, e.g. {api-version: '2024-10-21'}"
    )
    headers_file: str | None = Field(
        None,
        description="file with extra headers, one `Name: value` per line; a header with a key is "
        "sent instead of OPENAI_API_KEY",
    )
    requests_per_minute: int | None = Field(
        None, ge=1, description="request limit of the endpoint; null: none"
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="token limit of the endpoint, prompt plus max_tokens; null: none"
    )
    max_concurrent: int = Field(
        16, ge=1, description="maximum number of concurrent calls of all actors"
    )
    budget_usd: float | None = Field(
        None,
        ge=0.0,
        allow_inf_nan=False,
        description="stop before spending more than this; needs prices",
    )
    prices: ChatPrices | None = Field(
        None,
        description="prices per million tokens: {prompt: USD, completion: USD}; null: not counted",
    )
    runs: int = Field(1, ge=1, le=100, description="replies to request for each question")
    temperature: float | None = Field(
        0.7, ge=0.0, le=2.0, description="sampling temperature; null: not sent"
    )
    top_p: float | None = Field(
        1.0, gt=0.0, le=1.0, description="top-p of sampling; null: not sent"
    )
    max_tokens: int = Field(
        512, ge=16, description="longest reply in tokens; reserved for each call"
    )
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="name of max_tokens at the endpoint"
    )
    timeout_s: float = Field(
        120.0, gt=0.0, allow_inf_nan=False, description="seconds to wait for a reply"
    )
    max_outage_s: float = Field(
        300.0,
        gt=0.0,
        allow_inf_nan=False,
        description="give up after this many seconds without any reply (60 if there never was "
        "one); unscored rows stay pending",
    )
    journal_path: str | None = Field(
        None, description="folder or URI of paid replies, may be shared by runs; null: OUT/journal"
    )
    journal_linger_s: float = Field(
        0.1,
        ge=0.0,
        le=10.0,
        description="object stores: seconds to collect replies before they are written together",
    )
    ledger_path: str | None = Field(
        None,
        description="folder that records limits and budgets if a process dies; null: "
        "~/.cache/qaeval/ledgers",
    )
    limit_window_s: float = Field(
        60.0,
        gt=0.0,
        allow_inf_nan=False,
        description="length of the window of the limits in seconds",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_query(cls, given: Any) -> Any:
        """Take the query out of a URL, as people copy it."""
        url = given.get("base_url") if isinstance(given, dict) else None
        if not isinstance(url, str) or "?" not in url or given.get("query"):
            return given
        bare, _, query = url.partition("?")
        return {**given, "base_url": bare, "query": query}

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, given: str | None) -> str | None:
        return None if given is None else _checked_url(given)

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, given: str | None) -> str | None:
        # A name and a password would stand in run.json.
        return None if given is None else _checked_url(given, what="http://proxy:3128")

    @field_validator("model", "journal_path", "ledger_path")
    @classmethod
    def _check_not_empty(cls, given: str | None) -> str | None:
        if given is not None and not given.strip():
            raise ValueError("it is empty")
        return given

    @field_validator("body")
    @classmethod
    def _check_body(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if not given:
            return None
        for name in given:
            if name in _OWN_FIELDS:
                raise ValueError(f"{name} is set by {_OWN_FIELDS[name]}")
        _check_no_secret(given, is_query=False)
        try:
            # In one order: what is asked is equal where the fields are.
            fields: dict[str, Any] = json.loads(json.dumps(given, sort_keys=True, allow_nan=False))
        except (TypeError, ValueError):
            raise ValueError(
                "it takes texts, numbers, truth values, lists and mappings; a date is quoted"
            ) from None
        return fields

    @field_validator("query", mode="before")
    @classmethod
    def _check_query(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = _fields_of(given.removeprefix("?"))
        if not isinstance(given, Mapping):
            return given
        _check_no_secret(given, is_query=True)
        # 2024-10-21 is a date to YAML, and 1.5 a number.
        plain = str | int | float | date
        return {
            name: str(value) if isinstance(value, plain) and not isinstance(value, bool) else value
            for name, value in given.items()
        } or None

    @field_validator("api_key_file", "headers_file")
    @classmethod
    def _check_key_file(cls, given: str | None, info: ValidationInfo) -> str | None:
        if given is None:
            return given
        # Not quoted, here or later: it may be the key itself.
        is_path = any(sign in given for sign in "/\\.~") or Path(given).exists()
        if not given.strip() or given.startswith(_KEY_STARTS) or not is_path:
            what = "key" if info.field_name == "api_key_file" else "headers"
            raise ValueError(
                f"it takes the path of a file that holds the {what}, not the {what}. Write ./NAME "
                "for a file of the folder where this is run"
            )
        return given

    @model_validator(mode="after")
    def _check_limits(self) -> ChatSettings:
        tokens = self.tokens_per_minute
        if tokens is not None and tokens <= self.max_tokens:
            raise ValueError(
                f"tokens_per_minute is {tokens}, but one call reserves its prompt and max_tokens, "
                f"{self.max_tokens}"
            )
        if self.budget_usd is not None and self.prices is None:
            raise ValueError(
                "budget_usd needs prices: {prompt: USD, completion: USD} per million tokens"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_usual_api(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the usual API out: signatures of scores are those of before there were others."""
        found: dict[str, Any] = dump(self)
        if found.get("api") == _DEFAULT_API:
            del found["api"]
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """What a request says besides model and prompt."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            self.max_tokens_name: self.max_tokens,
        }
        return {name: value for name, value in given.items() if value is not None} | (
            self.body or {}
        )


def _fields_of(query: str) -> dict[str, str]:
    """Return the fields of a query; each may stand there once, for a mapping has it once."""
    fields: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in fields:
            raise ValueError(f"{name} is given twice")
        fields[name] = value
    return fields


def _check_no_secret(fields: Mapping[str, Any], *, is_query: bool) -> None:
    """Raise ValueError for the name of a secret: body and query stand in files."""
    name = secret_name_in(dict(fields), is_query=is_query)
    if name is not None:
        raise ValueError(f"{name} may be a credential, and this is kept: put it into headers_file")


def _checked_url(given: str, *, what: str = "http://127.0.0.1:8000/v1") -> str:
    """Return the URL without its last slash.

    Examples
    --------
    >>> _checked_url("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000/v1'
    """
    url = given.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_bare = not (parts.query or parts.fragment) and parts.port != 0
    except ValueError:
        is_url = is_bare = False
    if not (is_url and is_bare):
        raise ValueError(f"it takes a URL such as {what}, without ? and #")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it takes no user or password: put the key into api_key_file")
    if parts.path.endswith("/completions"):
        raise ValueError("it ends before /chat/completions, mostly with /v1")
    return url


def chat_settings(read: Read) -> ChatSettings:
    """Return the settings of a family that asks."""
    assert isinstance(read.settings, ChatSettings)
    return read.settings


def counted_runs(replies: Targets, n_runs: int) -> BoolArray:
    """Return which runs count: those of which a reply could be read; (n_rows, n_runs)."""
    problems: list[list[str | None] | None] = replies.lists("problem")
    counted = [[_at(own, run, PENDING) is None for run in range(n_runs)] for own in problems]
    return np.array(counted, dtype=bool).reshape(-1, n_runs)


def by_run(rows: list[Any], n_runs: int) -> FloatArray:
    """Return lists as float ndarray of shape (n_rows, n_runs), 0 where there is none."""
    values = [[float(_at(own, run, 0) or 0) for run in range(n_runs)] for own in rows]
    return np.array(values, dtype=np.float64).reshape(-1, n_runs)


def mean_over_runs(values: NDArray[np.generic], is_counted: BoolArray) -> FloatArray:
    """Return the mean of each row's values that count; NaN where none does."""
    # where, not a product: a run that does not count may hold NaN.
    total = np.where(is_counted, values, 0.0).sum(axis=1, dtype=np.float64)
    n_counted = is_counted.sum(axis=1)
    return np.where(n_counted > 0, total / np.maximum(n_counted, 1), np.nan)


def run_reasons(replies: Targets, *, is_undefined: BoolArray) -> list[str | None]:
    """Return why a row has no score.

    A fault before an unreadable reply: a row that a fault took has not been judged at all.
    """
    problems: list[list[str | None] | None] = replies.lists("problem")
    own_reasons: list[str | None] = replies.lists("reason")
    reasons: list[str | None] = [None] * len(problems)
    for i in np.flatnonzero(is_undefined).tolist():
        own = problems[i]
        if own is None:
            reasons[i] = PENDING
        elif own_reasons[i] is not None:
            reasons[i] = own_reasons[i]
        else:
            faults = [problem for problem in own if problem != UNPARSABLE]
            reasons[i] = faults[0] if faults else UNPARSABLE
    return reasons


def _at(values: list[Any] | None, run: int, missing: Any) -> Any:
    """Return a row's value of a run; a row that was not asked has none."""
    return values[run] if values else missing
