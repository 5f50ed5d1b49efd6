"""Tables of text instead of Parquet: answered by the command that converts them."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, write_parquet
from qaeval_core.errors import InputError
from qaeval_core.planning.inputs import find_inputs

ROWS = [{"question": "Who?", "rating": None}] * 200 + [{"question": "a\tb, or 1", "rating": 4}]


def lines_of(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def separated(rows: list[dict], delimiter: str) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", lines_of(ROWS)),
        ("of two parts.json", json.dumps(ROWS)),
        ("lines.json", lines_of(ROWS)),
        ("rows.CSV", separated(ROWS, ",")),
        ("it's.tsv", separated(ROWS, "\t")),
    ],
)
def test_table_of_text_is_answered_by_the_command_that_makes_parquet(
    tmp_path: Path, name: str, text: str
) -> None:
    """Protects from a newcomer with JSON Lines who is told of magic bytes."""
    (tmp_path / name).write_text(text)
    said = qaeval("score", tmp_path / name, "--out", tmp_path / "out", expect=2).splitlines()
    assert len(said) == 2 and said[0].endswith(f"{name} is not Parquet [QA0304]"), said
    with pytest.raises(InputError) as of_folder:
        find_inputs([str(tmp_path)])
    command = said[1].partition("  make Parquet of it: ")[2]
    assert command and str(of_folder.value).endswith(command)
    done = subprocess.run(
        command.replace("python", shlex.quote(sys.executable), 1), shell=True, check=False
    )
    assert done.returncode == 0, command
    (file,), _ = find_inputs([str(tmp_path / f"{name}.parquet")])
    assert pq.read_table(file.uri).to_pylist() == ROWS


def test_parquet_is_read_whatever_its_name_ends_in(tmp_path: Path) -> None:
    """The bytes say what a file is."""
    path = write_parquet(tmp_path / "rows.csv", pa.table({"question": ["Who?"]}))
    assert find_inputs([str(path)])[0][0].n_rows == 1
