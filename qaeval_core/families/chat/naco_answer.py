"""Lines and answer of a reply: what stands between its marks, or that the passages do not answer.

Lines are cleaned text with list markers, labels and headers. The verdict and the steps are
``naco_reply``'s.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qaeval_core.llm.thoughts import without_thoughts

# What a reply is made of, once it is clean: these two marks, and lines.
OPEN, CLOSE = "<ans>", "</ans>"
_OPENED = re.compile(r"[<\[]\s*ans(?:wer)?\s*[>\]]", re.IGNORECASE)
_CLOSED = re.compile(r"[<\[]\s*(?:[/\\]\s*ans(?:wer)?|ans(?:wer)?\s*/)\s*[>\]]", re.IGNORECASE)
_EMPHASIS = re.compile(r"\*\*|__|`+(?:\w+$)?|(?<!\S)\*(?=\S)|(?<=[\w:.])\*(?!\S)", re.MULTILINE)
_LINE_START = re.compile(r"^[ \t]*(?:#{1,6}|>+)[ \t]+", re.MULTILINE)

# "1." "1a)" "(b)" "(ii)" "-"; "1:" too, but no letter with a colon.
_MARKER = re.compile(
    r"(?:(?P<number>\(?\d{1,2}[a-z]?[.):])|(?P<letter>\([a-z]{1,4}\)|[a-z]{1,3}\)|[a-z]\.)"
    r"|(?P<bullet>[-*•–‣▪]))(?:\s+|$)"
)
_WORD_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_STEP = re.compile(
    rf"\(?step\s*(?:#\s*)?(?P<label>\d{{1,2}}|{'|'.join(_WORD_NUMBERS)})\b\)?\s*"
    r"(?P<end>[:.)–—-]|$)?\s*",
    re.IGNORECASE,
)
_SENTENCE_START = re.compile(r"(?:^|[.!?:;)\]>]\s+)\Z")
ANSWER_LABEL = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:(?:the|my|your)\s+)?(?:(?:final|short|correct)\s+)?"
    r"answer\b(?:\s*\([^)]*\))?(?:\s+to\s+(?:the|this)\s+(?:question|sentence))?(?:\s+is\b)?\s*"
    r"(?P<end>[:=→]|[-–—]\s)?\s*",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?:let's\s+\w+\s+)?(?:step[- ]by[- ]step(?:\s+\w+){0,2}|(?:\w+\s+)?"
    r"(?:reasoning|steps|thinking|explanation|analysis)(?:\s+\w+)?)\s*(?::(?P<rest>.*)|\.?)$",
    re.IGNORECASE,
)

_INLINE = re.compile(r"(?:^|\s)(?P<number>\d{1,2})[.)]\s")


Problem = Literal["empty_reply", "no_answer", "empty_answer", "ambiguous_answer", "refusal"]
# An "Answer:" line without marks that is longer is no answer but talk.
_MAX_UNMARKED_WORDS = 20
# What the prompt puts between the marks, and the likes of it, said back.
_PLACEHOLDERS = frozenset(
    ["", "and", "ans", "answer", "the answer", "your answer", "answer text", "answer here"]
)
_MARKS = re.compile(rf"{OPEN}|{CLOSE}")
_BETWEEN_PARTS = re.compile(r"[\s,;&/]*(?:(?:and|or)[\s,;]*)?")
_LABEL_BEFORE = re.compile(ANSWER_LABEL.pattern + r"[\"'(]*\Z", re.IGNORECASE)
_MAX_LABEL_CHARS = 60
_FIRST_LINE = re.compile(r"\s*[^\n]*")
# A new case after the answer: a model that goes on with the prompt.
_NEXT_CASE = re.compile(
    r"^(?:context\s+)?passage(?:\s+\d+)?\s*:|^sentence\s*:|^verdict\s*:", re.I | re.M
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "„": "“", "[": "]", "(": ")", "`": "`"}
_PASSAGE = r"\b(?:passages?|texts?|contexts?|paragraphs?|documents?|information)\b"
_TELLS = (
    r"(?:answer|mention|say|state|contain|provide|give|specify|include|tell|hold|name|reveal|"
    r"indicate|discuss|address|describe|have|explain|identify|list|offer)"
)
_CANNOT = r"\b(?:cannot|can't|can’t|can\s+not|could\s+not|couldn't|unable\s+to)\s+"
_DOES_NOT = r"\b(?:(?:do|does|did)(?:\s+not|n['’]t)|never|fails?\s+to|lacks?)\b"
_IS_NOT = r"\b(?:is|are|was|were)(?:\s+not|n['’]t)\s+(?:explicitly\s+|directly\s+)?"
_TOLD = r"(?:mentioned|stated|given|provided|specified|found|answered|included|named)"
# Says that there is no answer, wherever it stands.
_NO_ANSWER = re.compile(
    r"\bunanswerable\b|\bnot\s+answerable\b"
    r"|\b(?:not\s+enough|insufficient)\s+information\b"
    r"|\bno\s+answer\s+(?:(?:is|was|can\s+be)\s+)?(?:given|found|provided|available|possible|in)\b"
    r"|\b(?:not\s+possible|impossible)\s+to\s+(?:answer|determine|tell)\b"
    rf"|{_CANNOT}be\s+(?:answered|determined|inferred)\b"
    rf"|{_CANNOT}(?:answer|determine|find|tell)\b[^.\n]{{0,80}}?{_PASSAGE}",
    re.IGNORECASE,
)
# Says what the passages leave out: an answer only where a reply ends with it.
_LEFT_OUT = re.compile(
    rf"{_PASSAGE}[^.\n]{{0,40}}?{_DOES_NOT}[^.\n]{{0,20}}?\b{_TELLS}"
    rf"|{_IS_NOT}(?:{_TOLD}|in)\b[^.\n]{{0,40}}?{_PASSAGE}"
    rf"|\bno\s+(?:\w+\s+)?(?:answer|information|mention)\b[^.\n]{{0,60}}?{_PASSAGE}"
    rf"|\bno(?:ne\s+of\s+the|thing\s+in\s+the)?\s+{_PASSAGE}[^.\n]{{0,40}}?\b{_TELLS}",
    re.IGNORECASE,
)
# The same as a whole answer, without a subject.
_BARE_NO_ANSWER = re.compile(
    rf"no\s+answer|(?:it\s+is\s+)?not\s+(?:{_TOLD}|known|in\s+the\s+\w+|available)\b.*",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\bI(?:\s*'m|\s*’m|\s+am)\s+(?:sorry|unable|not\s+able)\b|\bI\s+apologi[sz]e\b|\bas\s+an\s+AI\b"
    r"|\bI\s*(?:cannot|can't|can’t|can\s+not|won't|won’t|will\s+not)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ReplyLine:
    """One line of a reply that is not blank."""

    start: int  # where its text without marker begins in the clean reply
    indent: int  # characters before its marker
    kind: str  # of its marker: "number", "letter", "bullet"; "" without one
    body: str  # what stands behind markers, blanks stripped
    step: str  # the label of "Step 2:", "" without one

    @property
    def text(self) -> str:
        """The body behind a step's label."""
        return _STEP.sub("", self.body, count=1) if self.step else self.body

    @property
    def is_header(self) -> bool:
        """Whether it announces the steps."""
        return not self.step and _HEADER.match(self.body) is not None

    @property
    def n_listed(self) -> int:
        """How many steps a header numbers on its own line: "Steps: 1. ... 2. ..."."""
        header = _HEADER.match(self.body)
        n_steps = 0
        for found in _INLINE.finditer((header and header["rest"]) or ""):
            n_steps += int(found["number"]) == n_steps + 1
        return n_steps

    @property
    def is_answer(self) -> bool:
        """Whether it gives the answer and nothing else: a mark or a label comes first."""
        found = ANSWER_LABEL.match(self.text)
        rest = self.text[found.end() :] if found else self.text
        return rest.startswith(OPEN) or bool(found and found["end"])

    @property
    def answer(self) -> str | None:
        """What stands behind the label of an answer ("" if nothing); None without the label."""
        found = ANSWER_LABEL.match(self.text)
        return self.text[found.end() :] if found and found["end"] else None


def clean(reply: str) -> str:
    """Return a reply without thoughts, emphasis and code fences, its marks spelled as asked for.

    Examples
    --------
    >>> clean("<think>Ann or Bob?</think>**Answer:** < ANS >Ann[/answer]")
    'Answer: <ans>Ann</ans>'
    """
    text = reply.replace("\r\n", "\n").replace("\r", "\n").replace("&lt;", "<").replace("&gt;", ">")
    text = without_thoughts(text)  # Again: entities are marks only now.
    text = text.replace("\\<", "<").replace("\\>", ">")
    text = _OPENED.sub(OPEN, _CLOSED.sub(CLOSE, text))
    return _LINE_START.sub("", _EMPHASIS.sub("", text)).strip("\n")


def lines_of(text: str) -> list[ReplyLine]:
    """Return the lines of a clean reply.

    Examples
    --------
    >>> (line,) = lines_of("  2. (a) Step 1: Ann came.")
    >>> line.indent, line.kind, line.step, line.text
    (2, 'letter', '1', 'Ann came.')
    """
    lines, start = [], 0
    for raw in text.split("\n"):
        if raw.strip():
            lines.append(_line(raw, start))
        start += len(raw) + 1
    return lines


def step_labels(text: str) -> list[str]:
    """Return the labels of steps that begin a sentence of a line.

    Examples
    --------
    >>> step_labels("Step 1: Ann came. Step 2: By step 1, Bob left.")
    ['1', '2']
    """
    return [
        _label(match)
        for match in _STEP.finditer(text)
        if match["end"] and _SENTENCE_START.search(text, max(match.start() - 4, 0), match.start())
    ]


def _line(raw: str, start: int) -> ReplyLine:
    indent = len(raw) - len(raw.lstrip())
    place, kind = indent, ""
    while found := _MARKER.match(raw, place):
        place, kind = found.end(), str(found.lastgroup)
    body = raw[place:].strip()
    step = _STEP.match(body)
    return ReplyLine(start + place, indent, kind, body, _label(step) if step else "")


def _label(found: re.Match[str]) -> str:
    """Return the number of a step, so that "Step two" and "Step 2" are one."""
    label = found["label"].lower()
    return str(_WORD_NUMBERS.index(label) + 1) if label in _WORD_NUMBERS else str(int(label))


@dataclass(frozen=True, slots=True)
class NacoAnswer:
    """What a reply answers; exactly one of the first three says so.

    ``place`` is where the answer stands in the clean reply, its end where there is none.
    """

    text: str | None
    is_unanswerable: bool
    problem: Problem | None
    place: int


@dataclass(frozen=True, slots=True)
class _Marked:
    text: str
    start: int
    end: int
    is_labeled: bool  # right behind "Answer:"


def find_answer(text: str, lines: Sequence[ReplyLine]) -> NacoAnswer:
    """Return the answer of a clean reply with these lines.

    Marks first; then, without any, one line "Answer: ..." of at most 20 words, or several that say
    the same; then a statement at the end that the passages do not answer.
    """
    marked = _marked(text, lines)
    if given := _given(marked, text):
        chosen = _choose(given, text)
        return _answer(chosen.text, chosen.start)
    labeled = _labeled(lines)
    found = {value.casefold() for value in labeled}
    if len(found) == 1:
        value, place = next(iter(labeled.items()))
        if _says_no_answer(value) or len(value.split()) <= _MAX_UNMARKED_WORDS:
            return _answer(value, place)
    if lines and _ends_without_answer(lines):
        return NacoAnswer(None, True, None, len(text))
    problem = _problem(text, n_answers=len(found), is_marked=bool(marked))
    return NacoAnswer(None, False, problem, len(text))


def _given(marked: Sequence[_Marked], text: str) -> list[_Marked]:
    """Return answers between marks: no placeholders, and nothing of a case that follows."""
    given = [one for one in marked if not _is_placeholder(one.text)]
    beyond = _NEXT_CASE.search(text, given[0].end) if given else None
    return [one for one in given if beyond is None or one.start < beyond.start()]


def _labeled(lines: Sequence[ReplyLine]) -> dict[str, int]:
    """Return what stands behind labels, on their line or the next one, with its place."""
    found: dict[str, int] = {}
    for i, line in enumerate(lines):
        value = line.answer
        if value == "" and i + 1 < len(lines) and not lines[i + 1].kind:
            value = lines[i + 1].body
        bare = "" if value is None else _bare(value)
        if not _is_placeholder(bare):
            found.setdefault(bare, line.start)
    return found


def _answer(value: str, place: int) -> NacoAnswer:
    if _says_no_answer(value):
        return NacoAnswer(None, True, None, place)
    return NacoAnswer(value, False, None, place)


def _says_no_answer(value: str) -> bool:
    is_bare = _BARE_NO_ANSWER.fullmatch(value.rstrip("."))
    return bool(is_bare or _NO_ANSWER.search(value) or _LEFT_OUT.search(value))


def _ends_without_answer(lines: Sequence[ReplyLine]) -> bool:
    """Whether the last line says that there is no answer.

    A list item that says what a passage leaves out may be a step of a reply that was cut off.
    """
    last = lines[-1]
    is_step = bool(last.kind or last.step)
    return bool(_NO_ANSWER.search(last.body) or (not is_step and _LEFT_OUT.search(last.body)))


def _problem(text: str, *, n_answers: int, is_marked: bool) -> Problem:
    if not text.strip():
        return "empty_reply"
    if n_answers > 1:
        return "ambiguous_answer"
    if is_marked:
        return "empty_answer"
    return "refusal" if _REFUSAL.search(text) else "no_answer"


def _marked(text: str, lines: Sequence[ReplyLine]) -> list[_Marked]:
    """Return what stands between marks, placeholders too."""
    marks = list(_MARKS.finditer(text))
    found: list[_Marked] = []
    starts = [line.start for line in lines]
    rest, looked_at = iter(enumerate(marks)), -1
    for i, mark in rest:
        if mark[0] == CLOSE:
            place = bisect_right(starts, mark.start()) - 1
            # Each line once: a reply may be made of nothing but marks.
            if not found and place > looked_at:
                found.extend(_closed_only(lines[place], mark))
                looked_at = place
            continue
        following = marks[i + 1] if i + 1 < len(marks) else None
        end = _end_of(text, mark, following)
        if following is not None and end == following.start():
            next(rest)  # It closes this one, as a second <ans> may.
        above = max(mark.start() - _MAX_LABEL_CHARS, 0)
        is_labeled = _LABEL_BEFORE.search(text, above, mark.start()) is not None
        found.append(_Marked(_bare(text[mark.end() : end]), mark.start(), end, is_labeled))
    return found


def _end_of(text: str, mark: re.Match[str], following: re.Match[str] | None) -> int:
    """Return where an answer ends: at the mark that closes it, else at the end of its line."""
    if following is not None:
        between = text[mark.end() : following.start()]
        if following[0] == CLOSE or (between.strip() and "\n" not in between):
            return following.start()
    limit = len(text) if following is None else following.start()
    line = _FIRST_LINE.match(text, mark.end(), limit)
    return limit if line is None else line.end()


def _closed_only(line: ReplyLine, mark: re.Match[str]) -> list[_Marked]:
    """Return what stands between a label and a mark that closes what none has opened."""
    is_inside = mark.start() <= line.start + len(line.body)
    value = line.answer if is_inside else None
    if value is None:
        return []
    return [_Marked(_bare(value.split(CLOSE, 1)[0]), line.start, mark.start(), True)]


def _choose(given: Sequence[_Marked], text: str) -> _Marked:
    """Return the labeled answer, else the last one; parts of a list on one line together."""
    wholes: list[_Marked] = []
    for one in given:
        if wholes and (between := _between_parts(wholes[-1], one, text)):
            first = wholes.pop()
            whole = f"{first.text}{between} {one.text}"
            wholes.append(_Marked(whole, first.start, one.end, first.is_labeled))
        else:
            wholes.append(one)
    return ([one for one in wholes if one.is_labeled] or wholes)[-1]


def _between_parts(left: _Marked, right: _Marked, text: str) -> str | None:
    """Return what joins two parts of one answer; None if they are two answers."""
    between = _MARKS.sub("", text[left.end : right.start])
    is_list = "\n" not in between and _BETWEEN_PARTS.fullmatch(between)
    return (between.rstrip() or ",") if is_list else None


def _is_placeholder(value: str) -> bool:
    return value.strip(" .…_-[](){}<>\"'").casefold() in _PLACEHOLDERS


def _bare(value: str) -> str:
    """Return an answer on one line, without marks and the quotes or brackets around all of it."""
    value = " ".join(_MARKS.sub(" ", value).split()).lstrip(":= ").strip()
    while len(value) > 1 and _QUOTES.get(value[0]) == value[-1]:
        inner = value[1:-1]
        if value[0] in inner or value[-1] in inner:
            break  # "A" and "B": these quotes are not a pair.
        value = inner.strip()
    return value
