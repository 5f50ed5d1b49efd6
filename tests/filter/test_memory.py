"""Memory of whoever decides: what a dry run says of it, held by counting what is allocated."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qaeval_core.filter import decide, order
from qaeval_core.filter.decide import BYTES_PER_ROW, CorpusRows
from qaeval_core.filter.facts import ColumnRank, Facts, Stages
from qaeval_core.filter.plan import free_in_container
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.run import _choose, _margin
from qaeval_core.filter.shares import make_shares, smallest_shares

SPREAD = np.uint64(0x9E3779B97F4A7C15)


def scanned(n_rows: int, request: FilterRequest, *, is_grouped: bool) -> CorpusRows:
    """Return rows of five a group, put in a chunk at a time, as tasks bring them."""
    stages = Stages(
        rank=ColumnRank("score"),
        duplicates=request.duplicates,
        group="context" if is_grouped else None,
        quota="topic" if request.quota else None,
    )
    rows, rng = CorpusRows(n_rows, stages), np.random.default_rng(0)
    for start in range(0, n_rows, 1 << 14):
        number = np.arange(start, min(start + (1 << 14), n_rows), dtype=np.uint64)
        facts = Facts(np.zeros(len(number), np.uint8), rng.random(len(number)))
        facts.tie = (number + np.uint64(1)) * SPREAD
        facts.group = number // np.uint64(5) * SPREAD
        facts.question = number // np.uint64(2) * SPREAD
        facts.value, facts.values = (number % np.uint64(3)).astype(np.int64), ["a", "b", "c"]
        rows.put(start, facts)
    return rows


def bytes_of_arrays(rows: CorpusRows, share: np.ndarray) -> int:
    arrays = (rows.reason, rows.rank, rows.tie, rows.group, rows.twin, rows.value, share)
    return sum(own.nbytes for own in arrays if own is not None)


def near(n_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield four of five rows as near-duplicates, a bucket at a time, as tasks find them."""
    for start in range(0, n_rows, 1 << 12):
        rows = np.arange(start, min(start + (1 << 12), n_rows))
        duplicates = rows[rows % 5 > 0]
        yield duplicates, duplicates - duplicates % 5


def peak(n_rows: int, request: FilterRequest, *, is_grouped: bool) -> tuple[int, int]:
    """Return the most bytes that deciding takes, and those of its arrays."""
    tracemalloc.start()
    try:
        rows = scanned(n_rows, request, is_grouped=is_grouped)
        decide.decide(rows, request, near_duplicates=lambda: near(n_rows))
        shares = make_shares(rows)
        share = smallest_shares(rows, shares)
        cut, _ = _margin(rows, _choose(request, shares, None).n_kept, shares, share)
        decide.keep_best(rows, cut)
        decide.count_groups(rows, share)
        return tracemalloc.get_traced_memory()[1], bytes_of_arrays(rows, share)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "max", "memory.current": "70", "memory.stat": ""}, math.inf),
        ({"memory.max": "100", "memory.current": "70", "memory.stat": "inactive_file 5\n"}, 35),
        ({"memory.max": "100", "memory.current": "170", "memory.stat": "anon 60\n"}, 0),
        (
            {
                "memory/memory.limit_in_bytes": "100",
                "memory/memory.usage_in_bytes": "70",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 5\n",
            },
            35,
        ),
        ({}, math.inf),
    ],
)
def test_a_container_has_what_its_limit_leaves(
    tmp_path: Path, files: dict[str, str], free: float
) -> None:
    """Whatever the machine has free: beyond its limit a container is killed."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert free_in_container(tmp_path) == free


@pytest.mark.parametrize(
    ("options", "is_grouped", "n_bytes"),
    [
        ({"near_duplicates": "none", "share": "0.6"}, False, 18),
        ({"near_duplicates": "exact", "top_k": 2}, True, 34),
        ({"near_duplicates": "rouge_l=0.7", "top_k": 2}, True, 34),
        ({"near_duplicates": "exact", "top_k": 2, "quota": "topic=100000"}, True, 36),
    ],
)
def test_forty_bytes_a_row_are_enough(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], is_grouped: bool, n_bytes: int
) -> None:
    """With what is in hand at once made small, so that what grows with the corpus stands out."""
    monkeypatch.setattr(decide, "_ROWS_PER_BUCKET", 1 << 12)
    monkeypatch.setattr(decide, "_STEP", 1 << 14)
    monkeypatch.setattr(order, "_CHUNK", 1 << 14)
    request = FilterRequest(**options)  # type: ignore[arg-type]
    few, many = 100_000, 300_000
    (least, _), (most, arrays) = (
        peak(n_rows, request, is_grouped=is_grouped) for n_rows in (few, many)
    )
    assert arrays == n_bytes * many
    assert (most - least) / (many - few) <= BYTES_PER_ROW
