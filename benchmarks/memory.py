"""Memory: resident memory of a process that scores full windows, shard after shard.

The process is one of its own and never loads torch: ``python -m benchmarks.memory`` scores files
as ``qaeval score --local`` does and prints what it held.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.common import Settings, family
from benchmarks.data import full_window_rows, write_files
from qaeval_core.configure import load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.store import Commit

N_SHARDS = 20
_WARM_SHARDS = 5
# Family -> (tokens of a full window, rows of a shard, limit to compare with in bytes).
CASES = {"lrm": (512, 16, 2.0e9), "grg": (1024, 2, 3.5e9)}


def run_memory(settings: Settings) -> dict[str, object]:
    """Score full windows in processes of their own and print what they held."""
    results = {}
    for name, (n_unit_tokens, rows_per_shard, limit_bytes) in CASES.items():
        n_rows = N_SHARDS * rows_per_shard
        rows = full_window_rows(family(name).artifact, n_rows, n_unit_tokens=n_unit_tokens)
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder, "in"), rows, n_files=1, rows_per_file=n_rows)
            result = _score_apart(name, folder, rows_per_shard, settings.n_threads)
        result["limit_bytes"] = limit_bytes
        results[name] = result
        _show(name, result)
    return results


def _score_apart(name: str, folder: str, rows_per_shard: int, n_threads: int) -> dict[str, object]:
    arguments = [name, folder, str(rows_per_shard), str(n_threads)]
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def _show(name: str, result: dict[str, object]) -> None:
    after = result["rss_after_shard_bytes"]
    growth = after[-1] - after[_WARM_SHARDS - 1]
    # GRG runs a window once without its 64 candidate tokens: 992 is the mean of 960 and 1,024.
    print(
        f"{name}: {len(after)} shards, {result['n_units']} sequences of "
        f"{result['n_tokens'] / result['n_units']:.0f} tokens on average"
    )
    print(
        f"  peak RSS {result['peak_rss_bytes'] / 1e9:.2f} GB"
        f"   (to compare with: {result['limit_bytes'] / 1e9:.1f} GB)"
    )
    print(
        f"  RSS after shard 1, {_WARM_SHARDS}, {len(after)}: "
        + ", ".join(f"{after[i] / 1e6:.0f} MB" for i in (0, _WARM_SHARDS - 1, -1))
        + f"; {growth / 1e6:+.1f} MB from {_WARM_SHARDS} to {len(after)}"
    )


def score_files(name: str, folder: Path, *, rows_per_shard: int, n_threads: int) -> dict:
    """Score ``folder/in`` for one family and return RSS after every shard, and its peak."""
    config = load_config(
        overrides={
            "input.paths": [str(folder / "in")],
            "output.path": str(folder / "out"),
            "scoring.rows_per_shard": rows_per_shard,
            "scoring.progress_s": 3600.0,
        }
    )
    job = make_job(config, read_inputs(config), device="cpu")
    plan = next(plan for plan in job.run.families if plan.name == name)
    process = psutil.Process()
    after: list[int] = []
    total = PassStats()

    def on_shard(commits: Sequence[Commit]) -> None:
        after.append(process.memory_info().rss)
        for commit in commits:
            total.add(commit.stats)

    executor = LocalPieceExecutor(n_threads=n_threads)
    executor.make_pass(job, [plan], job.pieces([plan], n_actors=1), on_shard)()
    return {
        "rss_after_shard_bytes": after,
        "peak_rss_bytes": peak_rss_bytes(),
        "n_units": total.n_units,
        "n_tokens": total.n_tokens,
        "seconds": total.seconds,
    }


def peak_rss_bytes() -> int:
    """Return the most this process has held."""
    # Subtle: ru_maxrss of a process starts at what its parent held when it was started.
    status = Path("/proc/self/status")
    if status.is_file():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"))
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=CASES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows_per_shard", type=int)
    parser.add_argument("n_threads", type=int)
    chosen = parser.parse_args()
    result = score_files(
        chosen.family,
        chosen.folder,
        rows_per_shard=chosen.rows_per_shard,
        n_threads=chosen.n_threads,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
