"""A run of a hundred million rows ends, and its driver does not grow with them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import REPOSITORY

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]
# What a driver may take, in MB.
MOST_MB = 2_000
NEEDED_GB = {1_000_000: 1, 10_000_000: 4, 100_000_000: 20}


def measured(folder: Path, metrics: str, *, n_rows: int, n_files: int) -> dict[str, Any]:
    """Run the benchmark, show its figures and return them; its OUT is gone at the end."""
    if shutil.disk_usage(folder).free < NEEDED_GB[n_rows] << 30:
        pytest.skip(f"less than {NEEDED_GB[n_rows]} GB are free")
    command = [sys.executable, "-m", "benchmarks.scale", "--rows", str(n_rows)]
    command += ["--files", str(n_files), "--metrics", metrics, "--folder", str(folder)]
    done = subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()  # fmt: skip
    found: dict[str, Any] = json.loads(done[-1])
    stages = ", ".join(f"{name} {own:,.1f} s" for name, own in found["seconds"].items())
    print(
        f"{metrics}: {n_rows:,} rows in {n_files} files: {found['whole_s']:,.0f} s ({stages}); "
        f"driver {found['driver_mb']:,} MB, OUT {found['out_mb']:,} MB"
    )
    assert found["rows"] == n_rows and found["duplicate_ids"] == 0
    assert found["driver_mb"] < MOST_MB
    return found


def test_a_hundred_million_rows_end(tmp_path: Path) -> None:
    """As ten files; means are those of the rows that are repeated, at each size."""
    sizes = (1_000_000, 10_000_000, 100_000_000)
    small, *larger = (
        measured(tmp_path, "f1,rouge_l", n_rows=n_rows, n_files=10) for n_rows in sizes
    )
    for own in larger:
        # Ten times a tenth of a million is a part of the block: its rows are others.
        assert own["means"] == pytest.approx(larger[0]["means"], abs=1e-12)
        assert own["means"] == pytest.approx(small["means"], abs=0.01)


def test_one_large_file_is_joined_in_parts(tmp_path: Path) -> None:
    found = measured(tmp_path, "f1,rouge_l", n_rows=10_000_000, n_files=1)
    assert {"join", "put parts of files together", "count ids"} <= found["seconds"].keys()


def test_document_frequencies_of_ten_million_rows(tmp_path: Path) -> None:
    """They were quadratic, on one core."""
    small, large = (
        measured(tmp_path, "cider", n_rows=n_rows, n_files=1) for n_rows in (1_000_000, 10_000_000)
    )
    for name, own in large["seconds"].items():
        if "document frequencies" in name:
            assert own < 10 * 3 * max(small["seconds"][name], 1.0), "not n log n"
