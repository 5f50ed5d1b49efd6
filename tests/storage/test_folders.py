"""Folders as other tools leave them: other names, keys in names, logs that say what is alive."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, run_locally
from qaeval_core.errors import InputError, SchemaError
from qaeval_core.planning.inputs import find_inputs

ROWS = pa.table({"id": list("abcdef"), "candidate": ["Oslo"] * 6, "references": [["Oslo"]] * 6})
NAMES = (
    "part-0.parquet",
    "part-1.parquet.gzip",
    "part-2.PARQUET",
    "part-3.parq",
    "000000_0",
    "x.dat",
)


def job(folder: Path, **given: object) -> dict[str, Any]:
    return {
        "input.paths": [str(folder / "in")],
        "output.path": str(folder / "out"),
        "scoring.progress_s": 60,
        "metrics.f1.metric": "f1",
        **{key.replace("__", "."): value for key, value in given.items()},
    }


def scores_of(folder: Path) -> pl.DataFrame:
    files = sorted(path for path in (folder / "out" / "scores").rglob("*") if path.is_file())
    return pl.concat([pl.read_parquet(path) for path in files], how="diagonal_relaxed").sort("id")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def test_parquet_is_known_by_its_bytes(folder: Path) -> None:
    """A third of the rows was scored, exit 0, and not a word of the others."""
    for i, name in enumerate(NAMES):
        pq.write_table(ROWS.slice(i, 1), folder / "in" / name)
    (folder / "in" / "README.md").write_text("PAR1 is how it begins.")
    (folder / "in" / "rows.txt").write_text("id,candidate\n")
    (folder / "in" / "empty").touch()
    (folder / "in" / "cut.bin").write_bytes(b"PAR1" + b"\0" * 90)
    (folder / "in" / "_SUCCESS").touch()
    (folder / "in" / ".part-0.parquet.crc").write_bytes(b"crc")
    outcome, _ = run_locally(job(folder))
    assert scores_of(folder)["id"].to_list() == list("abcdef")
    (note,) = [note for note in outcome.report["notes"] if "left out" in note]
    assert note.startswith("4 files are left out, being no data file: ")
    assert all(name in note for name in ("README.md", "rows.txt", "empty", "cut.bin"))
    for words in (("filter", folder / "out", "--to", folder / "kept", "--rules", "none",
                   "--rank-by", "f1", "--near-duplicates", "none", "--column",
                   "question=candidate", "--local"),
                  ("audit", folder / "out", "--history", folder / "history", "--to",
                   folder / "report", "--pin", "--cluster", "id"),
                  ("explain", folder / "out", "--id", "e")):  # fmt: skip
        qaeval(*words)
    decisions = [path for path in (folder / "kept" / "decisions").iterdir() if path.is_file()]
    assert sum(pq.read_metadata(path).num_rows for path in decisions) == 6


def test_hidden_files_are_named_and_keys_may_begin_with_a_sign(folder: Path) -> None:
    """Rows of a key _lang were not read, as hidden ones: exit 0, and no word."""
    names = ("a.parquet", "_lang=de/b.parquet", "_part-1.parquet", ".tmp/c.parquet")
    for i, name in enumerate(names):
        (folder / "in" / name).parent.mkdir(exist_ok=True)
        pq.write_table(ROWS.slice(i, 1), folder / "in" / name)
    outcome, _ = run_locally(job(folder, output__carry=["_lang"]))
    assert scores_of(folder).select("id", "_lang").rows() == [("a", None), ("b", "de")]
    (note,) = [note for note in outcome.report["notes"] if "left out" in note]
    assert note.startswith("2 files are left out, being hidden")
    assert "_part-1.parquet" in note and ".tmp/c.parquet" in note


@pytest.mark.parametrize("path", ["in", "in/*.parquet", "in/**/*.parquet"])
def test_a_link_to_nothing_is_named(path: str, folder: Path) -> None:
    """Data that a tool keeps elsewhere, and that is not there: its rows were missing in silence."""
    pq.write_table(ROWS.slice(0, 1), folder / "in" / "a.parquet")
    (folder / "in" / "b.parquet").symlink_to(folder / "gone" / "b.parquet")
    files, problems = find_inputs([str(folder / path)])
    assert [file.relative for file in files] == ["a.parquet"]
    assert problems == ["1 file is left out, being a link to a missing file: b.parquet"]


def test_a_folders_key_is_no_id(folder: Path) -> None:
    """All rows of a folder would have one id; and names are escaped as values are."""
    for i, key in enumerate(("id=1", "id=2", "my%3Acol=x")):
        (folder / "in" / key).mkdir()
        rows = ROWS.slice(i, 1).rename_columns(["own", "candidate", "references"])
        pq.write_table(rows, folder / "in" / key / "a.parquet")
    run_locally(job(folder, output__carry=["my:col", "own"]))
    scores = scores_of(folder)
    assert scores["id"].to_list() == [
        "id=1/a.parquet#0",
        "id=2/a.parquet#0",
        "my%3Acol=x/a.parquet#0",
    ]
    assert scores["my:col"].to_list() == [None, None, "x"]


def test_files_of_two_types_say_so(folder: Path) -> None:
    """Each message named the way that failed for the other file."""
    pq.write_table(ROWS, folder / "in" / "a.parquet")
    nested = pa.array([{"text": ["Oslo"]}] * 6)
    pq.write_table(ROWS.set_column(2, "references", nested), folder / "in" / "b.parquet")
    for path in ("references", "references.text"):
        with pytest.raises(SchemaError, match="QA0307"):
            run_locally(job(folder, input__columns={"references": path}))
    nulls = ROWS.set_column(2, "references", pa.nulls(6)).slice(0, 1)
    pq.write_table(nulls, folder / "in" / "a.parquet")
    outcome, _ = run_locally(job(folder))
    assert "role references reads the field references.text" in outcome.report["notes"]
    assert scores_of(folder)["quarantine_reason"].to_list().count("null_references") == 1


def test_a_folder_without_one_says_so(folder: Path) -> None:
    with gzip.open(folder / "in" / "a.parquet.gz", "wb") as file:
        pq.write_table(ROWS, file)
    with pytest.raises(InputError, match="Parquet.*QA0301"):
        find_inputs([str(folder / "in")])


def test_keys_of_folders_are_columns(folder: Path) -> None:
    """And never hide a file's own column; whoever has no key has none."""
    ds.write_dataset(
        ROWS.append_column("lang", pa.array(["de", "de", "fr fr", "fr fr", None, None])),
        folder / "in",
        format="parquet",
        partitioning=["lang"],
        partitioning_flavor="hive",
    )
    own = ROWS.slice(0, 1).append_column("lang", pa.array(["own"]))
    (folder / "in" / "lang=es").mkdir()
    pq.write_table(
        own.set_column(0, "id", pa.array(["own"])), folder / "in" / "lang=es" / "a.parquet"
    )
    pq.write_table(
        ROWS.slice(0, 1).set_column(0, "id", pa.array(["none"])), folder / "in" / "b.parquet"
    )
    outcome, _ = run_locally(job(folder, output__carry=["lang"]))
    found = dict(scores_of(folder).select("id", "lang").iter_rows())
    assert found == {"a": "de", "b": "de", "c": "fr fr", "d": "fr fr", "e": None, "f": None,
                     "none": None, "own": "own"}  # fmt: skip
    assert "b.parquet has no column 'lang': it is null there" in outcome.report["notes"]
    qaeval("filter", folder / "out", "--to", folder / "kept", "--rules", "none", "--rank-by", "f1",
           "--near-duplicates", "none", "--column", "question=candidate", "--local")  # fmt: skip


def test_filter_knows_a_carried_column_that_some_files_lack(folder: Path) -> None:
    """It stood in every file of scores, and the message said that there is no such column."""
    topics = pa.array(["x", "x", "y"])
    pq.write_table(ROWS.slice(0, 3).append_column("topic", topics), folder / "in" / "a.parquet")
    pq.write_table(ROWS.slice(3, 3), folder / "in" / "b.parquet")
    run_locally(job(folder, output__carry=["topic"]))

    def kept(name: str, *words: str) -> list[str]:
        qaeval("filter", folder / "out", "--to", folder / name, "--rules", "none", "--rank-by",
               "f1", "--near-duplicates", "none", "--column", "question=candidate", "--local",
               *words)  # fmt: skip
        decisions = pl.read_parquet(folder / name / "decisions" / "*.parquet")
        return sorted(decisions.filter("kept")["id"].to_list())

    assert kept("kept", "--keep", "topic = 'x'") == ["a", "b"]
    assert kept("one", "--group", "topic", "--top-k", "1") == ["a", "c"]  # Nulls are no group.
    assert kept("quota", "--quota", "topic=equal", "--budget", "3") == ["a", "c"]


@pytest.mark.parametrize("column", ["answer_type", "entities", "label"])
def test_what_some_files_lack_is_null_there(column: str, folder: Path) -> None:
    """ "map it with --column" could not help: no name was wrong."""
    cells = {"answer_type": ["a"] * 3, "entities": [["a"]] * 3, "label": [1, 2, 3]}[column]
    pq.write_table(
        ROWS.slice(0, 3).append_column(column, pa.array(cells)), folder / "in" / "a.parquet"
    )
    pq.write_table(ROWS.slice(3, 3), folder / "in" / "b.parquet")
    adapted = {"metrics.adapted_bleu_4.metric": "adapted_bleu_4"}
    carried = {"output__carry": [column]}
    outcome, _ = run_locally(job(folder, **(carried if column == "label" else adapted)))
    assert f"b.parquet has no column {column!r}: it is null there" in outcome.report["notes"]
    scores = scores_of(folder)
    assert scores["f1"].to_list() == [1.0] * 6
    if column == "label":
        assert scores["label"].to_list() == [1, 2, 3, None, None, None]
        kinds = [pq.read_schema(path).field("label").type
                 for path in sorted((folder / "out" / "scores").iterdir())]  # fmt: skip
        assert kinds == [pa.int64()] * 2


def test_what_every_file_lacks_and_what_a_role_needs_is_still_an_error(folder: Path) -> None:
    pq.write_table(ROWS.slice(0, 3), folder / "in" / "a.parquet")
    pq.write_table(ROWS.slice(3, 3).drop_columns(["references"]), folder / "in" / "b.parquet")
    with pytest.raises(SchemaError, match="QA0305"):
        run_locally(job(folder))
    pq.write_table(ROWS.slice(3, 3), folder / "in" / "b.parquet")
    with pytest.raises(SchemaError, match="'lable'.*QA0305"):
        run_locally(job(folder, output__carry=["lable"]))


def delta(folder: Path) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    lines = [{"add": {"path": "live.parquet"}}, {"remove": {"path": "dead.parquet"}}]
    (log / "0.json").write_text("\n".join(map(json.dumps, lines)))
    for name in ("live.parquet", "dead.parquet"):
        pq.write_table(ROWS, folder / name)


def iceberg(folder: Path, *, name: str = "00001-x.metadata.json") -> None:
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / name).write_text("{}")
    (folder / "data").mkdir()
    pq.write_table(ROWS, folder / "data" / "dead.parquet")


def hudi(folder: Path) -> None:
    (folder / ".hoodie").mkdir(parents=True)
    (folder / "2026").mkdir()
    pq.write_table(ROWS, folder / "2026" / "dead.parquet")


def gzipped_iceberg(folder: Path) -> None:
    iceberg(folder, name="v1.metadata.json.gz")


def stream(folder: Path) -> None:
    (folder / "_spark_metadata").mkdir(parents=True)
    pq.write_table(ROWS, folder / "dead.parquet")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (delta, "a Delta table"),
        (iceberg, "an Iceberg"),
        (gzipped_iceberg, "an Iceberg"),
        (hudi, "a Hudi table"),
        (stream, "what a Spark stream writes"),
    ],
)
@pytest.mark.parametrize(
    "path",
    ["in", "in/table", "in/table/**/*.parquet", "below", "file", "links/folder", "links/a.parquet"],
)
def test_dead_files_of_a_table_are_never_read(
    make: Any, named: str, path: str, folder: Path
) -> None:
    """Of a folder of Parquet not all files are alive: deleted rows were scored."""
    make(folder / "in" / "table")
    dead = next((folder / "in" / "table").rglob("dead.parquet"))
    given = {"below": dead.parent, "file": dead}.get(path, folder / path)
    (folder / "links").mkdir()
    (folder / "links" / "folder").symlink_to(dead.parent)
    (folder / "links" / "a.parquet").symlink_to(dead)
    with pytest.raises(InputError, match=f"{named}.*QA0311"):
        find_inputs([str(given)])


def test_a_table_among_many_folders_is_found(folder: Path) -> None:
    """Wherever it lies: of the first hundred folders alone, dead rows came from the others."""
    for i in range(130):
        own = folder / "in" / f"customer-{i:03d}" / "rows"
        own.mkdir(parents=True)
        pq.write_table(ROWS, own / "a.parquet")
    delta(folder / "in" / "customer-129" / "table")
    with pytest.raises(InputError, match="customer-129/table.*Delta.*QA0311"):
        find_inputs([str(folder / "in")])


def test_a_folder_that_is_called_metadata_is_no_table(folder: Path) -> None:
    (folder / "in" / "metadata").mkdir()
    pq.write_table(ROWS, folder / "in" / "metadata" / "a.parquet")
    files, problems = find_inputs([str(folder / "in")])
    assert [file.relative for file in files] == ["metadata/a.parquet"] and problems == []


def test_names_that_differ_by_their_ending_stay_apart(folder: Path) -> None:
    """Scores of one would lie where those of the other do."""
    for i, name in enumerate(("a", "a.parquet", "a.pq")):
        pq.write_table(ROWS.slice(i, 1), folder / "in" / name)
    run_locally(job(folder))
    assert scores_of(folder)["id"].to_list() == list("abc")
    assert len(list((folder / "out" / "scores").glob("*.parquet"))) == 3
