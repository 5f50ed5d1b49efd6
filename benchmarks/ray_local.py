"""Ray against local: the same files by both executors of ``qaeval score``, start-up left out.

Both commit to a store of their own. Time runs from the end of the first piece to the end of the
last: starting Ray and its actor, loading the model and the first pass are in neither.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import Settings
from benchmarks.data import load_rows, write_files
from benchmarks.measure import ratio
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.running.visibility import marked
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Commit

# One file is one piece. A worker reports a piece when it is done, so its shards count together.
N_FILES = 9
SHARDS_PER_FILE = 2
ROWS_PER_SHARD = 64
_FAMILY = "lrm"


def run_ray(settings: Settings) -> dict[str, object]:
    """Time both executors in turn and print both."""
    from qaeval.on_ray.cluster import connected, layout
    from qaeval.on_ray.pipeline import RayExecutor

    rows = load_rows(N_FILES * SHARDS_PER_FILE * ROWS_PER_SHARD)
    runs: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder, "in")
        write_files(inputs, rows, n_files=N_FILES, rows_per_file=SHARDS_PER_FILE * ROWS_PER_SHARD)
        cluster = _config(inputs, Path(folder), settings.n_threads).cluster
        with connected(cluster):
            for i in range(settings.n_ray_repeats):
                executors = {
                    "local": LocalPieceExecutor(n_threads=settings.n_threads),
                    "ray": RayExecutor(layout(cluster, "cpu")),
                }
                for name, executor in executors.items():
                    out = Path(folder, f"{name}-{i}")
                    config = _config(inputs, out, settings.n_threads)
                    runs[name].append(_time(config, executor))
    return _show(runs, settings)


def _config(inputs: Path, out: Path, n_threads: int) -> RunConfig:
    return load_config(
        overrides={
            "input.paths": [str(inputs)],
            "output.path": str(out),
            "scoring.rows_per_shard": ROWS_PER_SHARD,
            "scoring.progress_s": 3600.0,
            "cluster.device": "cpu",
            "cluster.actors": 1,
            "cluster.cpus_per_actor": n_threads,
        }
    )


def _time(config: RunConfig, executor: Any) -> dict[str, float]:
    """Run one family as ``run_job`` does; return seconds of the first piece and of all others."""
    job = make_job(config, read_inputs(config), device="cpu")
    plan = next(plan for plan in job.run.families if plan.name == _FAMILY)
    ends: list[float] = []

    def on_shard(_: Sequence[Commit]) -> None:
        ends.append(time.perf_counter())

    with marked(job, Outages()) as (own, sight):
        executor.begin(sight)
        pieces = own.pieces([plan], n_actors=executor.n_actors)
        run = executor.make_pass(own, [plan], pieces, on_shard)
        started = time.perf_counter()
        run()
    assert len(ends) == N_FILES * SHARDS_PER_FILE, "a shard was not reported"
    first_piece = ends[SHARDS_PER_FILE - 1]
    return {"timed_s": ends[-1] - first_piece, "first_piece_s": first_piece - started}


def _show(runs: dict[str, list[dict[str, float]]], settings: Settings) -> dict[str, object]:
    n_rows = (N_FILES - 1) * SHARDS_PER_FILE * ROWS_PER_SHARD
    rates = {name: [n_rows / run["timed_s"] for run in own] for name, own in runs.items()}
    ratios = ratio(rates["ray"], rates["local"])
    print(
        f"{_FAMILY}: {N_FILES} pieces of {SHARDS_PER_FILE} shards of {ROWS_PER_SHARD} rows, "
        f"{settings.n_threads} threads each, the first piece not timed"
    )
    for name, own in rates.items():
        first_s = statistics.median(run["first_piece_s"] for run in runs[name])
        print(
            f"  {name:<6}{statistics.median(own):8.2f} rows/s   [{min(own):.2f} .. {max(own):.2f}]"
            f"   start-up and first piece {first_s:.1f} s"
        )
    print(
        f"  ray / local, of medians {ratios['of_medians']:.3f}"
        f"   pairs [{ratios['lowest_pair']:.3f} .. {ratios['highest_pair']:.3f}]"
    )
    return {"runs": runs, "rows_per_s": rates, "ratio": ratios, "n_rows_timed": n_rows}
