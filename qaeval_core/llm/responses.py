"""Responses: what came of one call, and what to do about it.

A response, or an error on the way, in; a reply or a failure out. An error that comes with status
200 means what its own status says, and a reply that the server broke off is a failure.

No more bytes of a response are held than a chat completion may have: a server may send without
end, or a few kB that unpack into gigabytes, so they are counted while they come, and again while
they are unpacked. Responses are asked for as they are (``ACCEPT``); one that is packed all the
same, as gateways do, is unpacked once.

What failures mean
------------------
==================================  ==============  =======================================
408, 504, 522, 524, timeout         retry           perhaps billed: the model may have run
broken connection                   retry           perhaps billed
body too long, or no reply in it    retry           perhaps billed
an error of this program            retry           perhaps billed; named in the message
no connection                       retry           not billed
409, other 5xx                      retry           not billed
429, 503                            retry           not billed; the pace follows their share
401-405, 410, 3xx, no money left    fatal_family    no other call will fare better
a certificate that is not trusted   fatal_family    not billed: nothing was sent
400 and other 4xx, a filter         row_undefined   this request will never be answered
==================================  ==============  =======================================

A ``Retry-After`` delays its own call. All calls wait for it only with 429, which speaks of the
account, and where headers say that nothing remains of a limit.

Whatever a server sends is a reply or a failure: no charset, number, date or nesting of its making
raises an error here. Bytes are UTF-8, whatever their header says.

A key is in no reply and no message: servers that quote one are scrubbed.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import httpx

from qaeval_core.llm.key import ApiKey, scrub
from qaeval_core.llm.reply_body import (
    FAILED,
    FILTERED,
    BodyError,
    ChatReply,
    NoReplyError,
    error_of,
    read_reply,
    status_named,
    whole_text,
)
from qaeval_core.llm.throttle import REFUSALS, End
from qaeval_core.llm.waits import Patience, Waits, waits_of

# Why there is no score where this program failed, not the server.
UNEXPECTED = "llm_unexpected_error"
_MAX_SAID_CHARS = 300
_MAX_QUOTED_CHARS = 100
_EVENTS = re.compile(r"\s*(?:data|event|id|retry)?:")
_FIRST_DATA = re.compile(r"^data:(.*)$", re.MULTILINE)
# Sent while a model thinks, by gateways that would send a stream.
_COMMENTS = re.compile(r"\A(?:\s*:[^\n]*\n)+")
_MAX_DIGITS = 300
_PERHAPS_BILLED = frozenset({408, 504, 522, 524})
# A thousand opening brackets are no JSON either.
_NO_JSON = (ValueError, RecursionError)
# Where a filter speaks: of what was asked, not of the account.
_OF_REQUEST = frozenset({400, 403, 422, 451})
_FATAL = {  # by status: what is wrong, for people
    401: "the key from {key} is refused",
    402: "the account has no credit",
    403: "the key from {key} has no access to {model}",
    404: "no such address, or no model {model} there; most base URLs end with /v1",
    405: "this address does not take chat completions; most base URLs end with /v1",
    410: "{model} is gone",
}

FailureKind = Literal["retry", "fatal_family", "row_undefined"]


# A reply of 100,000 tokens is some 400 kB of text, and six times as much with every sign escaped.
MAX_BODY_BYTES = 8 << 20
# What is said of an error is shown in 300 characters.
MAX_ERROR_BYTES = 64 << 10
ACCEPT = {"Accept-Encoding": "identity"}
_GZIP_OR_ZLIB = 47  # zlib's name for either, found by the first bytes
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})


@dataclass(frozen=True, slots=True)
class Received:
    """A response as far as it was read.

    Attributes
    ----------
    is_cut : bool
        Whether there was more of it, packed or unpacked, than is read.
    packed_as : str
        How it is packed, where that is no way that can be unpacked here; else empty.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    is_cut: bool = False
    packed_as: str = ""


async def receive(response: httpx.Response) -> Received:
    """Read a response that was opened as a stream; its caller closes it.

    Raises
    ------
    httpx.HTTPError
        If it ends before its end.
    """
    most = MAX_BODY_BYTES if response.status_code == 200 else MAX_ERROR_BYTES
    raw = bytearray()
    # As it came: httpx unpacks each part whole, and 64 kB may be 64 MB.
    parts = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
    async with contextlib.aclosing(parts):
        async for part in parts:
            raw += part
            if len(raw) > most:
                break
    packed_as = _packed_as(response.headers.get("content-encoding", ""))
    content = bytes(raw)
    if packed_as in _PACKED:
        content, packed_as = _unpacked(content, packed_as, max_bytes=most + 1)
    is_cut = len(raw) > most or len(content) > most
    return Received(response.status_code, response.headers, content[:most], is_cut, packed_as)


def _packed_as(header: str) -> str:
    """Return how a content is packed.

    >>> _packed_as(" GZIP, identity"), _packed_as("gzip,gzip"), _packed_as("")
    ('gzip', 'gzip, gzip', '')
    """
    names = (name.strip().lower() for name in header.split(","))
    return ", ".join(name for name in names if name not in ("", "identity"))


def _unpacked(content: bytes, packed_as: str, *, max_bytes: int) -> tuple[bytes, str]:
    """Return the first bytes of what is packed, and how they are still packed: mostly not."""
    for kind in (_GZIP_OR_ZLIB, -zlib.MAX_WBITS):  # Some servers leave the header out of deflate.
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(kind).decompress(content, max_bytes), ""
    return content, packed_as


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
    is_of_key: bool = False  # whether it is the key that is refused

    @property
    def is_refusal(self) -> bool:
        """Whether the server never looked at the request: it says nothing against it."""
        return self.end in REFUSALS or self.reason == "llm_no_connection"


def failure_of_error(error: Exception, *, url: str, timeout_s: float) -> ChatFailure:
    """Return what an error on the way means."""
    what = f"{url}: {type(error).__name__}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        refused = _refused_certificate(error)
        if refused is not None:
            message = f"{url}: the server's certificate is not trusted ({refused.verify_message})"
            return ChatFailure("fatal_family", "llm_untrusted_server", message)
        return ChatFailure("retry", "llm_no_connection", what, end="faulty")
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        message = f"{what} after {timeout_s:g} s"
        return _fault("llm_timeout", message)
    return _fault("llm_broken_connection", what)


def _fault(reason: str, message: str) -> ChatFailure:
    return ChatFailure("retry", reason, message, may_be_billed=True, end="faulty")


def failure_of_fault(error: Exception, *, key: ApiKey | None) -> ChatFailure:
    """Return what an error means that nobody foresaw: one call's failure, and named as what it is.

    >>> failure_of_fault(ZeroDivisionError("a bug"), key=None).message
    'an error of qaeval, not of the server: ZeroDivisionError: a bug'
    """
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" ({code.co_name}, line {trace.tb_lineno} of {Path(code.co_filename).name})"
        trace = trace.tb_next
    said = _scrubbed(f"{type(error).__name__}: {error}", key)
    message = f"an error of qaeval, not of the server: {said}{where}"
    return ChatFailure("retry", UNEXPECTED, whole_text(message), may_be_billed=True)


def _refused_certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def outcome_of(
    received: Received,
    *,
    url: str,
    model: str,
    key: ApiKey | None,
    completion: Callable[[Any], Any] | None = None,
    max_tokens: int | None = None,
    patience: Patience | None = None,
) -> ChatReply | ChatFailure:
    """Return what a response means; model and key are for its message.

    Parameters
    ----------
    completion : callable, optional
        Of a `chat_api.ChatApi`: makes a chat completion of what the server answers.
    """
    waits = waits_of(received.headers, now=time.time(), patience=patience or Patience())
    if received.status != 200:
        return _failure_of_status(received, url=url, model=model, key=key, waits=waits)
    n_bytes = len(received.content)
    if received.is_cut:
        message = f"{url}: a reply of more than {n_bytes:,} bytes"
        return _fault("llm_oversized_reply", message)
    text = _decoded(received)
    try:
        body = _json_of(text)
    except _NO_JSON:
        return _failure_of_text(received, text, url=url, model=model, key=key, waits=waits)
    try:
        body = body if completion is None else _completed(body, completion)
        outcome = read_reply(body, key=key, pause_s=waits.pause_s, max_tokens=max_tokens)
    except NoReplyError as error:
        said = _scrubbed(str(error), key)
        return _fault("llm_wrong_schema", f"{url}: not a chat completion: {said}")
    if isinstance(outcome, ChatReply):
        return outcome
    return _failure(received, outcome, url=url, model=model, key=key, waits=waits)


def _completed(body: Any, completion: Callable[[Any], Any]) -> Any:
    try:
        return completion(body)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise NoReplyError(f"its API cannot read this answer: {why}") from error


def _failure_of_text(
    received: Received,
    text: str,
    *,
    url: str,
    model: str,
    key: ApiKey | None,
    waits: Waits,
) -> ChatFailure:
    """Return what a body means that is no JSON."""
    error = error_of(_first_event(text))
    if error is not None:
        return _failure(received, error, url=url, model=model, key=key, waits=waits)
    said = _scrubbed(text.lstrip(), key)[:_MAX_QUOTED_CHARS]
    if _EVENTS.match(text):
        what = f"{url}: events of a stream, though none was asked for: {said}"
        return _fault("llm_wrong_schema", what)
    what = f"{url}: {len(received.content)} bytes that are no JSON"
    if received.packed_as:
        return _fault("llm_no_json", _scrubbed(f"{what}, packed as {received.packed_as!r}", key))
    # What begins as JSON does, or not at all, ended too early.
    is_begun = text.lstrip()[:1] in ("", "{", "[")
    return _fault("llm_truncated_reply" if is_begun else "llm_no_json", f"{what}: {said}")


def _json_of(text: str) -> Any:
    """Return what JSON says, behind comments of a stream; raises what is no JSON."""
    try:
        return json.loads(text, parse_int=_integer)
    except _NO_JSON:
        bare = _COMMENTS.sub("", text)
        if bare == text:
            raise
        return json.loads(bare, parse_int=_integer)


def _integer(digits: str) -> float:
    """Return an integer; Python refuses one of 5,000 digits, which is no reason to lose a reply."""
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


def _first_event(text: str) -> Any:
    r"""Return what the first event of a stream says, or None: an error may come as one.

    >>> _first_event('event: error\ndata: {"error": "no credit"}\n\n')
    {'error': 'no credit'}
    """
    data = _FIRST_DATA.search(text) if _EVENTS.match(text) else None
    try:
        return None if data is None else _json_of(data[1])
    except _NO_JSON:
        return None


def _decoded(received: Received) -> str:
    return received.content.decode("utf-8-sig", "replace")


def _scrubbed(text: str, key: ApiKey | None) -> str:
    return (key.scrub(text) if key else scrub(text))[:_MAX_SAID_CHARS]


def _failure_of_status(
    received: Received, *, url: str, model: str, key: ApiKey | None, waits: Waits
) -> ChatFailure:
    text = _decoded(received)
    try:
        body = _json_of(text)
    except _NO_JSON:
        body = _first_event(text) or text
    found = error_of(body) or BodyError(received.status, "no word")
    # The status line knows better, but for an account without money.
    status = 402 if status_named(found.code) == 402 else received.status
    error = BodyError(status, found.said, found.code)
    return _failure(received, error, url=url, model=model, key=key, waits=waits)


def _failure(
    received: Received,
    error: BodyError,
    *,
    url: str,
    model: str,
    key: ApiKey | None,
    waits: Waits,
) -> ChatFailure:
    """Return what an error means: as if its status were the response's."""
    status, is_reply = error.status, received.status == 200
    answered = f"{received.status}, with error {status}" if is_reply else f"{received.status}"
    message = f"{url} answered {answered}: {_scrubbed(error.said, key)}"
    if error.code == FILTERED and status in _OF_REQUEST:
        return ChatFailure("row_undefined", FILTERED, message)
    if status in _FATAL or status < 400:
        known = _FATAL.get(status, "not what was asked for")
        hint = known.format(key=key.source if key else "nowhere (none was given)", model=model)
        said = f"{message} ({hint})"
        return ChatFailure("fatal_family", "llm_endpoint_refuses", said, is_of_key=status == 401)
    if status == 429:
        told_s = max(waits.wait_s or 0.0, waits.pause_s or 0.0)
        end: End = "told" if told_s else "refused"
        return ChatFailure("retry", "llm_rate_limited", message, end=end, pause_s=told_s)
    # Behind status 200 a model may have run for a while.
    billed = status in _PERHAPS_BILLED or is_reply
    if error.code == FAILED:
        return ChatFailure("retry", FAILED, message, may_be_billed=billed)
    reason = "llm_timeout" if status in _PERHAPS_BILLED else "llm_server_error"
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
            pause_s=waits.pause_s,
            wait_s=waits.wait_s,
        )
    return ChatFailure("row_undefined", "llm_bad_request", message)
