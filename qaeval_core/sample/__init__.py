"""The sample corpus, written for this project: labeled questions and labeled answers."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def sample_table() -> pa.Table:
    """Return one row per question of the sample corpus.

    Returns
    -------
    pyarrow.Table
        Columns id, question, context, answer, references, label.
    """
    rows = []
    for passage in _rows("corpus.jsonl"):
        for i, item in enumerate(passage["questions"]):
            rows.append(
                {
                    "id": f"{passage['passage_id']}-{i:02d}",
                    "question": item["question"],
                    "context": passage["context"],
                    "answer": item["answer"],
                    "references": item["references"],
                    "label": item["label"],
                }
            )
    return pa.Table.from_pylist(rows)


def generated_table() -> pa.Table:
    """Return the questions of the sample corpus that have an answer, as a generator gives them.

    Returns
    -------
    pyarrow.Table
        Columns id, question, context, answer.
    """
    rows = sample_table().drop_columns(["references", "label"])
    return rows.filter(pc.not_equal(rows["answer"], ""))


def natural_table() -> pa.Table:
    """Return answers as systems give them: for each question a right one and a wrong one.

    Returns
    -------
    pyarrow.Table
        Columns id, question, references, prediction, is_right.
    """
    return pa.Table.from_pylist(
        [
            {
                "id": f"{row['id']}-{kind[0]}",
                "question": row["question"],
                "references": row["references"],
                "prediction": row[kind],
                "is_right": int(kind == "right"),
            }
            for row in _rows("natural.jsonl")
            for kind in ("right", "wrong")
        ]
    )


def hard_table() -> pa.Table:
    """Return answers that were chosen so that shared words mislead: right reworded, wrong alike.

    Returns
    -------
    pyarrow.Table
        Columns id, question, references, prediction, kind, is_right.
    """
    return pa.Table.from_pylist(_rows("hard.jsonl"))


def _rows(name: str) -> list[dict[str, Any]]:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
