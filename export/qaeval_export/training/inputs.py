"""Inputs: files -> pairs of texts with scores, or questions with the places of their answers.

Pairs come from Parquet or JSONL. Questions come from the JSON of SQuAD 1.1 and 2.0, or from Parquet
with its fields as columns (``answers`` and ``answer_starts``, or one column ``answers`` of ``{text,
answer_start}``). Errors name file, column and row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, InputError, SchemaError, UnreadableFileError, nearest

_YES_NO = frozenset({"yes", "no"})


@dataclass(frozen=True, slots=True)
class TrainingPairs:
    """Pairs of texts and how similar they are.

    Attributes
    ----------
    text_a, text_b : list of str, one per pair
    score : list of float, one per pair
        In [0, 1], higher is more similar.
    """

    text_a: list[str]
    text_b: list[str]
    score: list[float]

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: Sequence[int]) -> TrainingPairs:
        """Return some of the pairs.

        >>> TrainingPairs(["a", "b"], ["c", "d"], [0.0, 1.0]).take([1])
        TrainingPairs(text_a=['b'], text_b=['d'], score=[1.0])
        """
        return TrainingPairs(
            [self.text_a[row] for row in rows],
            [self.text_b[row] for row in rows],
            [self.score[row] for row in rows],
        )


def read_pairs(paths: Sequence[Path], *, columns: Mapping[str, str], scale: float) -> TrainingPairs:
    """Read pairs from files, in order.

    Parameters
    ----------
    columns : mapping of str to str
        Names in the files of ``text_a``, ``text_b`` and ``score``.
    scale : float
        Scores are divided by it.

    Raises
    ------
    InputError
        If a file, column or value is not as it must be.
    """
    pairs = TrainingPairs([], [], [])
    for path in paths:
        table = read_columns(path, columns.values())
        for side, texts in (("text_a", pairs.text_a), ("text_b", pairs.text_b)):
            column = columns[side]
            texts.extend(
                _text(value, f"{path}, column {column!r}, row {row}")
                for row, value in enumerate(table[column])
            )
        column = columns["score"]
        pairs.score.extend(
            _score_of(value, scale=scale, where=f"{path}, column {column!r}, row {row}")
            for row, value in enumerate(table[column])
        )
    return pairs


def _score_of(value: object, *, scale: float, where: str) -> float:
    # NaN compares false; an int of JSON may be larger than any float.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= sys.float_info.max
    ):
        raise InputError(f"{where}: {value!r} is not a number [QA0901]")
    score = float(value) / scale
    if not 0 <= score <= 1:
        raise InputError(
            f"{where}: {value:g} divided by --scale {scale:g} is {score:g}, outside of [0, 1] "
            "[QA0901]"
        )
    return score


def hold_out_pairs(
    pairs: TrainingPairs, *, share: float, seed: int
) -> tuple[TrainingPairs, TrainingPairs]:
    """Split pairs into training and dev pairs; the two orders of a pair stay together.

    Examples
    --------
    >>> pairs = TrainingPairs(list("aabc"), list("bcad"), [1.0, 0.0, 1.0, 0.5])
    >>> train, dev = hold_out_pairs(pairs, share=0.3, seed=0)
    >>> len(train), len(dev), sorted([*train.text_a, *dev.text_a])
    (3, 1, ['a', 'a', 'b', 'c'])
    """
    keys = [tuple(sorted(texts)) for texts in zip(pairs.text_a, pairs.text_b, strict=True)]
    is_dev = held_out(keys, share=share, seed=seed, what="distinct pairs")
    rows = range(len(pairs))
    return (
        pairs.take([row for row in rows if not is_dev[row]]),
        pairs.take([row for row in rows if is_dev[row]]),
    )


def held_out(keys: Sequence[Hashable], *, share: float, seed: int, what: str) -> list[bool]:
    """Return for each example whether it is for dev; those of one key stay together.

    Parameters
    ----------
    what : str
        What the keys are, for people.

    Raises
    ------
    ConfigError
        If none is left to train on.
    """
    distinct = list(dict.fromkeys(keys))
    n_dev = max(1, round(share * len(distinct)))
    if n_dev >= len(distinct):
        raise ConfigError(
            f"--dev-share {share:g} takes all {len(distinct)} {what}; none is left to train on "
            "[QA0104]"
        )
    order = np.random.default_rng(seed).permutation(len(distinct))
    chosen = {distinct[i] for i in order[:n_dev]}
    return [key in chosen for key in keys]


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


def read_squad(paths: Sequence[Path], *, unanswerable: bool = False) -> list[Question]:
    """Return the questions of files, in order.

    Parameters
    ----------
    unanswerable : bool, default False
        Whether questions without an answer are among them; they have no spans.

    Raises
    ------
    InputError
        If a file, field or offset is not as it must be, or none is answerable.
    """
    questions = []
    for path in paths:
        rows = _json_rows(path) if path.suffix.lower() == ".json" else _parquet_rows(path)
        found = [question for row in rows if (question := _question_of(row, path)) is not None]
        if not unanswerable:
            found = [question for question in found if question.spans]
        if not any(question.spans for question in found):
            raise InputError(f"{path} has no question with an answer in its context [QA0901]")
        questions.extend(found)
    return questions


def hold_out_contexts(
    questions: Sequence[Question], *, share: float, seed: int
) -> tuple[list[Question], list[Question]]:
    """Split questions into training and dev; the questions of a context stay together.

    Examples
    --------
    >>> asked = [Question(context, "?", ((0, 1),)) for context in "aabbc"]
    >>> train, dev = hold_out_contexts(asked, share=0.3, seed=0)
    >>> {q.context for q in train} & {q.context for q in dev}, len(train) + len(dev)
    (set(), 5)
    """
    contexts = [question.context for question in questions]
    is_dev = held_out(contexts, share=share, seed=seed, what="contexts")
    sides: tuple[list[Question], list[Question]] = ([], [])
    for question, side in zip(questions, is_dev, strict=True):
        sides[side].append(question)
    return sides


def split_squad(
    squad: Sequence[Path], dev: Path | None, *, share: float, seed: int, unanswerable: bool = False
) -> tuple[list[Question], list[Question]]:
    """Return training and dev questions; without a dev file, a share of the contexts is held out.

    Raises
    ------
    InputError
        If a file, field or offset is not as it must be.
    """
    questions = read_squad(squad, unanswerable=unanswerable)
    if dev is not None:
        return questions, read_squad([dev], unanswerable=unanswerable)
    return hold_out_contexts(questions, share=share, seed=seed)


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    context: object
    question: object
    answers: object
    starts: object


def _question_of(row: _Row, path: Path) -> Question | None:
    where = f"{path}, {row.place}"
    context = _text(row.context, f"{where}, field 'context'")
    question = _text(row.question, f"{where}, field 'question'")
    if not isinstance(row.answers, list) or not isinstance(row.starts, list):
        raise InputError(
            f"{where}: answers and answer starts must be lists, with one value for each annotator "
            "[QA0901]"
        )
    if len(row.answers) != len(row.starts):
        raise InputError(
            f"{where}: {len(row.answers)} answers, but {len(row.starts)} answer starts [QA0901]"
        )
    spans = []
    for answer, start in zip(row.answers, row.starts, strict=True):
        text = _text(answer, f"{where}, field 'answers'")
        if text.strip().lower().rstrip(".") in _YES_NO or not text:
            continue
        if not isinstance(start, int) or context[start : start + len(text)] != text or start < 0:
            raise InputError(
                f"{where}: the context does not have the answer {text!r} at {start!r} [QA0901]"
            )
        spans.append((start, start + len(text)))
    # A question that is answered by yes or no has an answer, but none in the context.
    return Question(context, question, tuple(spans)) if spans or not row.answers else None


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        found = "null" if value is None else type(value).__name__
        raise InputError(f"{where}: a text is needed, and it is {found} [QA0901]")
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
        raise UnreadableFileError(f"{path} is not JSON: {error} [QA0304]") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"{path} does not have the layout of SQuAD (data > paragraphs > context, qas > "
            f"question, answers > text, answer_start): {type(error).__name__} {error} [QA0304]"
        ) from None


def _parquet_rows(path: Path) -> Iterator[_Row]:
    with _readable_parquet(path):
        schema = pq.read_schema(path)
    nested = "answers" in schema.names and pa.types.is_struct(schema.field("answers").type)
    names = ["context", "question", "answers", *([] if nested else ["answer_starts"])]
    table: dict[str, list[Any]] = read_columns(path, names)
    for row, answers in enumerate(table["answers"]):
        if nested:
            given = answers or {}  # A null is refused below, by its row.
            texts, starts = given.get("text"), given.get("answer_start")
        else:
            texts, starts = answers, table["answer_starts"][row]
        yield _Row(f"row {row}", table["context"][row], table["question"][row], texts, starts)


def check_files(files: Mapping[str, Iterable[Path]]) -> None:
    """Raise if a file of an option is not there."""
    for option, paths in files.items():
        for path in paths:
            check_file(path, option=option)


def check_file(path: Path, *, option: str) -> None:
    """Raise if a file is not there; names the nearest one in its folder."""
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; name a file [QA0301]")
    folder = path.parent
    known = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    hint = nearest(path.name, known) if 0 < len(known) <= 20 else ""
    raise InputError(f"{option} {path}: no such file{hint} [QA0301]")


def read_columns(path: Path, names: Iterable[str]) -> dict[str, list[Any]]:
    """Return columns of a Parquet or JSONL file as lists, one value per row.

    Raises
    ------
    SchemaError
        If a column is missing.
    UnreadableFileError
        If the file is not what its name says.
    InputError
        If it has no rows.
    """
    is_jsonl = path.suffix.lower() in (".jsonl", ".ndjson", ".json")
    columns = (_read_jsonl if is_jsonl else _read_parquet)(path, tuple(names))
    if not next(iter(columns.values())):
        raise InputError(f"{path} has no rows [QA0901]")
    return columns


def _read_parquet(path: Path, names: tuple[str, ...]) -> dict[str, list[Any]]:
    with _readable_parquet(path):
        known = pq.read_schema(path).names
        for name in names:
            if name not in known:
                raise SchemaError(f"{path} has no column {name!r}{nearest(name, known)} [QA0305]")
        table = pq.read_table(path, columns=list(names))
    return {name: table[name].to_pylist() for name in names}


@contextmanager
def _readable_parquet(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(
            f"{path} is not a readable Parquet file: {error} [QA0304]"
        ) from None


def _read_jsonl(path: Path, names: tuple[str, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    with open(path, "rb") as file:  # What is no UTF-8 has a line, too.
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = _parse_line(path, number, line)
            missing = [name for name in names if name not in row]
            if missing:
                raise SchemaError(
                    f"{path}, line {number}: no field {missing[0]!r}{nearest(missing[0], row)} "
                    "[QA0305]"
                )
            for name in names:
                columns[name].append(row[name])
    return columns


def _parse_line(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UnreadableFileError(f"{path}, line {number} is not JSON: {error} [QA0304]") from None
    if not isinstance(row, dict):
        raise UnreadableFileError(f"{path}, line {number} is not a JSON object [QA0304]")
    return row
