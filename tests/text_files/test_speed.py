"""How fast files of text are read, beside PyArrow and beside Parquet."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY
from qaeval_core.planning.text_files.copies import Copies
from qaeval_core.planning.text_files.kinds import kind_of
from qaeval_core.storage.path import as_path

N_ROWS, N_PAIRS = 1_000_000, 5
_RUN = (
    "import resource, subprocess, sys, time\n"
    "began = time.monotonic()\n"
    "code = subprocess.run(sys.argv[1:]).returncode\n"
    "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024\n"
    "print('MEASURED', code, time.monotonic() - began, peak)"
)


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same million rows as JSON Lines and as Parquet."""
    folder = tmp_path_factory.mktemp("million")
    rng = np.random.default_rng(38)
    words = np.array([f"word{i}" for i in range(8000)])

    def texts(n_words: int, n: int = N_ROWS) -> list[str]:
        return [" ".join(row) for row in words[rng.integers(len(words), size=(n, n_words))]]

    frame = pl.DataFrame(
        {
            "id": [f"q{i}" for i in range(N_ROWS)],
            "question": texts(10),
            "context": np.repeat(np.array(texts(60, N_ROWS // 5), dtype=object), 5),
            "candidate": texts(3),
            "references": [list(pair) for pair in zip(texts(3), texts(2), strict=True)],
            "score": rng.random(N_ROWS),
        }
    )
    frame.write_ndjson(folder / "rows.jsonl")
    frame.write_parquet(folder / "rows.parquet", row_group_size=50_000)
    return folder


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_lines_are_copied_at_half_of_pyarrows_speed_at_least(million: Path) -> None:
    """PyArrow reads with all cores into memory; a copy is hashed, checked and written as well."""
    path = million / "rows.jsonl"
    kind = kind_of(path.name)
    assert kind is not None
    ratios = []
    for _ in range(N_PAIRS):
        shutil.rmtree(million / "inputs", ignore_errors=True)
        began = time.monotonic()
        copy = Copies(as_path(million / "inputs")).of(str(path), path.name, kind)
        copied_s = time.monotonic() - began
        began = time.monotonic()
        table = pyarrow.json.read_json(path)
        read_s = time.monotonic() - began
        ratios.append(read_s / copied_s)
        print(f"copied in {copied_s:.2f} s, read by PyArrow in {read_s:.2f} s: {ratios[-1]:.2f}")
        assert pq.read_metadata(str(copy.path)).num_rows == table.num_rows == N_ROWS
        del table
    print(f"median of {N_PAIRS} pairs: {statistics.median(ratios):.2f} of PyArrow's speed")
    assert statistics.median(ratios) >= 0.5


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_million_lines_beside_the_same_rows_in_parquet(million: Path) -> None:
    """Time and memory of whole commands; the scores are the same."""
    peaks, scores = {}, {}
    for name in ("rows.parquet", "rows.jsonl"):
        out = million / f"out-{name}"
        command = [sys.executable, "-m", "qaeval", "score", str(million / name), "--out", str(out),
                   "--metrics", "f1,rouge_l", "--local"]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", _RUN, *command],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=True,
        )
        _, code, seconds, peak = done.stdout.splitlines()[-1].split()
        assert code == "0", done.stderr
        print(f"{name}: {float(seconds):.1f} s, peak {float(peak):,.0f} MB")
        peaks[name] = float(peak)
        scores[name] = pl.read_parquet(out / "scores" / "*.parquet")
    assert scores["rows.jsonl"].equals(scores["rows.parquet"])
    assert peaks["rows.jsonl"] < peaks["rows.parquet"] + 500
