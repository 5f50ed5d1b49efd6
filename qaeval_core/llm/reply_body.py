"""Reply body: what the JSON of an answer says: a reply, however it is dressed, or an error.

Servers that call themselves compatible send more than chat completions with status 200. Content
comes as text or as a list of parts, thoughts stand before it, errors lie in it. All of them are
read here, so that nobody behind this module meets anything but a reply or an error.

How a reply ended decides whether it is one: a sentence that was cut has a last number, too.

==============  ===========================================================================
None            whole: ``stop`` and its likes, or nothing said
cut_reply       cut at ``max_tokens``, or where the model's own length ends
filtered        held back by the server's filter
refusal         the model would not answer, and said so in a field of its own
failed_reply    ended by anything else, such as a call of a tool
==============  ===========================================================================

But: what an error means for the next call is ``llm.responses``'; what a text says is a family's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qaeval_core.llm.key import ApiKey

# Of a reply's text, in UTF-8: some 16,000 tokens. Escaped it is 400 kB of the journal at most.
MAX_REPLY_BYTES = 64 << 10
_MAX_FINISH_CHARS = 60
_MAX_TOKENS = 2**31 - 1

CUT, FILTERED, REFUSAL, FAILED = "cut_reply", "filtered", "refusal", "failed_reply"
_WHOLE = frozenset(
    ["stop", "stop_sequence", "end_turn", "eos", "eos_token", "complete", "completed", "done"]
)
_NAMES_OF_ENDS = {
    CUT: "length max_tokens max_output_tokens max_length incomplete model_length error_limit "
    "model_context_window_exceeded",
    FILTERED: "content_filter content_filtered safety recitation blocklist spii sensitive "
    "prohibited_content guardrail_intervened error_toxic",
    REFUSAL: "refusal",
}
_ENDS = {name: end for end, names in _NAMES_OF_ENDS.items() for name in names.split()}
# The server's trouble, which passes: such a call may be sent again.
_PASSING = re.compile(
    "error|abort(?:ed)?|cancell?ed|interrupted|timeout|(?:network|server)_error"
    "|insufficient_system_resource"
)
# Parts of a content that are text for the reader; "refusal" is read by itself.
_TEXT_PARTS = frozenset(["text", "output_text"])

# Names of errors as gateways write them, without case, signs and a last "error".
_NAMED = {
    400: "badrequest invalidrequest invalidargument contextlengthexceeded contentfilter",
    401: "authentication invalidapikey invalidauthentication unauthenticated unauthorized",
    402: "insufficientquota insufficientcredits insufficientbalance insufficientfunds "
    "paymentrequired",
    403: "permission permissiondenied forbidden",
    404: "notfound modelnotfound",
    429: "ratelimit ratelimitexceeded ratelimited toomanyrequests resourceexhausted",
    503: "overloaded serviceunavailable unavailable",
    504: "timeout gatewaytimeout deadlineexceeded",
}
_STATUS_OF = {name: status for status, names in _NAMED.items() for name in names.split()}
# In a sentence these alone are heeded, outside of quotes: a row's words must not end a run.
_CLEAR_WORDS = tuple(name for name, status in _STATUS_OF.items() if status in (402, 429))
_QUOTED = re.compile(r"""(["'`]).*?\1""", re.DOTALL)
_UNKNOWN_STATUS = 500
_WORDS = ("message", "detail", "msg")


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply; token counts are None where the server does not tell."""

    text: str
    finish_reason: str | None
    n_prompt_tokens: int | None
    n_completion_tokens: int | None
    pause_s: float | None = None  # of all calls, asked for by headers


@dataclass(frozen=True, slots=True)
class BodyError:
    """An error that a body holds.

    Attributes
    ----------
    status : int
        The one that it carries, or that its name stands for; 500 where neither is known.
    said : str
        The server's words.
    code : str
        Its name for the error; "" without one.
    """

    status: int
    said: str
    code: str = ""


class NoReplyError(ValueError):
    """A body that is no chat completion; says what it lacks."""


def error_of(body: Any) -> BodyError | None:
    """Return the error of a decoded body, wherever it stands; None if there is none.

    Examples
    --------
    >>> error_of({"choices": None, "error": {"message": "No credits", "code": 402}})
    BodyError(status=402, said='No credits', code='')
    >>> error_of({"error": "Rate limit exceeded, slow down"}).status
    429
    """
    if isinstance(body, str):
        return BodyError(_UNKNOWN_STATUS, whole_text(body)) if body.strip() else None
    if not isinstance(body, dict):
        return None
    choice = _first(body.get("choices"))
    for holder in (body, choice):
        errors = holder.get("errors")
        found = holder.get("error") or (errors[0] if errors and isinstance(errors, list) else None)
        if found:
            return _error(found, holder)
    is_bare = not choice and any(isinstance(body.get(name), str | list) for name in _WORDS)
    return _error(body, {}) if is_bare else None


def _first(choices: Any) -> dict[str, Any]:
    own = choices[0] if isinstance(choices, list) and choices else None
    return own if isinstance(own, dict) else {}


def _error(found: Any, holder: Mapping[str, Any]) -> BodyError:
    fields = found if isinstance(found, dict) else {"message": found}
    said = whole_text(str(next((fields[name] for name in _WORDS if fields.get(name)), "no word")))
    names = [
        str(source[name])
        for source in (fields, holder)
        for name in ("code", "status", "status_code", "type")
        if isinstance(source.get(name), int | str)
    ]
    code = next((name for name in names if not name.isdecimal()), "")
    return BodyError(_status(names, said), said, code)


def _status(names: list[str], said: str) -> int:
    """Return the status that an error carries: as a number, by its name, or by clear words."""
    for name in names:
        if re.fullmatch(r"[45]\d\d", name):
            return int(name)
    for name in [*names, said]:
        known = status_named(name)
        if known is not None:
            return known
    squeezed = _letters(_QUOTED.sub("", said[:300]))
    clear = (_STATUS_OF[word] for word in _CLEAR_WORDS if word in squeezed)
    return next(clear, _UNKNOWN_STATUS)


def status_named(name: str) -> int | None:
    """Return the status that a name of an error stands for; None where it is not known.

    >>> status_named("RateLimitError"), status_named("insufficient_quota"), status_named("odd")
    (429, 402, None)
    """
    return _STATUS_OF.get(_letters(name))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower()).removesuffix("error")


def read_reply(
    body: Any, *, key: ApiKey | None = None, pause_s: float | None = None
) -> ChatReply | BodyError:
    """Return the reply of a decoded body: its text as far as it is kept, without the key.

    Raises
    ------
    NoReplyError
        If the body is no chat completion.

    Examples
    --------
    >>> choice = {"message": {"content": "Yes."}, "finish_reason": "stop"}
    >>> reply = read_reply({"choices": [choice], "usage": {"prompt_tokens": 9}})
    >>> reply.text, reply.n_prompt_tokens, reply.n_completion_tokens
    ('Yes.', 9, None)
    """
    error = error_of(body)
    if error is not None:
        return error
    choice, message = _choice_of(body)
    finish_reason = str(choice.get("finish_reason") or "")
    text, refusal = _text_of(message.get("content"))
    refusal = refusal or message.get("refusal") or ""
    if not text and isinstance(refusal, str) and refusal:
        text, finish_reason = refusal, finish_reason if end_of(finish_reason) else REFUSAL
    if text is None:
        if not finish_reason:
            raise NoReplyError(f"its message has no text, only {_names(message)}")
        text = ""  # Said in another field, or nothing was said before the tokens were used up.
    if _PASSING.fullmatch(finish_reason.lower()):
        return BodyError(_UNKNOWN_STATUS, f"a reply that ended by {finish_reason!r}", FAILED)
    usage = body.get("usage")
    if not isinstance(usage, dict):
        usage = {}
    prompt, completion = (_count(usage, f"{what}_tokens") for what in ("prompt", "completion"))
    if key:
        text, finish_reason = key.scrub_reply(text), key.scrub_reply(finish_reason)
    return ChatReply(
        text=kept_text(whole_text(text)),
        finish_reason=whole_text(finish_reason)[:_MAX_FINISH_CHARS] or None,
        n_prompt_tokens=prompt,
        n_completion_tokens=completion,
        pause_s=pause_s,
    )


def _choice_of(body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first choice and its message; raise NoReplyError with what is there instead."""
    if not isinstance(body, dict):
        raise NoReplyError(f"it is a {type(body).__name__}, not an object")
    if "choices" not in body:
        raise NoReplyError(f"it has no choices, only {_names(body)}")
    choice = _first(body["choices"])
    if not choice:
        shown = json.dumps(body["choices"])[:40]
        raise NoReplyError(f"its choices are empty: {shown}")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise NoReplyError(f"its first choice has no message, only {_names(choice)}")
    return choice, message


def _names(fields: Mapping[str, Any]) -> str:
    return ", ".join(repr(str(name)[:30]) for name in [*fields][:6]) or "nothing"


def _text_of(content: Any) -> tuple[str | None, str]:
    """Return a content's text, and its refusal; of parts those of text are joined.

    Examples
    --------
    >>> thought = {"type": "thinking", "thinking": [{"type": "text", "text": "4?"}]}
    >>> _text_of([thought, {"type": "text", "text": "Score: "}, {"type": "text", "text": "3"}])
    ('Score: 3', '')
    """
    if content is None or isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        raise NoReplyError(f"its message has no text but a {type(content).__name__}")
    texts, refusals = [], []
    for kind, said in _parts(content):
        if kind in _TEXT_PARTS:
            texts.append(said)
        elif kind == "refusal":
            refusals.append(said)
    return "".join(texts), "".join(refusals)


def _parts(content: list[Any]) -> Iterator[tuple[str, str]]:
    for part in content:
        if isinstance(part, str):
            yield "text", part
        elif isinstance(part, dict):
            kind = "thought" if part.get("thought") is True else str(part.get("type") or "text")
            said = part.get("refusal" if kind == "refusal" else "text")
            if isinstance(said, str):
                yield kind, said


def end_of(finish_reason: str | None) -> str | None:
    """Return why a reply is no verdict, by how it ended; None for one that is whole.

    Examples
    --------
    >>> [end_of(reason) for reason in ("stop", None, "length", "SAFETY", "tool_calls")]
    [None, None, 'cut_reply', 'filtered', 'failed_reply']
    """
    name = (finish_reason or "stop").strip().lower()
    return None if name in _WHOLE else _ENDS.get(name, FAILED)


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    """Return a count; None where it is none, or none that can be.

    >>> usage = {"a": 7, "b": True, "c": 10**400, "d": -1}
    >>> [_count(usage, name) for name in "abcde"]
    [7, None, None, None, None]
    """
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def whole_text(text: str) -> str:
    r"""Return a text in which each half of a surrogate pair is U+FFFD; two halves are joined.

    Servers cut a reply between the halves of an emoji, and JSON may say so: ``"\ud83d"``. Arrow,
    and every file in UTF-8, refuses such a text.

    Examples
    --------
    >>> whole_text("Ann \ud83d"), whole_text("Ann \ud83d\ude00") == "Ann \U0001f600"
    ('Ann �', True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


# How models mark their thoughts where no server takes them out: by tags, whose signs may be escaped
# or entities (Qwen, DeepSeek, Seed, MiniMax, Claude); Mistral; Kimi; Command and DeepSeek by tags
# of their own; Gemma; gpt-oss by channels, and without their marks.
_LESS, _MORE = r"\\?(?:<|&lt;)", r"\\?(?:>|&gt;)"
_TAG = (
    r"(?:\w{1,12}:)?(?:(?:ant)?think(?:ing)?|thoughts?|thought_process|reasoning|reflection"
    r"|scratch_?pad|inner_monologue)"
)
_ENDS_TAG = rf"(?:\s[^<>&]{{0,200}})?(?<!/){_MORE}"
_BAR = "[|｜]"
_MARKS = re.compile(
    # Looked at first, for most signs begin no mark: a fifth of the time.
    rf"(?={_LESS}\s{{0,3}}[/|｜a-z]|[\[◁a])(?:"
    rf"(?P<opened>{_LESS}\s{{0,3}}{_TAG}{_ENDS_TAG}|\[THINK\]|◁think▷"
    rf"|{_LESS}{_BAR}(?:start_thinking|begin[_▁]of[_▁](?:thought|thinking)|think){_BAR}{_MORE}"
    rf"|{_LESS}\|channel{_MORE}(?:thought|analysis)\b|{_LESS}unused94{_MORE})"
    rf"|(?P<closed>{_LESS}\s{{0,3}}/\s{{0,3}}{_TAG}{_ENDS_TAG}|\[/THINK\]|◁/think▷"
    rf"|{_LESS}{_BAR}(?:end_thinking|end[_▁]of[_▁](?:thought|thinking)|/think){_BAR}{_MORE}"
    rf"|{_LESS}channel\|{_MORE}|{_LESS}unused95{_MORE})"
    r"|(?P<channel><\|channel\|>(?:analysis|commentary)\b|\Aanalysis(?=[A-Z]))"
    r"|(?P<final><\|channel\|>final(?:<\|message\|>)?)|(?P<word>assistantfinal))",
    re.IGNORECASE,
)
# Of Open WebUI; other details are text.
_DETAILS = re.compile(
    rf"{_LESS}details\s[^<>]{{0,200}}?reasoning[^<>]{{0,200}}?{_MORE}.*?"
    rf"(?:{_LESS}/details{_MORE}|\Z)",
    re.IGNORECASE | re.DOTALL,
)


def without_thoughts(text: str) -> str:
    """Return what a reply says behind, before and between its thoughts.

    Thoughts may hold others, and end with the text if they have no end. A last mark without a
    first one ends thoughts as well: some servers keep them but not their first mark.

    Examples
    --------
    >>> without_thoughts("<think>1? 2?</think>4"), without_thoughts("Hm, 2?</think>4")
    ('4', '4')
    >>> without_thoughts("<think>a <think>2</think> so 3"), without_thoughts("[THINK]2[/THINK]3")
    ('', '3')
    """
    text = _DETAILS.sub("", text)
    said: list[str] = []
    depth = end = 0
    for mark in _MARKS.finditer(text):
        kind = mark.lastgroup
        if depth == 0:
            if kind == "word":
                continue
            said.append(text[end : mark.start()])
            if kind in ("closed", "final"):
                said.clear()
        if kind == "opened":
            depth += 1
        elif kind == "closed":
            depth = max(depth - 1, 0)
        else:  # Channels stand side by side, and the last one ends them all.
            depth = 1 if kind == "channel" else 0
        end = mark.end()
    return "".join([*said, text[end:]] if depth == 0 else said)


def kept_text(text: str, *, max_bytes: int = MAX_REPLY_BYTES) -> str:
    """Return what is kept and read of a reply's text: all of it, unless it is too long.

    Of one that is too long, thoughts go first, as they do where replies are read; what is left
    ends after ``max_bytes``. So the text that was read is the text that the journal has.

    Examples
    --------
    >>> kept_text("Natürlich", max_bytes=4), kept_text("<think>Hm.</think>Ann", max_bytes=4)
    ('Nat', 'Ann')
    """
    if len(text.encode("utf-8", "surrogatepass")) <= max_bytes:
        return text
    kept = without_thoughts(text).encode("utf-8", "surrogatepass")
    return kept[:max_bytes].decode("utf-8", "ignore")
