"""Shards and pieces tile the open rows, whatever row groups and commits look like."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from qaeval_core.planning.inputs import FileVersion, InputFile, RowGroup
from qaeval_core.planning.read_as import ReadAs
from qaeval_core.planning.shards import MAX_SHARDS_PER_PIECE, ReadLimits, plan_file
from qaeval_core.store.row_ranges import RowRange, cover, tiles


def make_file(sizes: list[int], n_bytes_per_row: int) -> InputFile:
    groups, start = [], 0
    for size in sizes:
        groups.append(RowGroup(start, size, size * n_bytes_per_row))
        start += size
    version = FileVersion("/a.parquet", 1, 2, "")
    return InputFile("a.parquet", version, tuple(groups), pa.schema([]), pa.schema([]), ReadAs())


ranges = st.tuples(st.integers(0, 200), st.integers(1, 40)).map(
    lambda pair: RowRange(pair[0], pair[0] + pair[1])
)


@given(
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 50),
    st.integers(1, 2_000),
    st.lists(ranges, max_size=5),
    st.integers(0, 300),
)
def test_open_shards_and_commits_tile_the_rows(
    sizes: list[int], rows_per_shard: int, n_bytes_per_row: int, done: list[RowRange], limit: int
) -> None:
    """Protects from rows in no shard or in two."""
    file = make_file(sizes, n_bytes_per_row)
    n_rows = min(file.n_rows, limit)
    covered = cover(done, n_rows=n_rows)
    pieces = plan_file(
        file,
        done={"f": covered},
        rows_per_shard=rows_per_shard,
        limits=ReadLimits(20_000),
        n_rows=n_rows,
    )
    shards = [rows for piece in pieces for rows in piece.shards]
    assert tiles(sorted([*shards, *covered]), n_rows=n_rows)
    for piece in pieces:
        assert 1 <= len(piece.shards) <= MAX_SHARDS_PER_PIECE
        for rows in piece.shards:
            assert rows.n_rows <= rows_per_shard
            assert rows.n_rows * n_bytes_per_row <= max(20_000, n_bytes_per_row)
            assert rows.start >= piece.first_row


def test_tiny_row_groups_are_read_as_one_stretch() -> None:
    """Protects from one shard per flushed row group."""
    pieces = plan_file(
        make_file([3] * 100, 10),
        done={"f": ()},
        rows_per_shard=150,
        limits=ReadLimits(1 << 20),
        n_rows=300,
    )
    assert [piece.shards for piece in pieces] == [(RowRange(0, 150),), (RowRange(150, 300),)]


@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=4),
    st.integers(1, 300),
    st.lists(ranges, max_size=4),
    st.lists(ranges, max_size=4),
)
def test_families_of_one_pass_each_get_their_open_rows_once(
    sizes: list[int], rows_per_shard: int, done_a: list[RowRange], done_b: list[RowRange]
) -> None:
    """Protects from a statistic computed twice, or left out, because another one was further on."""
    file = make_file(sizes, 10)
    done = {
        "a": cover(done_a, n_rows=file.n_rows),
        "b": cover(done_b, n_rows=file.n_rows),
    }
    pieces = plan_file(
        file,
        done=done,
        rows_per_shard=rows_per_shard,
        limits=ReadLimits(1 << 20),
        n_rows=file.n_rows,
    )
    for family, covered in done.items():
        shards = [rows for piece in pieces if family in piece.families for rows in piece.shards]
        assert tiles(sorted([*shards, *covered]), n_rows=file.n_rows)
    if not done["a"] and not done["b"]:
        assert all(piece.families == ("a", "b") for piece in pieces)
