"""Explain finds the row that was meant, or says which rows there are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from helpers import write_parquet
from qaeval_core.errors import ConfigError, InputError
from qaeval_core.explain.stored_row import RowPlace, find_row


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Scores of two files, one in a folder."""
    texts = pa.table({"id": ["q1", "q2", None, "q2"], "f1": [0.1, 0.2, 0.3, 0.4]})
    numbers = pa.table({"id": pa.array(range(1000)), "f1": [0.5] * 1000})
    write_parquet(tmp_path / "scores" / "a.parquet", texts)
    write_parquet(tmp_path / "scores" / "more" / "b.parquet", numbers, row_group_size=100)
    return tmp_path


def test_an_id_is_found_in_any_file_also_as_a_number(out: Path) -> None:
    """Protects from an id that is there and is not found, for it is a number in the file."""
    assert find_row(out, identity="q1") == RowPlace("a.parquet", 0, "q1")
    assert find_row(out, identity="777") == RowPlace("more/b.parquet", 777, "777")


def test_a_wrong_id_names_the_nearest_ones(out: Path) -> None:
    """Protects from searching a million rows for a typing error."""
    with pytest.raises(InputError, match="'qq1'.*'q1'.*'.*QA0312"):
        find_row(out, identity="qq1")


def test_an_id_of_two_rows_lists_them(out: Path) -> None:
    """Protects from an explanation of the other row of that id."""
    expected = "2.*'q2'.*--row.*a.parquet:1.*--row.*a.parquet:3.*QA0312"
    with pytest.raises(InputError, match=expected):
        find_row(out, identity="q2")
    assert find_row(out, place="a.parquet:3") == RowPlace("a.parquet", 3, "q2")


def test_a_row_is_found_by_file_and_number(out: Path) -> None:
    """Protects from rows without an id that nobody can name."""
    assert find_row(out, place="a.parquet:2") == RowPlace("a.parquet", 2, None)
    assert find_row(out, place="more/b.parquet:999") == RowPlace("more/b.parquet", 999, "999")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "--id.*ID.*--row.*FILE:N.*QA0103"),
        ({"identity": "q1", "place": "a.parquet:0"}, "QA0103"),
        ({"place": "a.parquet"}, "--row.*FILE:N.*0.*'a.parquet'.*QA0104"),
        ({"place": "a.parquet:x"}, "--row.*FILE:N.*QA0104"),
        ({"place": "a.parquet:²"}, "--row.*FILE:N.*QA0104"),
        ({"place": "b.parquet:0"}, "'b.parquet'.*'(more/b|a).parquet'.*QA0312"),
        ({"place": "a.parquet:4"}, "4.*3.*QA0312"),
    ],
)
def test_what_names_no_row_is_refused(out: Path, named: dict[str, str], message: str) -> None:
    """Protects from an explanation of a row that was not asked for."""
    with pytest.raises(ConfigError, match=message):
        find_row(out, **named)
