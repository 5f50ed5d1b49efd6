"""Benchmark of reconcile: what a run knows of a million commits before it writes scores.

An OUT is made as a killed run leaves it: each commit holds one row, its manifest is in parts of
5,000, and of the last 5,000 commits nothing is noted. Then the run's own code lists them, reads the
manifest, looks into what it does not know, plans what is left and checks that every row is there.
A second look finds one file in the place of the parts. Run ``python -m benchmarks.reconcile
--commits 1000000``; ``--out`` may be an object store. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import environment
from qaeval_core.configure import load_config
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.planning.job import Job, make_job, read_inputs
from qaeval_core.schema import POSITION, QUARANTINE_MESSAGE, QUARANTINE_REASON
from qaeval_core.scoring.run import reconcile
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.commits import PART_COMMITS
from qaeval_core.store.manifest import Manifest, to_table
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Commit

_N_WRITERS = 16
_STATS = PassStats(n_rows=1, n_units=1, n_units_unshared=1, n_batches=1)


def make_input(folder: Path, *, n_rows: int) -> Path:
    """Write an input of so many rows."""
    texts = [f"{n} bees" for n in range(n_rows)]
    table = pa.table({"id": texts, "candidate": texts, "reference": texts})
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "input.parquet", row_group_size=50_000)
    return folder / "input.parquet"


def make_killed_job(source: Path, out: str | Path, *, n_unknown: int) -> Job:
    """Return a job whose OUT holds a commit of each row; nobody noted the last ones."""
    config = load_config(
        overrides={
            "metrics.f1.metric": "f1",
            "input.paths": [str(source)],
            "input.columns.references": "reference",
            "output.path": str(out),
            "scoring.rows_per_shard": 1,
        }
    )
    job = make_job(config, read_inputs(config), device="cpu")
    (family,), (file,) = job.run.families, job.files
    n_known = file.n_rows - n_unknown
    ranges = [RowRange(n, n + 1) for n in range(file.n_rows)]
    # What a manifest knows is not opened: the bytes of one commit stand for all of them.
    content = _content(job, family, ranges[0])
    manifest = Manifest(job.store, family.key)
    manifest.read()
    with ThreadPoolExecutor(_N_WRITERS) as pool:

        def put(rows: RowRange) -> Commit:
            path = job.store.commit_path(family.key, file.file_id, rows)
            tag = _put(path, content)
            size = len(content)
            return Commit(family.key, file.file_id, rows, path.name, size, tag, _STATS)

        for start in range(0, n_known, PART_COMMITS):
            some = ranges[start : min(start + PART_COMMITS, n_known)]
            manifest.append(to_table(list(pool.map(put, some))))
        list(pool.map(lambda rows: _commit(job, family, rows), ranges[n_known:]))
    return job


def _content(job: Job, family: FamilyPlan, rows: RowRange) -> bytes:
    _commit(job, family, rows)
    return job.store.commit_path(family.key, job.files[0].file_id, rows).read_bytes()


def _commit(job: Job, family: FamilyPlan, rows: RowRange) -> None:
    table = pa.table(
        {
            POSITION: pa.array([rows.start], pa.int64()),
            QUARANTINE_REASON: pa.array([None], pa.string()),
            QUARANTINE_MESSAGE: pa.array([None], pa.string()),
        }
    )
    file_id, signature = job.files[0].file_id, str(family.signature)
    job.store.commit(family.key, file_id, rows, table, signature=signature, stats=_STATS)


def _put(path: StoragePath, content: bytes) -> str:
    local = path.local
    if local is None:
        return path.put(content)
    local.write_bytes(content)  # Not flushed: a million of those take an hour.
    found = path.head()
    assert found is not None
    return found.tag


def looks(job: Job) -> Iterator[dict[str, object]]:
    """Look twice at what a job has committed; yield how long it took, and the driver's memory."""
    for manifest in ("in parts", "one file"):
        seen = job.with_store(job.store)
        _forget_peak()
        before = _peak_mb()
        started, cpu = time.perf_counter(), time.process_time()
        counts = reconcile(seen)
        reconcile_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        started = time.perf_counter()
        (family,) = seen.run.families
        n_open = len(seen.pieces([family], n_actors=2))
        yield {
            "manifest": manifest,
            "commits": sum(map(len, seen.done_ranges(family).values())),
            "rows": counts[family.key].n_rows,
            "reconcile_s": round(reconcile_s, 2),
            "cpu_s": round(cpu_s, 2),
            "plan_s": round(time.perf_counter() - started, 2),
            "open": n_open,
            "driver_mb": round(_peak_mb() - before),
            "load_average": round(os.getloadavg()[0], 1),
        }


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Make an OUT, and look at it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reconcile")
    parser.add_argument("--commits", type=int, default=1_000_000, help="default %(default)s")
    parser.add_argument("--unknown", type=int, default=PART_COMMITS, help="default %(default)s")
    parser.add_argument("--out", help="folder or URI; default a new folder, deleted at the end")
    chosen = parser.parse_args(arguments)
    print(json.dumps(environment(len(os.sched_getaffinity(0)))))
    folder = Path(tempfile.mkdtemp(prefix="qaeval-reconcile-"))
    try:
        source = make_input(folder / "input", n_rows=chosen.commits)
        started = time.perf_counter()
        job = make_killed_job(source, chosen.out or folder / "out", n_unknown=chosen.unknown)
        print(f"{chosen.commits:,} commits made in {time.perf_counter() - started:.0f} s")
        for look in looks(job):
            print(json.dumps(look), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
