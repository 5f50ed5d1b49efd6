"""Parquet parts: what two libraries read of files that were put together."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.storage.parquet_parts import join_parts


def table(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": pa.array([f"q{i}" for i in range(n)], pa.string()),
            "list": pa.array([[f"ä{j}" for j in range(i % 4)] if i % 5 else None for i in range(n)],
                             pa.list_(pa.string())),
            "pair": pa.array([{"a": i, "b": float(i)} for i in range(n)],
                             pa.struct([("a", pa.int64()), ("b", pa.float64())])),
            "score": pa.array(rng.random(n), pa.float32(), mask=rng.random(n) < 0.2),
            "when": pa.array(range(n), pa.timestamp("us", "Europe/Oslo")),
            "is_kept": pa.array(rng.random(n) < 0.5),
            "code": pa.array(rng.integers(0, 3, n)).dictionary_encode(),
        },
        metadata={"qaeval.columns": "{}"},
    )  # fmt: skip


OPTIONS: list[dict[str, object]] = [
    {},
    {"compression": "zstd", "version": "2.4", "row_group_size": 7},
    {"use_dictionary": False, "write_page_index": True, "data_page_version": "2.0"},
    {"write_statistics": False, "store_schema": False, "compression": "none"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_joined_parts_are_their_rows_in_order(tmp_path: Path, options: dict[str, object]) -> None:
    tables = [table(n, n) for n in (40, 0, 1, 333)]
    parts = [tmp_path / f"{i}.parquet" for i in range(len(tables))]
    for path, own in zip(parts, tables, strict=True):
        pq.write_table(own, path, write_page_checksum=True, **options)
    sink = io.BytesIO()
    assert join_parts(parts, sink) == 374
    whole = tmp_path / "whole.parquet"
    whole.write_bytes(sink.getvalue())
    separate = [pq.read_table(path) for path in parts]
    found = pq.read_table(whole, page_checksum_verification=True)
    assert found.equals(pa.concat_tables(separate))
    assert found.schema.equals(separate[0].schema, check_metadata=True)
    if "write_page_index" not in options:
        assert pl.read_parquet(whole).equals(pl.concat(map(pl.from_arrow, separate)))
    metadata = pq.ParquetFile(whole).metadata
    assert metadata.num_row_groups == sum(pq.read_metadata(path).num_row_groups for path in parts)
    # Single columns are found as well: each place that the footer names is its own.
    last = pq.ParquetFile(whole).read_row_group(metadata.num_row_groups - 1, columns=["score"])
    assert last.equals(separate[-1].slice(374 - 41 - last.num_rows).select(["score"]))


def test_one_part_is_itself(tmp_path: Path) -> None:
    pq.write_table(table(50, 1), tmp_path / "a.parquet")
    sink = io.BytesIO()
    join_parts([tmp_path / "a.parquet"], sink)
    assert sink.getvalue() == (tmp_path / "a.parquet").read_bytes()


def test_other_files_are_refused(tmp_path: Path) -> None:
    pq.write_table(table(3, 1), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet has another schema"):
        join_parts([tmp_path / "a.parquet", tmp_path / "b.parquet"], io.BytesIO())
    for content in (b"", b"PAR1", (tmp_path / "a.parquet").read_bytes()[:-1]):
        (tmp_path / "c.parquet").write_bytes(content)
        with pytest.raises(ValueError, match="no whole Parquet file"):
            join_parts([tmp_path / "c.parquet"], io.BytesIO())
    with pytest.raises(ValueError, match="no parts"):
        join_parts([], io.BytesIO())
