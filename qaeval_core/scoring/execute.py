"""Execute: run a job to its end, or resume it, whoever executes the pieces.

What is committed is never computed again; the success marker is written last, after every row is
accounted for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import ReconcileError, TooManyQuarantinedError
from qaeval_core.report.report import make_report
from qaeval_core.scoring.frequencies import forget_frequencies, make_frequencies
from qaeval_core.scoring.job import Job
from qaeval_core.scoring.join import FileJoin, Totals
from qaeval_core.scoring.lock import RunLock
from qaeval_core.scoring.pass_stats import PassStats
from qaeval_core.scoring.plan import Piece, RowRange
from qaeval_core.scoring.plans import FamilyPlan
from qaeval_core.scoring.records import changes, read_json, write_run_files
from qaeval_core.scoring.store import tiles, write_atomically, write_json

# Called for each committed shard with what it cost, by family.
OnShard = Callable[[Mapping[str, PassStats]], None]


class Executor(Protocol):
    """Runs the pieces of one pass: in this process, or on a cluster."""

    n_actors: int

    def run(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        on_shard: OnShard,
    ) -> None:
        """Commit every shard of every piece; RunStoppedError when asked to stop."""


@dataclass(slots=True)
class Outcome:
    """What a run did; ``report`` is None only where nothing was left to do and none is kept."""

    report: dict[str, Any] | None
    n_shards_run: int
    is_new: bool


def run_job(job: Job, executor: Executor, *, say: Callable[[str], None]) -> Outcome:
    """Run a job to its end, or resume it.

    Parameters
    ----------
    say : callable
        Gets one line per fact that a user should know.

    Returns
    -------
    Outcome

    Raises
    ------
    RunStoppedError, TooManyQuarantinedError, StoreLockedError, ReconcileError
        What is committed stays and is used by the next run.
    """
    with RunLock(job.store.out):
        job.store.remove_leftovers()
        success = job.store.out / "_SUCCESS"
        if not job.config.scoring.retry_quarantined and _is_finished(job, success):
            say(f"nothing to do: {job.store.out} is complete ({job.n_rows_total:,} rows)")
            return Outcome(read_json(job.store.out / "report.json"), 0, is_new=False)
        for line in changes(job):
            say(line)
        success.unlink(missing_ok=True)
        write_run_files(job, n_actors=executor.n_actors)
        this_run, wall_s = _run_families(job, executor, say)
        return _finish(job, this_run, wall_s, success)


def _run_families(
    job: Job, executor: Executor, say: Callable[[str], None]
) -> tuple[dict[str, PassStats], dict[str, float]]:
    this_run: dict[str, PassStats] = {}
    wall_s: dict[str, float] = {}
    for families in job.run.passes:
        for family in families:
            if job.config.scoring.retry_quarantined:
                _drop_quarantined(job, family, say)
            make_frequencies(job, family)
        pieces = job.pieces(families, n_actors=executor.n_actors)
        opened = _say_open(job, families, pieces, say)
        if not pieces:
            continue
        this_run.update({family.key: PassStats() for family in opened})
        started = time.perf_counter()
        executor.run(job, opened, pieces, _shard_counter(job, opened, this_run))
        # Families of one pass share its time.
        passed = time.perf_counter() - started
        wall_s.update({family.key: passed for family in opened})
        wall_s["total"] = wall_s.get("total", 0.0) + passed
    return this_run, wall_s


def _say_open(
    job: Job, families: Sequence[FamilyPlan], pieces: Sequence[Piece], say: Callable[[str], None]
) -> list[FamilyPlan]:
    """Say what is committed and what is left; return the families with open rows."""
    opened = []
    for family in families:
        n_open = sum(piece.n_rows for piece in pieces if family.key in piece.families)
        done = job.n_rows_total - n_open
        if not n_open:
            say(f"{family.title}: all {done:,} rows are committed, nothing to compute")
            continue
        opened.append(family)
        if done:
            say(f"{family.title}: {done:,} rows are committed, {n_open:,} are left")
    return opened


def _shard_counter(
    job: Job, families: Sequence[FamilyPlan], this_run: Mapping[str, PassStats]
) -> OnShard:
    """Return what counts the costs of shards and stops where too many rows are quarantined."""
    has_limit = job.config.scoring.max_quarantined < 1
    earlier = {family.key: _quarantined(job, family) if has_limit else 0 for family in families}

    def on_shard(costs: Mapping[str, PassStats]) -> None:
        for key, cost in costs.items():
            this_run[key].add(cost)
            _check_quarantined(job, earlier[key] + this_run[key].n_quarantined)

    return on_shard


def _check_quarantined(job: Job, n_quarantined: int) -> None:
    allowed = job.config.scoring.max_quarantined
    if n_quarantined > allowed * job.n_rows_total:
        raise TooManyQuarantinedError(
            f"{n_quarantined:,} of {job.n_rows_total:,} rows are quarantined, more than "
            f"--max-quarantined {allowed:g}; reasons are in the commits of {job.store.out}"
        )


def _quarantined(job: Job, family: FamilyPlan) -> int:
    return sum(
        job.store.check(family.key, file_id, rows).n_quarantined
        for file_id, ranges in job.done_ranges(family).items()
        for rows in ranges
    )


def _drop_quarantined(job: Job, family: FamilyPlan, say: Callable[[str], None]) -> None:
    n_dropped = 0
    for file_id, ranges in job.done_ranges(family).items():
        for rows in ranges:
            if job.store.check(family.key, file_id, rows).n_quarantined:
                job.store.drop(family.key, file_id, rows)
                n_dropped += 1
    if n_dropped:
        forget_frequencies(job, family.key)
        say(f"{family.key}: {n_dropped} shards with quarantined rows are scored once more")


def _finish(
    job: Job, this_run: Mapping[str, PassStats], wall_s: Mapping[str, float], success: Path
) -> Outcome:
    committed, ranges = reconcile(job)
    totals = Totals()
    join = FileJoin(
        job.store,
        job.run,
        id_column=job.columns.get("id"),
        carry=job.config.output.carry,
        with_statistics=job.config.output.statistics,
    )
    for file in job.files:
        own = {key: by_file[file.file_id] for key, by_file in ranges.items()}
        join.write(file, n_rows=job.n_rows[file.file_id], ranges=own, totals=totals)
    report = make_report(
        job.run,
        totals,
        read_scores=partial(_read_scores, [join.path(file) for file in job.files]),
        committed=committed,
        this_run=this_run,
        wall_s=wall_s,
        notes=list(job.notes),
    )
    check_report(report, n_rows=job.n_rows_total)
    _check_quarantined(job, report["quarantined"])
    write_json(job.store.out / "report.json", report)
    marker = {"fingerprint": job.fingerprint, "rows": totals.n_rows}
    write_atomically(success, json.dumps(marker).encode())
    n_shards = sum(stats.n_batches > 0 or stats.n_rows > 0 for stats in this_run.values())
    return Outcome(report, n_shards, is_new=True)


def _read_scores(paths: Sequence[Path], column: str) -> NDArray[np.floating]:
    """Return one column of all score files; NaN where there is no score."""
    parts = [
        pq.read_table(path, columns=[column], partitioning=None).column(column) for path in paths
    ]
    chunks = [chunk.to_numpy(zero_copy_only=False) for part in parts for chunk in part.chunks]
    return np.concatenate(chunks) if chunks else np.zeros(0)


def reconcile(job: Job) -> tuple[dict[str, PassStats], dict[str, dict[str, list[RowRange]]]]:
    """Check that every row of every file is committed once in every family.

    Returns
    -------
    (counts by family key, committed ranges by family key and file id)

    Raises
    ------
    ReconcileError
        If a row is missing, or a commit does not hold what its name says.
    """
    counts: dict[str, PassStats] = {}
    ranges: dict[str, dict[str, list[RowRange]]] = {}
    for family in job.run.families:
        total = counts[family.key] = PassStats()
        ranges[family.key] = job.done_ranges(family)
        for file in job.files:
            own = ranges[family.key][file.file_id]
            if not tiles(own, n_rows=job.n_rows[file.file_id]):
                raise ReconcileError(
                    f"{family.key}: rows of {file.relative} are missing; run again to complete"
                )
            for rows in own:
                total.add(job.store.check(family.key, file.file_id, rows))
    return counts, ranges


def check_report(report: Mapping[str, Any], *, n_rows: int) -> None:
    """Raise ReconcileError unless rows in = scored + undefined + quarantined, per instance."""
    for name, counts in report["instances"].items():
        n_out = counts["scored"] + counts["undefined"] + counts["quarantined"]
        if n_out != n_rows or report["rows"] != n_rows:
            raise ReconcileError(f"{name}: {n_rows:,} rows went in, {n_out:,} came out")


def _is_finished(job: Job, success: Path) -> bool:
    return (read_json(success) or {}).get("fingerprint") == job.fingerprint
