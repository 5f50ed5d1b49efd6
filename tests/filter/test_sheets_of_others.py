"""Sheets as people's programs save them: labels and ratings come in whatever the delimiter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval
from qaeval_core.errors import QAEvalError, UnreadableFileError
from qaeval_core.filter.labels import read_labels
from qaeval_core.planning.text_files.sheets import read_sheet
from qaeval_core.tables.score_tables import read_keyed

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


READ: dict[str, tuple[bytes, dict[str, list[object]]]] = {
    "whole numbers among decimals": (
        b"id;n\n1;1\n2;2,5\n3;\n4;-1,5E-05\n", {"n": [1.0, 2.5, None, -1.5e-05]},
    ),
    "tabs": (b"id\tn\tk\n1\t0,5\t1,500\n2\t1\t20,000\n",
             {"n": [0.5, 1.0], "k": ["1,500", "20,000"]}),
    "whole numbers alone": (b"id;n\n1;1\n2;2\n", {"n": [1, 2]}),
    "no number": (b"id;n\n1;1,5,2\n2;2,5\n", {"n": ["1,5,2", "2,5"]}),
    "English booleans": (b"id;n\n1;TRUE\n2;FALSE\n", {"n": [True, False]}),
    "German booleans": (b"id;n\n1;WAHR\n2;FALSCH\n3;\n", {"n": [True, False, None]}),
    "French booleans": (b"id\tn\n1\tVRAI\n2\tFAUX\n", {"n": [True, False]}),
    "words among booleans": (b"id,n\n1,WAHR\n2,Wahrheit\n", {"n": ["WAHR", "Wahrheit"]}),
    "a header with commas": (
        b"id;the question, as asked, here, so;n\n1;x;1\n2;y, z;0\n",
        {"the question, as asked, here, so": ["x", "y, z"], "n": [1, 0]},
    ),
    "a header with semicolons": (b"id,a;b;c;d,n\n1,x,1\n", {"a;b;c;d": ["x"], "n": [1]}),
    "a text of lines": (b'id;q;n\n1;"a\nb, c";1\n', {"q": ["a\nb, c"], "n": [1]}),
    "ends of lines of older programs": (b'id;q;n\r1;"a\nb";1\r2;c;0\r',
                                        {"q": ["a\nb", "c"], "n": [1, 0]}),
    "blank lines first": (b"\r\n \r\nid;n\r\n1;1\r\n", {"n": [1]}),
    "a long text": (b"id;q;n\n1;" + b"a, " * 100_000 + b";1\n", {"n": [1]}),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_cells_are_those_that_a_spreadsheet_shows(name: str) -> None:
    content, expected = READ[name]
    found = read_sheet(content, "id").to_dict(as_series=False)
    assert {column: found[column] for column in expected} == expected


def test_labels_of_a_spreadsheet_in_german_are_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    rows = "\r\n".join(f"{name};{'WAHR' if i % 2 else 'FALSCH'}" for i, name in enumerate(IDS))
    path.write_bytes(f"id;good\r\n{rows}\r\n".encode("cp1252"))
    assert sum(read_labels(str(path), "good").is_good.values()) == N // 2


@pytest.mark.parametrize("label", ["good > 1", "good"])
def test_a_decimal_comma_that_is_not_read_is_named(label: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(b"id;good\n1;1.234,5\n2;0,5\n")
    with pytest.raises(QAEvalError, match=r"'1\.234,5'.*(QA0306|QA0316)"):
        read_labels(str(path), label)


@pytest.mark.parametrize(
    "content",
    [
        b"id;q\n1;\x81\x8d\n",
        "id;good\n1;1\n".encode("utf-16-le"),
        "id;good\n1;1\n".encode("utf-16") + b"\x00",
        b"\xef\xbb\xbfid;good\n1;\xe4\n",
    ],
    ids=["bytes of no page", "UTF-16 without a mark", "half a sign", "a mark that lies"],
)
def test_bytes_of_no_encoding_are_one_line_that_says_how_to_save(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError, match=r"labels\.csv.*CSV.*UTF-8.*QA0304") as raised:
        read_labels(str(path), "good == 1")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
def test_a_workbook_of_another_name_is_one(start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(start + b"\x00" * 9)
    with pytest.raises(UnreadableFileError, match="CSV.*QA0304"):
        read_labels(str(path), "good == 1")


@pytest.mark.parametrize("suffix", [".xlsx", ".ods"])
def test_a_workbook_is_answered_in_one_line(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UnreadableFileError, match="CSV.*QA0304"):
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
