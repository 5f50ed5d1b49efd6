"""Small jobs of words, whose every row scores 1: what is lost, or taken twice, is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from helpers import read_scores
from qaeval_core.configure import load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.running.passes import PieceExecutor
from qaeval_core.running.sampling import with_sample
from qaeval_core.scoring.run import RunOutcome, run_job

N_ROWS = 64
ROWS_PER_GROUP = 16


def rows(n_rows: int = N_ROWS) -> pa.Table:
    """Return rows whose candidates are their references, all different."""
    texts = [f"{n} bees live behind mill {n % 7}, each of them named Ann" for n in range(n_rows)]
    return pa.table({"id": list(map(str, range(n_rows))), "candidate": texts, "reference": texts})


def request(source: str | Path, out: Path, **given: Any) -> dict[str, Any]:
    """Return the settings of a job; `scoring__limit` is `scoring.limit`."""
    defaults = {
        "metrics.f1.metric": "f1",
        "input.paths": [str(source)],
        "input.columns.references": "reference",
        "output.path": str(out),
        "scoring.rows_per_shard": 8,
        "scoring.retry_storage_s": 1.0,
    }
    return {**defaults, **{key.replace("__", "."): value for key, value in given.items()}}


def is_whole(out: Path, n_rows: int = N_ROWS) -> bool:
    """Whether all rows are scored: every candidate is its own reference."""
    return read_scores(out)["f1"].to_list() == [1.0] * n_rows and (out / "_SUCCESS").exists()


def n_quarantined(out: Path) -> int:
    """Rows that commits hold as quarantined."""
    tables = [pq.read_table(path) for path in out.glob("families/*/*.parquet")]
    return sum(len(t) - t["quarantine_reason"].null_count for t in tables)


class Watched(LocalPieceExecutor):
    """An executor that calls back after so many shards."""

    def __init__(self, after: int, then: Callable[[], object]) -> None:
        super().__init__()
        self._left, self._then = after, then

    def make_pass(self, job: Any, families: Any, pieces: Any, on_shard: Any) -> Callable[[], None]:
        def count(costs: Any) -> None:
            on_shard(costs)
            self._left -= 1
            if self._left == 0:
                self._then()

        return super().make_pass(job, families, pieces, count)


def run(
    overrides: dict[str, Any],
    *,
    after: int = 0,
    then: Callable[[], object] = lambda: None,
    executor: PieceExecutor | None = None,
) -> tuple[RunOutcome, list[str]]:
    """Run a job here; after so many shards, call back. Return its outcome and what it said."""
    config = load_config(overrides=overrides)
    job = make_job(config, with_sample(config, read_inputs(config)), device="cpu")
    said: list[str] = []
    return run_job(job, executor or Watched(after, then), say=said.append), said
