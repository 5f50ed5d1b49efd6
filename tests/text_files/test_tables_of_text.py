"""Tables that verbs read whole: ratings, labels and scores of other tools, in any form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY, qaeval, write_parquet
from qaeval_core.errors import UnreadableFileError
from qaeval_core.tables.score_tables import read_study

ROWS = [{"id": str(i), "score": i / 40, "rating": (i * 7) % 5 + i / 10} for i in range(40)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
SHEET = "id,score,rating\n" + "".join(
    f"{row['id']},{row['score']},{row['rating']}\n" for row in ROWS
)
FORMS = {
    "a.jsonl": LINES.encode(),
    "a.json": json.dumps(ROWS).encode(),
    "columns.json": json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}).encode(),
    "a.ndjson.zst": pa.compress(LINES.encode(), "zstd", asbytes=True),
    "a.csv.gz": pa.compress(SHEET.encode(), "gzip", asbytes=True),
    "a.tsv": SHEET.replace(",", "\t").encode(),
    "wide.jsonl": LINES.encode("utf-16"),
}


@pytest.mark.parametrize("name", FORMS)
def test_ratings_and_labels_of_any_form(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    frame = read_study([str(tmp_path / name)], text="id").frame
    assert frame.with_columns(id=pl.col("id").cast(pl.String)).to_dicts() == ROWS
    expected = write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist(ROWS))
    told = [
        qaeval(
            "correlate", path, "--human", "rating", "--metrics", "score", "--out", tmp_path / "o"
        )
        for path in (expected, tmp_path / name)
    ]
    numbers = [[line for line in own.splitlines() if "score" in line] for own in told]
    assert numbers[0] and numbers[0] == numbers[1]
    qaeval(
        "filter", expected, "--to", tmp_path / "kept", "--rank-by", "score", "--rules", "none",
        "--labels", tmp_path / name, "--label", "rating >= 1", "--precision", "0.5", "--local",
    )  # fmt: skip
    assert pq.read_metadata(tmp_path / "kept" / "kept" / "rows.parquet").num_rows > 0


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    """A table of labels has no place for it: nobody would know which row has none."""
    (tmp_path / "a.jsonl").write_text(LINES + "{oops\n")
    with pytest.raises(UnreadableFileError, match="line 41.*QA0304"):
        read_study([str(tmp_path / "a.jsonl")])


@pytest.mark.slow
def test_tables_come_by_standard_input(tmp_path: Path) -> None:
    """Of every kind that is known by its bytes."""
    for content in (FORMS["a.jsonl"], FORMS["a.json"], SHEET.encode(), FORMS["a.ndjson.zst"]):
        for words in (
            ("correlate", "-", "--human", "rating", "--metrics", "score"),
            ("filter", "-", "--to", str(tmp_path / "kept"), "--rank-by", "score", "--rules",
             "none", "--share", "0.5", "--local"),
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "qaeval", *words],
                input=content,
                capture_output=True,
                check=False,
                cwd=REPOSITORY,
            )
            assert done.returncode == 0, done.stderr
        shutil.rmtree(tmp_path / "kept")


def test_a_folder_of_tables(tmp_path: Path) -> None:
    """Documents beside them tell of them."""
    (tmp_path / "a.jsonl").write_bytes(FORMS["a.jsonl"])
    (tmp_path / "info.json").write_text("{}")
    assert read_study([str(tmp_path)]).frame.height == 40
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "info.json").write_bytes(FORMS["a.json"])
    assert read_study([str(tmp_path)]).frame.height == 40
