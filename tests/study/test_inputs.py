"""Conditions on rows, as a person writes them: structs, signs in names, and undefined values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.errors import ConfigError
from qaeval_core.schema import COLUMNS_METADATA
from qaeval_core.study.records import StudyRequest
from qaeval_core.study.run import run_study
from qaeval_core.tables.conditions import binary_labels, select_rows
from qaeval_core.tables.score_tables import StudyTable, read_study


@pytest.fixture
def table(tmp_path: Path) -> StudyTable:
    """Six rows with scores in a struct, one of them NaN."""
    values = [0.1, 0.9, math.nan, 0.8, 0.7, 0.2]
    columns = {
        "peer": [{"BLEU-1": value, "f1": value} for value in values],
        "rating": [1.0, 5.0, 5.0, 4.0, None, 2.0],
    }
    pq.write_table(pa.table(columns), tmp_path / "nested.parquet")
    return read_study([str(tmp_path / "nested.parquet")])


@pytest.mark.parametrize("condition", ["peer.f1 > 0.5", '"peer.f1" > 0.5', '"peer.BLEU-1" > 0.5'])
def test_fields_have_dotted_names_and_nan_is_no_large_number(
    table: StudyTable, condition: str
) -> None:
    """Protects from NaN > 0.5, true in polars, which would choose the undefined rows."""
    assert table.frame.columns == ["peer.BLEU-1", "peer.f1", "rating"]
    chosen = select_rows(table.frame, condition, "--subset")
    assert chosen.to_list() == [False, True, None, True, True, False]


@pytest.mark.parametrize("sign", ["=", "=="])
def test_both_signs_of_equality_are_read(table: StudyTable, sign: str) -> None:
    """Protects from a condition of Python refused, and from != read as something else."""
    equal = select_rows(table.frame, f"rating {sign} 5", "--subset")
    other = select_rows(table.frame, "rating != 5", "--subset")
    assert equal.to_list() == [False, True, True, False, None, False]
    assert [a ^ b for a, b in zip(equal.drop_nulls(), other.drop_nulls(), strict=True)] == [
        True
    ] * 5


def test_labels_are_undefined_where_their_condition_is(table: StudyTable) -> None:
    """Protects from unrated rows counted as negative."""
    labels = binary_labels(table.frame, "rating >= 4")
    assert [None if math.isnan(label) else label for label in labels] == [0, 1, 1, 1, None, 0]


def test_a_name_with_a_sign_must_be_quoted_and_the_error_says_so(table: StudyTable) -> None:
    """Protects from BLEU-1 read as BLEU less 1 without a word."""
    with pytest.raises(ConfigError, match=".BLEU.*QA0316"):
        select_rows(table.frame, "BLEU-1 > 0.5", "--subset")


def test_a_text_is_compared_with_no_number() -> None:
    """Protects from "10.0" > 9.5 told letter by letter: polars does it, for decimals alone."""
    frame = pl.DataFrame({"text": ["9.0", "10.0"], "score": [9.0, 10.0], "at 0.5": [0.1, 0.9]})
    for text in ("text > 9.5", "text > .5", "9.5 < text", "text between 0.1 and 9.5",
                 "text in (9.0, 8.5)", "coalesce(text, 0.5) > 0.7", "text > 1E-3"):  # fmt: skip
        with pytest.raises(ConfigError, match="--subset.*QA0316"):
            select_rows(frame, text, "--subset")
    for text, chosen in (
        ("score > 9.5", [False, True]),
        ("score in (9.0, 8.5)", [True, False]),
        ("score between 0.1 and 9.5", [True, False]),
        ("score * 1e-1 > .95", [False, True]),
        ("text = '9.0'", [True, False]),
        ('"at 0.5" > 0.5', [False, True]),
        ("try_cast(text as double) > 9.5", [False, True]),
    ):
        assert select_rows(frame, text, "--subset").to_list() == chosen, text


def test_counts_and_raw_values_are_no_metrics_unless_they_are_named(tmp_path: Path) -> None:
    """A count of cut texts has a correlation with anything that long texts have."""
    told = {
        "sas": "", "sas_truncated": "truncated", "q_lrm": "lrm", "q_lrm_raw": "lrm_raw",
        "q_lrm_windows": "lrm_windows", "grg_raw": "raw", "whole": "",
    }  # fmt: skip
    kinds = {"sas_truncated": pl.Int32, "q_lrm_windows": pl.Int32, "whole": pl.Int64}
    values = {name: pl.Series([1, 2, 3], dtype=kinds.get(name, pl.Float32)) for name in told}
    frame = pl.DataFrame({**values, "rating": [1, 3, 2]})
    described = {name: {"metric": name, "output": output} for name, output in told.items()}
    metadata = {COLUMNS_METADATA: json.dumps(described)}
    pq.write_table(frame.to_arrow().replace_schema_metadata(metadata), tmp_path / "s.parquet")
    given = {"scores": (str(tmp_path / "s.parquet"),), "human": ("rating",), "n_resamples": 20}
    study = run_study(StudyRequest(**given))
    assert study.metrics == ["sas", "q_lrm", "grg_raw", "whole"]
    (note,) = [own for own in study.notes if "no metrics here" in own]
    assert note.endswith("sas_truncated, q_lrm_raw, q_lrm_windows")
    named = run_study(StudyRequest(**given, metrics=("sas_truncated",)))
    assert named.metrics == ["sas_truncated"] and len(named.notes) == 1


def test_conditions_read_no_file(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("x\n1\n")
    frame = pl.DataFrame({"f1": [0.1, 0.9]})
    text = f"f1 < (select max(x) from read_csv('{tmp_path / 'secret.csv'}'))"
    with pytest.raises(ConfigError, match="QA0316"):
        select_rows(frame, text, "--subset")
    assert select_rows(frame, "'select' = 'select' and f1 > 0.5", "--subset").to_list() == [
        False,
        True,
    ]
