"""Pipeline: run a family's pieces on Ray Data, one fused operator over a fixed pool of actors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ray
from ray.data import ActorPoolStrategy

from jobs.actors import (
    Coordinator,
    ScorePieces,
    ShippedArtifact,
    costs_from_json,
    piece_from_json,
    pieces_dataset,
    ship_if_needed,
)
from jobs.call_pipeline import CallPass
from jobs.cluster import Layout, Nodes
from qaeval_core.errors import RunError, RunStoppedError
from qaeval_core.families.chat.family import is_chat
from qaeval_core.families.plan import FamilyPlan
from qaeval_core.job import Job
from qaeval_core.planning.run_plan import pass_title
from qaeval_core.planning.shards import Piece
from qaeval_core.running.passes import OnShard
from qaeval_core.running.progress import ProgressPrinter
from qaeval_core.running.sight import Sight

_POLL_S = 0.5


class RayExecutor:
    """Runs pieces on the connected cluster; passes one after another."""

    def __init__(
        self,
        layout: Layout,
        *,
        words: Layout | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.layout = layout
        self.words_layout = words or layout
        self.n_actors = max(layout.n_actors, self.words_layout.n_actors)
        self.stop = threading.Event()
        self.n_streams_opened = 0
        self.nodes = Nodes(say)

    def begin(self, sight: Sight) -> None:
        """Look from every node; BlindNodeError names the first that does not see all, and what."""
        self.nodes.begin(sight)

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
        - BlindNodeError, if no node is left that sees what it must;
        - RunError, if a worker reports another error; what is committed stays.
        """
        coordinator = Coordinator.remote()  # type: ignore[attr-defined]
        (family, *_) = families
        work: _Pass = (
            CallPass(job, family, sight=self.nodes.sight, coordinator=coordinator)
            if is_chat(family)
            else _ScoringPass(self, job, families, coordinator)
        )
        self.nodes.look_around()
        dataset = work.dataset(pieces, ray_options=self.nodes.ray_options())
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
                self._run_rounds(work, dataset, coordinator, on_shard)
            finally:
                work.close()
                done.set()
                poller.join()
                ray.kill(coordinator)
            if self.stop.is_set():
                raise RunStoppedError("stopped as asked; run again to go on from here")

        return run

    def _run_rounds(
        self, work: _Pass, dataset: ray.data.Dataset, coordinator: Any, on_shard: OnShard
    ) -> None:
        """Run a pipeline, and others for what blind nodes gave back."""
        while given_back := work.consume(dataset, on_shard):
            if self.stop.is_set():
                return
            self.nodes.leave_out(ray.get(coordinator.blind.remote()))
            dataset = work.dataset(given_back, ray_options=self.nodes.ray_options())

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


class _Pass(Protocol):
    """A pass of families: pipelines over pieces, and what comes out of them."""

    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces."""

    def consume(self, dataset: ray.data.Dataset, on_shard: OnShard) -> list[Piece]:
        """Run a pipeline to its end; return the pieces that were given back."""

    def close(self) -> None:
        """End what outlives a pipeline."""


class _ScoringPass:
    """The pass of one model family, or of several statistics of words."""

    def __init__(
        self, executor: RayExecutor, job: Job, families: Sequence[FamilyPlan], coordinator: Any
    ) -> None:
        is_words = families[0].resources == "words"
        self._layout = executor.words_layout if is_words else executor.layout
        self._executor = executor
        self._coordinator = coordinator
        self._constructor = {
            "plans": list(families),
            "out": str(job.store.out),
            "coordinator": coordinator,
            "device": job.device,
            "n_threads": self._layout.n_threads,
            "models": job.config.models,
            "shipped": _shipped(job, families),
            "sight": executor.nodes.sight,
            "retry_storage_s": job.config.scoring.retry_storage_s,
        }

    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces."""
        n_actors = min(self._layout.n_actors, len(pieces))
        return pieces_dataset(pieces).map_batches(
            ScorePieces,
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=n_actors),
            num_cpus=self._layout.num_cpus,
            num_gpus=self._layout.num_gpus,
            fn_constructor_kwargs=self._constructor,
            **ray_options,
        )

    def consume(self, dataset: ray.data.Dataset, on_shard: OnShard) -> list[Piece]:
        """Run a pipeline to its end; return the pieces that were given back."""
        opened = 0
        given_back: list[Piece] = []
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            opened = max(opened, *batch.column("n_streams_opened").to_pylist())
            for texts in batch.column("given_back").to_pylist():
                given_back += [piece_from_json(text) for text in texts]
            for costs in batch.column("costs").to_pylist():
                for cost in costs:
                    on_shard(costs_from_json(cost))
            errors = [error for error in batch.column("error").to_pylist() if error]
            if errors:
                ray.get(self._coordinator.stop.remote())
                raise RunError(errors[0])
        self._executor.n_streams_opened += opened
        return given_back

    def close(self) -> None:
        """Nothing outlives its pipeline."""


def _shipped(job: Job, families: Sequence[FamilyPlan]) -> dict[str, ShippedArtifact]:
    """Return the artifacts that workers cannot see, by family."""
    is_shared = job.config.models.artifacts_path is not None
    shipped = {family.key: ship_if_needed(family, is_shared=is_shared) for family in families}
    return {key: artifact for key, artifact in shipped.items() if artifact is not None}
