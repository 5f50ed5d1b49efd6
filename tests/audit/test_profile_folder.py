"""Profile folder: earlier runs in it are whole or not there, and never written again."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from qaeval_core.audit.profile_folder import PINNED, Runs, run_id
from qaeval_core.errors import ConfigError, RunError, UnreadableFileError
from qaeval_core.profile.cells import Cells
from qaeval_core.profile.run_profile import METADATA, RunProfile
from qaeval_core.profile.slices import Slices
from qaeval_core.store.store import Store

FIRST, SECOND, THIRD = (f"2026010{day}T000000.000000Z-{day:012x}" for day in (1, 2, 3))


def a_profile(seed: int = 0, n: int = 500) -> RunProfile:
    rng = np.random.default_rng(seed)
    run = RunProfile.of({"f1": Cells(0.0, 1.0, (0.0,))}, Slices({}), cluster="context")
    run.add({"f1": rng.random(n)}, rng.integers(0, 2**64 - 1, n, dtype=np.uint64))
    return run


def runs_in(folder: Path) -> Runs:
    return Runs(Store(folder))


def an_out(folder: Path, report: str = "a", time: float = 1e9) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text('{"config": {}}')
    (folder / "_SUCCESS").write_text(f'{{"report": "{report}"}}')
    os.utime(folder / "_SUCCESS", (time, time))
    return folder


def test_ids_are_in_the_order_of_runs_and_of_what_they_wrote(tmp_path: Path) -> None:
    first = run_id(an_out(tmp_path / "first"))
    assert first.startswith("20010909T014640.000000Z-")
    later = run_id(an_out(tmp_path / "later", time=1e9 + 0.5))
    other = run_id(an_out(tmp_path / "other", report="b", time=1e9 + 86_400))
    assert first < later < other
    assert first[-12:] == later[-12:] != other[-12:]


def test_a_copy_of_a_run_is_the_same_run(tmp_path: Path) -> None:
    out = an_out(tmp_path / "out")
    runs = runs_in(tmp_path / "history")
    assert runs.known(run_id(out)) == run_id(out)
    runs.add(run_id(out), a_profile())
    shutil.copytree(out, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "_SUCCESS")
    assert run_id(tmp_path / "copy") != run_id(out) == runs.known(run_id(tmp_path / "copy"))


def test_what_is_read_is_what_was_added_once(tmp_path: Path) -> None:
    runs = runs_in(tmp_path / "history")
    assert runs.ids() == []
    assert runs.add(FIRST, a_profile(0))
    before = runs.path(FIRST).read_bytes()
    assert not runs.add(FIRST, a_profile(1))
    assert runs.path(FIRST).read_bytes() == before
    assert (runs.read(FIRST).columns["f1"].counts == a_profile(0).columns["f1"].counts).all()
    # Neither temporary files of killed writers nor other names count.
    (runs.folder / f".{SECOND}.profile.parquet.{'0' * 32}.tmp").put(before[:99])
    (runs.folder / "old.profile.parquet").put(before)
    assert runs.ids() == [FIRST]


def test_many_writers_at_once_leave_one_whole_profile_a_run(tmp_path: Path) -> None:
    wanted = [FIRST, SECOND, THIRD] * 8
    with ThreadPoolExecutor(8) as pool:
        written = list(
            pool.map(lambda run: runs_in(tmp_path / "history").add(run, a_profile()), wanted)
        )
    runs = runs_in(tmp_path / "history")
    assert sum(written) == 3 and runs.ids() == [FIRST, SECOND, THIRD]
    assert all(runs.read(run).rates["rows"][0].sum() == 500 for run in wanted)
    assert len(list((tmp_path / "history").iterdir())) == 3


def test_which_run_is_the_reference(tmp_path: Path) -> None:
    runs = runs_in(tmp_path / "history")
    assert runs.reference(None, FIRST) is None and runs.reference("last", FIRST) is None
    for run in (FIRST, SECOND, THIRD):
        runs.add(run, a_profile())
    assert runs.reference(None, THIRD) == FIRST
    assert runs.reference(None, FIRST) == SECOND
    assert runs.reference("last", THIRD) == SECOND and runs.reference("last", FIRST) is None
    assert runs.reference("pinned", THIRD) is None
    assert runs.pin(SECOND, seen=runs.pinned_version()) == ""
    assert runs.reference(None, THIRD) == runs.reference("pinned", FIRST) == SECOND
    # Pinned, a run is compared with itself.
    assert runs.reference(None, SECOND) == SECOND
    runs.path(SECOND).delete()
    with pytest.raises(RunError, match=SECOND):
        runs.pinned()
    (runs.folder / PINNED).put(b'{"run": "../secret"}')
    with pytest.raises(UnreadableFileError, match=r"pinned\.json.*QA0801"):
        runs.pinned()


def test_profiles_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    runs = runs_in(tmp_path / "history")
    runs.add(FIRST, a_profile())
    content = runs.path(FIRST).read_bytes()
    with pytest.raises(ConfigError, match=f"{SECOND}.*QA0801"):
        runs.read(SECOND)
    table = pq.read_table(runs.path(FIRST))
    metadata = dict(table.schema.metadata)
    metadata[METADATA] = metadata[METADATA].replace(b'"version": 2', b'"version": 99')
    pq.write_table(table.replace_schema_metadata(metadata), runs.path(SECOND))
    with pytest.raises(UnreadableFileError, match=f"{SECOND}.*QA0801"):
        runs.read(SECOND)
    del metadata[b"qaeval.checksum"]
    pq.write_table(table.replace_schema_metadata(metadata), runs.path(SECOND))
    with pytest.raises(UnreadableFileError, match=rf"{SECOND}.*\(99.*QA0801"):
        runs.read(SECOND)
    for damaged in (content[:-20], content[:200], b"", content.replace(b"f1", b"f2", 1)):
        runs.path(THIRD).put(damaged)
        with pytest.raises(UnreadableFileError, match=THIRD):
            runs.read(THIRD)
