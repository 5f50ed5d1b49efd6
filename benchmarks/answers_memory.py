"""Memory: peak of a process that judges answers, at 1,000 and at 20,000 rows.

Each size runs in a process of its own that never loads torch, as ``qaeval score --local`` does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.memory import peak_rss_bytes
from qaeval_core.configure import load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.scoring.run import run_job

_METRICS = ("sas", "bertscore")
_SIZES = (1_000, 20_000)


def run_memory(*, n_threads: int) -> dict[str, object]:
    """Print and return the peak resident memory of each metric at each size."""
    found: dict[str, object] = {}
    for metric in _METRICS:
        peaks = {n_rows: _peak_apart(metric, n_rows, n_threads) for n_rows in _SIZES}
        found[metric] = peaks
        shown = ", ".join(f"{n:,} rows {peak / 1e9:.2f} GB" for n, peak in peaks.items())
        print(f"{metric}: peak RSS at {shown}", flush=True)
    return found


def _peak_apart(metric: str, n_rows: int, n_threads: int) -> int:
    command = [sys.executable, "-m", "benchmarks.answers_memory", metric, str(n_rows)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [*command, str(n_threads)], cwd=root, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(json.loads(done.stdout.splitlines()[-1])["peak_rss_bytes"])


def score_rows(metric: str, n_rows: int, *, n_threads: int) -> None:
    """Run a whole local job over so many rows."""
    from benchmarks.answers import load_pairs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.parquet")
        pq.write_table(load_pairs().head(n_rows).to_arrow(), path)
        overrides: dict[str, object] = {
            f"metrics.{metric}": {},
            "input.paths": [str(path)],
            "output.path": str(Path(folder, "out")),
            "scoring.progress_s": 3600.0,
        }
        config = load_config(overrides=overrides)
        job = make_job(config, read_inputs(config), device="cpu")
        run_job(job, LocalPieceExecutor(n_threads=n_threads), say=lambda line: None)


def main() -> None:
    """Score in this process and print its peak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("metric", choices=_METRICS)
    parser.add_argument("n_rows", type=int)
    parser.add_argument("n_threads", type=int)
    chosen = parser.parse_args()
    score_rows(chosen.metric, chosen.n_rows, n_threads=chosen.n_threads)
    print(json.dumps({"peak_rss_bytes": peak_rss_bytes()}))


if __name__ == "__main__":
    main()
