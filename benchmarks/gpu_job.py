"""GPU job: `qaeval score` end to end, on as many rows as the time that is left allows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.data import load_rows
from benchmarks.gpu_choice import Choice, Clock
from benchmarks.gpu_models import ROLES

# What `qaeval score` is run for, the divisor of its rows, and the families that it runs.
_END_TO_END = {"sas": (1, ("sas",)), "qrelscore": (10, ("lrm", "grg"))}
# What `qaeval score` takes whatever the rows; and its rate, as a share of its passes'.
_START_S = 30.0
_SHARE_OF_RATE = 0.5


def rows_that_fit(
    families: Sequence[Mapping[str, Any]], choice: Choice, clock: Clock
) -> Iterator[tuple[str, int, float]]:
    """Yield metrics with as many rows as fit into an equal part of the time left, and that time."""
    for i, (metric, (divisor, names)) in enumerate(_END_TO_END.items()):
        part_s = max(clock.left_s(), 1.0) / (len(_END_TO_END) - i)
        n_rows = -(-choice.end_to_end // divisor)
        seconds_a_row = sum(_seconds_a_row(families, name) for name in names)
        if seconds_a_row:
            fit = int(_SHARE_OF_RATE * max(part_s - _START_S, 1.0) / seconds_a_row)
            n_rows = min(n_rows, max(fit, 1))
        yield metric, n_rows, part_s


def _seconds_a_row(families: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return what an embedded model took at its best budget, tokenising with it; 0 if unknown."""
    rates = [
        budget.get("rows_per_s_with_encoding", 0.0)
        for own in families
        if own["family"] == name and not own["is_random"]
        for budget in own["budgets"].values()
    ]
    best = max(rates, default=0.0)
    return 1 / best if best else 0.0


def end_to_end(
    choice: Choice, folder: Path, metric: str, n_rows: int, *, timeout_s: float
) -> dict[str, Any]:
    """Return what `qaeval score` takes for many rows: start, read, tokenise, run, commit, join."""
    rows = load_rows(8000)
    turns = -(-n_rows // len(rows))
    # No question twice: equal pairs are run once, and would look like speed.
    table = pl.DataFrame(
        {
            "id": range(n_rows),
            "question": [f"{q} ({i})" for i in range(turns) for q in rows.questions][:n_rows],
            "reference": ([*rows.questions[1:], rows.questions[0]] * turns)[:n_rows],
            "context": (rows.contexts * turns)[:n_rows],
        }
    )
    folder.mkdir(parents=True)
    table.write_parquet(folder / "rows.parquet", row_group_size=50_000)
    words = ["--set", f"cluster.device={choice.device}", "--local", "--metrics", metric]
    words += ["--column", "candidate=question", "--column", "references=reference"]
    words += [
        word for role in ROLES for word in ("--set", f"models.{role}.precision={choice.precision}")
    ]
    words += [] if choice.check else ["--set", "models.check_device=false"]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jobs.cli", "score", folder / "rows.parquet",
             "--out", folder / "out", *words],
            capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        told = f"{n_rows:,} rows took longer than the {timeout_s:.0f} s that were left"
        print(f"end to end  {metric} stopped: {told}")
        return {"skipped": told}
    wall_s = time.perf_counter() - started
    if done.returncode != 0:
        print(f"end to end  {metric} FAILED: {done.stderr.strip()[-500:]}")
        return {"failed": f"exit {done.returncode}: {done.stderr.strip()[-2000:]}"}
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
    }
