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
- Steps are labelled or listed ones. Theirs counts how often the reply says "step".
- A reply without marks, or with empty ones, is unreadable unless it says that the passages do not
  answer. Theirs takes the answer to be empty.
- Of several marked answers the one labelled "Answer:" is taken, else the last. Theirs takes the
  first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qaeval_core.llm.parse_answer import Answer, Problem, find_answer
from qaeval_core.llm.parse_lines import Line, clean, lines_of
from qaeval_core.llm.parse_steps import count_steps, head_of
from qaeval_core.llm.parse_verdict import Verdict, labelled_verdict, verdict_of

# An answer of more words is no verdict between the marks.
_MAX_MARKED_VERDICT_WORDS = 5
# A longer last line is talk in which a verdict may be mentioned.
_MAX_LAST_VERDICT_WORDS = 20


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


def _verdict(lines: Sequence[Line], answer: Answer) -> Verdict | None:
    """Return the verdict: between the marks, labelled, before the first step, or at the end."""
    if answer.text is not None and (marked := _verdict_in_marks(answer.text)):
        return marked
    if labelled := labelled_verdict(lines, answer_place=answer.place):
        return labelled
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
