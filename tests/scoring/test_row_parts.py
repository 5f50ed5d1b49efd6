"""Row parts: all rows of a key in one part, in order, however many parts and tables there are."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from qaeval_core.errors import RunError
from qaeval_core.tables.row_parts import MAX_PARTS, RowParts


@pytest.mark.parametrize("rows_per_part", [1, 300, 10_000])
def test_rows_of_a_key_are_in_one_part_in_order(rows_per_part: int) -> None:
    rng = np.random.default_rng(0)
    keys = [None if i % 50 == 0 else f"key {i}" for i in rng.integers(0, 400, 2000).tolist()]
    texts = pa.chunked_array([keys[:900], keys[900:]], pa.string())
    coded = texts.cast(pa.large_string()).dictionary_encode()
    found, expected = defaultdict(list), defaultdict(list)
    with ExitStack() as stack:
        parts = RowParts(4000, stack, rows_per_part=rows_per_part)
        assert parts.n_parts == min(-(-4000 // rows_per_part), MAX_PARTS)
        for name, column in (("texts", texts), ("coded", coded)):
            with parts.writing(name) as put:
                for start in range(0, 2000, 700):
                    rows = np.arange(start, min(start + 700, 2000))
                    put(pa.table({"key": column.slice(start, 700), "row": rows}), "key")
        for number in range(parts.n_parts):
            one, other = (parts.take(name, number) for name in ("texts", "coded"))
            assert (one is None) == (other is None)
            if one is None or other is None:
                continue
            assert one["row"].equals(other["row"]), "a part is of keys, whatever type holds them"
            for key, row in zip(one["key"].to_pylist(), one["row"].to_pylist(), strict=True):
                found[key].append((number, row))
    for row, key in enumerate(keys):
        expected[key].append(row)
    assert {key: [row for _, row in own] for key, own in found.items()} == expected
    assert all(len({number for number, _ in own}) == 1 for own in found.values())
    assert (len({own[0][0] for own in found.values()}) > 1) == (parts.n_parts > 1)


def test_files_are_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExitStack() as stack:
        parts = RowParts(2, stack, rows_per_part=1)
        with parts.writing("rows") as put:
            put(pa.table({"key": ["a", "b"]}), "key")
        assert any(tmp_path.rglob("*.arrow"))
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowParts, "_path", lambda *_: Path("/dev/full"))
    with ExitStack() as stack:
        parts = RowParts(2, stack, rows_per_part=1)
        with (
            pytest.raises(RunError, match=r"(?s)No space left.*TMPDIR.*QA0705"),
            parts.writing("rows") as put,
        ):
            put(pa.table({"key": ["a" * 100_000, "b"]}), "key")
