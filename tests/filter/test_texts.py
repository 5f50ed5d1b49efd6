from __future__ import annotations

import re
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_corpora import filtered, questions
from helpers import run_locally
from qaeval_core.filter import texts
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
    table = questions(20).with_columns(prediction=pl.col("answer"))
    table.write_parquet(tmp_path / "in.parquet")
    run_locally(
        {
            "metrics.f1.metric": "f1",
            "input.paths": [str(tmp_path / "in.parquet")],
            "input.columns.references": "reference",
            "input.columns.candidate": "prediction",
            "output.path": str(tmp_path / "out"),
        }
    )
    note = "questions are those of column 'prediction', the candidates of this run"
    _, said = filtered(tmp_path / "out", tmp_path / "kept", share="0.5")
    assert any(note in line for line in said)
    columns = {"question": "question"}
    _, said = filtered(tmp_path / "out", tmp_path / "other", share="0.5", columns=columns)
    assert not any(note in line for line in said)
