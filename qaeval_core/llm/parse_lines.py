"""Lines of a reply: cleaned text, list markers, labels and headers. Judges nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What a reply is made of, once it is clean: these two marks, and lines.
OPEN, CLOSE = "<ans>", "</ans>"
_OPENED = re.compile(r"[<\[]\s*ans(?:wer)?\s*[>\]]", re.IGNORECASE)
_CLOSED = re.compile(r"[<\[]\s*(?:[/\\]\s*ans(?:wer)?|ans(?:wer)?\s*/)\s*[>\]]", re.IGNORECASE)
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.IGNORECASE | re.DOTALL)
_THOUGHT_END = re.compile(r"\A.*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
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


@dataclass(frozen=True, slots=True)
class Line:
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
    """Return a reply without thoughts, emphasis and code fences, its marks spelt as asked for.

    Examples
    --------
    >>> clean("<think>Ann or Bob?</think>**Answer:** < ANS >Ann[/answer]")
    'Answer: <ans>Ann</ans>'
    """
    text = reply.replace("\r\n", "\n").replace("\r", "\n").replace("&lt;", "<").replace("&gt;", ">")
    text = _THOUGHT.sub("", text)
    text = _THOUGHT_END.sub("", text)  # Some servers keep the thoughts but not their first mark.
    text = text.replace("\\<", "<").replace("\\>", ">")
    text = _OPENED.sub(OPEN, _CLOSED.sub(CLOSE, text))
    return _LINE_START.sub("", _EMPHASIS.sub("", text)).strip("\n")


def lines_of(text: str) -> list[Line]:
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


def _line(raw: str, start: int) -> Line:
    indent = len(raw) - len(raw.lstrip())
    place, kind = indent, ""
    while found := _MARKER.match(raw, place):
        place, kind = found.end(), str(found.lastgroup)
    body = raw[place:].strip()
    step = _STEP.match(body)
    return Line(start + place, indent, kind, body, _label(step) if step else "")


def _label(found: re.Match[str]) -> str:
    """Return the number of a step, so that "Step two" and "Step 2" are one."""
    label = found["label"].lower()
    return str(_WORD_NUMBERS.index(label) + 1) if label in _WORD_NUMBERS else str(int(label))
