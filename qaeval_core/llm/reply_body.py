"""Reply body: what the JSON of an answer says: a reply, however it is dressed, or an error.

Servers that call themselves compatible send more than chat completions with status 200. Content
comes as text or as a list of parts, thoughts stand before it, errors lie in it. All of them are
read here, so that nobody behind this module meets anything but a reply or an error.

How a reply ended decides whether it is one: a sentence that was cut has a last number, too. Where
the server does not say, or what it says is not all, the reason is one of this program's words.

==============  ===========================================================================
None            whole: ``stop`` and its likes, or nothing said
cut_reply       cut at ``max_tokens``, where the model's own length ends, or here, at 64 kB
empty_reply     nothing but thoughts, and nothing said of how they ended
filtered        held back by the server's filter
refusal         the model would not answer, and said so in a field of its own
failed_reply    ended by anything else, such as a call of a tool
==============  ===========================================================================

But: what of a text are thoughts is ``llm.thoughts``', what an error means for the next call
``llm.responses``'; what a text says is a family's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qaeval_core.llm.key import ApiKey, scrub
from qaeval_core.llm.thoughts import without_thoughts

# Of a reply's text, in UTF-8: some 16,000 tokens. Escaped it is 400 kB of the journal at most.
MAX_REPLY_BYTES = 64 << 10
_MAX_FINISH_CHARS = 60
_MAX_TOKENS = 2**31 - 1

CUT, FILTERED, REFUSAL, FAILED = "cut_reply", "filtered", "refusal", "failed_reply"
EMPTY = "empty_reply"
# Ends that no server names; the journal keeps them in the place of its word.
OVERLONG = f"over {MAX_REPLY_BYTES >> 10} kB"
_USED_UP, _THOUGHTS_ALONE = "max_tokens used up", "thoughts alone"
_OWN_ENDS = {OVERLONG: CUT, _USED_UP: CUT, _THOUGHTS_ALONE: EMPTY}
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
_ENDS |= {name.lower(): end for name, end in _OWN_ENDS.items()}
# The server's trouble, which passes: such a call may be sent again.
_PASSING = re.compile(
    "error|abort(?:ed)?|cancell?ed|interrupted|timeout|(?:network|server)_error"
    "|insufficient_system_resource"
)
# Parts of a content that are text for the reader; "refusal" is read by itself.
_TEXT_PARTS = frozenset(["text", "output_text"])
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")

# Names of errors as gateways write them, without case, signs and a last "error".
_NAMED = {
    400: "badrequest invalidrequest invalidargument contextlengthexceeded contentfilter",
    401: "authentication invalidapikey invalidauthentication unauthenticated unauthorized",
    402: "insufficientquota insufficientcredits insufficientbalance insufficientfunds "
    "paymentrequired billing",
    403: "permission permissiondenied forbidden",
    404: "notfound modelnotfound",
    429: "ratelimit ratelimitexceeded ratelimited toomanyrequests resourceexhausted",
    503: "overloaded serviceunavailable unavailable",
    504: "timeout gatewaytimeout deadlineexceeded",
}
_STATUS_OF = {name: status for status, names in _NAMED.items() for name in names.split()}
# In a sentence these alone are heeded, outside of quotes: a row's words must not end a run.
_CLEAR_WORDS = tuple(
    name for name, status in _STATUS_OF.items() if status in (402, 429) and name != "billing"
)
# "HTTP 429: ...", "Error code: 402 - ..."
_STATUS_AHEAD = re.compile(
    r"\W*(?:(?:api|server|upstream|request|failed|with|error|status)\W+)*"
    r"(?:http(?:/[\d.]+)?|error|status|code)\W*(?P<status>[45]\d\d)\b",
    re.IGNORECASE,
)
# What keeps one row's words back, and says nothing of the account. MiniMax has numbers alone.
_NAMES_OF_FILTERS = re.compile(r"contentfilter|contentpolicy|responsibleaipolicy|moderation")
_FLAGGED = re.compile(r"\b(?:input|prompt|request|content)s? (?:was|were|is|are|has been) flagged")
_MINIMAX = {1002: 429, 1039: 429, 1004: 401, 2049: 401, 1008: 402, 2013: 400}
_MINIMAX_FILTERS = (1026, 1027)
_QUOTED = re.compile(r"""(["'`]).*?\1""", re.DOTALL)
_UNKNOWN_STATUS = 500
_WORDS = ("message", "detail", "msg")
_STATUS_FIELDS = ("code", "status", "status_code", "statusCode", "http_status", "type")


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
        Its name for the error; "" without one, ``filtered`` for what is one row's.
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
    if isinstance(body, list):
        return error_of(body[0]) if body and isinstance(body[0], dict) else None
    if not isinstance(body, dict):
        return None
    choice = _first(body.get("choices"))
    message = choice.get("message")
    for holder in (body, choice, message if isinstance(message, dict) else {}):
        found = _found_in(holder)
        if found is not None:
            return _error(found, holder)
    return _unnamed_error(body, has_choice=bool(choice))


def _found_in(holder: Mapping[str, Any]) -> Any:
    """Return what stands where errors stand, out of what is around it; None where nothing does."""
    errors = holder.get("errors")
    found = holder.get("error") or (errors if isinstance(errors, list) else None)
    while isinstance(found, list | dict):
        inner = found[0] if isinstance(found, list) and found else None
        inner = found.get("error") if isinstance(found, dict) else inner
        if not isinstance(inner, list | dict | str) or not inner:
            break
        found = inner
    # A field for errors that says of each detail that there is none.
    is_error = any(found.values()) if isinstance(found, dict) else bool(found)
    return found if is_error else None


def _unnamed_error(body: Mapping[str, Any], *, has_choice: bool) -> BodyError | None:
    """Return an error that stands under no such name: MiniMax's, Gemini's, or the body itself."""
    base = body.get("base_resp")
    code = base.get("status_code") if isinstance(base, dict) else 0
    if isinstance(base, dict) and isinstance(code, int) and code != 0:
        said = whole_text(str(base.get("status_msg") or "no word"))
        if code in _MINIMAX_FILTERS:
            return BodyError(400, said, FILTERED)
        return BodyError(_MINIMAX.get(code) or _status([], said), said)
    if has_choice:
        return None
    feedback = body.get("promptFeedback")
    if isinstance(feedback, dict) and feedback.get("blockReason"):
        return BodyError(400, f"the prompt was blocked: {feedback['blockReason']}", FILTERED)
    is_bare = any(isinstance(body.get(name), str | list) for name in _WORDS)
    return _error(body, {}) if is_bare else None


def _first(choices: Any) -> dict[str, Any]:
    own = choices[0] if isinstance(choices, list) and choices else None
    return own if isinstance(own, dict) else {}


def _error(found: Any, holder: Mapping[str, Any]) -> BodyError:
    fields = found if isinstance(found, dict) else {"message": found}
    said = next((str(fields[name]) for name in _WORDS if fields.get(name)), "")
    beside = next((holder[name] for name in _WORDS if isinstance(holder.get(name), str)), "")
    said = whole_text(": ".join(dict.fromkeys(filter(None, (said, beside)))) or "no word")
    names = [
        str(source[name])
        for source in (fields, holder)
        for name in _STATUS_FIELDS
        if isinstance(source.get(name), int | str)
    ]
    status = _status([*names, *([found] if isinstance(found, str) else [])], said)
    if status in (400, 403, 422, 451, _UNKNOWN_STATUS) and _is_of_filter(fields, names, said):
        return BodyError(400, said, FILTERED)
    code = next((name for name in names if not name.isdecimal()), "")
    return BodyError(status, said, code)


def _is_of_filter(fields: Mapping[str, Any], names: list[str], said: str) -> bool:
    """Whether an error is of what one request says, as a filter sees it."""
    about = fields.get("metadata")
    is_told = isinstance(about, dict) and bool(about.get("reasons") or about.get("flagged_input"))
    by_name = any(_NAMES_OF_FILTERS.search(_letters(name)) for name in names)
    return is_told or by_name or _FLAGGED.search(_QUOTED.sub("", said[:300]).lower()) is not None


def _status(names: list[str], said: str) -> int:
    """Return the status that an error carries: as a number, by its name, or by clear words."""
    for name in names:
        if re.fullmatch(r"[45]\d\d", name):
            return int(name)
    for name in [*names, said]:
        known = status_named(name)
        if known is not None:
            return known
    ahead = _STATUS_AHEAD.match(said[:100])
    if ahead is not None:
        return int(ahead["status"])
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
    body: Any,
    *,
    key: ApiKey | None = None,
    pause_s: float | None = None,
    max_tokens: int | None = None,
) -> ChatReply | BodyError:
    """Return the reply of a decoded body: its text as far as it is kept, without the key.

    Parameters
    ----------
    max_tokens : int, optional
        That were asked for: a reply that has them all, and no word of how it ended, was cut.

    Raises
    ------
    NoReplyError
        If the body is no chat completion; what it says of the body holds no key.

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
    clean = key.scrub if key else scrub
    choice, message = _choice_of(body, clean)
    usage = body.get("usage")
    if not isinstance(usage, dict):
        usage = {}
    prompt, completion = (_count(usage, f"{what}_tokens") for what in ("prompt", "completion"))
    finish_reason = str(choice.get("finish_reason") or "")
    if not finish_reason and max_tokens is not None and (completion or 0) >= max_tokens:
        finish_reason = _USED_UP
    text, finish_reason = _said(message, finish_reason, clean)
    if _PASSING.fullmatch(finish_reason.lower()):
        return BodyError(_UNKNOWN_STATUS, f"a reply that ended by {finish_reason!r}", FAILED)
    if key:
        text, finish_reason = key.scrub_reply(text), key.scrub_reply(finish_reason)
    text = kept_text(whole_text(text))
    if is_overlong(text) and end_of(finish_reason) is None:
        finish_reason = OVERLONG
    return ChatReply(
        text=text,
        finish_reason=whole_text(finish_reason)[:_MAX_FINISH_CHARS] or None,
        n_prompt_tokens=prompt,
        n_completion_tokens=completion,
        pause_s=pause_s,
    )


# Takes secrets out: before a text is cut, for half a key is half of the work of guessing it.
Scrub = Callable[[str], str]


def _said(message: Mapping[str, Any], finish_reason: str, clean: Scrub) -> tuple[str, str]:
    """Return a message's text, and how it ended."""
    text, refusal = _text_of(message.get("content"))
    refusal = refusal or message.get("refusal") or ""
    if not text and isinstance(refusal, str) and refusal:
        return refusal, finish_reason if end_of(finish_reason) else REFUSAL
    if text is None and not finish_reason:
        if not any(message.get(name) for name in _THOUGHTS):
            raise NoReplyError(f"its message has no text, only {_names(message, clean)}")
        finish_reason = _THOUGHTS_ALONE
    # Said in another field, or nothing was said before the tokens were used up.
    return text or "", finish_reason


def _choice_of(body: Any, clean: Scrub) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first choice and its message; raise NoReplyError with what is there instead."""
    if not isinstance(body, dict):
        raise NoReplyError(f"it is a {type(body).__name__}, not an object")
    if "choices" not in body:
        raise NoReplyError(f"it has no choices, only {_names(body, clean)}")
    choice = _first(body["choices"])
    if not choice:
        shown = clean(json.dumps(body["choices"]))[:40]
        raise NoReplyError(f"its choices are empty: {shown}")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise NoReplyError(f"its first choice has no message, only {_names(choice, clean)}")
    return choice, message


def _names(fields: Mapping[str, Any], clean: Scrub) -> str:
    return ", ".join(repr(clean(str(name))[:30]) for name in [*fields][:6]) or "nothing"


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


def kept_text(text: str, *, max_bytes: int = MAX_REPLY_BYTES) -> str:
    """Return what is kept and read of a reply's text: all of it, unless it is too long.

    Of one that is too long, thoughts go first, as they do where replies are read; what is left
    ends after ``max_bytes``. So the text that was read is the text that the journal has. (To read
    the whole and keep a part would make another score of the part, when it is read again.)

    Examples
    --------
    >>> kept_text("Natürlich", max_bytes=4), kept_text("<think>Hm.</think>Ann", max_bytes=4)
    ('Nat', 'Ann')
    """
    if len(text.encode("utf-8", "surrogatepass")) <= max_bytes:
        return text
    kept = without_thoughts(text).encode("utf-8", "surrogatepass")
    return kept[:max_bytes].decode("utf-8", "ignore")


def is_overlong(text: str) -> bool:
    """Whether a text that was kept is the beginning of a longer one, which is no verdict.

    What stands at the end, where verdicts stand, is gone. One that just fills the room is not told
    from one that was cut, also where a journal has no mark of it.
    """
    return len(text.encode("utf-8", "surrogatepass")) > MAX_REPLY_BYTES - 4
