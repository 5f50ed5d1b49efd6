"""GPU job: `qaeval score` end to end, on a million rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.data import load_rows, repeated
from benchmarks.gpu_choice import NO_TIME, Choice, Clock
from benchmarks.gpu_models import ROLES

# What `qaeval score` is run for, and the divisor of its rows: ten minutes are to hold it all.
END_TO_END = {"sas": 1, "qrelscore": 10}


def end_to_end(
    choice: Choice, folder: Path, metric: str, n_rows: int, *, clock: Clock
) -> dict[str, Any]:
    """Return what `qaeval score` takes for many rows: start, read, tokenize, run, commit, join."""
    if clock.left_s() <= 0:
        return {"failed": NO_TIME}
    folder.mkdir(parents=True)
    _write_rows(folder / "rows.parquet", n_rows)
    words = ["--set", f"cluster.device={choice.device}", "--local", "--metrics", metric]
    words += ["--column", "candidate=question", "--column", "references=reference"]
    words += [
        word for role in ROLES for word in ("--set", f"models.{role}.precision={choice.precision}")
    ]
    words += [] if choice.check else ["--set", "models.check_device=false"]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qaeval.cli", "score", folder / "rows.parquet",
             "--out", folder / "out", *words],
            capture_output=True, text=True, check=False, timeout=max(clock.left_s(), 0.0),
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return {"failed": f"{n_rows:,} rows did not end in the {late.timeout:.0f} s left for them"}
    wall_s = time.perf_counter() - started
    failed = {}
    if done.returncode != 0:
        print(f"end to end  {metric} FAILED: {done.stderr.strip()[-500:]}")
        failed = {"failed": f"exit {done.returncode}: {done.stderr.strip()[-2000:]}"}
        if not (folder / "out" / "_SUCCESS").is_file():
            return failed
    report: Mapping[str, Any] = json.loads((folder / "out" / "report.json").read_text("utf-8"))
    passes = {key: family.get("this_run") for key, family in report["families"].items()}
    n_scored = report["rows"]
    rate = n_scored / wall_s
    print(f"end to end  {metric}: {n_scored:,} rows in {wall_s:.0f} s: {rate:,.1f} rows/s")
    return {
        "n_rows": n_scored,
        "quarantined": report["quarantined"],
        "wall_s": wall_s,
        "rows_per_s": rate,
        "passes": passes,
        **failed,
    }


def _write_rows(path: Path, n_rows: int) -> None:
    rows = repeated(load_rows(8000), n_rows)
    table = pl.DataFrame(
        {
            "id": range(n_rows),
            "question": rows.questions,
            "reference": [*rows.questions[1:], rows.questions[0]],
            "context": rows.contexts,
        }
    )
    table.write_parquet(path, row_group_size=50_000)
