"""`qaeval correlate` on tables with holes, and requests that cannot be met."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from qaeval.cli import app


def shown(*words: str | Path, code: int = 0) -> str:
    given = ["correlate", *(str(word) for word in words)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Sixty rows of three systems and twenty questions; one in six lacks its keys."""
    draw = np.random.default_rng(0)
    has_key = [i % 6 != 0 for i in range(60)]
    frame = pl.DataFrame(
        {
            "id": range(60),
            "system": [f"s{i % 3}" if known else None for i, known in enumerate(has_key)],
            "question": [f"q{i // 3}" if known else None for i, known in enumerate(has_key)],
            "m": draw.normal(size=60),
            "rating": draw.integers(1, 6, size=60),
            "words": [["a"]] * 60,
        }
    )
    path = tmp_path / "table.parquet"
    frame.write_parquet(path)
    return path


REQUEST = ("--human", "rating", "--metrics", "m", "--resamples", "20")


def test_rows_without_a_key_are_left_out_and_counted(table: Path, tmp_path: Path) -> None:
    """Protects from one group of all rows that merely lack a key."""
    keys = ("--system", "system", "--question", "question", "--win-lose", "question")
    out = tmp_path / "study"
    output = shown(table, *REQUEST, *keys, "--out", out)
    assert "10 rows without system are left out of systems" in output
    assert "10 rows without question are left out of win-lose pairs" in output
    report = json.loads((out / "report.json").read_text())
    systems = [own for own in report["correlations"] if own["level"] == "system"]
    assert {own["n"] for own in systems} == {3}
    frame = pl.read_parquet(table).drop_nulls("question")
    pairs = frame.join(frame, on="question").filter(pl.col("rating") > pl.col("rating_right"))
    assert report["win_lose"][0]["n_pairs"] == pairs.height


def test_a_row_without_a_cluster_is_drawn_alone(table: Path) -> None:
    """Protects from rows that come and go together because they lack a key."""
    from qaeval_core.study.inputs import cluster_codes

    codes = cluster_codes(pl.read_parquet(table), "question")
    assert len(set(codes[::6])) == 10
    assert len(set(codes)) == 10 + 20


def test_a_new_study_leaves_nothing_of_an_old_one(table: Path, tmp_path: Path) -> None:
    """Protects from an old table that seems to belong to the new report."""
    out = tmp_path / "study"
    shown(table, *REQUEST, "--auc", "rating > 3", "--win-lose", "question", "--out", out)
    assert (out / "auc.parquet").exists()
    (out / "mine.txt").write_text("kept")
    shown(table, *REQUEST, "--out", out)
    assert {path.name for path in out.iterdir()} == {
        "comparisons.parquet",
        "correlate.html",
        "correlations.parquet",
        "mine.txt",
        "report.json",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--human", "rating,rating", "--metrics", "m"), "names a column twice"),
        ((*REQUEST, "--seed", "-1"), "--seed is -1"),
        ((*REQUEST[:4], "--resamples", "2"), "--resamples is 2"),
        ((*REQUEST, "--by", "words"), "one value for each row is needed [QA0306]"),
        ((*REQUEST, "--auc", "sum(m) > 3"), "one value for all rows"),
        ((*REQUEST, "--min-gap", "2"), "--min-gap needs --win-lose"),
    ],
)
def test_requests_that_cannot_be_met_say_so(
    table: Path, words: tuple[str, ...], message: str
) -> None:
    """Protects from a trace in place of a message."""
    assert message in shown(table, *words, code=2)


def test_an_out_that_is_a_file_is_refused_before_the_work(table: Path, tmp_path: Path) -> None:
    """Protects from a study that is computed and then lost."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert "[QA0111]" in shown(table, *REQUEST, "--out", out, code=2)


def test_a_join_that_matches_nothing_shows_the_keys(table: Path, tmp_path: Path) -> None:
    """Protects from a study of no rows that ends well."""
    other = tmp_path / "other.csv"
    other.write_text("id,rating_2\nx1,3\nx2,4\n")
    words = ("--human", "rating_2", "--metrics", "m", "--with", other, "--on", "id")
    output = shown(table, *words, code=2)
    assert "no row has a rating" in output
    assert "x1" in output


def test_a_table_given_twice_counts_once(table: Path) -> None:
    """Protects from intervals that are too narrow."""
    assert "60 rows" in shown(table, table, *REQUEST)


def test_tables_of_other_columns_name_them(table: Path, tmp_path: Path) -> None:
    """Protects from a message about schema lengths."""
    other = tmp_path / "other.parquet"
    pl.read_parquet(table).rename({"m": "m2"}).write_parquet(other)
    output = shown(table, other, *REQUEST, code=2)
    assert "different columns: m, m2" in output
    assert "--with TABLE --on KEY" in output
