"""Pipeline: run a family's pieces on Ray Data, one fused operator over a fixed pool of actors."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError, RayTaskError, UserCodeException

from qaeval.on_ray.actors import (
    Coordinator,
    PieceActor,
    ScorePieces,
    commits_from_json,
    named,
    pieces_dataset,
)
from qaeval.on_ray.address import given_address
from qaeval.on_ray.cluster import ActorLayout, has_room, memory_environment
from qaeval.on_ray.governor import leave_governor, ray_governor
from qaeval.on_ray.news import News
from qaeval.on_ray.nodes import Nodes
from qaeval.on_ray.shipping import open_shipping
from qaeval.on_ray.stream import Stream, StreamOver
from qaeval.on_ray.tasks import RayTasks
from qaeval.on_ray.worker_signs import Attendance
from qaeval_core.errors import LanguageModelError, QAEvalError, RunError
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
from qaeval_core.running.progress import LabelProgress, ProgressPrinter
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.visibility import Sight
from qaeval_core.terminal import duration

_POLL_S = 0.5
_MAX_REASON_CHARS = 300


class PipelineError(RunError):
    """A pipeline does not go on; ``pieces`` are those of which nothing came out."""

    def __init__(self, message: str, pieces: Sequence[Piece]) -> None:
        super().__init__(message)
        self.pieces = list(pieces)


class RayExecutor:
    """Runs pieces on the connected cluster; passes one after another."""

    def __init__(
        self,
        layout: ActorLayout,
        *,
        words: ActorLayout | None = None,
        say: Callable[[str], None] = lambda _: None,
        may_leave_out: bool = True,
    ) -> None:
        self.layout = layout
        self.words_layout = words or layout
        self.n_actors = max(layout.n_actors, self.words_layout.n_actors)
        self.stop = threading.Event()
        self.n_streams_opened = 0
        self._say = say
        self.nodes = Nodes(say, look=self._look, may_leave_out=may_leave_out)

    def begin(self, sight: Sight) -> None:
        """Look from every node; BlindNodeError names those that do not see all, and what."""
        self.nodes.begin(sight)

    def _look(self) -> None:
        StopSign(self.stop).look()

    def close(self) -> None:
        """Nothing to end: passes and ranges end what they began."""

    @contextmanager
    def ranges(self, *, interval_s: float) -> Iterator[RangeExecutor]:
        """Yield who works on ranges of rows: tasks on the nodes that see all."""
        with LabelProgress(interval_s, is_brief=True) as tell:
            tasks = RayTasks(tell, self.nodes, look=self._look)
            try:
                yield tasks
            finally:
                tasks.settle()

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
                news = News(coordinator, printer, self.stop)
                try:
                    self._run_rounds(work, dataset, pieces, news, on_shard)
                finally:
                    work.close()
                    news.show_last()
                    ray.kill(coordinator)
            self._look()

        return run

    def _run_rounds(
        self,
        work: _Pass,
        dataset: ray.data.Dataset,
        pieces: Sequence[Piece],
        news: News,
        on_shard: OnShard,
    ) -> None:
        """Run a pipeline, others for what blind nodes gave back, and one if one does not go on."""
        may_fail = True
        while True:
            try:
                pieces = work.consume(dataset, pieces, news, on_shard)
            except PipelineError as error:
                if not may_fail or self.stop.is_set():
                    raise RunError(
                        f"{error} again; committed work is kept, run the same command again "
                        "[QA0516]"
                    ) from None
                may_fail = False
                self._say(
                    f"{error}; starting the remaining work again ({len(error.pieces):,} pieces)"
                )
                pieces = error.pieces
            if not pieces or self.stop.is_set():
                return
            # Not asked again before the next pass: it may lack one file, which its worker knows.
            self.nodes.leave_out(news.blind())
            news.begin_pipeline()
            dataset = work.dataset(pieces, ray_options=self.nodes.ray_options())


class _Results:
    """What came out of a pipeline so far.

    Parameters
    ----------
    pieces : sequence of Piece
        Of the pipeline, in the order of their numbers.

    Attributes
    ----------
    error : QAEvalError or None
        The first.
    given_back : list of Piece
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._left = dict(enumerate(pieces))
        self.given_back: list[Piece] = []
        self.error: QAEvalError | None = None
        self.accounts: set[str] = set()
        self.n_streams_opened = 0

    @property
    def open(self) -> list[Piece]:
        """Pieces that are not done."""
        return [*self.given_back, *self._left.values()]

    def take(self, row: Mapping[str, Any], on_shard: OnShard) -> list[Piece]:
        """Take what came of some pieces; return those that are done."""
        pieces = [self._left.pop(n) for n in row["numbers"] if n in self._left]
        if row["is_given_back"]:
            self.given_back += pieces
        if row["account"]:
            self.accounts.add(row["account"])
        self.n_streams_opened = max(self.n_streams_opened, row["n_streams_opened"])
        error: QAEvalError | None = None
        try:
            for text in row["commits"]:
                on_shard(commits_from_json(text))
        except QAEvalError as problem:
            error = problem
        if error is None and row["error"]:
            error = (LanguageModelError if row["is_family"] else RunError)(row["error"])
        self.error = self.error or error
        return [] if row["is_given_back"] or error is not None else pieces


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
        self._most_idle_s = job.config.cluster.no_progress_s
        self._constructor = {
            "out": str(job.store.out),
            "coordinator": coordinator,
            "sight": executor.nodes.sight,
            "retry_storage_s": job.config.scoring.retry_storage_s,
            "sample": job.sample,
        }
        self.title = title
        self.environment = memory_environment()  # of workers
        self.accounts: set[str] = set()
        self.run_name = uuid.uuid4().hex

    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces; built in the main thread."""
        own = {"runtime_env": {"env_vars": self.environment}} if self.environment else {}
        return self._make_dataset(pieces, {**ray_options, **own})

    @abstractmethod
    def _make_dataset(
        self, pieces: Sequence[Piece], ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces, with what Ray is told of its workers."""

    def consume(
        self, dataset: ray.data.Dataset, pieces: Sequence[Piece], news: News, on_shard: OnShard
    ) -> list[Piece]:
        """Run a pipeline over pieces to its end; return those that were given back.

        It is left before its end where the run is to stop and no worker is at work any more.

        Raises
        ------
        QAEvalError
            A LanguageModelError if calls cannot go on; what ``on_shard`` raises; a PipelineError
            where nothing goes on, or Ray ends the pipeline; a RunError for any other error of a
            worker.
        """
        results = _Results(pieces)
        stream = Stream(dataset)
        try:
            self._take_results(stream, results, news, on_shard)
        except StreamOver:
            pass
        except (RayTaskError, UserCodeException):
            raise  # Of our own code: its trace is wanted.
        except RayError as error:
            why = str(error).strip().partition("\n")[0][:_MAX_REASON_CHARS]
            what = f"Ray ended the pipeline ({type(error).__name__}: {why})"
            raise PipelineError(what, results.open) from None
        finally:
            self.accounts |= results.accounts
            stream.leave()
        if results.error is not None:
            raise results.error
        self._executor.n_streams_opened += results.n_streams_opened
        return results.given_back

    def _take_results(
        self, stream: Stream, results: _Results, news: News, on_shard: OnShard
    ) -> None:
        """Take results until the run is to stop and nobody is at work; StreamOver at the end."""
        while True:
            rows = stream.next(_POLL_S)
            for row in rows:
                news.forget(results.take(row, on_shard))
            if results.error is not None:
                news.stop_workers()
                if not self.awaits_others:
                    raise results.error
            standing = news.look()
            if standing is None:
                continue
            if news.is_stopping and standing.is_still:
                return
            if not rows and self._is_stalled(standing):
                what = f"no worker made progress for {duration(standing.idle_s)}"
                raise PipelineError(what, results.open)

    def _is_stalled(self, standing: Attendance) -> bool:
        """Whether nothing happens that could: a pipeline may wait for room for hours."""
        is_idle = standing.n_at_work == 0 and standing.idle_s > self._most_idle_s
        return is_idle and (standing.n_started > 0 or self.has_room())

    def has_room(self) -> bool:
        """Whether the cluster has room for a worker."""
        return True

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
        self.environment |= self._layout.environment
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

    def _make_dataset(
        self, pieces: Sequence[Piece], ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline of some pieces."""
        n_actors = min(self._layout.n_actors, len(pieces))
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

    def has_room(self) -> bool:
        """Whether the cluster has room for a worker."""
        return has_room(self._layout)

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
                f"{type(error).__name__}: {error} (the log of the actor has its traceback) [QA0516]"
            ) from None
        finally:
            self.account = self._worker.account


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

    def _make_dataset(
        self, pieces: Sequence[Piece], ray_options: Mapping[str, Any]
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
