"""Sheets as people's programs save them: labels and ratings come in whatever the delimiter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval
from qaeval_core.errors import UnreadableFileError
from qaeval_core.filter.labels import read_labels
from qaeval_core.tables.score_tables import read_keyed
from qaeval_core.tables.sheets import read_sheet

N = 40
IDS = [f"{i:03d}" for i in range(N)]
NAME = "Zürich, \"die Stadt\"; König"  # fmt: skip


def lines(delimiter: str, *, number: str = "0.5") -> str:
    quoted = '"' + NAME.replace('"', '""') + '"'
    head = delimiter.join(["id", "good", "rating", "question"])
    rows = [delimiter.join([name, str(i % 2), number, quoted]) for i, name in enumerate(IDS)]
    return "\r\n".join([head, *rows, ""])


SAVED: dict[str, Callable[[], bytes]] = {
    "Excel, CSV UTF-8, English": lambda: lines(",").encode("utf-8-sig"),
    "Excel, CSV UTF-8, German": lambda: lines(";", number="0,5").encode("utf-8-sig"),
    "Excel, CSV, German": lambda: lines(";", number="0,5").encode("cp1252"),
    "Excel, CSV, English": lambda: lines(",").encode("cp1252"),
    "Excel, Unicode text": lambda: lines("\t").encode("utf-16"),
    "with sep=": lambda: ("sep=;\r\n" + lines(";")).encode(),
    "a pipeline's": lambda: lines(";").encode(),
    "tabs": lambda: lines("\t").encode(),
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_sheet_is_read_whoever_saved_it(name: str, suffix: str, tmp_path: Path) -> None:
    """ "no column 'id'; choose one of: id;good;question" was all that came of it."""
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(SAVED[name]())
    frame, _ = read_keyed(str(path), "id")
    assert frame["id"].to_list() == IDS  # No zero is lost.
    assert frame["rating"].to_list() == [0.5] * N
    assert frame["question"].to_list() == [NAME] * N
    labels = read_labels(str(path), "good == 1")
    assert sum(labels.is_good.values()) == N // 2


def test_numbers_with_commas_are_numbers_where_semicolons_part_them() -> None:
    """And a text of two numbers is none."""
    frame = read_sheet(b"id;a;b;c\n1;1,5;1,5;1.5\n2;-2,25;1,5 and 2;2.5\n")
    assert frame.drop("id").to_dict(as_series=False) == {
        "a": [1.5, -2.25], "b": ["1,5", "1,5 and 2"], "c": [1.5, 2.5],
    }  # fmt: skip
    assert read_sheet(b'id,a\n1,"1,5"\n')["a"].to_list() == ["1,5"]


@pytest.mark.parametrize("suffix", [".xlsx", ".ods"])
def test_a_workbook_is_answered_in_one_line(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UnreadableFileError, match="a workbook: save its sheet as CSV"):
        read_labels(str(path), "good == 1")


def test_ratings_of_a_spreadsheet_are_correlated(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": IDS, "s": [i / N for i in range(N)]}), tmp_path / "s.parquet")
    rows = "\r\n".join(f"{name};{i % 7},5" for i, name in enumerate(IDS))
    (tmp_path / "ratings.csv").write_bytes(f"id;rating\r\n{rows}\r\n".encode("cp1252"))
    said = qaeval("correlate", tmp_path / "s.parquet", "--labels", tmp_path / "ratings.csv",
                  "--human", "rating", "--metrics", "s")  # fmt: skip
    assert "rating" in said and f"{N}" in said


def test_a_label_sheet_opens_with_its_umlauts(tmp_path: Path) -> None:
    """Without a mark Excel takes UTF-8 for Windows-1252."""
    rows = {
        "id": IDS,
        "question": [f"{NAME} {i}?" for i in range(N)],
        "s": [i / N for i in range(N)],
    }
    pq.write_table(pa.table(rows), tmp_path / "s.parquet")
    qaeval("filter", tmp_path / "s.parquet", "--to", tmp_path / "kept", "--rank-by", "s", "--rules",
           "none", "--near-duplicates", "none", "--label-sheet", "9", "--local")  # fmt: skip
    sheet = tmp_path / "kept" / "label_sheet.csv"
    assert sheet.read_bytes().startswith(b"\xef\xbb\xbf")
    assert NAME in pl.read_csv(sheet)["question"][0]
