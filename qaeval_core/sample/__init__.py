"""The sample corpus, written for this project: labeled questions and labeled answers."""

from __future__ import annotations

import json
from importlib import resources

import pyarrow as pa

GOOD_LABELS = ("good", "paraphrase")


def sample_table() -> pa.Table:
    """Return one row per question of the sample corpus.

    Returns
    -------
    pyarrow.Table
        Columns id, question, context, answer, references, label.
    """
    text = resources.files(__name__).joinpath("corpus.jsonl").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines():
        passage = json.loads(line)
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


def answers_table() -> pa.Table:
    """Return one row per predicted answer of the sample corpus.

    Returns
    -------
    pyarrow.Table
        Columns id, question, references, prediction, kind, is_right.
    """
    text = resources.files(__name__).joinpath("qa.jsonl").read_text(encoding="utf-8")
    return pa.Table.from_pylist([json.loads(line) for line in text.splitlines()])
