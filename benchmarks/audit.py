"""Benchmark of audits: rows/s and memory of the verb, and seconds of a comparison alone.

Two OUTs are scored of a few rows and their score files filled up with generated rows: five a
passage, which is carried, six score columns with their reasons, files of half a million rows. The
command runs as people run it on one machine, with all cores and start included: ``first`` looks at
the values for cells and counts them, ``next`` counts them in the cells of the first one and
compares, ``slices`` looks at a column of twenty values, counts and compares 21 slices. Clusters are
the carried passages: no input is read. Run ``python -m benchmarks.audit --rows 1000000``. Prints
numbers and never judges one.
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
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.filter import PeakMemory
from benchmarks.measure import environment
from qaeval_core.audit.compare import AuditResult, compare
from qaeval_core.audit.outcome import AuditOutcome
from qaeval_core.audit.output import write_report
from qaeval_core.audit.profile_folder import Runs
from qaeval_core.audit.request import AuditRequest
from qaeval_core.configure import load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.scoring.run import run_job
from qaeval_core.storage import checksums
from qaeval_core.store.store import Store

SCORES = ("f1", "rouge_l", "bleu_1", "bleu_2", "bleu_3", "bleu_4")
CARRIED = ("passage", "system")
N_SYSTEMS = 20
_REASON = "empty_context"
ROWS_PER_FILE = 500_000
_ROWS_PER_GROUP = 16_384  # as score files have them
_ROWS_PER_PASSAGE = 5
_WEEKS = 2


def generate(folder: Path, n_rows: int) -> list[Path]:
    """Return OUTs of two weeks, written unless they are there."""
    outs = []
    for week in range(_WEEKS):
        out = folder / f"out{week}"
        outs.append(out)
        if (folder / f"{out.name}.done").exists():
            continue
        shutil.rmtree(out, ignore_errors=True)
        sizes = [min(ROWS_PER_FILE, n_rows - start) for start in range(0, n_rows, ROWS_PER_FILE)]
        score(folder / f"source{week}", out, len(sizes))
        for number, path in enumerate(sorted((out / "scores").rglob("*.parquet"))):
            fill(path, week=week, number=number, n_rows=sizes[number])
        (folder / f"{out.name}.done").touch()
    return outs


def score(source: Path, out: Path, n_files: int) -> None:
    """Score a row a file into OUT."""
    source.mkdir(parents=True, exist_ok=True)
    texts = {name: ["some words"] for name in ("id", "question", "references", *CARRIED)}
    for number in range(n_files):
        pq.write_table(pa.table(texts), source / f"rows-{number:03d}.parquet")
    config = load_config(
        overrides={
            **{f"metrics.{name}.metric": name for name in SCORES},
            "input.paths": [str(source)],
            "output.path": str(out),
            "output.carry": list(CARRIED),
        }
    )
    run_job(
        make_job(config, read_inputs(config), device="cpu"),
        LocalPieceExecutor(),
        say=lambda line: None,
    )


def fill(path: Path, *, week: int, number: int, n_rows: int) -> None:
    """Write a file of scores again, with as many rows as wanted."""
    scored = pq.read_schema(path)
    names = ["id", *CARRIED, *SCORES, *(f"{name}_reason" for name in SCORES), "quarantine_reason"]
    metadata = {**(scored.metadata or {}), checksums.KEY: checksums.PLACEHOLDER}
    schema = pa.schema([scored.field(name) for name in names], metadata)
    rng = np.random.default_rng([week, number])
    with path.open("w+b") as file:
        sink = checksums.SealedFile(file)
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for start in range(0, n_rows, _ROWS_PER_GROUP):
                n = min(_ROWS_PER_GROUP, n_rows - start)
                first = number * ROWS_PER_FILE + start
                columns = _columns(rng, first, n, week)
                arrays = [columns[name].cast(schema.field(name).type) for name in names]
                writer.write_table(pa.table(arrays, schema=schema))
        sink.seal()


def _columns(rng: np.random.Generator, first: int, n: int, week: int) -> dict[str, pa.Array]:
    def texts(prefix: str, numbers: np.ndarray) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")

    numbers = np.arange(first, first + n)
    own, place = np.unique(numbers // _ROWS_PER_PASSAGE, return_inverse=True)
    of_passage = rng.normal(size=(len(own), 1))[place]
    values = 0.5 + 0.12 * (of_passage + rng.normal(size=(n, len(SCORES))))
    # A tenth of the values is 0, as scores of words are.
    values = np.where(rng.random(values.shape) < 0.1, 0.0, values).clip(0.0, 1.0)
    is_undefined = rng.random(n) < 0.02
    reason = pa.array(np.where(is_undefined, _REASON, None), pa.string())
    found = {
        "id": texts(f"week {week} row ", numbers),
        "passage": texts(f"passage {week} ", own).take(pa.array(place)),
        "system": texts("system ", rng.integers(N_SYSTEMS, size=n)),
        "quarantine_reason": pa.nulls(n, pa.string()),
    }
    for i, name in enumerate(SCORES):
        found[name] = pa.array(values[:, i], mask=is_undefined)
        found[f"{name}_reason"] = reason
    return found


def run_verb(out: Path, folder: Path, name: str, *words: str) -> tuple[float, PeakMemory]:
    """Run the command; return its seconds and memory."""
    command = [
        sys.executable,
        "-m",
        "qaeval.cli",
        "audit",
        str(out),
        "--cluster",
        "passage",
        *words,
    ]
    command += ["--history", str(folder / name), "--to", str(folder / f"report-{name}")]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--warn-only"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    memory = PeakMemory(process.pid)
    _, said = process.communicate()
    seconds = time.perf_counter() - started
    memory.stop()
    assert process.returncode == 0, said.decode()
    return seconds, memory


def run_size(folder: Path, n_rows: int, *, n_repeats: int) -> dict[str, object]:
    """Time the verb on two weeks of some rows."""
    before, now = generate(folder / str(n_rows), n_rows)
    seconds: dict[str, list[float]] = {"first": [], "next": [], "slices": []}
    memory: dict[str, list[PeakMemory]] = {name: [] for name in seconds}

    def add(name: str, measured: tuple[float, PeakMemory]) -> None:
        seconds[name].append(measured[0])
        memory[name].append(measured[1])

    for _ in range(n_repeats):
        for name in ("whole", "sliced"):
            shutil.rmtree(folder / name, ignore_errors=True)
        add("first", run_verb(before, folder, "whole", "--pin"))
        add("next", run_verb(now, folder, "whole"))
        run_verb(before, folder, "sliced", "--pin", "--by", "system")
        add("slices", run_verb(now, folder, "sliced", "--by", "system"))
    found: dict[str, object] = {}
    for name, own in seconds.items():
        peak = [max(each.driver_bytes for each in memory[name]) / 1e6,
                max(each.worker_bytes for each in memory[name]) / 1e6]  # fmt: skip
        found[name] = {
            "seconds": own,
            "rows_per_s": [n_rows / each for each in own],
            "driver_mb": peak[0],
            "worker_mb": peak[1],
        }
        print(f"  {name}: {n_rows / min(own):,.0f} rows/s ({min(own):.1f} s); driver "
              f"{peak[0]:,.0f} MB, largest worker {peak[1]:,.0f} MB", flush=True)  # fmt: skip
    return found


def run_comparison(folder: Path, *, n_repeats: int) -> dict[str, object]:
    """Time comparison and report alone, from the profiles that the verb kept."""
    found: dict[str, object] = {}
    for name in ("whole", "sliced"):
        runs = Runs(Store(folder / name))
        started = time.perf_counter()
        ids = runs.ids()
        before, now = (runs.read(run) for run in ids)
        read_s = time.perf_counter() - started
        compared, written = [], []
        for _ in range(n_repeats):
            started = time.perf_counter()
            result = compare(before, now)
            compared.append(time.perf_counter() - started)
            started = time.perf_counter()
            _write(folder, before, now, result, run=ids[-1])
            written.append(time.perf_counter() - started)
        n_bytes = [len(runs.path(run).read_bytes()) for run in ids]
        found[name] = {
            "n_slices": len(now.slices.all),
            "n_tests": len(result.rows),
            "read_s": read_s,
            "compare_s": compared,
            "write_s": written,
            "profile_mb": max(n_bytes) / 1e6,
        }
        print(f"  {len(now.slices.all)} slices, {len(result.rows)} tests: comparison "
              f"{min(compared):.2f} s, report {min(written):.2f} s, profiles read in "
              f"{read_s:.2f} s ({max(n_bytes) / 1e6:.2f} MB each)", flush=True)  # fmt: skip
    return found


def _write(
    folder: Path, before: RunProfile, now: RunProfile, result: AuditResult, *, run: str
) -> None:
    outcome = AuditOutcome(
        status="alert" if result.alerts else "ok",
        out=folder,
        request=AuditRequest(),
        run=run,
        reference_profile=before,
        profile=now,
        result=result,
    )
    write_report(outcome, Store(folder / "report"), name="history")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sizes, then the comparison of the last one's profiles."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit")
    parser.add_argument("--rows", default="1000000,10000000", help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=1, help="default %(default)s")
    parser.add_argument("--work", type=Path, help="folder for the OUTs, 1 GB; default a new one")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found: dict[str, object] = {"environment": environment(len(os.sched_getaffinity(0)))}
    print(json.dumps(found["environment"]))
    folder = chosen.work or Path(tempfile.mkdtemp(prefix="qaeval-audit-"))
    try:
        for n_rows in map(int, chosen.rows.split(",")):
            print(f"\n== {n_rows:,} rows ==  load average {os.getloadavg()[0]:.2f}", flush=True)
            found[str(n_rows)] = run_size(folder, n_rows, n_repeats=chosen.repeats)
        print("\n== comparison alone ==")
        found["comparison"] = run_comparison(folder, n_repeats=max(chosen.repeats, 3))
    finally:
        if chosen.work is None:
            shutil.rmtree(folder, ignore_errors=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
