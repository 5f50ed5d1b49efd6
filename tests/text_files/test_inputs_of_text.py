"""Files of text as input: the scores and row numbers of the same rows in Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY, qaeval, write_parquet
from qaeval_core.errors import InputError
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.planning.text_files.copies import Copies, TextCopy
from qaeval_core.planning.text_files.kinds import TextKind
from qaeval_core.storage.path import as_path

ROWS = [
    {
        "id": f"00{i}",
        "question": f"Who found it, {i}?",
        "context": f'Ann, "{i}"\nand Bo.',
        "candidate": "Ann and Bo" if i % 3 else "2020-01-01",
        "answer": "Ann",
        "n": i,
    }
    for i in range(40)
]


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def separated(rows: list[dict], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def packed(content: bytes, codec: str) -> bytes:
    return pa.compress(content, codec, asbytes=True)


FILES = {
    "rows.jsonl": lines(ROWS),
    "rows.json": json.dumps(ROWS).encode(),
    "rows.csv": separated(ROWS),
    "rows.tsv": separated(ROWS, "\t"),
    "semicolons.csv": separated(ROWS, ";"),
    "marked.csv": b"\xef\xbb\xbf" + separated(ROWS),
    "wide.jsonl": lines(ROWS).decode().encode("utf-16"),
    "rows.jsonl.gz": packed(lines(ROWS), "gzip"),
    "rows.csv.zst": packed(separated(ROWS), "zstd"),
}
WORDS = ("--metrics", "f1,exact_match", "--column", "references=answer", "--carry", "n", "--local")


def scores(out: Path) -> list[dict]:
    return pq.read_table(out / "scores").to_pylist()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("parquet")
    path = write_parquet(folder / "rows.parquet", pa.Table.from_pylist(ROWS))
    qaeval("score", path, "--out", folder / "out", *WORDS)
    return scores(folder / "out")


@pytest.mark.parametrize("name", FILES)
def test_the_same_rows_have_the_same_scores(
    tmp_path: Path, name: str, expected: list[dict]
) -> None:
    """And every verb reads the copy when the file is gone."""
    path = tmp_path / name
    path.write_bytes(FILES[name])
    out = tmp_path / "out"
    qaeval("score", path, "--out", out, *WORDS)
    assert scores(out) == expected
    assert [file.name for file in (out / "scores").iterdir()] == [f"{name}.parquet"]
    assert "is complete" in qaeval("score", path, "--out", out, *WORDS)
    path.unlink()
    qaeval(
        "filter", out, "--to", tmp_path / "kept", "--keep", "n < 7", "--rules", "none", "--local",
        "--rank-by", "f1",
    )  # fmt: skip
    kept = pq.read_table(tmp_path / "kept" / "kept")
    assert kept["id"].to_pylist() == [row["id"] for row in ROWS[:7]]
    assert "__unreadable" not in kept.column_names
    qaeval("explain", out, "--row", f"{name}:5", "--html", tmp_path / "page.html")
    qaeval("audit", out, "--history", tmp_path / "h", "--to", tmp_path / "r", "--pin")


def test_rows_without_ids_have_their_numbers(tmp_path: Path) -> None:
    """Whatever blocks a file is read in, and lines that are no rows among them."""
    content = lines([{"candidate": "a", "references": "a"}] * 5).splitlines()
    content[2] = b"{oops"
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(content))
    said = qaeval("score", tmp_path / "rows.jsonl", "--out", tmp_path / "out", "--metrics", "f1")
    assert "1 line is unreadable" in said and "rows.jsonl, line 3" in said
    assert "4 scored, 1 quarantined (unreadable_line_candidate 1" in said
    found = scores(tmp_path / "out")
    assert [row["id"] for row in found] == [f"rows.jsonl.parquet#{i}" for i in range(5)]
    assert [row["quarantine_reason"] for row in found] == [
        None, None, "unreadable_line_candidate", None, None,
    ]  # fmt: skip
    (row,) = pq.read_table(tmp_path / "out" / "quarantine").to_pylist()
    assert row["position"] == 2 and "rows.jsonl, line 3: it is not JSON" in row["message"]


def test_standard_input(tmp_path: Path, expected: list[dict]) -> None:
    command = [sys.executable, "-m", "qaeval", "score", "-", "--out", str(tmp_path / "out"), *WORDS]
    for content in (FILES["rows.jsonl"], FILES["rows.jsonl"]):  # The second run has nothing to do.
        done = subprocess.run(
            command, input=content, capture_output=True, check=False, cwd=REPOSITORY
        )
        assert done.returncode == 0, done.stderr
    assert b"is complete" in done.stdout + done.stderr
    assert scores(tmp_path / "out") == expected
    qaeval("explain", tmp_path / "out", "--id", "005", "--html", tmp_path / "page.html")
    parquet = write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist(ROWS))
    done = subprocess.run(
        command, input=parquet.read_bytes(), capture_output=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 2 and b"QA0301" in done.stderr


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(as_path(tmp_path / "inputs"))


def test_a_folder_of_mixed_parts(tmp_path: Path, copies: Copies) -> None:
    """Equal files under two names are two; documents beside data tell of it; links are one."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(FILES["rows.jsonl"])
    (folder / "b.jsonl").write_bytes(FILES["rows.jsonl"])
    (folder / "c.jsonl").symlink_to(folder / "b.jsonl")
    (folder / "d.csv").write_bytes(FILES["rows.csv"])
    write_parquet(folder / "e.parquet", pa.Table.from_pylist(ROWS))
    (folder / "dataset_info.json").write_text('{"splits": {}}')
    (folder / "README.md").write_text("# Data")
    files, notes = find_inputs([str(folder)], copies=copies)
    assert [file.relative for file in files] == [
        "a.jsonl.parquet", "b.jsonl.parquet", "d.csv.parquet", "e.parquet",
    ]  # fmt: skip
    assert len({file.file_id for file in files}) == 4
    assert sum(file.n_rows for file in files) == 160
    assert any("dataset_info.json" in note and "README.md" in note for note in notes)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "part.json").write_bytes(FILES["rows.json"])
    files, _ = find_inputs([str(tmp_path / "documents")], copies=copies)
    assert [file.n_rows for file in files] == [40]
    files, _ = find_inputs([str(folder / "*.jsonl")], copies=copies)
    assert len(files) == 2


def test_a_file_is_the_same_wherever_it_lies(tmp_path: Path, copies: Copies) -> None:
    """By its name and content, not by its time: who moves a corpus scores nothing again."""
    ids = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_bytes(FILES["rows.jsonl"])
        ids += [file.file_id for file in find_inputs([str(tmp_path / folder)], copies=copies)[0]]
    os.utime(tmp_path / "a" / "rows.jsonl", (1, 1))
    ids += [file.file_id for file in find_inputs([str(tmp_path / "a")], copies=copies)[0]]
    assert len(set(ids)) == 1
    (tmp_path / "a" / "rows.jsonl").write_bytes(lines(ROWS[1:]))
    (file,), _ = find_inputs([str(tmp_path / "a")], copies=copies)
    assert file.file_id != ids[0] and file.n_rows == 39


def test_parquet_is_read_whatever_its_name_ends_in(tmp_path: Path, copies: Copies) -> None:
    """The bytes say what a file is."""
    path = write_parquet(tmp_path / "rows.csv", pa.table({"question": ["Who?"]}))
    assert find_inputs([str(path)], copies=copies)[0][0].n_rows == 1
    (tmp_path / "rows.txt").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="QA0304") as caught:
        find_inputs([str(tmp_path / "rows.txt")], copies=copies)
    assert ".jsonl" in str(caught.value)


def test_small_files_are_read_beside_each_other(tmp_path: Path, copies: Copies) -> None:
    """In a bucket each waits for the store; files and notes are in the order of names."""
    both = threading.Barrier(2)

    class Meeting(Copies):
        def of(self, uri: str, name: str, kind: TextKind, *, key: str = "") -> TextCopy:
            both.wait(timeout=60)
            return super().of(uri, name, kind, key=key)

    for i in range(4):
        content = lines(ROWS[: i + 1]) + (b"{oops\n" if i % 2 else b"")
        (tmp_path / f"{i}.jsonl").write_bytes(content)
    files, notes = find_inputs([str(tmp_path)], copies=Meeting(copies.below))
    assert [(file.name, file.n_rows) for file in files] == [
        ("0.jsonl", 1), ("1.jsonl", 3), ("2.jsonl", 3), ("3.jsonl", 5),
    ]  # fmt: skip
    assert [note.partition(":")[0] for note in notes] == ["1.jsonl", "3.jsonl"]
    (tmp_path / "1.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="QA0304"):
        find_inputs([str(tmp_path)], copies=copies)


def test_messages_name_the_file_of_text(tmp_path: Path) -> None:
    """And not its copy."""
    (tmp_path / "rows.jsonl").write_bytes(lines([{**row, "answer": 7} for row in ROWS]))
    words = ("score", tmp_path / "rows.jsonl", "--out", tmp_path / "out", "--local")
    f1 = ("--metrics", "f1")
    for more, code in (
        ((*f1, "--column", "references=anser"), "QA0305"),
        ((*f1, "--column", "references=n"), "QA0306"),
        ((*f1, "--column", "references=candidate", "--carry", "no"), "QA0305"),
        (
            ("--metrics", "f1", "--column", "candidate=answer", "--column", "references=id"),
            "QA0306",
        ),
    ):
        said = qaeval(*words, *more, expect=2)
        assert f"[{code}]" in said and "rows.jsonl: " in said and "jsonl.parquet" not in said
    assert "write its numbers as texts" in said
    said = qaeval(
        "filter", tmp_path / "rows.jsonl", "--column", "question=n", "--dry-run", expect=2
    )
    assert "[QA0306]" in said and "rows.jsonl: " in said and "jsonl.parquet" not in said


def test_lines_of_older_programs_are_told(tmp_path: Path) -> None:
    """Carriage returns alone were a traceback."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"candidate,references\ra,b\r")
    said = qaeval("score", path, "--out", tmp_path / "out", "--metrics", "f1", expect=2)
    assert "rows.csv: " in said and "line feeds [QA0304]" in said


def test_an_encoding_is_named(tmp_path: Path, expected: list[dict]) -> None:
    """What no mark says; an unknown one is refused."""
    rows = [{**row, "question": f"{row['question']} é"} for row in ROWS]
    (tmp_path / "rows.csv").write_bytes(separated(rows).decode().encode("cp1252"))
    words = ("score", tmp_path / "rows.csv", "--out", tmp_path / "out", *WORDS)
    for unknown in ("cp9999", "hex"):
        assert "QA0104" in qaeval(*words, "--encoding", unknown, expect=2)
    qaeval(*words, "--encoding", "cp1252")
    assert scores(tmp_path / "out") == expected


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.json"])
def test_tables_of_other_verbs_have_an_encoding_too(tmp_path: Path, name: str) -> None:
    """What filter, its labels and correlate read; as predictions are read by score."""
    rows = [
        {"id": f"é{i}", "question": f"Où est-ce que {i} était ?", "x": i, "good": i % 3}
        for i in range(40)
    ]
    written = {"rows.csv": separated(rows), "rows.jsonl": lines(rows)}
    content = written.get(name, json.dumps(rows).encode())
    (tmp_path / name).write_bytes(content.decode().encode("utf-16-be"))
    words = (tmp_path / name, "--encoding", "utf-16-be")
    kept = ("--rules", "none", "--rank-by", "x", "--share", "0.5", "--local")
    assert "kept 20 of 40 rows" in qaeval("filter", *words, "--to", tmp_path / "kept", *kept)
    sure = ("--labels", tmp_path / name, "--label", "good < 3", "--precision", "0.5")
    qaeval("filter", *words, "--to", tmp_path / "sure", *kept[:4], *sure, "--local")
    said = qaeval("correlate", *words, "--human", "x", "--metrics", "good", "--labels",
                  tmp_path / name)  # fmt: skip
    assert "40 rows of 40 have ratings" in said
    for verb in (
        ("filter", *words[:1], *kept, "--dry-run"),
        ("correlate", *words[:1], "--human", "x"),
    ):
        assert "QA0304" in qaeval(*verb, expect=2)
        assert "QA0104" in qaeval(*verb, "--encoding", "utf-61", expect=2)


def test_a_dry_run_writes_nothing_below_out(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(FILES["rows.jsonl"])
    said = qaeval("score", tmp_path / "rows.jsonl", "--out", tmp_path / "out", *WORDS, "--dry-run")
    assert "40 rows" in said and not (tmp_path / "out").exists()


def test_filter_reads_tables_of_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(FILES["rows.csv"])
    said = qaeval(
        "filter", tmp_path / "rows.csv", "--to", tmp_path / "kept", "--keep", "n >= 35",
        "--rules", "none", "--local",
    )  # fmt: skip
    assert "kept 5 of 40 rows" in said
