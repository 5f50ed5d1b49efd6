"""Usual names of columns are recognized, and nothing is guessed where two fit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import as_table, qaeval, write_parquet
from qaeval_core.errors import SchemaError
from qaeval_core.planning.usual_columns import usual_columns
from qaeval_core.scorer import Scorer

TEXT, TEXTS, NUMBER = pa.string(), pa.list_(pa.string()), pa.int64()
SQUAD = pa.struct([("text", TEXTS), ("answer_start", pa.list_(NUMBER))])


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"question": TEXT, "prediction": TEXT, "answers": SQUAD},
         {"candidate": "prediction", "references": "answers"}),
        ({"Query": TEXT, "Model Output": TEXT, "groundTruth": TEXTS},
         {"question": "Query", "candidate": "Model Output", "references": "groundTruth"}),
        ({"passage": TEXT, "generated_question": TEXT, "answer": TEXT},
         {"context": "passage", "candidate": "generated_question"}),
        ({"user_input": TEXT, "retrieved_contexts": TEXTS, "response": TEXT, "reference": TEXT},
         {"question": "user_input", "context": "retrieved_contexts", "candidate": "response",
          "references": "reference"}),
        # The answer of the data is the reference of a prediction, where there is no other.
        ({"question": TEXT, "prediction": TEXT, "answer": TEXT},
         {"candidate": "prediction", "references": "answer"}),
        ({"question": TEXT, "generated_question": TEXT},
         {"candidate": "generated_question", "references": "question"}),
        # Answers are no references of a question.
        ({"question": TEXT, "context": TEXT, "answers": SQUAD}, {}),
        ({"question": TEXT, "generated_question": TEXT, "answers": TEXTS, "context": TEXT},
         {"candidate": "generated_question", "references": "question"}),
        # A type that does not fit is no such column; a role's own name is enough.
        ({"candidate": TEXT, "gold": NUMBER, "target": TEXT}, {"references": "target"}),
        ({"candidate": TEXT, "prediction": TEXT, "references": TEXTS, "gold": TEXT}, {}),
    ],
)  # fmt: skip
def test_usual_names(columns: dict[str, pa.DataType], found: dict[str, str]) -> None:
    usual = usual_columns(columns, {})
    assert (usual.columns, usual.doubtful) == (found, {})


def test_metrics_of_questions_take_no_answer_for_one() -> None:
    """Relevance of a question was that of an answer, where both were there."""
    columns = {"question": TEXT, "context": TEXT, "response": TEXT, "output": TEXT}
    usual = usual_columns(columns, {}, roles=["candidate", "context"])
    assert (usual.columns, usual.doubtful) == ({}, {})
    columns = {"query": TEXT, "context": TEXT, "response": TEXT, "generated_question": TEXT}
    usual = usual_columns(columns, {}, roles=["candidate", "context"])
    assert usual.columns == {"question": "query", "candidate": "generated_question"}
    usual = usual_columns(columns, {}, roles=["candidate", "references"])
    assert usual.doubtful == {"candidate": ["response", "generated_question"]}


def test_what_is_mapped_decides_and_is_no_other_role() -> None:
    columns = {"question": TEXT, "response": TEXT, "prediction": TEXT, "gold": TEXT}
    assert usual_columns(columns, {}).doubtful == {"candidate": ["response", "prediction"]}
    usual = usual_columns(columns, {"candidate": "response"})
    assert (usual.columns, usual.doubtful) == ({"references": "gold"}, {})
    usual = usual_columns({"question": TEXT, "answers": TEXTS}, {"candidate": "question"})
    assert usual.columns == {}


ROWS = {"question": ["Who?", "Why?"], "prediction": ["Ann", "so"], "gold": ["Ann", "no"]}


def test_a_line_says_which_columns_are_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", pa.table(ROWS))
    said = qaeval("score", path, "--out", tmp_path / "a", "--local", "--metrics", "f1")
    assert "note: columns: candidate=prediction, references=gold. --column" in said
    assert pq.read_table(tmp_path / "a" / "scores")["f1"].to_pylist() == [1.0, 0.0]
    said = qaeval("filter", tmp_path / "a", "--to", tmp_path / "kept", "--rules", "none", "--local")
    assert "kept 2 of 2 rows" in said


def test_two_that_fit_are_listed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", pa.table({**ROWS, "ground_truth": ["a", "b"]}))
    for words in (("--metrics", "f1"), ()):
        said = qaeval("score", path, "--out", tmp_path / "out", "--local", *words, expect=2)
        assert "'gold', 'ground_truth'" in said and "[QA0323]" in said
        assert "--column references=gold" in said
    qaeval(
        "score", path, "--out", tmp_path / "out", "--local", "--metrics", "f1",
        "--column", "references=gold",
    )  # fmt: skip
    # Of a role that nobody reads, nothing is asked.
    both = pa.table({"candidate": ["a"], "references": ["a"], "passage": ["b"], "document": ["c"]})
    path = write_parquet(tmp_path / "both.parquet", both)
    qaeval("score", path, "--out", tmp_path / "both", "--local", "--metrics", "f1")


def test_tables_and_python_have_them_too(tmp_path: Path) -> None:
    scorer = Scorer(["f1"])
    rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    said = r"columns: candidate=prediction, references=gold\. columns="
    with pytest.warns(UserWarning, match=said) as told:
        assert scorer.score(pa.table(ROWS))["f1"].to_pylist() == [1.0, 0.0]
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=said):
        assert as_table(scorer.score(rows))["f1"].to_pylist() == [1.0, 0.0]
    named = Scorer(["f1"], columns={"candidate": "prediction", "references": "gold"})
    assert named.score(pa.table(ROWS))["f1"].to_pylist() == [1.0, 0.0]
    with pytest.raises(SchemaError, match="QA0323"):
        scorer.score(pa.table({**ROWS, "target": ["a", "b"]}))
    table = pa.table(
        {"generated_question": ["Who is it that came home so late?", "Why?"], "x": [0.1, 0.2]}
    )
    path = write_parquet(tmp_path / "rows.parquet", table)
    said = qaeval(
        "filter", path, "--to", tmp_path / "kept", "--rank-by", "x", "--share", "1", "--local",
        "--near-duplicates", "none", "--rules", "paper",
    )  # fmt: skip
    assert "kept 1 of 2 rows" in said
