"""A Ray of a command's own on a machine so busy that Ray gives up: another try, or clear words."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from helpers import REPOSITORY, read_scores, short_sample, write_parquet

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# The part of Ray that is slow is a process: the first one never says that it is there.
_SLOW = """#!/bin/sh
if mkdir {folder}/first; then
  echo $$ > {folder}/slow
  exec {python} -c 'import time; time.sleep(987)' "$@"
fi
exec {raylet} "$@"
"""
_SCORE = """
import sys
from ray._private import services
from qaeval import cli
from qaeval.on_ray import local_ray
services.RAYLET_EXECUTABLE = sys.argv.pop(1)
local_ray._STARTS = int(sys.argv.pop(1))
cli.main()
"""


@pytest.mark.parametrize(
    ("n_starts", "status"), [pytest.param(2, 0, marks=pytest.mark.long), (1, 1)]
)
def test_a_ray_that_is_too_slow_to_start_is_started_again(
    tmp_path: Path, n_starts: int, status: int
) -> None:
    from ray._private import services

    slow = tmp_path / "raylet"
    parts = {"python": sys.executable, "raylet": services.RAYLET_EXECUTABLE}
    slow.write_text(_SLOW.format(folder=tmp_path, **parts))
    slow.chmod(0o700)
    source = write_parquet(tmp_path / "input.parquet", short_sample(6))
    words = ["score", source, "--metrics", "f1", "--ray", "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", _SCORE, slow, str(n_starts), *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    pid = int((tmp_path / "slow").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):  # Or it waits to be reaped.
        assert "time.sleep(987)" not in str(psutil.Process(pid).cmdline())
    if status:
        assert "error: Ray did not start on this machine in 1 tries: " in done.stdout
    else:
        assert "Ray did not start, perhaps on a busy machine; trying again: " in done.stdout
        assert read_scores(tmp_path / "out").height == 6
