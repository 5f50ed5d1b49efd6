from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_corpora import filtered, questions
from helpers import run_locally
from qaeval_core.filter import texts
from qaeval_core.filter.table import filter_table
from qaeval_core.filter.texts import token_text

ASCII = "aZ_9 ?.,'\t\n\x00\x7f"


@given(
    rows=st.lists(st.none() | st.text(ASCII, max_size=9) | st.text(ASCII + "éİßǅ٣½", max_size=9)),
    first=st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_tokens_are_those_of_a_pattern(rows: list[str | None], first: int) -> None:
    """Whichever way a text takes; ASCII goes another one."""
    column = pl.Series(rows, dtype=pl.String)[first:]
    # The pattern of Rust, which has no fractions and all marks among letters; Python's has not.
    expected = column.str.to_lowercase().str.extract_all(r"\w+").list.join(" ")
    assert token_text(column).to_list() == expected.to_list()


def test_tokens_of_more_rows_than_a_step() -> None:
    rows = [f"{'' if i % 3 else '?'}Row {i}, or {'x' * (i % 7)}-" for i in range(3 * 4096 + 5)]
    expected = [" ".join(re.findall(r"\w+", row.lower())) for row in rows]
    assert len(rows) > 3 * texts._ROWS_PER_STEP
    assert token_text(pl.Series(rows)).to_list() == expected


def test_which_column_has_the_questions_is_said_where_two_could(tmp_path: Path) -> None:
    """Answers are candidates, too: duplicates and sheets would be of answers, in silence."""
    table = questions(20).with_columns(said=pl.col("answer"), prediction=pl.col("answer"))
    table.write_parquet(tmp_path / "in.parquet")
    for name, out in (("said", "out"), ("prediction", "of-answers")):
        run_locally(
            {
                "metrics.f1.metric": "f1",
                "input.paths": [str(tmp_path / "in.parquet")],
                "input.columns.references": "reference",
                "input.columns.candidate": name,
                "output.path": str(tmp_path / out),
            }
        )
    # A usual name of answers is clear.
    _, said = filtered(tmp_path / "of-answers", tmp_path / "clear", share="0.5")
    assert not any("questions are those of" in line for line in said)
    note = "questions are those of column 'said', the candidates of this run"
    _, said = filtered(tmp_path / "out", tmp_path / "kept", share="0.5")
    assert any(note in line for line in said)
    columns = {"question": "question"}
    _, said = filtered(tmp_path / "out", tmp_path / "other", share="0.5", columns=columns)
    assert not any(note in line for line in said)


SIGNS = [
    # question, answer, context; whether the question holds the answer, and the context does not
    ("Who is it that uses the old C?", "C++", "They use C++ and C#.", False, False),
    ("Who is it that uses the old C++?", "C", "They use C++ and C#.", False, True),
    ("Which language is better than F is?", "F#", "F# is better", False, False),
    ("Which language is better than F♯ is?", "F", "f is better", False, False),
    ("Is the result of the sum 5 - 3?", "+3", "text +3", False, False),
    ("Is the result of the sum 5 - 3?", "-3", "text -3", False, False),
    ("What is it that costs 5 in total?", "$5", "It costs 5 in total.", False, True),
    ("What is it that the sign means?", "♥", "The ♥ sign", False, False),
    ("What is it that ♥ means today?", " ♥ ", "The heart sign", True, True),
    ("How many of them are kept here?", "40", "It is 40% of them, or $40.", False, False),
    ("How many of the 40% are here?", "40%", "It is 40 % of them.", True, False),
    ("How is AT&T written by them here?", "AT T", "AT&T", True, False),
    ("Who is it that was born then?", "1990-1995", "From 1990-1995.", False, False),
    ("Who is it that was born then?", "?", "Who knows.", True, True),
]


def test_signs_count_where_answers_are_looked_for() -> None:
    """``F#`` was in a question of ``F``, and ``♥`` in no context at all."""
    columns = list(zip(*SIGNS, strict=True))
    table = pl.DataFrame(
        {
            "id": [str(i) for i in range(len(SIGNS))],
            "question": columns[0],
            "answer": columns[1],
            "context": columns[2],
            "score": [1.0] * len(SIGNS),
        }
    )
    expected = [
        "answer_in_question" if held else "answer_not_in_context" if lost else None
        for *_, held, lost in SIGNS
    ]
    for own in (table, table.with_columns(pl.concat_list("context", pl.lit("Else.")))):
        found = filter_table(own, rank_by="score", rules="extractive", near_duplicates="none")
        assert found.decisions["reason"].to_list() == expected


def test_no_answer_of_signs_spans_two_passages() -> None:
    table = pl.DataFrame(
        {
            "id": ["a", "b"],
            "question": ["Who is it that uses it today?"] * 2,
            "answer": ["C++ 5", "C++ 5"],
            "context": [["C++", "5"], ["C++ 5"]],
            "score": [1.0, 1.0],
        }
    )
    found = filter_table(table, rank_by="score", rules="extractive", near_duplicates="none")
    assert found.decisions["reason"].to_list() == ["answer_not_in_context", None]


@pytest.mark.parametrize(
    ("texts_of", "n"),
    [
        (["operator ?", "operator ??", "operator ?.", "operator", "operator ."], 5),
        (["x?", "x.", "x", "X。", "x？", " x? "], 1),
        (["x?", "x??", "x?.", "x ?", "x…"], 5),
        (["C++?", "C++", "C+?", "C"], 3),
    ],
)
def test_one_mark_that_stands_on_a_word_is_passed_over(texts_of: list[str], n: int) -> None:
    """Of any run of them was left nothing, and questions of operators were equal."""
    assert texts.same_text(pl.Series(texts_of)).n_unique() == n
