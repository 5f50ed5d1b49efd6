"""SQuAD files: questions with the places of their answers in a context.

Reads the JSON of SQuAD 1.1 and 2.0, and Parquet with its fields as columns (``answers`` and
``answer_starts``, or one column ``answers`` of ``{text, answer_start}``). Unanswerable questions
and yes/no answers have no place and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from export.training.tables import read_columns
from qaeval_core.errors import InputError, SchemaError, UnreadableFileError

__all__ = ["Question", "read_squad"]

_YES_NO = frozenset({"yes", "no"})


@dataclass(frozen=True, slots=True)
class Question:
    """A question and where its answers lie.

    Attributes
    ----------
    context, question : str
    spans : tuple of (start, end)
        Character offsets in the context, one per annotator, end excluded.
    """

    context: str
    question: str
    spans: tuple[tuple[int, int], ...]


def read_squad(paths: Sequence[Path]) -> list[Question]:
    """Return the answerable questions of files, in order.

    Raises
    ------
    InputError
        If a file, field or offset is not as it must be, or none is answerable.
    """
    questions = []
    for path in paths:
        rows = _json_rows(path) if path.suffix.lower() == ".json" else _parquet_rows(path)
        found = [question for row in rows if (question := _question_of(row, path)) is not None]
        if not found:
            raise InputError(f"{path} has no question with an answer in its context")
        questions.extend(found)
    return questions


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    context: object
    question: object
    answers: object
    starts: object


def _question_of(row: _Row, path: Path) -> Question | None:
    where = f"{path}, {row.place}"
    context = _text(row.context, where, "context")
    question = _text(row.question, where, "question")
    if not isinstance(row.answers, list) or not isinstance(row.starts, list):
        raise InputError(f"{where}: answers and their starts are lists, one value per annotator")
    if len(row.answers) != len(row.starts):
        raise InputError(f"{where}: {len(row.answers)} answers, {len(row.starts)} starts")
    spans = []
    for answer, start in zip(row.answers, row.starts, strict=True):
        text = _text(answer, where, "answers")
        if text.strip().lower().rstrip(".") in _YES_NO or not text:
            continue
        if not isinstance(start, int) or context[start : start + len(text)] != text or start < 0:
            raise InputError(f"{where}: the context does not have {text!r} at {start!r}")
        spans.append((start, start + len(text)))
    return Question(context, question, tuple(spans)) if spans else None


def _text(value: object, where: str, field: str) -> str:
    if not isinstance(value, str):
        found = "null" if value is None else type(value).__name__
        raise InputError(f"{where}, field {field!r}: a text is needed, not {found}")
    return value


def _json_rows(path: Path) -> Iterator[_Row]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        for number, article in enumerate(data["data"]):
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield _Row(
                        f"question {asked.get('id', number)!r}",
                        paragraph["context"],
                        asked["question"],
                        [answer["text"] for answer in asked["answers"]],
                        [answer["answer_start"] for answer in asked["answers"]],
                    )
    except ValueError as error:
        raise UnreadableFileError(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"{path} is not laid out as SQuAD (data > paragraphs > context, qas > question, "
            f"answers > text, answer_start): {type(error).__name__} {error}"
        ) from None


def _parquet_rows(path: Path) -> Iterator[_Row]:
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(f"{path} is not a readable Parquet file: {error}") from None
    nested = "answers" in schema.names and pa.types.is_struct(schema.field("answers").type)
    names = ["context", "question", "answers", *([] if nested else ["answer_starts"])]
    table: dict[str, list[Any]] = read_columns(path, names)
    for row, answers in enumerate(table["answers"]):
        if nested:
            texts, starts = answers.get("text"), answers.get("answer_start")
        else:
            texts, starts = answers, table["answer_starts"][row]
        yield _Row(f"row {row}", table["context"][row], table["question"][row], texts, starts)
