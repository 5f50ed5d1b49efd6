"""Usual names: what people call the column of a role.

Stands alone: files of text are read by them before anybody knows the columns of all files.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# What a model said of a question, or asked of a passage.
ANSWERS_OF_SYSTEMS = (
    "prediction",
    "predictions",
    "predicted",
    "predicted_answer",
    "prediction_text",
    "generated_answer",
    "model_answer",
    "model_output",
    "response",
    "output",
    "hypothesis",
)
QUESTIONS_OF_SYSTEMS = ("generated_question", "predicted_question", "question_generated")
NAMES: dict[str, tuple[str, ...]] = {
    "candidate": (*ANSWERS_OF_SYSTEMS, *QUESTIONS_OF_SYSTEMS),
    "question": ("query", "question_text", "user_input"),
    "context": (
        "contexts",
        "passage",
        "passages",
        "paragraph",
        "paragraphs",
        "document",
        "ctx",
        "context_text",
        "passage_text",
        "retrieved_contexts",
    ),
    "answer": ("answer_text", "target_answer", "answer_span"),
}
# By what the candidate is: references of answers, of questions, and of either.
ANSWERS = (
    "answers",
    "gold_answer",
    "gold_answers",
    "golden_answers",
    "reference_answer",
    "reference_answers",
    "correct_answer",
    "correct_answers",
    "expected_answer",
    "ground_truth_answer",
)
QUESTIONS = ("gold_question", "gold_questions", "reference_question", "reference_questions")
EITHER = ("reference", "gold", "golds", "ground_truth", "ground_truths", "target", "targets")
NAMES["references"] = (*ANSWERS, *QUESTIONS, *EITHER)
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")


def usual_form(name: str) -> str:
    """Return a name in small letters, its words joined by low lines.

    Examples
    --------
    >>> usual_form("groundTruth"), usual_form("Generated Question"), usual_form("gold-answer")
    ('ground_truth', 'generated_question', 'gold_answer')
    """
    return "_".join(_WORD.findall(name)).lower() or name.lower()


def is_usual(name: str) -> bool:
    """Return whether a column's name is usual for a role, or the name of one."""
    own = usual_form(name)
    return own == "id" or own in NAMES or any(own in names for names in NAMES.values())


def references_of(candidate: str | None, columns: Collection[str]) -> tuple[str, ...]:
    """Return the names of what a candidate may be compared with."""
    if candidate is None and "candidate" not in columns:
        return QUESTIONS  # The question itself is the candidate.
    own = usual_form(candidate or "candidate")
    if own in ("question", *NAMES["question"]):
        return QUESTIONS
    if own in ANSWERS_OF_SYSTEMS:
        names = (*ANSWERS, *EITHER)
        # The answer that the data has, where nothing else is one.
        has_others = any(usual_form(name) in names for name in columns)
        return names if has_others else ("answer",)
    if own in QUESTIONS_OF_SYSTEMS:
        of_questions = (*QUESTIONS, *EITHER)
        has_others = any(usual_form(name) in of_questions for name in columns)
        return of_questions if has_others else ("question",)
    return NAMES["references"]
