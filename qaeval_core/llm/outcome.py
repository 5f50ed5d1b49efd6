"""Outcome: what came of one call, and what to do about it.

A response, or an error on the way, in; a reply or a failure out.

What failures mean
------------------
==================================  ==============  =======================================
408, 504, 522, 524, timeout         retry           perhaps billed: the model may have run
broken connection, unreadable body  retry           perhaps billed
no connection                       retry           not billed
409, other 5xx                      retry           not billed
429, 503                            retry           not billed; the pace follows their share
401-405, 410, 3xx, quota used up    fatal_family    no other call will fare better
400 and other 4xx                   row_undefined   this request will never be answered
==================================  ==============  =======================================

A ``Retry-After`` delays its own call. All calls wait for it only with 429, which speaks of the
account, and where headers say that nothing remains of a limit.

A key is in no message: servers that quote one are scrubbed, and errors are named by type alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from qaeval_core.llm.headers import exhausted_s, retry_after_s
from qaeval_core.llm.key import ApiKey, scrub
from qaeval_core.llm.texts import whole_text
from qaeval_core.llm.throttle import REFUSALS, End

_MAX_SAID_CHARS = 300
_PERHAPS_BILLED = frozenset({408, 504, 522, 524})
# A thousand opening brackets are no JSON either.
_NO_JSON = (ValueError, RecursionError)
_FATAL = {  # by status: what is wrong, for people
    401: "the key from {key} is refused",
    402: "the account has no credit left",
    403: "the key from {key} may not use {model}",
    404: "no such address, or no model {model} there; most base URLs end with /v1",
    405: "this address takes no chat completions; most base URLs end with /v1",
    410: "{model} is gone",
}

FailureKind = Literal["retry", "fatal_family", "row_undefined"]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply; token counts are None where the server does not tell."""

    text: str
    finish_reason: str | None
    n_prompt_tokens: int | None
    n_completion_tokens: int | None
    pause_s: float | None = None  # of all calls, asked for by headers


@dataclass(frozen=True, slots=True)
class ChatFailure:
    """No reply: what to do, a short reason for tables, and a message for people.

    ``pause_s`` is asked of all calls, ``wait_s`` of this one; ``silent_s`` is for how long the
    server has answered nobody, which the governor knows.
    """

    kind: FailureKind
    reason: str
    message: str
    may_be_billed: bool = False
    end: End = "answered"
    pause_s: float | None = None
    wait_s: float | None = None
    silent_s: float = 0.0

    @property
    def is_refusal(self) -> bool:
        """Whether the server never looked at the request: it says nothing against it."""
        return self.end in REFUSALS or self.reason == "llm_no_connection"


def failure_of_error(error: Exception, *, url: str, timeout_s: float) -> ChatFailure:
    """Return what an error on the way means."""
    what = f"{url}: {type(error).__name__}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return ChatFailure("retry", "llm_no_connection", what, end="faulty")
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        message = f"{what} after {timeout_s:g} s"
        return _fault("llm_timeout", message)
    return _fault("llm_broken_connection", what)


def _fault(reason: str, message: str) -> ChatFailure:
    return ChatFailure("retry", reason, message, may_be_billed=True, end="faulty")


def outcome_of(
    response: httpx.Response, *, url: str, model: str, key: ApiKey | None
) -> ChatReply | ChatFailure:
    """Return what a response means; model and key are for its message."""
    pause_s = exhausted_s(response.headers, now=time.time())
    if response.status_code != 200:
        return _failure_of_status(response, url=url, model=model, key=key, pause_s=pause_s)
    try:
        body = json.loads(response.content)
    except _NO_JSON:
        message = f"{url}: {len(response.content)} bytes that are no JSON"
        return _fault("llm_truncated_reply", message)
    try:
        return read_reply(body, pause_s=pause_s)
    except (LookupError, TypeError, AttributeError) as error:
        message = f"{url}: not a chat completion ({error})"
        return _fault("llm_wrong_schema", message)


def _failure_of_status(
    response: httpx.Response, *, url: str, model: str, key: ApiKey | None, pause_s: float | None
) -> ChatFailure:
    status = response.status_code
    said, code = _said(response)
    said = (key.scrub(said) if key else scrub(said))[:_MAX_SAID_CHARS]
    message = f"{url} answered {status}: {said}"
    if status in _FATAL or status < 400 or code == "insufficient_quota":
        known = _FATAL.get(status, "the quota is used up" if code else "not what was asked for")
        hint = known.format(key=key.source if key else "nowhere (none was given)", model=model)
        return ChatFailure("fatal_family", "llm_endpoint_refuses", f"{message} ({hint})")
    wait_s = retry_after_s(response.headers, now=time.time())
    if status == 429:
        told_s = max(wait_s or 0.0, pause_s or 0.0)
        end: End = "told" if told_s else "refused"
        return ChatFailure("retry", "llm_rate_limited", message, end=end, pause_s=told_s)
    billed = status in _PERHAPS_BILLED
    reason = "llm_timeout" if billed else "llm_server_error"
    end = "faulty"
    if status == 503:
        reason, end = "llm_overloaded", "overloaded"
    if status >= 500 or status in (408, 409):
        return ChatFailure(
            "retry",
            reason,
            message,
            may_be_billed=billed,
            end=end,
            pause_s=pause_s,
            wait_s=wait_s,
        )
    return ChatFailure("row_undefined", "llm_bad_request", message)


def _said(response: httpx.Response) -> tuple[str, str]:
    """Return the message and the code of an error's body."""
    try:
        body = json.loads(response.content)
    except _NO_JSON:
        body = response.text
    error = body.get("error", body) if isinstance(body, dict) else body
    fields = error if isinstance(error, dict) else {"message": error}
    message = str(fields.get("message") or fields.get("detail") or "no word")
    return whole_text(message), str(fields.get("code") or fields.get("type") or "")


def read_reply(body: Any, *, pause_s: float | None = None) -> ChatReply:
    """Return the reply of a decoded body.

    Raises
    ------
    LookupError, TypeError, AttributeError
        If the body is no chat completion.

    Examples
    --------
    >>> choice = {"message": {"content": "Yes."}, "finish_reason": "stop"}
    >>> reply = read_reply({"choices": [choice], "usage": {"prompt_tokens": 9}})
    >>> reply.text, reply.n_prompt_tokens, reply.n_completion_tokens
    ('Yes.', 9, None)
    """
    choice = body["choices"][0]
    text = choice["message"].get("content")
    finish_reason = choice.get("finish_reason")
    if text is None:
        # Said in another field, or nothing was said before the tokens were used up.
        text = choice["message"].get("refusal") or ("" if finish_reason else None)
    if not isinstance(text, str):
        raise TypeError("the message has no text")
    usage = body.get("usage") or {}
    prompt, completion = (_count(usage, f"{what}_tokens") for what in ("prompt", "completion"))
    reason = None if finish_reason is None else whole_text(str(finish_reason))
    return ChatReply(whole_text(text), reason, prompt, completion, pause_s)


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else None
