"""What is known of all rows on disk: the same bytes as from memory, and no file that stays."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
from numpy.typing import NDArray

from filter_corpora import files_of, filtered, scored
from helpers import full_disk
from qaeval_core.errors import ConfigError, RunError
from qaeval_core.filter import corpus_rows, decide, groups, plan, quotas, row_arrays, values
from qaeval_core.filter.row_arrays import check_room, row_zeros
from qaeval_core.storage.path import as_path
from qaeval_core.tables import corpus

STAGES: dict[str, dict[str, Any]] = {
    "share": {"near_duplicates": "none", "share": "0.3"},
    "duplicates": {"near_duplicates": "exact", "budget": 50},
    "near-duplicates": {"near_duplicates": "rouge_l=0.5", "top_k": 3},
    "top-k": {"near_duplicates": "exact", "top_k": 2, "share": "0.5"},
    "top-k of topics": {"near_duplicates": "none", "group": "topic", "top_k": 20},
    "quotas": {"near_duplicates": "exact", "quota": "topic=equal", "budget": 60},
    "a quota of passages": {"near_duplicates": "none", "quota": "context=2"},
    "a share per passage": {"quota": "topic=90", "share": "0.4", "share_per": "context"},
    "precision": {"labels": "labels.csv", "label": "good == 1", "precision": 0.5},
    "learned": {"labels": "labels.csv", "label": "good == 1", "precision": 0.5, "learn": "f1"},
    "sheet": {"label_sheet": 20, "within_best": 0.5, "precision": 0.8, "top_k": 2},
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"), n_rows=400)


def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have several steps, ranges and parts of groups of few rows."""
    monkeypatch.setattr(corpus_rows, "_ROWS_PER_BUCKET", 30)
    monkeypatch.setattr(corpus, "ROWS_PER_RANGE", 60)
    for module in (corpus_rows, decide, groups, quotas):
        monkeypatch.setattr(module, "STEP", 64)
    monkeypatch.setattr(values, "_MAX_SHORT", 20)
    monkeypatch.setattr(values, "_STEP", 64)


@pytest.mark.parametrize("name", STAGES)
def test_the_same_bytes_as_from_memory(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Equal ranks in a group are among the rows: hashes of ids are looked up in the middle."""
    options = dict(STAGES[name])
    if "labels" in options:
        options["labels"] = str(tmp_path / "labels.csv")
        good = [int(i % 7 > 0) for i in range(400)]
        pl.DataFrame({"id": [f"q{i}" for i in range(400)], "good": good}).write_csv(
            tmp_path / "labels.csv"
        )
    if "learn" in options:
        options["learn"] = ("f1",)
    in_small_steps(monkeypatch)
    filtered(out, tmp_path / "memory", **options)
    monkeypatch.setattr(row_arrays, "_MAX_HELD_BYTES", 0)
    folders: list[Path | None] = []

    def recorded(n_rows: int, kind: type, *, folder: Path | None) -> NDArray[Any]:
        folders.append(folder)
        return row_zeros(n_rows, kind, folder=folder)

    monkeypatch.setattr(corpus_rows, "row_zeros", recorded)
    filtered(out, tmp_path / "disk", **options)
    assert files_of(tmp_path / "disk") == files_of(tmp_path / "memory")
    assert folders
    assert {own and own.parent for own in folders} == {tmp_path / "disk"}


def test_a_file_has_no_name(tmp_path: Path) -> None:
    """What has none is gone at any end of a process."""
    rows = row_zeros(1000, np.uint16, folder=tmp_path)
    rows[:] = np.arange(1000)
    assert rows.sum() == 499_500
    assert not list(tmp_path.iterdir())
    assert row_zeros(0, np.uint8, folder=tmp_path).shape == (0,)


def test_room_that_others_took_is_missed_at_once(tmp_path: Path) -> None:
    """A write to a page without room would end the process without a word."""
    with full_disk(1000), pytest.raises(RunError, match="more of disk in .*: .*QA0705"):
        row_zeros(1000, np.uint64, folder=tmp_path)


def test_more_rows_than_the_disk_holds_are_refused(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 400 rows, as if each took as much as there is."""
    monkeypatch.setattr(plan, "BYTES_PER_ROW", psutil.virtual_memory().total)
    monkeypatch.setattr(plan, "MAPPED_BYTES_PER_ROW", psutil.disk_usage(str(tmp_path)).total)
    with pytest.raises(ConfigError, match="400 rows need .* GB of disk in .*--to.*QA0705"):
        filtered(out, tmp_path / "kept", share="0.5")
    assert not (tmp_path / "kept").exists()


def test_a_bucket_has_its_arrays_where_temporary_files_are() -> None:
    with pytest.raises(ConfigError, match="TMPDIR.*QA0705"):
        check_room(10, 1 << 60, as_path("s3://bucket/kept"))


@pytest.mark.parametrize(("kind", "is_refused"), [("tmpfs", True), ("ext4", False)])
def test_a_folder_in_memory_has_what_memory_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_refused: bool
) -> None:
    """Its size is a limit alone: what it holds takes memory."""
    parts = [
        SimpleNamespace(mountpoint=place, fstype=own)
        for place, own in (("/", "ext4"), (str(tmp_path), kind))
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: parts)
    monkeypatch.setattr(row_arrays, "_free_memory", lambda: 1000.0)
    if is_refused:
        with pytest.raises(ConfigError, match="QA0705"):
            check_room(10, 801, as_path(tmp_path / "kept"))
    else:
        check_room(10, 801, as_path(tmp_path / "kept"))
    check_room(10, 800, as_path(tmp_path / "kept"))
