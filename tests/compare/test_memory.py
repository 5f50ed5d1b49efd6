"""A comparison of ten million rows takes no more memory than one of a million."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY

_ROWS_AT_ONCE = 500_000
_RUN = (
    "import resource, subprocess, sys, time\n"
    "began = time.monotonic()\n"
    "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
    "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024\n"
    "print('MEASURED', code, time.monotonic() - began, peak)"
)


def write_scores(path: Path, n_rows: int, seed: int) -> None:
    """Write scores of a system; five rows share a context."""
    rng = np.random.default_rng(seed)
    schema = pa.schema([("id", pa.string()), ("context", pa.string()), ("f1", pa.float64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            rows = range(start, start + _ROWS_AT_ONCE)
            columns = [
                [f"question-{row}" for row in rows],
                [f"context-{row // 5}" for row in rows],
                rng.random(_ROWS_AT_ONCE),
            ]
            writer.write_table(pa.table(columns, schema=schema))


def measured(folder: Path, n_rows: int) -> float:
    """Compare two systems of so many rows; return the peak of memory in MB."""
    paths = [folder / f"{name}-{n_rows}.parquet" for name in ("base", "large")]
    for seed, path in enumerate(paths):
        write_scores(path, n_rows, seed)
    command = [sys.executable, "-m", "qaeval", "compare", *map(str, paths), "--metrics", "f1"]
    found = subprocess.run(
        [sys.executable, "-c", _RUN, *command], capture_output=True, text=True, check=True,
        cwd=REPOSITORY,
    )  # fmt: skip
    code, seconds, peak = found.stdout.split("MEASURED")[1].split()
    assert code == "0", found.stderr
    print(f"two systems of {n_rows:,} rows: {float(seconds):.1f} s, peak {float(peak):.0f} MB")
    for path in paths:
        path.unlink()
    return float(peak)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    few, many = (measured(tmp_path, n_rows) for n_rows in (1_000_000, 10_000_000))
    assert many <= 1.25 * few
