"""Actors: the coordinator that counts, and the worker that scores pieces.

Classes live in a module of their own: actor classes of ``__main__`` cannot be found by workers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from jobs.pieces import piece_from_json
from jobs.shipping import ShippedArtifact
from qaeval_core.config import ModelsSection
from qaeval_core.errors import QAEvalError, RunStoppedError
from qaeval_core.models.session import Device
from qaeval_core.scoring.frequencies import load_frequencies
from qaeval_core.scoring.plan import RowRange
from qaeval_core.scoring.plans import FamilyPlan, ModelFamilyPlan
from qaeval_core.scoring.progress import Counts, ProgressCounter
from qaeval_core.scoring.runners import make_runner
from qaeval_core.scoring.store import Store
from qaeval_core.scoring.work import PieceWorker

_REPORT_EVERY_S = 1.0


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Coordinator:
    """Counts attempts of shards and progress for the whole cluster; carries the wish to stop."""

    def __init__(self) -> None:
        self._begun: Counter[tuple[str, str, int, int]] = Counter()
        self._counter = ProgressCounter()
        self._is_stopped = False

    def begin(self, family: str, file_id: str, start: int, stop: int) -> int:
        """Note that a shard begins; return how often it has begun."""
        self._begun[family, file_id, start, stop] += 1
        return self._begun[family, file_id, start, stop]

    def advance(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> bool:
        """Note progress; return whether to stop."""
        self._counter.add(n_rows, n_tokens, n_padded_tokens)
        return self._is_stopped

    def tell(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        self._counter.tell(note)

    def snapshot(self) -> Counts:
        """Return the counts of this moment."""
        return self._counter.snapshot()

    def stop(self) -> None:
        """Ask every worker to stop after its batch in hand."""
        self._is_stopped = True


class RemoteSupervisor:
    """A worker's line to the coordinator; speaks at most once a second."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._pending = (0.0, 0, 0)
        self._last = 0.0
        self._answer: Any = None

    def begin(self, family: str, file_id: str, rows: RowRange) -> int:
        """Note that a shard begins; return how often it has begun."""
        ref = self._coordinator.begin.remote(family, file_id, rows.start, rows.stop)
        return int(ray.get(ref))

    def advance(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> None:
        """Note progress; raises RunStoppedError when the run shall stop."""
        rows, tokens, padded = self._pending
        self._pending = (rows + n_rows, tokens + n_tokens, padded + n_padded_tokens)
        if time.monotonic() - self._last >= _REPORT_EVERY_S:
            self.flush()

    def tell(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        self._coordinator.tell.remote(note)

    def flush(self) -> None:
        """Send what is pending; the answer is read at the next call, so no batch waits for it."""
        if self._answer is not None and ray.get(self._answer):
            raise RunStoppedError("stopped as asked; run again to go on from here")
        self._answer = self._coordinator.advance.remote(*self._pending)
        self._pending, self._last = (0.0, 0, 0), time.monotonic()


class ScorePieces:
    """Scores pieces of one pass; sessions stay warm between pieces.

    Returns counts alone: statistics go to the store, shard by shard.
    """

    def __init__(
        self,
        *,
        plans: Sequence[FamilyPlan],
        out: str,
        coordinator: Any,
        device: Device,
        n_threads: int | None,
        models: ModelsSection,
        shipped: Mapping[str, ShippedArtifact],
    ) -> None:
        runners = {}
        for plan in plans:
            if isinstance(plan, ModelFamilyPlan) and plan.key in shipped:
                plan = shipped[plan.key].receive(plan)  # noqa: PLW2901
            runners[plan.key] = make_runner(
                plan,
                models=models,
                device=device,
                n_threads=n_threads,
                load_frequencies=partial(load_frequencies, out=Path(out)),
            )
        self._supervisor = RemoteSupervisor(coordinator)
        self._worker = PieceWorker(runners, Store(Path(out)), self._supervisor)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Score the pieces of a batch; return what each shard cost, or an error."""
        costs: list[str] = []
        error = ""
        try:
            for text in batch.column("piece").to_pylist():
                for _, _, own in self._worker.run([piece_from_json(text)]):
                    costs.append(json.dumps({key: asdict(stats) for key, stats in own.items()}))
            self._supervisor.flush()
        except RunStoppedError:
            pass  # The driver asked for it and says so itself.
        except QAEvalError as problem:
            # As a row: an exception would come back wrapped in the cluster's own trace.
            error = f"{type(problem).__name__}: {problem}"
        opened = self._worker.n_streams_opened
        return pa.table(
            {
                "costs": pa.array([costs], pa.list_(pa.string())),
                "error": pa.array([error]),
                "n_streams_opened": pa.array([opened]),
            }
        )
