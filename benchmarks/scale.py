"""Benchmark of scale: a run to its end, stage by stage, and what the driver's memory grows to.

Rows are a block of 200,000 distinct ones, repeated under other ids and contexts. The mean of every
column is then that of the block, which is compared. Run ``python -m benchmarks.scale
--rows 10000000 --files 1 --metrics f1,rouge_l``. Prints a JSON line and never judges it.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.measure import environment
from qaeval_core.configure import load_config
from qaeval_core.models.cpu import available_cpus
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.scoring.run import run_job

T = TypeVar("T")
R = TypeVar("R")
BLOCK = 200_000
_CONTEXT_ROWS = 5


def make_files(folder: Path, *, n_rows: int, n_files: int) -> None:
    """Write files of equally many rows."""
    folder.mkdir(parents=True)
    drawn = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(3_000)])
    n_words = drawn.integers(2, 7, 2 * BLOCK)
    texts = [" ".join(words[drawn.integers(0, len(words), n)]) for n in n_words.tolist()]
    references = texts[BLOCK:]
    # A third is right, and the others share a word by chance.
    answers = [references[i] if i % 3 == 0 else texts[i] for i in range(BLOCK)]
    block = pa.table({"prediction": answers, "reference": references})
    own = n_rows // n_files
    for number in range(n_files):
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for start in range(number * own, (number + 1) * own, BLOCK):
                rows = np.arange(start, min(start + BLOCK, (number + 1) * own))
                table = block.slice(0, len(rows))
                table = table.append_column("id", _numbered("row ", rows))
                table = table.append_column("context", _numbered("passage ", rows // _CONTEXT_ROWS))
                if writer is None:
                    path = folder / f"part{number:02d}.parquet"
                    writer = stack.enter_context(pq.ParquetWriter(path, table.schema))
                writer.write_table(table)


def _numbered(word: str, numbers: NDArray[np.int64]) -> pa.Array:
    return pc.binary_join_element_wise(word, pc.cast(numbers, pa.string()), "")


class Timed(LocalPieceExecutor):
    """Notes how long each stage behind the passes takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def ranges(self, *, interval_s: float) -> Iterator[RangeExecutor]:
        """Yield who works on ranges, and is timed."""
        with super().ranges(interval_s=interval_s) as own:
            yield _TimedRanges(own, self.seconds)


class _TimedRanges:
    def __init__(self, own: RangeExecutor, seconds: dict[str, float]) -> None:
        self._own, self._seconds = own, seconds
        self.begin, self.settle = own.begin, own.settle

    def map(
        self, function: Callable[[T], R], items: Sequence[T], *, label: str, n_rows: Sequence[int]
    ) -> Iterator[R]:
        began = time.perf_counter()
        yield from self._own.map(function, items, label=label, n_rows=n_rows)
        passed = time.perf_counter() - began
        self._seconds[label] = self._seconds.get(label, 0.0) + passed


def measured(folder: Path, *, n_rows: int, n_files: int, metrics: Sequence[str]) -> dict[str, Any]:
    """Score rows below a folder; return seconds by stage, and the most memory of this process."""
    make_files(folder / "in", n_rows=n_rows, n_files=n_files)
    overrides: dict[str, Any] = {
        **{f"metrics.{name}.metric": name for name in metrics},
        "input.paths": [str(folder / "in")],
        "input.columns": {"id": "id", "candidate": "prediction", "references": "reference"},
        "output.path": str(folder / "out"),
        "scoring.progress_s": 30.0,
    }
    config = load_config(overrides=overrides)
    executor, began = Timed(), time.perf_counter()
    outcome = run_job(make_job(config, read_inputs(config), device="cpu"), executor, say=print)
    whole_s = time.perf_counter() - began
    report = outcome.report or {}
    stages = {"passes": report["wall_s"] - _counted_s(executor.seconds), **executor.seconds}
    stages["all else"] = whole_s - sum(stages.values())
    return {
        "rows": report["rows"],
        "files": n_files,
        "metrics": list(metrics),
        "seconds": {name: round(own, 1) for name, own in stages.items()},
        "whole_s": round(whole_s, 1),
        "driver_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "worker_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "means": {name: own["mean"] for name, own in report["columns"].items()},
        "duplicate_ids": report["duplicate_ids"],
        "out_mb": round(sum(own.stat().st_size for own in _files(folder / "out")) / 2**20),
        "environment": environment(available_cpus()),
    }


def _counted_s(seconds: dict[str, float]) -> float:
    """Return the seconds of counts, which lie between passes."""
    return sum(own for name, own in seconds.items() if "document frequencies" in name)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--metrics", default="f1,rouge_l")
    parser.add_argument("--folder", type=Path, help="where to work; default a temporary folder")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="scale-", dir=words.folder))
    try:
        found = measured(
            folder, n_rows=words.rows, n_files=words.files, metrics=words.metrics.split(",")
        )
    finally:
        shutil.rmtree(folder)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
