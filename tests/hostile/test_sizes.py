"""Sizes: no small file fills the memory, and no footer is believed that contradicts itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import read_scores, write_parquet
from qaeval_core.errors import UnreadableFileError
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.planning.shards import Piece, ReadLimits, plan_file
from qaeval_core.running import reader
from qaeval_core.running.reader import ShardReader
from qaeval_core.store.row_ranges import RowRange
from word_jobs import ROWS_PER_GROUP, is_whole, request, rows, run

MEGABYTE = "word " * 200_000


def bomb(n_rows: int, *, text: str = MEGABYTE, has_large_ids: bool = False) -> pa.Table:
    """Return rows of one text each, which are one entry of a dictionary."""
    one = pa.DictionaryArray.from_arrays(pa.array([0] * n_rows, pa.int32()), pa.array([text]))
    ids = one if has_large_ids else pa.array([str(i) for i in range(n_rows)])
    return pa.table({"id": ids, "candidate": one, "reference": one})


def write_bomb(path: Path, table: pa.Table) -> Path:
    pq.write_table(
        table, path, compression="zstd", dictionary_pagesize_limit=8 << 20, store_schema=False
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_rows", "has_large_ids"),
    [
        (1000, True),  # 5.2 GB where a shard may hold all of it, 2.4 GB as it is.
        pytest.param(5000, True, marks=pytest.mark.long),
        pytest.param(5000, False, marks=pytest.mark.long),
    ],
)
def test_a_kilobyte_of_input_takes_no_gigabytes(
    tmp_path: Path, n_rows: int, has_large_ids: bool
) -> None:
    """542 bytes took more than 6 GB and ended by a kill; as ids, 5.7 GB in the driver's join."""
    source = write_bomb(tmp_path / "input.parquet", bomb(n_rows, has_large_ids=has_large_ids))
    assert source.stat().st_size < 20_000
    script = (
        "import json, resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], capture_output=True).returncode\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(json.dumps([code, peak]))"
    )
    words = ["-m", "qaeval.cli", "score", source, "--out", tmp_path / "out", "--local"]
    words += ["--metrics", "exact_match", "--column", "references=reference"]
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            sys.executable,
            *words,
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    code, peak_kib = json.loads(found.stdout)
    assert code == 0
    assert peak_kib < 7 << 19
    assert read_scores(tmp_path / "out")["exact_match"].sum() == n_rows


@pytest.mark.parametrize(
    ("largest", "n_rows"), [("x" * 60, 8192), ("x" * 200_000, (1 << 29) // 200_000)]
)
def test_a_batch_is_bounded_by_the_largest_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: str, n_rows: int
) -> None:
    """Any row may have it; all other entries of a dictionary of a megabyte say nothing."""
    texts = [f"{i:060}" for i in range(15_000)]
    numbers = [*map(float, range(15_001))]
    table = pa.table(
        {"a": [*texts, largest], "b": [*texts, None], "n": numbers, "lists": [["x"]] * 15_001}
    )
    path = write_bomb(tmp_path / "in.parquet", table)
    sizes: list[int] = []
    own = reader.rows_per_batch

    def told(*given: Any, **options: Any) -> int:
        sizes.append(own(*given, **options))
        return sizes[-1]

    monkeypatch.setattr(reader, "rows_per_batch", told)
    (piece, *_) = pieces_of(path, ReadLimits(1 << 30))
    shards = ShardReader(table.column_names, max_rows=8192)
    found = [part for _, part in shards.parts(piece, RowRange(0, 15_001))]
    assert sizes[0] == pytest.approx(n_rows, rel=0.01)
    assert pa.concat_tables(found).equals(table)


def pieces_of(path: Path, limits: ReadLimits) -> list[Piece]:
    ((file,), _) = find_inputs([str(path)])
    return plan_file(file, done={"": ()}, rows_per_shard=1000, limits=limits, n_rows=file.n_rows)


def test_a_read_brings_no_more_than_its_limit(tmp_path: Path) -> None:
    """Or one row, whatever it holds."""
    path = write_bomb(tmp_path / "b.parquet", bomb(100, text="word " * 2000))
    for shard_bytes, n_rows in ((50_000, 4), (1024, 1)):
        (piece, *_) = pieces_of(path, ReadLimits(shard_bytes))
        # By the footer the rows are a few bytes each.
        shard = piece.shards[0]
        reader = ShardReader(["candidate"])
        tables = list(reader.parts(piece, RowRange(0, 100)))
        assert shard.n_rows > n_rows
        assert {table.num_rows for _, table in tables} == {n_rows}
        assert [part.start for part, _ in tables] == list(range(0, 100, n_rows))
        assert reader.n_streams_opened == 1
        reader.close()


@pytest.mark.parametrize("first", [0, 3, 17])
def test_parts_are_the_rows_of_the_whole(tmp_path: Path, first: int) -> None:
    """Whatever begins, ends, and is left over in the middle of a batch."""
    path = write_parquet(tmp_path / "in.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    (piece, *_) = pieces_of(path, ReadLimits(300))
    whole = pq.read_table(path)
    stop = min(piece.shards[-1].stop, first + 40)
    parts = list(ShardReader(whole.column_names).parts(piece, RowRange(first, stop)))
    assert len(parts) > 3
    assert pa.concat_tables([table for _, table in parts]).equals(whole.slice(first, stop - first))


def test_scores_do_not_depend_on_how_shards_are_cut(tmp_path: Path) -> None:
    """Protects from rows lost or doubled where a shard ends sooner than it was planned."""
    path = write_bomb(tmp_path / "input.parquet", bomb(60, text="a fairly long answer " * 20))
    found = []
    for name, n_commits, shard_bytes in (("whole", 3, 64 << 20), ("cut", 60, 1024)):
        out = tmp_path / name
        cut = {"scoring.rows_per_shard": 20, "scoring.max_shard_bytes": shard_bytes}
        run({**request(path, out), **cut})
        assert is_whole(out, n_rows=60)
        assert len(list((out / "families").rglob("*.parquet"))) == n_commits
        found.append(read_scores(out))
    assert found[0].equals(found[1])


def test_a_text_that_is_too_large_is_its_rows_fault(tmp_path: Path) -> None:
    """Protects from one text that holds up, or kills, all others."""
    table = pa.table(
        {
            "id": ["a", "b", "c", "d", "e"],
            "candidate": ["fine", "x" * 2000, "fine", None, "ä" * 600],
            "reference": [["fine"], ["x"], ["y" * 600, "z" * 600], ["x"], ["x" * 1024]],
        }
    )
    source = write_parquet(tmp_path / "input.parquet", table)
    run({**request(source, tmp_path / "out"), "scoring.max_text_bytes": 1024})
    reasons = read_scores(tmp_path / "out")["quarantine_reason"].to_list()
    assert reasons == [
        None,
        "text_too_large_candidate",
        "text_too_large_references",
        "null_candidate",
        "text_too_large_candidate",
    ]
    quarantined = pl.read_parquet(tmp_path / "out" / "quarantine" / "input.parquet")
    assert "2,000 bytes, more than scoring.max_text_bytes=1,024" in quarantined["message"][0]


def with_footer(path: Path, edit: Callable[[bytes], bytes]) -> Path:
    """Change a file's footer."""
    content = path.read_bytes()
    n_footer = int.from_bytes(content[-8:-4], "little")
    footer = edit(content[-8 - n_footer : -8])
    path.write_bytes(
        content[: -8 - n_footer] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    )
    return path


def varint(number: int) -> bytes:
    """Return a signed number as Thrift's compact protocol writes it."""
    number *= 2
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


# Where 1,000 stands in the footer of such a file: rows, values of three columns, rows of the group.
PLACES = {"file": [0], "group": [-1], "both": [0, -1], "all": [0, 1, 2, 3, -1]}


@pytest.mark.parametrize(
    ("places", "n_rows", "why"),
    [
        ("file", 10, "10.*1,000.*QA0304"),
        ("group", 10, "1,000.*10.*QA0304"),
        ("both", 10, "1,000.*10.*QA0304"),
        ("both", 5000, "1,000.*5,000.*QA0304"),
        ("both", 10**13, "QA0304"),
        ("all", 10**13, "QA0304"),
        ("all", 10**9, "QA0304"),
    ],
)
def test_a_footer_that_contradicts_itself_is_refused(
    tmp_path: Path, places: str, n_rows: int, why: str
) -> None:
    """990 of 1,000 rows were lost with exit 0; 1e13 rows were planned for, for ever."""
    texts = [f"text {i}" for i in range(1000)]
    table = pa.table({"id": texts, "candidate": texts, "references": texts})
    path = tmp_path / "in.parquet"
    pq.write_table(table, path, write_statistics=False, store_schema=False)
    thousand = varint(1000)

    def edit(footer: bytes) -> bytes:
        parts = footer.split(thousand)
        found: list[Any] = [thousand] * (len(parts) - 1)
        for place in PLACES[places]:
            found[place] = varint(n_rows)
        return b"".join(a + b for a, b in zip(parts, [*found, b""], strict=True))

    with pytest.raises(UnreadableFileError, match=why):
        find_inputs([str(with_footer(path, edit))])


def test_honest_footers_are_believed(tmp_path: Path) -> None:
    """Lists have more values than rows, and equal values hardly any bytes."""
    lists = pa.table({"a": [["x"] * (i % 5) for i in range(1000)], "b": [1] * 1000})
    pq.write_table(lists, tmp_path / "lists.parquet")
    pq.write_table(pa.table({"a": pa.array([7] * 1_000_000)}), tmp_path / "equal.parquet")
    pq.write_table(lists.slice(0, 0), tmp_path / "empty.parquet")
    files, problems = find_inputs([str(tmp_path)])
    assert [file.n_rows for file in files] == [0, 1_000_000, 1000]
    assert problems == []
