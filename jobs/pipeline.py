"""Pipeline: run a family's pieces on Ray Data, one fused operator over a fixed pool of actors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import ray
from ray.data import ActorPoolStrategy

from jobs.actors import Coordinator, ScorePieces
from jobs.asking import AskingPass
from jobs.cluster import Layout
from jobs.pieces import costs_from_json, pieces_dataset
from jobs.shipping import ShippedArtifact, ship_if_needed
from qaeval_core.errors import RunError, RunStoppedError
from qaeval_core.scoring.job import Job
from qaeval_core.scoring.passes import OnShard
from qaeval_core.scoring.plan import Piece
from qaeval_core.scoring.plans import AskedFamilyPlan, FamilyPlan, WordsFamilyPlan, pass_title
from qaeval_core.scoring.progress import ProgressPrinter

_POLL_S = 0.5


class RayExecutor:
    """Runs pieces on the connected cluster; passes one after another."""

    def __init__(self, layout: Layout, *, words: Layout | None = None) -> None:
        self.layout = layout
        self.words_layout = words or layout
        self.n_actors = max(layout.n_actors, self.words_layout.n_actors)
        self.stop = threading.Event()
        self.n_streams_opened = 0

    def prepare(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        on_shard: OnShard,
    ) -> Callable[[], None]:
        """Return what commits every shard of every piece.

        The pipeline is built here, in the main thread: its context is the process's. What is
        returned runs it, in whatever thread, and raises

        - RunStoppedError, if asked to stop;
        - LanguageModelError, if calls cannot go on;
        - RunError, if a worker reports another error; what is committed stays.
        """
        coordinator = Coordinator.remote()  # type: ignore[attr-defined]
        (family, *_) = families
        consume: Callable[[OnShard], None]
        if isinstance(family, AskedFamilyPlan):
            consume = AskingPass(job, family, pieces, coordinator).run
        else:
            dataset = self._dataset(job, families, pieces, coordinator)
            consume = partial(self._consume, dataset, coordinator)
        n_rows_total = sum(piece.n_rows for piece in pieces)

        def run() -> None:
            printer = ProgressPrinter(
                pass_title(families),
                n_rows_total=n_rows_total,
                interval_s=job.config.scoring.progress_s,
            )
            done = threading.Event()
            poller = threading.Thread(
                target=self._poll, args=(coordinator, printer, done), daemon=True
            )
            poller.start()
            try:
                consume(on_shard)
            finally:
                done.set()
                poller.join()
                ray.kill(coordinator)
            if self.stop.is_set():
                raise RunStoppedError("stopped as asked; run again to go on from here")

        return run

    def _dataset(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        coordinator: object,
    ) -> ray.data.Dataset:
        is_words = all(isinstance(family, WordsFamilyPlan) for family in families)
        layout = self.words_layout if is_words else self.layout
        n_actors = min(layout.n_actors, len(pieces))
        return pieces_dataset(pieces).map_batches(
            ScorePieces,
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=n_actors),
            num_cpus=layout.num_cpus,
            num_gpus=layout.num_gpus,
            fn_constructor_kwargs={
                "plans": list(families),
                "out": str(job.store.out),
                "coordinator": coordinator,
                "device": job.device,
                "n_threads": layout.n_threads,
                "models": job.config.models,
                "shipped": _shipped(job, families),
            },
        )

    def _consume(self, dataset: ray.data.Dataset, coordinator: object, on_shard: OnShard) -> None:
        opened = 0
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            opened = max(opened, *batch.column("n_streams_opened").to_pylist())
            for costs in batch.column("costs").to_pylist():
                for cost in costs:
                    on_shard(costs_from_json(cost))
            errors = [error for error in batch.column("error").to_pylist() if error]
            if errors:
                ray.get(coordinator.stop.remote())  # type: ignore[attr-defined]
                raise RunError(errors[0])
        self.n_streams_opened += opened

    def _poll(self, coordinator: object, printer: ProgressPrinter, done: threading.Event) -> None:
        """Show progress, and pass the wish to stop on, until the family is done."""
        while True:
            is_last = done.wait(_POLL_S)
            if self.stop.is_set():
                coordinator.stop.remote()  # type: ignore[attr-defined]
            counts = ray.get(coordinator.snapshot.remote())  # type: ignore[attr-defined]
            printer.update(counts, is_last=is_last)
            if is_last:
                return


def _shipped(job: Job, families: Sequence[FamilyPlan]) -> dict[str, ShippedArtifact]:
    """Return the artifacts that workers cannot see, by family."""
    is_shared = job.config.models.artifacts_path is not None
    shipped = {family.key: ship_if_needed(family, is_shared=is_shared) for family in families}
    return {key: artifact for key, artifact in shipped.items() if artifact is not None}
