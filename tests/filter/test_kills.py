"""Kills: whenever a filter dies, the same command makes the same bytes, and nothing looks whole."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import filter_corpora
from filter_corpora import files_of, filtered, scored
from helpers import REPOSITORY
from qaeval_core.filter import join, run
from qaeval_core.storage import files
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from s3_server import S3Server

SCRIPT = REPOSITORY / "tests" / "killed_filter.py"
OPTIONS = {"share": "0.5", "near_duplicates": "exact", "top_k": 3}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> str:
    store.make_bucket("bucket")
    return store.uri("bucket/kills")


def killed(out: Path, kept: AnyPath, number: int, share: str) -> bool:
    """Run a filter that dies at its N-th change; return whether it got so far."""
    words = [sys.executable, SCRIPT, out, str(kept), str(number), share]
    paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


def check_kill(out: Path, folder: Path | StoragePath, number: int) -> bool:
    """Kill a second filter over a finished one, look, and finish it; return whether it died."""
    kept = folder / f"kept{number}"
    filtered(out, kept, **OPTIONS)
    expected = files_of(kept)
    was_killed = killed(out, kept, number, "0.25")
    marker = kept / "_SUCCESS"
    if was_killed and marker.is_file() and marker.read_bytes() == expected["_SUCCESS"]:
        # Nothing but the old run's own files may stand beside its marker.
        found = {name: own for name, own in files_of(kept).items() if not name.startswith(".")}
        assert found == expected
    result, _ = filtered(out, kept, **OPTIONS)
    assert files_of(kept) == expected, number
    assert result.content["kept"] == json.loads(expected["filter.json"])["kept"]
    return was_killed


@pytest.mark.parametrize("number", [2, 9, 14])
def test_the_same_bytes_after_a_kill(out: Path, tmp_path: Path, number: int) -> None:
    assert check_kill(out, tmp_path, number)


@pytest.mark.parametrize("number", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_the_same_bytes_after_a_kill_over_a_bucket(out: Path, bucket: str, number: int) -> None:
    assert check_kill(out, as_path(bucket), number)


@pytest.mark.long
def test_the_same_bytes_after_a_kill_at_any_request(out: Path, bucket: str) -> None:
    number = 1
    while check_kill(out, as_path(bucket) / "each", number):
        number += 1
    assert number > 20


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_the_same_bytes_after_a_kill_anywhere(out: Path, tmp_path: Path, step: int) -> None:
    number = 1
    while check_kill(out, tmp_path, number):
        number += step
    assert number > 12


@pytest.mark.slow
def test_a_first_filter_that_was_killed_goes_on(out: Path, tmp_path: Path) -> None:
    filtered(out, tmp_path / "whole", **OPTIONS)
    for number in (1, 6, 12):
        kept = tmp_path / f"kept{number}"
        assert killed(out, kept, number, "0.5")
        assert not (kept / "_SUCCESS").exists()
        filtered(out, kept, **OPTIONS)
        assert files_of(kept) == files_of(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "nth"), [
    (files, "flush_folder", 3), (join, "hash_of", 1), (run, "hash_of", 1),
])  # fmt: skip
def test_a_disk_that_refuses_for_a_moment_costs_nothing(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int
) -> None:
    """Not even after a file was moved to its place, where its part is not any more."""
    filtered(out, tmp_path / "whole", **OPTIONS)
    own, n_calls = getattr(owner, name), 0

    def refuse(*given: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == nth:
            raise OSError(errno.EIO, "Input/output error")
        return own(*given)

    monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(filter_corpora, "RETRY_S", 10.0)
    filtered(out, tmp_path / "kept", **OPTIONS)
    assert n_calls > nth
    assert files_of(tmp_path / "kept") == files_of(tmp_path / "whole")


def test_done_is_done_and_other_rules_start_anew(out: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, _ = filtered(out, kept, **OPTIONS)
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    again, said = filtered(out, kept, **OPTIONS)
    assert not again.is_new and again.content["kept"] == first.content["kept"]
    assert said == [f"nothing to do: {kept} is complete"]
    assert {path: path.stat().st_mtime_ns for path in before if path.exists()} == {
        path: time for path, time in before.items() if path.name not in (".lock",)
    } | {path: path.stat().st_mtime_ns for path in before if path.name == ".lock" and path.exists()}
    # A file of the result is gone, or another one: it is made again.
    (kept / "kept" / "part1.parquet").unlink()
    assert filtered(out, kept, **OPTIONS)[0].is_new
    # Files of other inputs leave with the rules that they were of.
    (kept / "kept" / "old.parquet").write_bytes(b"of an input that is gone")
    filtered(out, kept, **{**OPTIONS, "share": "0.25"})
    assert sorted(path.name for path in (kept / "kept").iterdir()) == [
        "part0.parquet",
        "part1.parquet",
    ]
