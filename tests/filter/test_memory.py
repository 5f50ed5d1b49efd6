"""Memory of whoever decides: what a dry run says of it, held by counting what is allocated."""

from __future__ import annotations

import math
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from qaeval_core.filter import corpus_rows, decide, groups, order, quotas, shares, values
from qaeval_core.filter.corpus_rows import BYTES_PER_ROW, MAPPED_BYTES_PER_ROW, CorpusRows
from qaeval_core.filter.facts import ColumnRank, Facts, Stages
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.row_arrays import free_in_container, row_zeros
from qaeval_core.filter.run import _choose, _margin
from qaeval_core.filter.shares import make_shares, smallest_shares
from qaeval_core.filter.values import ValueCodes

SPREAD = np.uint64(0x9E3779B97F4A7C15)


def scanned(
    n_rows: int, request: FilterRequest, *, is_grouped: bool, folder: Path | None
) -> CorpusRows:
    """Return rows of five a group, put in a chunk at a time, as tasks bring them."""
    stages = Stages(
        rank=ColumnRank("score"),
        duplicates=request.duplicates,
        group="context" if is_grouped else None,
        quota="topic" if request.quota else None,
        share_per="passage" if request.share_per else None,
    )
    rows, rng = CorpusRows(n_rows, stages, folder=folder), np.random.default_rng(0)
    for start in range(0, n_rows, 1 << 14):
        number = np.arange(start, min(start + (1 << 14), n_rows), dtype=np.uint64)
        facts = Facts(np.zeros(len(number), np.uint8), rng.random(len(number)))
        facts.tie = (number + np.uint64(1)) * SPREAD
        facts.group = number // np.uint64(5) * SPREAD
        facts.question = number // np.uint64(2) * SPREAD
        value = {"topic": number % np.uint64(3), "passage": number // np.uint64(3) * SPREAD}
        facts.values = {name: ValueCodes.of(value[name]) for name in stages.counted}
        rows.put(start, facts)
    return rows


def bytes_of_arrays(rows: CorpusRows, share: np.ndarray) -> int:
    codes = [own.code for own in rows.values.values()]
    arrays = (rows.reason, rows.rank, rows.tie, rows.group, rows.twin, *codes, share)
    return sum(own.nbytes for own in arrays if own is not None)


def near(n_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield four of five rows as near-duplicates, a bucket at a time, as tasks find them."""
    for start in range(0, n_rows, 1 << 12):
        rows = np.arange(start, min(start + (1 << 12), n_rows))
        duplicates = rows[rows % 5 > 0]
        yield duplicates, duplicates - duplicates % 5


def peak(
    n_rows: int, request: FilterRequest, *, is_grouped: bool, folder: Path | None = None
) -> tuple[int, int]:
    """Return the most bytes that deciding takes, and those of its arrays."""
    tracemalloc.start()
    try:
        rows = scanned(n_rows, request, is_grouped=is_grouped, folder=folder)
        decide.decide(rows, request, near_duplicates=lambda: near(n_rows))
        found = make_shares(rows)
        share = smallest_shares(rows, found)
        cut, _ = _margin(rows, _choose(request, found, None).n_kept, found, share)
        decide.keep_best(rows, cut)
        groups.count_groups(rows)
        rows.counts()
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


CASES = [
    ({"near_duplicates": "none", "share": "0.6"}, False, 18),
    ({"near_duplicates": "exact", "top_k": 2}, True, 34),
    ({"near_duplicates": "rouge_l=0.7", "top_k": 2}, True, 34),
    ({"near_duplicates": "exact", "top_k": 2, "quota": "topic=100000"}, True, 36),
    ({"near_duplicates": "exact", "top_k": 2, "quota": "topic=20000"}, True, 36),
]


@pytest.mark.parametrize(("options", "is_grouped", "n_bytes"), CASES)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_forty_bytes_a_row_are_enough_and_on_disk_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    is_grouped: bool,
    n_bytes: int,
    is_mapped: bool,
) -> None:
    """With what is in hand at once made small, so that what grows with the corpus stands out."""
    monkeypatch.setattr(corpus_rows, "_ROWS_PER_BUCKET", 1 << 12)
    for module in (corpus_rows, decide, groups, quotas, shares):
        monkeypatch.setattr(module, "STEP", 1 << 14)
    monkeypatch.setattr(order, "_CHUNK", 1 << 14)
    request = FilterRequest(**options)  # type: ignore[arg-type]
    few, many = 100_000, 300_000
    (least, _), (most, arrays) = (
        peak(n_rows, request, is_grouped=is_grouped, folder=tmp_path if is_mapped else None)
        for n_rows in (few, many)
    )
    assert arrays == n_bytes * many
    assert (most - least) / (many - few) <= (1 if is_mapped else BYTES_PER_ROW)


def test_a_hundred_bytes_a_value_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text was held, and each was looked for among all rows. The rows lie on disk here."""
    monkeypatch.setattr(corpus_rows, "_ROWS_PER_BUCKET", 1 << 12)
    for module in (corpus_rows, groups, quotas):
        monkeypatch.setattr(module, "STEP", 1 << 14)
    monkeypatch.setattr(values, "_STEP", 1 << 14)
    request = FilterRequest(near_duplicates="none", share="0.6", share_per="passage")
    most = []
    for n_rows in (300_000, 900_000):
        tracemalloc.start()
        try:
            rows = scanned(n_rows, request, is_grouped=False, folder=tmp_path)
            found = decide.decide(rows, request, near_duplicates=lambda: near(0))["share_per"]
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert (found.n_values, found.all.n_kept) == (n_rows // 3, n_rows * 6 // 10)
    assert (most[1] - most[0]) / 200_000 <= 100


def test_eighty_bytes_a_row_of_disk_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most that files have at once, by what the disk has reserved; of all stages."""
    n_rows, held, most = 10_000, 0, 0

    def reserved(n: int, kind: DTypeLike, *, folder: Path | None) -> NDArray[Any]:
        nonlocal held, most
        found = row_zeros(n, kind, folder=folder)
        held += found.nbytes
        most = max(most, held)
        weakref.finalize(found, returned, found.nbytes)
        return found

    def returned(n_bytes: int) -> None:
        nonlocal held
        held -= n_bytes

    monkeypatch.setattr(corpus_rows, "row_zeros", reserved)
    request = FilterRequest(near_duplicates="exact", top_k=2, quota="topic=1000")
    peak(n_rows, request, is_grouped=True, folder=tmp_path)
    assert 60 * n_rows < most <= MAPPED_BYTES_PER_ROW * n_rows
