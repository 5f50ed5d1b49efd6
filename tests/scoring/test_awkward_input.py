"""Inputs as people have them: every row leaves once, or the error names file and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import word_jobs
from helpers import read_scores, run_locally, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, InputError, SchemaError, UnreadableFileError
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.planning.shards import ReadLimits, plan_file
from qaeval_core.running.reader import ShardReader
from qaeval_core.scoring.dry_run import dry_run_lines
from qaeval_core.scoring.report import summary_lines

QUESTION, CONTEXT = "Who keeps the bees?", "Ann keeps the bees behind the mill since 1987."


@pytest.fixture
def job(tiny_settings: dict[str, object], tmp_path: Path) -> dict[str, object]:
    return {
        **tiny_settings,
        "input.paths": [str(tmp_path / "input.parquet")],
        "output.path": str(tmp_path / "out"),
    }


def questions(*values: object, **columns: object) -> pa.Table:
    return pa.table({"question": list(values), "context": [CONTEXT] * len(values), **columns})


def test_zero_rows_give_an_empty_table_and_success(job: dict, tmp_path: Path) -> None:
    """Protects from a crash, or from a missing file, for an empty day of data."""
    table = questions().cast(pa.schema([("question", pa.string()), ("context", pa.string())]))
    write_parquet(tmp_path / "input.parquet", table)
    outcome, _ = run_locally(job)
    scores = read_scores(tmp_path / "out")
    assert scores.height == 0
    one_row = write_parquet(tmp_path / "one.parquet", questions(QUESTION))
    run_locally({**job, "input.paths": [str(one_row)], "output.path": str(tmp_path / "out1")})
    assert scores.schema == read_scores(tmp_path / "out1", "one.parquet").schema
    assert outcome.report is not None
    assert outcome.report["rows"] == 0


def test_nulls_and_broken_text_are_quarantined_and_the_rest_is_scored(
    job: dict, tmp_path: Path
) -> None:
    """Protects from a null scored as an empty text, and from one bad row failing a file."""
    broken = pa.Array.from_buffers(
        pa.string(),
        3,
        [None, pa.py_buffer(np.array([0, 3, 5, 8], np.int32)), pa.py_buffer(b"Who\xff\xfeWhy")],
    )
    table = pa.table(
        {"question": broken, "context": [CONTEXT, CONTEXT, None], "name": ["a", "b", "c"]}
    )
    write_parquet(tmp_path / "input.parquet", table)
    outcome, _ = run_locally({**job, "input.columns.id": "name"})
    scores = read_scores(tmp_path / "out")
    assert scores["quarantine_reason"].to_list() == [
        None,
        "invalid_utf8_candidate",
        "null_context",
    ]
    assert scores["qrelscore"].is_null().to_list() == [False, True, True]
    records = pl.read_parquet(tmp_path / "out" / "quarantine" / "input.parquet")
    assert records["id"].to_list() == ["b", "c"]
    assert records["position"].to_list() == [1, 2]
    assert "'context'" in records["message"][1]
    assert outcome.report is not None
    assert outcome.report["quarantined_by_reason"] == {
        "invalid_utf8_candidate": 1,
        "null_context": 1,
    }


def test_lists_of_passages_are_joined_by_one_space(job: dict, tmp_path: Path) -> None:
    """Protects from lists scored otherwise than the same text, and from nulls inside lists."""
    table = pa.table(
        {
            "question": [QUESTION] * 4,
            "context": [["Ann keeps bees.", "Since 1987."], ["x", None], [], None],
        }
    )
    write_parquet(tmp_path / "input.parquet", table)
    run_locally(job)
    scores = read_scores(tmp_path / "out")
    assert scores["quarantine_reason"].to_list() == [
        None,
        "null_in_list_context",
        None,
        "null_context",
    ]
    assert scores["qrelscore_reason"].to_list() == [None, None, "empty_context", None]
    joined = pa.table({"question": [QUESTION], "context": ["Ann keeps bees. Since 1987."]})
    write_parquet(tmp_path / "joined.parquet", joined)
    run_locally(
        {
            **job,
            "input.paths": [str(tmp_path / "joined.parquet")],
            "output.path": str(tmp_path / "out2"),
        }
    )
    same = read_scores(tmp_path / "out2", "joined.parquet")
    assert same["qrelscore_lrm"][0] == pytest.approx(scores["qrelscore_lrm"][0], abs=1e-6)


def test_wrongly_typed_column_names_file_column_and_type(job: dict, tmp_path: Path) -> None:
    """Protects from numbers turned into texts in silence."""
    write_parquet(tmp_path / "input.parquet", questions(1, 2))
    with pytest.raises(SchemaError, match=r"input\.parquet.*'question'.*int64.*QA0306"):
        run_locally(job)


def test_missing_column_names_the_nearest_one(job: dict, tmp_path: Path) -> None:
    """Protects from a run of hours that ends at the file without the column."""
    good = write_parquet(tmp_path / "in" / "a.parquet", questions(QUESTION))
    bad = questions(QUESTION).rename_columns(["question", "contexts"])
    write_parquet(good.with_name("b.parquet"), bad)
    with pytest.raises(SchemaError, match=r"b\.parquet.*'contexts'.*QA0305"):
        run_locally({**job, "input.paths": [str(good.parent)]})
    assert not (tmp_path / "out").exists()


def test_duplicate_ids_are_counted_and_do_no_harm(job: dict, tmp_path: Path) -> None:
    """Protects from rows merged because their ids are equal."""
    table = questions("Who?", "Why?", "When?", id=["x", "x", None])
    write_parquet(tmp_path / "input.parquet", table)
    outcome, _ = run_locally(job)
    assert outcome.report is not None
    assert outcome.report["duplicate_ids"] == 1
    assert read_scores(tmp_path / "out")["id"].to_list() == ["x", "x", None]


def test_context_of_100_000_characters_is_windowed(job: dict, tmp_path: Path) -> None:
    """Protects from truncation in silence, and from a window longer than the model."""
    long = ("The mill stands on the river and " * 4_000)[:100_000]
    table = pa.table({"question": ["Where is the mill?"], "context": [long]})
    write_parquet(tmp_path / "input.parquet", table)
    run_locally(job)
    scores = read_scores(tmp_path / "out")
    assert scores["qrelscore_lrm_windows"][0] > 40
    assert scores["qrelscore_grg_windows"][0] > 20
    assert scores["qrelscore_lrm"][0] is not None


def test_row_group_of_a_million_rows_is_decoded_once(tmp_path: Path) -> None:
    """Protects from decoding a row group again for every shard: 256 times 0.4 s each."""
    n_rows = 1 << 20
    table = pa.table({"question": pa.array([f"q{i % 97}" for i in range(n_rows)])})
    path = write_parquet(tmp_path / "big.parquet", table, row_group_size=n_rows)
    (file,), _ = find_inputs([str(path)])
    assert [group.n_rows for group in file.row_groups] == [n_rows]
    pieces = plan_file(
        file, done={"f": ()}, rows_per_shard=4096, limits=ReadLimits(1 << 26), n_rows=n_rows
    )
    assert len(pieces) == 16
    reader = ShardReader(["question"])
    seen = 0
    for piece in pieces:
        for rows in piece.shards:
            part = reader.read(piece, rows)
            assert part["question"][0].as_py() == f"q{rows.start % 97}"
            seen += part.num_rows
    assert seen == n_rows
    assert reader.n_streams_opened == 1


def test_files_may_order_their_columns_differently(job: dict, tmp_path: Path) -> None:
    """Protects from columns taken by position."""
    write_parquet(tmp_path / "in" / "a.parquet", questions(QUESTION))
    turned = questions(QUESTION).select(["context", "question"])
    write_parquet(tmp_path / "in" / "b.parquet", turned)
    run_locally({**job, "input.paths": [str(tmp_path / "in")]})
    first, second = (read_scores(tmp_path / "out", name) for name in ("a.parquet", "b.parquet"))
    assert first["qrelscore"].to_list() == second["qrelscore"].to_list()


def test_file_that_is_not_parquet_is_named_before_anything_runs(job: dict, tmp_path: Path) -> None:
    """Protects from good files scored and a bad one forgotten."""
    write_parquet(tmp_path / "in" / "a.parquet", questions(QUESTION))
    (tmp_path / "in" / "b.parquet").write_bytes(b"no parquet")
    whole = {**job, "input.paths": [str(tmp_path / "in")]}
    with pytest.raises(UnreadableFileError, match=r"b\.parquet.*Parquet.*QA0304"):
        run_locally(whole)
    outcome, _ = run_locally({**whole, "input.skip_unreadable": True})
    assert outcome.report is not None
    assert outcome.report["rows"] == 1
    assert "b.parquet" in outcome.report["notes"][0]


def write_damaged(path: Path, column: int = 0) -> None:
    """Write six questions in two row groups; of the second, a column does not decode."""
    texts = [f"Who keeps hive {i} behind the old mill?" for i in range(6)]
    ids = [f"hive {i}" for i in range(6)]
    table = pa.table({"question": texts, "context": [CONTEXT] * 6, "id": ids, "label": ids})
    pq.write_table(table, path, row_group_size=3, compression="snappy", use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(1).column(column)
    content = bytearray(path.read_bytes())
    start = chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)


def test_damaged_row_group_is_quarantined_and_the_others_scored(job: dict, tmp_path: Path) -> None:
    """Protects from one bad disk sector costing a whole file."""
    write_damaged(tmp_path / "input.parquet")
    # Shards of three rows: a stretch of row groups is no longer than a shard.
    outcome, _ = run_locally({**job, "scoring.rows_per_shard": 3})
    scores = read_scores(tmp_path / "out")
    assert scores["quarantine_reason"].to_list() == [None] * 3 + ["unreadable"] * 3
    assert scores["qrelscore"].is_null().to_list() == [False] * 3 + [True] * 3
    assert outcome.report is not None
    assert outcome.report["quarantined_by_reason"] == {"unreadable": 3}


@pytest.mark.parametrize("column", [2, 3])
def test_ids_that_do_not_decode_are_told_and_cost_no_others(
    job: dict, tmp_path: Path, column: int
) -> None:
    """All ids of a file of small row groups were null, and nobody said why."""
    write_damaged(tmp_path / "input.parquet", column)
    outcome, _ = run_locally({**job, "output.carry": ["label"]})
    scores = read_scores(tmp_path / "out")
    ids = [f"hive {i}" for i in range(3)] + [None] * 3
    assert scores["id"].to_list() == ids and scores["label"].to_list() == ids
    assert scores["qrelscore"].null_count() == 0
    assert outcome.report is not None
    assert outcome.report["duplicate_ids"] == 0
    (note,) = outcome.report["notes"]
    assert note.startswith("input.parquet: id, label of 3 rows cannot be read")
    assert f"note: {note}" in summary_lines(outcome.report, tmp_path / "out")


def test_a_dry_run_counts_damaged_rows_as_the_run_does(job: dict, tmp_path: Path) -> None:
    """A plan that ends with an error says that a run cannot be made, which can."""
    write_damaged(tmp_path / "input.parquet")
    config = load_config(overrides={**job, "scoring.rows_per_shard": 3})
    lines = list(dry_run_lines(make_job(config, read_inputs(config), device="cpu")))
    assert sum("6 rows to score in 2 shards" in line for line in lines) == 2
    assert sum("3 rows to quarantine" in line for line in lines) == 2


def test_two_files_of_one_name_in_two_folders_stay_apart(job: dict, tmp_path: Path) -> None:
    """Protects from one file's scores overwriting another's."""
    first = write_parquet(tmp_path / "jan" / "part.parquet", questions("Who?"))
    second = write_parquet(tmp_path / "feb" / "part.parquet", questions("Why?", "When?"))
    run_locally({**job, "input.paths": [str(first), str(second)]})
    assert read_scores(tmp_path / "out", "jan/part.parquet").height == 1
    assert read_scores(tmp_path / "out", "feb/part.parquet").height == 2


def test_globs_folders_and_uris_name_files(tmp_path: Path) -> None:
    """Protects from inputs that silently match nothing."""
    for name in ("a.parquet", "sub/b.parquet", "_SUCCESS.parquet", "sub/.hidden.parquet"):
        write_parquet(tmp_path / "in" / name, questions("Who?"))
    names = [file.relative for file in find_inputs([str(tmp_path / "in")])[0]]
    assert names == ["a.parquet", "sub/b.parquet"]
    by_glob = find_inputs([str(tmp_path / "in" / "*" / "b*.parquet")])[0]
    assert [file.relative for file in by_glob] == ["sub/b.parquet"]
    by_uri = find_inputs([f"file://{tmp_path}/in/a.parquet"])[0]
    assert [file.relative for file in by_uri] == ["a.parquet"]
    with pytest.raises(InputError, match=r"'a\.parquet'.*QA0301"):
        find_inputs([str(tmp_path / "in" / "aa.parquet")])
    with pytest.raises(InputError, match="QA0301"):
        find_inputs([str(tmp_path / "in" / "*.csv")])


def test_out_inside_the_input_folder_is_refused(job: dict, tmp_path: Path) -> None:
    """Protects from scores read as input by the next run."""
    write_parquet(tmp_path / "in" / "a.parquet", questions("Who?"))
    inside = str(tmp_path / "in" / "out")
    with pytest.raises(ConfigError, match="QA0109"):
        run_locally({**job, "input.paths": [str(tmp_path / "in")], "output.path": inside})


@pytest.mark.parametrize(
    ("pattern", "out", "is_taken"),
    [
        ("**/*.parquet", "in/out", True),
        ("*/*.parquet", "in/out", True),
        ("*.parquet", "in", True),
        ("**/b*.parquet", "in/out", True),
        ("*/b*.parquet", "in/out", False),
        ("*.parquet", "in/out", False),
        ("**/*.parquet", "out", False),
    ],
)
def test_out_where_a_glob_looks_is_refused(
    tmp_path: Path, pattern: str, out: str, is_taken: bool
) -> None:
    """The first run went well, and every one after it took its scores and commits for input."""
    for name in ("a.parquet", "sub/b.parquet"):
        write_parquet(tmp_path / "in" / name, word_jobs.rows(2))
    overrides = word_jobs.request(tmp_path / "in" / pattern, tmp_path / out)
    if is_taken:
        with pytest.raises(ConfigError, match=r"\.parquet.*QA0109"):
            read_inputs(load_config(overrides=overrides))
        return
    run_locally(overrides)
    again, said = run_locally(overrides)
    assert not again.is_new and "nothing to do" in said[0]


def test_carried_columns_keep_their_types_and_may_not_collide(job: dict, tmp_path: Path) -> None:
    """Protects from nullable integers turned into floats, and from a column overwritten."""
    table = questions("Who?", "Why?", number=pa.array([1, None], pa.int64()))
    write_parquet(tmp_path / "input.parquet", table)
    run_locally({**job, "output.carry": ["number"]})
    scores = pq.read_table(tmp_path / "out" / "scores" / "input.parquet")
    assert scores.schema.field("number").type == pa.int64()
    assert scores["number"].to_pylist() == [1, None]
    with pytest.raises(SchemaError, match="'numbr'.*QA0305"):
        run_locally({**job, "output.carry": ["numbr"]})
    clash = questions("Who?", qrelscore=[1.0])
    write_parquet(tmp_path / "input.parquet", clash)
    with pytest.raises(ConfigError, match="'qrelscore'.*QA0208"):
        run_locally({**job, "output.carry": ["qrelscore"]})


def test_limit_scores_the_first_rows_alone_and_can_be_lifted(job: dict, tmp_path: Path) -> None:
    """Protects from a trial run's rows being paid twice."""
    write_parquet(
        tmp_path / "input.parquet", questions(*(f"Who keeps hive {i}?" for i in range(9)))
    )
    limited = {**job, "scoring.rows_per_shard": 2}
    run_locally({**limited, "input.limit": 4})
    assert read_scores(tmp_path / "out").height == 4
    _, said = run_locally(limited)
    assert read_scores(tmp_path / "out").height == 9
    assert any("4 rows are done, 5 remain" in line for line in said)
