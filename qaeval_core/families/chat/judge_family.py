"""Family judge: a prompt of the user's, filled with a row's texts, to the number in its reply.

Equal prompts of a shard are one request. Numbers are stored for every run; their mean is taken at
join. A number off the scale is no number here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from qaeval_core.families.chat.family import ChatFamily, ChatWork, PromptRequest, Reading
from qaeval_core.llm.limits import Message
from qaeval_core.metrics.chat import ChatSettings
from qaeval_core.metrics.judge import JudgeSettings, fill, placeholders
from qaeval_core.signature import hash_text

# Lists hold one value a run.
STATISTICS_SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),
        pa.field("problem", pa.list_(pa.string())),
        pa.field("message", pa.list_(pa.string())),
        pa.field("value", pa.list_(pa.float64())),
        pa.field("key", pa.list_(pa.string())),
    ]
)
# What follows a number that is one of so many: 4/5, 4 out of 5.
_OF = re.compile(r"\s{0,3}(?:/|out of|von|sur|of)\s{0,3}(?P<most>\d+(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d++(?:[.,]\d++)*+(?!\w)")
# A brace, or a string, which may hold some; never given back: one that does not end has the rest.
_BRACE = re.compile(r'[{}]|"(?:[^"\\]|\\.?)*+"?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What a reply says: a number on the scale, or why there is none."""

    is_readable: bool
    value: float | None = None
    problem: str | None = None


class JudgeFamily(ChatFamily):
    """Numbers that a language model gives.

    Parameters
    ----------
    settings : JudgeSettings, optional
        Whose prompt, scale and reading these are; without them it plans alone.
    """

    name = "judge"
    version = "1"
    schema = STATISTICS_SCHEMA
    required = ("base_url", "model", "prompt_file")

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self._settings = settings or JudgeSettings(metric="judge")
        self.roles = placeholders(self._settings.prompt)

    def bound(self, settings: ChatSettings) -> JudgeFamily:
        """Return the family that asks and reads as these settings say."""
        assert isinstance(settings, JudgeSettings)
        return JudgeFamily(settings)

    def asked(self, settings: ChatSettings) -> dict[str, object]:
        """Return what is asked besides model and parameters."""
        own = self._settings
        low, high = own.scale
        return {
            "prompt": hash_text(json.dumps([own.prompt, self._reminder()])),
            "read": own.read,
            "runs": own.runs,
            "scale": f"{low:g},{high:g}",
        }

    def lay_out(self, values: Mapping[str, Sequence[Any]], settings: ChatSettings) -> ChatWork:
        """Return the requests of good rows."""
        reasons: list[str | None] = []
        rows: dict[str, list[int]] = {}
        for i in range(len(next(iter(values.values()), ()))):
            texts = {role: _text(role, given[i]) for role, given in values.items()}
            empty = [role for role, text in texts.items() if not text.strip()]
            # What is empty cannot be judged, and costs nothing.
            reasons.append(f"empty_{empty[0]}" if empty else None)
            if not empty:
                rows.setdefault(fill(self._settings.prompt, texts), []).append(i)
        requests = [
            PromptRequest([{"role": "user", "content": prompt}], of) for prompt, of in rows.items()
        ]
        return ChatWork(self, requests, reasons, n_runs=self._settings.runs, values=values)

    def read_reply(self, text: str) -> JudgeReply:
        """Return the number of a reply."""
        kind, _, name = self._settings.read.partition(":")
        found = {"last_number": _last_number, "json": _json_field, "tag": _tagged}[kind]
        value, problem = found(text, name, self._settings.scale[1])
        return self._checked(value, problem)

    def _checked(self, value: float | None, problem: str | None) -> JudgeReply:
        low, high = self._settings.scale
        if value is None:
            return JudgeReply(is_readable=False, problem=problem)
        if not low <= value <= high:
            return JudgeReply(is_readable=False, problem=f"{value:g} is not in [{low:g}, {high:g}]")
        return JudgeReply(is_readable=True, value=value)

    def reply_of(self, parsed: Mapping[str, Any]) -> JudgeReply:
        """Return what was read of a reply; one that says what cannot be is unreadable."""
        value, problem = parsed.get("value"), parsed.get("problem")
        if parsed.get("is_readable") is True and isinstance(value, float | int):
            return self._checked(float(value), None)
        return JudgeReply(is_readable=False, problem=problem if isinstance(problem, str) else None)

    def remind(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the prompt with a line that says where the number belongs."""
        *first, last = messages
        return [*first, {**last, "content": f"{last['content']}\n\n{self._reminder()}"}]

    def _reminder(self) -> str:
        kind, _, name = self._settings.read.partition(":")
        low, high = self._settings.scale
        number = f"one number from {low:g} to {high:g}"
        return {
            "last_number": f"End your reply with {number}, alone on the last line.",
            "json": f'Reply with a JSON object whose field "{name}" is {number}.',
            "tag": f"Give {number} between <{name}> and </{name}>.",
        }[kind]

    def statistics(
        self, work: ChatWork, readings: Sequence[Sequence[Reading]]
    ) -> dict[str, pa.Array]:
        """Return the statistics of every row, in row order."""
        columns: dict[str, list[Any]] = {
            "reason": work.reasons,
            "value": [[getattr(own.reply, "value", None) for own in row] for row in readings],
            **{
                name: [[getattr(own, name) for own in row] for row in readings]
                for name in ("problem", "message", "key")
            },
        }
        return {
            field.name: pa.array(columns[field.name], field.type) for field in STATISTICS_SCHEMA
        }


def _text(role: str, given: object) -> str:
    """Return a role's value as one text."""
    if not isinstance(given, list | tuple):
        return str(given)
    return ("\n\n" if role == "context" else "\n").join(map(str, given))


NumberOrProblem = tuple[float | None, str | None]


def _last_number(text: str, _: str, most: float) -> NumberOrProblem:
    """Return the last number; of ``4/5``, and ``4 out of 5``, the first where 5 is the most.

    Examples
    --------
    >>> [_last_number(text, "", 5.0)[0] for text in ("2, no: 3.", "4/5", "**4 out of 5**", "4/7")]
    [3.0, 4.0, 4.0, None]
    """
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return None, "the reply has no number"
    last = numbers[-1]
    if len(numbers) > 1:
        before = numbers[-2]
        of = _OF.match(text, before.end())
        if of is not None and of.start("most") == last.start():
            if float(of["most"]) != most:
                return None, f"{before[0]} of {of['most']} is on another scale"
            last = before
    if "," in last[0] or last[0].count(".") > 1:
        return None, f"{last[0]} may be read in two ways"
    return _number(last[0])


def _json_field(text: str, name: str, _: float) -> NumberOrProblem:
    """Return the field of the last JSON object that has it itself.

    Nothing is looked for inside an object: what stands there says something else, also where the
    whole is torn.

    Examples
    --------
    >>> _json_field('So: {"why": "{}", "score": 4}.', "score", 5.0)
    (4.0, None)
    >>> _json_field('{"score": 4, "aspects": {"clarity": {"score": 2}}}', "score", 5.0)
    (4.0, None)
    >>> _json_field('{"clarity": {"score": 2}, "score": ', "score", 5.0)[0] is None
    True
    """
    decoder = json.JSONDecoder()
    last: dict[str, Any] = {}
    start = text.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(text, start)
            last = found if name in found else last
        except (ValueError, RecursionError):
            end = _end_of_braces(text, start)
        start = text.find("{", end)
    if not last:
        return None, f"the reply has no JSON object with {name!r}"
    return _number(last[name])


def _end_of_braces(text: str, start: int) -> int:
    """Return where what a brace opens ends.

    >>> _end_of_braces('{a {"}"} b} {', 0), _end_of_braces('{"}', 0)
    (11, 3)
    """
    depth = 0
    for found in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(text)


def _tagged(text: str, name: str, _: float) -> NumberOrProblem:
    """Return what stands in the last tag of a name.

    Examples
    --------
    >>> _tagged("<score>2</score> or rather <score> 3 </score>", "score", 5.0)
    (3.0, None)
    """
    tags = list(re.finditer(f"<(/?){re.escape(name)}>", text, re.IGNORECASE))
    pairs = [(a, b) for a, b in pairwise(tags) if not a[1] and b[1]]
    if not pairs:
        return None, f"the reply has no <{name}>...</{name}>"
    opening, closing = pairs[-1]
    return _number(text[opening.end() : closing.start()].strip())


def _number(given: object) -> NumberOrProblem:
    """Return a number; texts of one are read, truth values and others are not."""
    try:
        value = float(given) if isinstance(given, int | float | str) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if isinstance(given, bool) or not math.isfinite(value):
        return None, f"{str(given)[:40]!r} is no number"
    return value, None
