"""Verdict of a reply: natural, unnatural or not a question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from qaeval_core.llm.parse_lines import Line

Verdict = Literal["natural", "unnatural", "not_a_question"]

_LABEL = re.compile(
    r"(?:(?:my|the|final)\s+)?(?:verdict|judge?ment)\b\s*(?:is\b)?\s*[:=–—-]*\s*", re.I
)
_TERM = r"(?:(?:the\s+)?question\s+)?(?:natural|unnatural)|not\s+a\s+question"
# The three words side by side repeat the instruction; they are no verdict.
_OFFERED = re.compile(
    rf"(?:{_TERM})(?:[\s\"'()\[\],/|]{{1,5}}(?:or\s+[\"']?)?(?:{_TERM}))+",
    re.IGNORECASE,
)
_NOT = r"(?:\bnot|n't|n’t|\bneither|\bnor|\bnever|\bnothing|\bwithout)"
_FILLER = (
    r"(?:\s+(?:an?|at\s+all|very|really|quite|entirely|fully|completely|particularly|actually|be|"
    r"being|sound|sounding|seem|read|look|anything|like|phrased|worded))*\s+"
)
_KINDS = {
    "not_a_question": (
        rf"{_NOT}(?:\s+(?:actually|really|itself|phrased\s+as|framed\s+as|in\s+the\s+form\s+of))*"
        r"\s+(?:a|an)\s+(?:(?:real|true|actual|genuine|direct)\s+)?question\b"
        r"(?!\s+(?:marks?|words?|of|about|that|which|for|whether|with)\b)",
        r"\bnon-?question\b",
        r"\b(?:does\s+not|doesn't|doesn’t)\s+ask\s+(?:anything|something|a\s+question)\b",
        r"^[^\w\n]{0,9}no\s+question\s*(?:[.;!]|$)",
        r"\basks\s+nothing\b|\b(?:asks|contains|poses)\s+no\s+question\b",
        r"\b(?:it|this|that|sentence|text)\s+is\s+(?:(?:just|simply|only|merely|rather)\s+)?"
        r"an?\s+(?:\w+\s+)?(?:statement|assertion|declarative\s+sentence|fragment)\b",
        r"\bis\s+(?:it|this|the\s+(?:sentence|text))\s+a\s+question\s*\?\s*(?:[-–—:]\s*)?no\b",
    ),
    "unnatural": (
        r"\bnatural(?:ness)?\s*[?:=]\s*no\b",
        rf"{_NOT}{_FILLER}natural\b",
        rf"{_NOT}{_FILLER}(?:well[- ]formed|clear|grammatical|valid|proper|complete)\s+question\b",
    ),
    # Before bare "unnatural": "not unnatural" is natural.
    "natural": (
        rf"{_NOT}{_FILLER}unnatural\b|\bunnatural\s*[?:=]\s*no\b",
        r"\bquestion\s+(?:is\s+|sounds\s+|reads\s+|seems\s+|looks\s+)?(?:\w+\s+)?natural\b",
        r"\bnatural\s+question\b|^[^\w\n]{0,9}natural\b|\bverdict\s*(?:is|:)\s*natural\b",
        r"\b(?:is|sounds|reads|seems|looks|and)\s+(?:\w+\s+)?natural\s*(?:[.,;:!)]|$)",
    ),
}
_BARE = r"\bunnatural(?:ly)?\b"
_SAID = re.compile(
    "|".join(
        [
            *(f"(?P<{kind}>{'|'.join(patterns)})" for kind, patterns in _KINDS.items()),
            f"(?P<bare>{_BARE})",
        ]
    ),
    re.IGNORECASE | re.MULTILINE,
)
# Judges the sentence, whatever the verdict.
_JUDGES = re.compile(
    r"\b(?:is|it's|it’s|as)\s+(?:indeed\s+|clearly\s+)?an?\s+(?:[\w-]+,?\s+){0,3}question\b"
    r"(?!\s+of\b)"
    r"|\bquestion\s+(?:mark|word)\b|\bgramma(?:r|tical)|^(?:yes\b|no[,.;:])"
    r"|\b(?:a\s+question|natural)\s*\?",
    re.IGNORECASE,
)
# Words of others: the sentence said back, and what the passage says.
_QUOTED = re.compile(r"\"[^\"\n]{12,}\"|“[^“”\n]{12,}”")
# Not said back but given: the prompt itself has its verdicts in quotes.
_QUOTED_VERDICT = re.compile(
    r"((?:^|[:=])\s*)[\"“](not\s+a\s+question)[.!]?[\"”]", re.IGNORECASE | re.MULTILINE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_OF_PASSAGE = re.compile(r"\b(?:passages?|context)\b", re.IGNORECASE)
_OF_SENTENCE = re.compile(r"\b(?:question|sentence)\b", re.IGNORECASE)


def verdict_of(text: str, *, takes_first: bool = False) -> Verdict | None:
    """Return the verdict that a text gives, None if it gives none.

    "Not a question" goes before the two others, of which the last one counts, or the first.

    Examples
    --------
    >>> verdict_of("It is a question. Question unnatural."), verdict_of("natural or unnatural")
    ('unnatural', None)
    """
    found: list[str] = []
    for match in _SAID.finditer(_OFFERED.sub(_kept_verdict, _own_words(text))):
        kind = str(match.lastgroup)
        found.append("unnatural" if kind == "bare" else kind)
    if "not_a_question" in found:
        return "not_a_question"
    if not found:
        return None
    kind = found[0 if takes_first else -1]
    return "unnatural" if kind == "unnatural" else "natural"


def labelled_verdict(lines: Sequence[Line], *, answer_place: int) -> Verdict | None:
    """Return the first verdict behind a label "Verdict:", on its line or the next one.

    Labels above the answer go before those below it, where another case may have begun.
    """
    labels = [(i, _LABEL.match(line.body)) for i, line in enumerate(lines)]
    found = [(i, label.end()) for i, label in labels if label is not None]
    above = [(i, end) for i, end in found if lines[i].start <= answer_place]
    for i, end in above or found[:1]:
        value = lines[i].body[end:]
        if not value and i + 1 < len(lines):
            value = lines[i + 1].body
        if verdict := verdict_of(value, takes_first=True):
            return verdict
    return None


def is_about_verdict(line: Line) -> bool:
    """Whether a line judges the sentence, so that it is no step to the answer."""
    text = line.text
    return bool(_LABEL.match(text) or _JUDGES.search(text)) or verdict_of(text) is not None


def _kept_verdict(offered: re.Match[str]) -> str:
    """Return nothing for words that are offered, and words that are a verdict as they are."""
    text = offered[0].lower()
    is_choice = re.search(r"\bor\b|[/|]", text) or len(re.findall(r"natural|not", text)) > 2
    return "" if is_choice else offered[0]


def _own_words(text: str) -> str:
    """Return the sentences of a text that may judge, without what they quote."""
    given = _QUOTED_VERDICT.sub(r"\1\2", text)
    sentences = _SENTENCE_END.split(_QUOTED.sub("", given))
    return "\n".join(
        one for one in sentences if not _OF_PASSAGE.search(one) or _OF_SENTENCE.search(one)
    )
