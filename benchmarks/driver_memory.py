"""Memory of the machine that runs a command, and how it grows: filter, audit and compare.

``pairs`` is an audit beside an OUT of the same ids, ``compare`` takes the same two OUTs, ``audit``
compares one with the profile of the other. ``memory`` and ``disk`` decide a filter of generated
rows (exact duplicates, and the best two of each context) where what is known of all rows lies in
memory or on disk. Memory is resident and not shared (RSS less SHR), ten looks a second. Run
``python -m benchmarks.driver_memory --rows 1000000,4000000``. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import audit
from benchmarks.filter import PeakMemory
from benchmarks.measure import environment
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.decide import decide, keep_best
from qaeval_core.filter.facts import ColumnRank, Facts, Stages
from qaeval_core.filter.groups import count_groups
from qaeval_core.filter.order import rank_keys
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.shares import make_shares, smallest_shares

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_STEP = 1 << 20


def decide_rows(n_rows: int, folder: Path | None) -> None:
    """Decide a filter of five rows a context, a fifth of them duplicates."""
    request = FilterRequest(near_duplicates="exact", top_k=2)
    stages = Stages(rank=ColumnRank("score"), duplicates=request.duplicates, group="context")
    rows, rng = CorpusRows(n_rows, stages, folder=folder), np.random.default_rng(0)
    for start in range(0, n_rows, _STEP):
        number = np.arange(start, min(start + _STEP, n_rows), dtype=np.uint64)
        facts = Facts(np.zeros(len(number), np.uint8), rng.random(len(number)))
        facts.tie = (number + np.uint64(1)) * _SPREAD
        facts.group = number // np.uint64(5) * _SPREAD
        facts.question = rank_keys(facts.rank)
        rows.put(start, facts)
    decide(rows, request, near_duplicates=lambda: ())
    shares = make_shares(rows)
    smallest_shares(rows, shares)
    keep_best(rows, shares.cuts[len(shares.cuts) // 2])
    count_groups(rows)


def generate(folder: Path, n_rows: int) -> list[Path]:
    """Return two OUTs of the same ids and values."""
    outs = [folder / "before", folder / "now"]
    for out in outs:
        sizes = [audit.ROWS_PER_FILE] * (n_rows // audit.ROWS_PER_FILE)
        audit.score(folder / f"source-{out.name}", out, len(sizes))
        for number, path in enumerate(sorted((out / "scores").rglob("*.parquet"))):
            audit.fill(path, week=0, number=number, n_rows=sizes[number])
    return outs


def run_words(words: Sequence[str]) -> tuple[float, float]:
    """Run Python; return its seconds and its memory in MB."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    memory = PeakMemory(process.pid)
    _, said = process.communicate()
    memory.stop()
    assert process.returncode == 0, said.decode()
    return time.perf_counter() - started, memory.driver_bytes / 1e6


def run_size(folder: Path, n_rows: int, only: Sequence[str]) -> dict[str, dict[str, float]]:
    """Run every command on some rows."""
    found: dict[str, dict[str, float]] = {}

    def run(name: str, *words: str) -> None:
        if name not in only:
            return
        seconds, megabytes = run_words(words)
        found[name] = {"seconds": seconds, "driver_mb": megabytes}
        print(f"  {name}: {seconds:.1f} s, {megabytes:,.0f} MB", flush=True)

    for name in ("memory", "disk"):
        run(name, "benchmarks.driver_memory", "--decide", str(n_rows), name, str(folder))
    if not {"audit", "pairs", "compare"} & set(only):
        return found
    before, now = generate(folder, n_rows)
    history = ["--cluster", "passage", "--warn-only", "--history", str(folder / "history")]
    history += ["--to", str(folder / "report")]
    run_words(["qaeval.cli", "audit", str(before), *history, "--pin"])
    run("audit", "qaeval.cli", "audit", str(now), *history)
    run("pairs", "qaeval.cli", "audit", str(now), *history, "--reference", str(before))
    run("compare", "qaeval.cli", "compare", str(before), str(now), "--cluster", "passage")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen commands on the chosen sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver_memory")
    parser.add_argument("--rows", default="1000000,4000000", help="default %(default)s")
    parser.add_argument("--only", default="memory,disk,audit,pairs,compare")
    parser.add_argument("--decide", nargs=3, metavar=("ROWS", "WHERE", "FOLDER"))
    parser.add_argument("--work", type=Path, help="folder for files; default a new one")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    if chosen.decide:
        n_rows, where, folder = chosen.decide
        decide_rows(int(n_rows), Path(folder) if where == "disk" else None)
        return
    found: dict[str, object] = {"environment": environment(len(os.sched_getaffinity(0)))}
    for n_rows in map(int, chosen.rows.split(",")):
        print(f"== {n_rows:,} rows ==  load average {os.getloadavg()[0]:.2f}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="qaeval-driver-", dir=chosen.work))
        try:
            found[str(n_rows)] = run_size(folder, n_rows, chosen.only.split(","))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
