"""What lies in KEPT: rows beside their own scores, whoever wrote them, and what others count on."""

from __future__ import annotations

import contextlib
import multiprocessing
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from filter_corpora import files_of, filtered, questions
from helpers import REPOSITORY, full_disk, run_locally
from qaeval.cli import app
from qaeval.work import filter as command
from qaeval_core.errors import SchemaError
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.running import carried_columns as copied
from qaeval_core.running.range_executor import LocalRangeExecutor
from qaeval_core.schema import COLUMNS_METADATA
from qaeval_core.tables import corpus
from qaeval_core.tables import range_reader as ranges

# Rows of the row groups of each file.
SOURCES = {"a": (17, 5, 31, 1, 23), "b": (40,), "deep/c": (3, 29, 11, 11)}
SCORES = {"a": [22, 32, 23], "b": [40], "deep/c": [32, 22]}
RANGE = 25
N_RANGES = 7


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scored run whose row groups are others in the source than in the scores."""
    folder = tmp_path_factory.mktemp("corpus")
    n_rows = sum(sum(sizes) for sizes in SOURCES.values())
    rows = questions(n_rows).to_dict(as_series=False)
    # Of unequal lengths: so many bytes are now more rows, and now fewer.
    rows["notes"] = [[f"note {i} "] * (i * 7 % 11) for i in range(n_rows)]
    rows["number"] = [i if i % 3 else None for i in range(n_rows)]
    table = pa.table(rows).replace_schema_metadata({"made by": "somebody"})
    for name, sizes in SOURCES.items():
        path = folder / "source" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, table.schema) as writer:
            for size in sizes:
                writer.write_table(table[:size])
                table = table[size:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copied, "_CHUNK_ROWS", 40)
        run_locally(
            {
                "metrics.f1.metric": "f1",
                "input.paths": [str(folder / "source")],
                "input.columns.references": "reference",
                "output.carry": ["topic"],
                "output.path": str(folder / "out"),
            }
        )
    return folder / "out"


def row_groups(path: Path) -> list[int]:
    found = pq.read_metadata(path)
    return [found.row_group(i).num_rows for i in range(found.num_row_groups)]


@pytest.mark.parametrize("n_bytes", [1 << 24, 700])
@pytest.mark.parametrize(
    "options",
    [
        {"near_duplicates": "none", "share": "0.5"},
        {"near_duplicates": "rouge_l=0.7", "top_k": 3, "keep": ("f1 > 0.3 and number > 20",)},
    ],
    ids=["share", "groups"],
)
def test_kept_rows_are_beside_their_own_scores(
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    n_bytes: int,
) -> None:
    """Of source and scores not the same rows are read at once; a shift would be no error."""
    monkeypatch.setattr(corpus, "ROWS_PER_RANGE", RANGE)
    monkeypatch.setattr(ranges, "ROWS_PER_READ", 13)
    monkeypatch.setattr(ranges, "_ROWS_PER_BATCH", 7)
    monkeypatch.setattr(ranges, "_LIMITS", ReadLimits(shard_bytes=n_bytes))
    filtered(out, tmp_path, **options)
    for name, sizes in SOURCES.items():
        paths = [
            folder / f"{name}.parquet"
            for folder in (
                out.parent / "source", out / "scores", tmp_path / "kept", tmp_path / "decisions",
            )
        ]  # fmt: skip
        assert [row_groups(path) for path in paths[:2]] == [list(sizes), SCORES[name]]
        source, scores, kept, decisions = map(pl.read_parquet, paths)
        beside = source.join(scores.drop("topic"), on="id", how="left", maintain_order="left")
        assert decisions["id"].to_list() == source["id"].to_list()
        assert decisions["rank_value"].to_list() == beside["f1"].to_list()
        expected = beside.filter(decisions["kept"])
        assert 0 < expected.height < source.height
        assert kept.equals(expected) and kept.columns == expected.columns
        given, of_scores, written, _ = map(pq.read_schema, paths)
        added = [own for own in of_scores if own.name not in ("id", "topic")]
        columns = of_scores.metadata[COLUMNS_METADATA]
        metadata = {**given.metadata, COLUMNS_METADATA: columns}
        wanted = pa.schema([*given, *added], metadata=metadata)
        assert written.equals(wanted, check_metadata=True)


def test_processes_write_the_same_bytes(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results come back in order, whoever is done first."""
    monkeypatch.setattr(corpus, "ROWS_PER_RANGE", RANGE)
    monkeypatch.setattr("qaeval_core.running.range_executor._ROWS_FOR_PROCESSES", 0)
    options = {"near_duplicates": "rouge_l=0.7", "top_k": 3, "share": "0.6"}
    before = set(multiprocessing.active_children())
    seen: dict[str, list[int]] = {}

    def tell(label: str, done: int, total: int) -> None:
        own = set(multiprocessing.active_children()) - before
        seen.setdefault(label, []).append(len(own))

    for n in (1, 2):
        with contextlib.closing(LocalRangeExecutor(tell, n_processes=n)) as executor:
            filtered(out, tmp_path / str(n), executor=executor, **options)
        for label in ("scan", "write"):
            assert seen[label][1:] == [0 if n == 1 else 2] * N_RANGES
        seen.clear()
    assert files_of(tmp_path / "2") == files_of(tmp_path / "1")


def a_table(path: Path, ids: list[object]) -> Path:
    """Write scores of another tool: the first rows are the best ones."""
    scores = [-float(i) for i in range(len(ids))]
    pl.DataFrame({"id": ids, "s": scores}).write_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("form", ["{:03d}", "{}", None], ids=["007", "7", "number"])
def test_labels_name_rows_by_their_ids_as_text(tmp_path: Path, form: str | None, kind: str) -> None:
    """Numbers here and text there; but 007 is not 7."""
    ids = [form.format(i) if form else i for i in range(1, 61)]
    rows = a_table(tmp_path / "rows.parquet", ids)
    labels = tmp_path / f"labels.{kind}"
    options = {
        "rank_by": "s", "near_duplicates": "none", "group": "id", "precision": 0.5,
        "labels": str(labels), "label": "good",
    }  # fmt: skip

    def label(own: list[object]) -> None:
        table = pl.DataFrame({"id": own, "good": [1] * 30 + [0] * 30})
        getattr(table, f"write_{'ndjson' if kind == 'jsonl' else kind}")(labels)

    label(ids)
    result, _ = filtered(rows, tmp_path / "kept", **options)
    assert result.content["certificate"]["n_labels"] == 60 and result.is_certified
    decisions = pl.read_parquet(tmp_path / "kept" / "decisions")
    assert decisions["id"].to_list() == [str(own) for own in ids]
    if form == "{:03d}":
        label(list(range(1, 61)))
        with pytest.raises(SchemaError, match="60.*60.*'1'.*QA0313"):
            filtered(rows, tmp_path / "kept", **options)
    else:
        label([i if form else str(i) for i in range(1, 61)])
        result, _ = filtered(rows, tmp_path / "kept", **options)
        assert result.content["certificate"]["n_labels"] == 60


def test_the_page_says_that_rows_have_no_ids(tmp_path: Path) -> None:
    rows = a_table(tmp_path / "rows.parquet", [1, 2, 3, 4])
    note = "no id column, so rows are named by file and row number"
    options = {"rank_by": "s", "share": "0.5", "near_duplicates": "none"}
    _, said = filtered(rows, tmp_path / "named", **options)
    assert note not in (tmp_path / "named" / "filter.html").read_text() + "".join(said)
    pl.read_parquet(rows).drop("id").write_parquet(rows)
    _, said = filtered(rows, tmp_path / "unnamed", **options)
    assert note in (tmp_path / "unnamed" / "filter.html").read_text()
    assert any(note in line for line in said)
    decisions = pl.read_parquet(tmp_path / "unnamed" / "decisions")
    assert decisions["id"].to_list() == [f"rows.parquet#{i}" for i in range(4)]


DECISIONS = [
    ("id", "string", True),
    ("kept", "bool", False),
    ("reason", "string", True),
    ("rank_value", "double", True),
    ("duplicate_of", "string", True),
    ("group_size", "int64", True),
    ("group_kept", "int64", True),
]


@pytest.mark.parametrize(("kind", "is_grouped"), [("none", False), ("exact", True)])
def test_decisions_have_these_columns(
    out: Path, tmp_path: Path, kind: str, is_grouped: bool
) -> None:
    filtered(out, tmp_path, near_duplicates=kind, share="0.5")
    for name in SOURCES:
        path = tmp_path / "decisions" / f"{name}.parquet"
        fields = pq.read_schema(path)
        assert [(own.name, str(own.type), own.nullable) for own in fields] == DECISIONS
        table = pl.read_parquet(path)
        for counted in ("group_size", "group_kept"):
            assert table[counted].null_count() == (0 if is_grouped else table.height)
    names = ", ".join(name for name, _, _ in DECISIONS)
    assert f"`{names}`" in (REPOSITORY / "docs" / "filter.md").read_text()


def test_the_command_exits_with_1_where_the_disk_is_full(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_filter", partial(command.run_filter, retry_s=0.0))
    words = ["filter", str(out), "--to", str(tmp_path), "--share", "0.5", "--local"]
    with full_disk(3000):
        shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1, shown.output
    assert "File too large" in shown.output and "Traceback" not in shown.output
    assert shown.output.count("error: ") == 1
    assert not (tmp_path / "_SUCCESS").exists()
