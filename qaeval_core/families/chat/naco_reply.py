"""Parse: a model's reply to the prompt, read leniently.

Text in, verdict, answer and number of steps out. A reply that cannot be read says so; it is asked
again, and never scored. F-scores and means are ``metrics.naco``'s.

Source
------
Nguyen, Yu, Huang, Jiang. Reference-based Metrics Disprove Themselves in Question Generation.
Findings of EMNLP 2024, arXiv:2403.12242, section 3 and appendix A.2.

Differs from the authors' program (bnguyen5/naco at 2d347c4)
------------------------------------------------------------
- A verdict is looked for where verdicts stand, and read with its negation. Theirs looks for "not a
  question" and "unnatural" anywhere, also in reasoning and in "not unnatural".
- Steps are labeled or listed ones. Theirs counts how often the reply says "step".
- A reply without marks, or with empty ones, is unreadable unless it says that the passages do not
  answer. Theirs takes the answer to be empty.
- Of several marked answers the one labeled "Answer:" is taken, else the last. Theirs takes the
  first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qaeval_core.families.chat.naco_answer import (
    OPEN,
    NacoAnswer,
    Problem,
    ReplyLine,
    clean,
    find_answer,
    lines_of,
    step_labels,
)

# An answer of more words is no verdict between the marks.
_MAX_MARKED_VERDICT_WORDS = 5
# A longer last line is talk in which a verdict may be mentioned.
_MAX_LAST_VERDICT_WORDS = 20


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a reply says.

    Attributes
    ----------
    is_readable : bool
        Whether there is a verdict against the question, an answer, or a statement that the
        passages do not answer. Without it all else is None, False or 0, but for ``problem``.
    is_question, is_natural : bool or None
        The verdict; both True where the reply has an answer and no verdict. A question may be
        unnatural; what is not a question is not natural.
    n_steps : int
        Reasoning steps, at least 1 for a question; 0 for what is none.
    answer : str or None
        On one line; None where there is none.
    says_unanswerable : bool
        Whether it says that the passages do not answer the question.
    problem : str or None
        Why it is unreadable: ``empty_reply``, ``refusal``, ``no_answer`` (no mark, no label),
        ``empty_answer`` (nothing, or the prompt's own words, between the marks),
        ``ambiguous_answer`` (labels without marks that disagree).
    """

    is_readable: bool
    is_question: bool | None = None
    is_natural: bool | None = None
    n_steps: int = 0
    answer: str | None = None
    says_unanswerable: bool = False
    problem: Problem | None = None


def parse_reply(text: str) -> Reply:
    r"""Return what a reply says.

    Examples
    --------
    >>> reply = parse_reply("Verdict: natural\nSteps:\n1. Ann came.\nAnswer: <ans>Ann</ans>")
    >>> reply.is_natural, reply.n_steps, reply.answer
    (True, 1, 'Ann')
    >>> parse_reply("Not a question.").is_question
    False
    >>> parse_reply("Ann came, I think.").problem
    'no_answer'
    """
    text = clean(text)
    lines = lines_of(text)
    answer = find_answer(text, lines)
    verdict = _verdict(lines, answer)
    if verdict == "not_a_question":
        return Reply(is_readable=True, is_question=False, is_natural=False)
    if verdict != "unnatural" and answer.problem is not None:
        return Reply(is_readable=False, problem=answer.problem)
    is_verdict = answer.text is not None and _verdict_in_marks(answer.text) is not None
    return Reply(
        is_readable=True,
        is_question=True,
        is_natural=verdict != "unnatural",
        n_steps=count_steps(lines, answer_place=answer.place),
        answer=None if is_verdict else answer.text,
        says_unanswerable=answer.is_unanswerable,
    )


def _verdict(lines: Sequence[ReplyLine], answer: NacoAnswer) -> Verdict | None:
    """Return the verdict: between the marks, labeled, before the first step, or at the end."""
    if answer.text is not None and (marked := _verdict_in_marks(answer.text)):
        return marked
    if labeled := labeled_verdict(lines, answer_place=answer.place):
        return labeled
    head = head_of(lines, answer_place=answer.place)
    said = verdict_of("\n".join(line.body for line in head))
    if said is not None or answer.problem is None or not lines:
        return said
    # Reasoning that ends with a verdict instead of an answer.
    last = lines[-1].body
    return verdict_of(last) if len(last.split()) <= _MAX_LAST_VERDICT_WORDS else None


def _verdict_in_marks(value: str) -> Verdict | None:
    """Return the verdict that is given as if it were the answer."""
    verdict = verdict_of(value) if len(value.split()) <= _MAX_MARKED_VERDICT_WORDS else None
    return None if verdict == "natural" else verdict


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


def labeled_verdict(lines: Sequence[ReplyLine], *, answer_place: int) -> Verdict | None:
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


def is_about_verdict(line: ReplyLine) -> bool:
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


def count_steps(lines: Sequence[ReplyLine], *, answer_place: int) -> int:
    """Return the number of reasoning steps, at least 1.

    Steps are what the labels "Step 1:", "Step 2:" number, or else the items of the outermost list
    between verdict and answer. What only judges the sentence, or only gives the answer, is none;
    nor are items inside an item, and lines that go on with one. Steps below the answer count where
    there are none above it and a label or a header makes them steps.

    Parameters
    ----------
    lines : sequence of ReplyLine
        Of the clean reply.
    answer_place : int
        Where its answer stands.
    """
    above = [line for line in lines if line.start <= answer_place]
    inline = max((line.n_listed for line in above if line.is_header), default=0)
    n_steps = _labeled(above) or _listed(_after_verdict(above)) or inline
    if n_steps == 0:
        below = [line for line in lines if line.start > answer_place]
        header = next((i for i, line in enumerate(below) if line.is_header), len(below))
        n_steps = _labeled(below) or _listed(below[header + 1 :])
    return max(n_steps, 1)


def head_of(lines: Sequence[ReplyLine], *, answer_place: int) -> list[ReplyLine]:
    """Return the lines before the first step, header or answer: those with the verdict."""
    head: list[ReplyLine] = []
    for line in lines:
        is_step = line.step or (line.kind and not is_about_verdict(line))
        if (
            line.start > answer_place
            or line.is_header
            or line.is_answer
            or OPEN in line.body
            or is_step
        ):
            break
        head.append(line)
    return head


def _labeled(lines: Sequence[ReplyLine]) -> int:
    """Return how many different steps are labeled "Step 1:" and so on."""
    labels = {label for line in lines for label in step_labels(line.body)}
    labels |= {line.step for line in lines if line.step}
    return len(labels - {line.step for line in lines if line.step and line.is_answer})


def _listed(lines: Sequence[ReplyLine]) -> int:
    """Return the items of the outermost list."""
    items = [line for line in lines if line.kind and not line.is_answer and not line.is_header]
    if not items:
        return 0
    first = items[0]
    return sum(line.kind == first.kind and line.indent <= first.indent + 1 for line in items)


def _after_verdict(lines: Sequence[ReplyLine]) -> Sequence[ReplyLine]:
    """Return the lines below the header, else those below what judges the sentence."""
    for i, line in enumerate(lines):
        if line.is_header:
            return lines[i + 1 :]
    for i, line in enumerate(lines):
        if line.kind and not is_about_verdict(line):
            return lines[i:]
    return []
