"""Pipeline: run a family's pieces on Ray Data, one fused operator over a fixed pool of actors."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.data import ActorPoolStrategy

from qaeval.on_ray.actors import (
    Coordinator,
    PieceActor,
    ScorePieces,
    commits_from_json,
    named,
    piece_from_json,
    pieces_dataset,
)
from qaeval.on_ray.address import given_address
from qaeval.on_ray.cluster import ActorLayout, Nodes
from qaeval.on_ray.governor import leave_governor, ray_governor
from qaeval.on_ray.shipping import open_shipping
from qaeval_core.errors import LanguageModelError, QAEvalError, RunError, RunStoppedError
from qaeval_core.families.chat.family import ChatFamilyPlan, is_chat
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor_client import GovernorClient
from qaeval_core.llm.limits import Limits
from qaeval_core.planning.job import Job
from qaeval_core.planning.run_plan import pass_title
from qaeval_core.planning.shards import Piece
from qaeval_core.running.call_worker import CallWorker
from qaeval_core.running.passes import OnShard
from qaeval_core.running.piece_worker import Done
from qaeval_core.running.progress import ProgressPrinter
from qaeval_core.running.visibility import Sight

_POLL_S = 0.5


class RayExecutor:
    """Runs pieces on the connected cluster; passes one after another."""

    def __init__(
        self,
        layout: ActorLayout,
        *,
        words: ActorLayout | None = None,
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

    def make_pass(
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
        (family, *_) = families
        title = pass_title(families)
        coordinator = Coordinator.options(  # type: ignore[attr-defined]
            name=f"qaeval coordinator of {title} {uuid.uuid4().hex[:8]}"
        ).remote()
        work: _Pass = (
            _CallPass(self, job, family, coordinator)
            if is_chat(family)
            else _ScoringPass(self, job, families, coordinator)
        )
        self.nodes.look_around()
        dataset = work.dataset(pieces, ray_options=self.nodes.ray_options())
        n_rows_total = sum(piece.n_rows for piece in pieces)

        def run() -> None:
            with ProgressPrinter(
                title,
                n_rows_total=n_rows_total,
                interval_s=job.config.scoring.progress_s,
            ) as printer:
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


class _Pass(ABC):
    """A pass of families: pipelines over pieces, and what comes out of them.

    Parameters
    ----------
    executor : RayExecutor
    job : Job
    coordinator : actor handle
    title : str
        Of the families, in Ray's lists of actors.
    """

    awaits_others = False  # whether, after an error, what others have under way is waited for

    def __init__(self, executor: RayExecutor, job: Job, coordinator: Any, title: str) -> None:
        self._executor = executor
        self._coordinator = coordinator
        self._constructor = {
            "out": str(job.store.out),
            "coordinator": coordinator,
            "sight": executor.nodes.sight,
            "retry_storage_s": job.config.scoring.retry_storage_s,
            "sample": job.sample,
        }
        self.title = title
        self.accounts: set[str] = set()
        self.run_name = uuid.uuid4().hex

    @abstractmethod
    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces; built in the main thread."""

    def consume(self, dataset: ray.data.Dataset, on_shard: OnShard) -> list[Piece]:
        """Run a pipeline to its end; return the pieces that were given back.

        Raises
        ------
        QAEvalError
            A LanguageModelError if calls cannot go on; what ``on_shard`` raises; a RunError for
            any other error of a worker.
        """
        first: QAEvalError | None = None
        given_back: list[Piece] = []
        opened = 0
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                opened = max(opened, row["n_streams_opened"])
                self.accounts.update([row["account"]] if row["account"] else [])
                given_back += [piece_from_json(text) for text in row["given_back"]]
                error = _take(row, on_shard)
                if error is not None and first is None:
                    first = error
                    ray.get(self._coordinator.stop.remote())
            if first is not None and not self.awaits_others:
                raise first
        if first is not None:
            raise first
        self._executor.n_streams_opened += opened
        return given_back

    def close(self) -> None:
        """Take leave of the governors of its calls."""
        for account in self.accounts:
            asyncio.run(leave_governor(account, self.run_name))


class _ScoringPass(_Pass):
    """The pass of one model family, or of several statistics of words."""

    def __init__(
        self, executor: RayExecutor, job: Job, families: Sequence[FamilyPlan], coordinator: Any
    ) -> None:
        super().__init__(executor, job, coordinator, pass_title(families))
        is_words = families[0].resources == "words"
        self._layout = executor.words_layout if is_words else executor.layout
        address, _ = given_address(job.config.cluster)
        self._shipping = open_shipping(families, is_cluster=address is not None)
        self._constructor |= {
            "plans": list(families),
            "device": job.device,
            "n_threads": self._layout.n_threads,
            "models": job.config.models,
            "shipping": self._shipping,
            "others": job.commits.with_other_samples(family.key for family in families),
        }

    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces."""
        n_actors = min(self._layout.n_actors, len(pieces))
        environment = self._layout.environment
        if environment:
            ray_options = {**ray_options, "runtime_env": {"env_vars": environment}}
        return pieces_dataset(pieces).map_batches(
            named(ScorePieces, self.title),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=n_actors),
            num_cpus=self._layout.num_cpus,
            num_gpus=self._layout.num_gpus,
            fn_constructor_kwargs=self._constructor,
            **ray_options,
        )

    def close(self) -> None:
        """Let go of what was shipped: who needed it has written it down."""
        super().close()
        if self._shipping is not None:
            ray.kill(self._shipping.source)


log = logging.getLogger(__name__)


class AskPieces(PieceActor):
    """Asks for the pieces of one family; several threads bring one each.

    The key is read here, on the actor's node; only the name of its account goes elsewhere.
    """

    def __init__(self, *, plan: ChatFamilyPlan, n_actors: int, run: str, **common: Any) -> None:
        super().__init__(**common)
        # It logs the address of every call.
        logging.getLogger("httpx").setLevel(logging.WARNING)

        def open_governor(account: str, limits: Limits, budget: Budget) -> GovernorClient:
            folder = plan.settings.ledger_path
            return ray_governor(account, limits=limits, budget=budget, folder=folder, run=run)

        self._worker = CallWorker(
            plan, self._store, self._supervisor, open_governor=open_governor, n_actors=n_actors
        )

    def run(self, pieces: Sequence[Piece]) -> Iterator[Done]:
        """Ask for pieces; the calls of others are paid for and end, whatever goes wrong here."""
        try:
            yield from self._worker.run(pieces)
        except QAEvalError:
            raise
        except Exception as error:
            log.exception("unexpected error")
            raise RunError(
                f"{type(error).__name__}: {error} (its trace is in the log of the actor)"
            ) from None
        finally:
            self.account = self._worker.account

    def told(self, problem: QAEvalError) -> str:
        """Return what the driver is told of an error."""
        return str(problem)


# One actor's pieces that are open at once: the last calls of one leave nobody idle.
_PIECES_AT_ONCE = 3


class _CallPass(_Pass):
    """The pass of one family that asks."""

    awaits_others = True  # Their replies are paid for.

    def __init__(
        self, executor: RayExecutor, job: Job, family: ChatFamilyPlan, coordinator: Any
    ) -> None:
        super().__init__(executor, job, coordinator, pass_title([family]))
        # An actor makes one call at least: more actors than calls would exceed max_concurrent.
        self._most_actors = min(job.config.cluster.llm_actors, family.settings.max_concurrent)
        self._constructor |= {"plan": family, "run": self.run_name}

    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline that asks for some pieces."""
        n_actors = min(self._most_actors, len(pieces))
        # With few pieces the first actor that is up would take them all, into its queue even.
        n_open = min(_PIECES_AT_ONCE, -(-len(pieces) // n_actors))
        return pieces_dataset(pieces).map_batches(
            named(AskPieces, self.title),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                size=n_actors,
                max_concurrent_calls_per_actor=n_open,
                max_tasks_in_flight_per_actor=n_open,
                enable_true_multi_threading=True,
            ),
            # Calls only wait: models keep the CPUs.
            num_cpus=0,
            fn_constructor_kwargs={**self._constructor, "n_actors": n_actors},
            **ray_options,
        )


def _take(row: Mapping[str, Any], on_shard: OnShard) -> QAEvalError | None:
    """Take what was committed of a piece; return what went wrong."""
    try:
        for text in row["commits"]:
            on_shard(commits_from_json(text))
    except QAEvalError as error:
        return error
    if not row["error"]:
        return None
    return LanguageModelError(row["error"]) if row["is_family"] else RunError(row["error"])
