"""Actors: the coordinator that counts, and the worker that scores pieces.

Classes live in a module of their own: actor classes of ``__main__`` cannot be found by workers.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import DataContext

from qaeval.on_ray.shipping import Shipping
from qaeval.on_ray.worker_signs import Attendance, PiecesInHand, WorkerSigns
from qaeval_core.configure import ModelsSection
from qaeval_core.errors import (
    LanguageModelError,
    QAEvalError,
    RunStoppedError,
)
from qaeval_core.families.contract import Engine, FamilyPlan
from qaeval_core.models.engine import Device
from qaeval_core.planning.inputs import FileVersion
from qaeval_core.planning.read_as import ReadAs
from qaeval_core.planning.shards import Piece, ReadLimits
from qaeval_core.running.passes import load_frequencies
from qaeval_core.running.piece_worker import Done, PieceWorker, worker_store
from qaeval_core.running.progress import Counts, ProgressCounter
from qaeval_core.running.visibility import Sight, input_problem
from qaeval_core.storage.retry import Outages
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.sample import Sample
from qaeval_core.store.store import Commit

_REPORT_EVERY_S = 1.0
_GIVE_BACK_POLL_S = 0.5
# Deaths of workers while they start, one after another, before a pipeline ends.
_MOST_START_DEATHS = 3


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Coordinator:
    """Counts attempts of shards and progress for the whole cluster; carries the wish to stop."""

    def __init__(self) -> None:
        self._attempts: Counter[tuple[str, str, int, int]] = Counter()
        self._counter = ProgressCounter()
        self._is_stopped = False
        self._blind: dict[str, str] = {}  # node -> what it does not see
        self._signs = WorkerSigns()

    def start_attempt(self, family: str, file_id: str, start: int, stop: int) -> int:
        """Note that a shard is begun; return its attempts."""
        self._signs.heard()
        self._attempts[family, file_id, start, stop] += 1
        return self._attempts[family, file_id, start, stop]

    def forget(self, shards: Sequence[tuple[str, str, int, int]]) -> None:
        """Forget the attempts of shards that are done."""
        for shard in shards:
            self._attempts.pop(shard, None)

    def report(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> bool:
        """Note progress; return whether to stop."""
        self._signs.heard()
        self._counter.add(n_rows, n_tokens, n_padded_tokens)
        return self._is_stopped

    def is_stopped(self) -> bool:
        """Whether the run is to stop."""
        return self._is_stopped

    def set_status(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        self._counter.set_status(note)

    def state(self) -> tuple[Counts, Attendance]:
        """Return the counts of this moment, and how the workers stand."""
        return self._counter.snapshot(), self._signs.standing()

    def stop(self) -> None:
        """Ask every worker to stop after its batch in hand."""
        self._is_stopped = True

    def begin_pipeline(self) -> None:
        """Forget the workers of the pipeline before."""
        self._signs.begin()

    def sign(self, worker: str, n_pieces: int) -> None:
        """Note how many pieces a worker has in hand."""
        self._signs.take(worker, n_pieces)

    def report_blind(self, node: str, problem: str) -> None:
        """Note that a node does not see what it must."""
        self._blind[node] = problem

    def blind(self) -> dict[str, str]:
        """Return what nodes do not see, by node."""
        return self._blind

    def may_give_back(self) -> bool:
        """Whether a blind worker's pieces wait for nobody but it: all others have ended theirs."""
        return self._is_stopped or self._signs.standing().is_still


class RemoteSupervisor:
    """A worker's line to the coordinator; speaks at most once a second, from any thread."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._pending = (0.0, 0, 0)
        self._last = 0.0
        self._answer: Any = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def start_attempt(self, family: str, file_id: str, rows: RowRange) -> int:
        """Note that a shard is begun; return its attempts."""
        ref = self._coordinator.start_attempt.remote(family, file_id, rows.start, rows.stop)
        return int(ray.get(ref))

    def report(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> None:
        """Note progress; raises RunStoppedError when the run shall stop."""
        with self._lock:
            rows, tokens, padded = self._pending
            self._pending = (rows + n_rows, tokens + n_tokens, padded + n_padded_tokens)
            if time.monotonic() - self._last >= _REPORT_EVERY_S:
                self._flush()

    def is_stopped(self) -> bool:
        """Ask whether the run is to stop, unless it is known."""
        if not self._is_stopped:
            self._is_stopped = bool(ray.get(self._coordinator.is_stopped.remote()))
        return self._is_stopped

    def set_status(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        self._coordinator.set_status.remote(note)

    def flush(self) -> None:
        """Send what is pending; the answer is read at the next call, so no batch waits for it."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if self._answer is not None and ray.get(self._answer):
            self._is_stopped = True
            raise RunStoppedError("stopped as asked; run the same command again to resume [QA0005]")
        self._answer = self._coordinator.report.remote(*self._pending)
        self._pending, self._last = (0.0, 0, 0), time.monotonic()


class Lookout:
    """What a worker of a node sees, looked at before its first piece; who is blind gives back.

    A node that joins later may lack a mount. An exception would end the run, and a piece that is
    given back at once would be followed by all others: so a blind worker keeps the few pieces that
    it was handed until nobody else is at work.

    Parameters
    ----------
    sight : Sight
        What must be seen.
    coordinator : actor handle
    outages : Outages
        How long a store that does not answer is tried.
    """

    def __init__(self, sight: Sight, coordinator: Any, outages: Outages) -> None:
        context = ray.get_runtime_context()
        self._node = context.get_node_id()
        self._sight, self._coordinator, self._outages = sight, coordinator, outages
        self._has_looked = False
        self._problem: str | None = None
        self._in_hand = PiecesInHand(coordinator, context.get_actor_id())

    def is_blind(self, piece: Piece) -> bool:
        """Whether this worker sees what the run needs, and the input of its first piece.

        Raises
        ------
        StorageError
            If a store has not answered for as long as it is tried.
        """
        if not self._has_looked:
            self._problem = self._sight.problem(self._outages) or input_problem(piece.uri)
            if self._problem is not None:
                ray.get(self._coordinator.report_blind.remote(self._node, self._problem))
            self._has_looked = True
        return self._problem is not None

    def wait_to_give_back(self) -> None:
        """Return when pieces that are given back hold nobody up, nor draw others."""
        while not ray.get(self._coordinator.may_give_back.remote()):
            time.sleep(_GIVE_BACK_POLL_S)

    def at_work(self) -> AbstractContextManager[None]:
        """Return a context in which this worker has a piece in hand."""
        return self._in_hand.one_more()


class PieceActor(ABC):
    """Takes the pieces of one pass through the road.

    Returns counts alone: statistics go to the store, shard by shard.
    """

    account: str | None = None  # of calls
    n_streams_opened = 0  # of files

    def __init__(
        self,
        *,
        out: str,
        coordinator: Any,
        sight: Sight,
        retry_storage_s: float,
        sample: Sample | None,
    ) -> None:
        self._supervisor = RemoteSupervisor(coordinator)
        self._store = worker_store(
            out, sight.mark, self._supervisor, retry_s=retry_storage_s, sample=sample
        )
        self._lookout = Lookout(sight, coordinator, self._store.outages)

    @abstractmethod
    def run(self, pieces: Sequence[Piece]) -> Iterable[Done]:
        """Commit pieces; yield what was committed of each shard."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Take the pieces of a batch; return what was committed of each shard, or an error."""
        numbers = batch.column("number").to_pylist()
        pieces = [piece_from_json(text) for text in batch.column("piece").to_pylist()]
        commits: list[str] = []
        error, is_family = "", False
        try:
            if self._supervisor.is_stopped():  # Whatever is left is not even opened.
                return self._result(numbers)
            if self._lookout.is_blind(pieces[0]):
                self._lookout.wait_to_give_back()
                return self._result(numbers, is_given_back=True)
            with self._lookout.at_work():
                for done in self.run(pieces):
                    commits.append(json.dumps([asdict(commit) for commit in done]))
            self._supervisor.flush()
        except RunStoppedError:
            pass  # The driver asked for it and says so itself.
        except QAEvalError as problem:
            # As a row: an exception would come back wrapped in the cluster's own trace.
            error, is_family = str(problem), isinstance(problem, LanguageModelError)
        return self._result(numbers, commits, error=error, is_family=is_family)

    def _result(
        self,
        numbers: Sequence[int],
        commits: Sequence[str] = (),
        *,
        error: str = "",
        is_family: bool = False,
        is_given_back: bool = False,
    ) -> pa.Table:
        return pa.table(
            {
                "numbers": pa.array([numbers], pa.list_(pa.int64())),
                "commits": pa.array([commits], pa.list_(pa.string())),
                "error": pa.array([error]),
                "is_family": pa.array([is_family]),
                "account": pa.array([self.account], pa.string()),
                "n_streams_opened": pa.array([self.n_streams_opened]),
                "is_given_back": pa.array([is_given_back]),
            }
        )


def named(worker: type[PieceActor], title: str) -> type[PieceActor]:
    """Return a class of workers under a name that says, in Ray's lists, what they work on.

    Examples
    --------
    >>> named(ScorePieces, "sas").__name__
    'qaeval ScorePieces sas'
    """
    return type(f"qaeval {worker.__name__} {title}", (worker,), {})


class ScorePieces(PieceActor):
    """Scores pieces of one pass; sessions stay warm between pieces."""

    def __init__(
        self,
        *,
        plans: Sequence[FamilyPlan],
        device: Device,
        n_threads: int | None,
        models: ModelsSection,
        shipping: Shipping | None,
        others: Collection[str],
        out: str,
        **common: Any,
    ) -> None:
        super().__init__(out=out, **common)
        self._plans, self._shipping, self._others = plans, shipping, others
        self._engine = Engine(
            models=models,
            device=device,
            n_threads=n_threads,
            load_frequencies=partial(load_frequencies, store=self._store),
        )
        self._worker: PieceWorker | None = None

    def run(self, pieces: Sequence[Piece]) -> Iterator[Done]:
        """Score pieces."""
        worker = self._open()
        try:
            yield from worker.run(pieces)
        finally:
            self.n_streams_opened = worker.n_streams_opened

    def _open(self) -> PieceWorker:
        """Load the models, once it is known that this node sees all that it must."""
        if self._worker is None:
            runners = {}
            for plan in self._plans:
                if self._shipping is not None:
                    plan = plan.with_artifact(self._shipping.find)  # noqa: PLW2901
                runners[plan.key] = plan.open_runner(self._engine)
            self._worker = PieceWorker(runners, self._store, self._supervisor, others=self._others)
        return self._worker


def pieces_dataset(pieces: Sequence[Piece]) -> ray.data.Dataset:
    """Return a dataset of one block a piece, and its number among them."""
    context = DataContext.get_current()
    context.target_max_block_size = None  # A block is never split.
    # Its default ends a family that waits for a GPU after half an hour.
    context.execution_no_progress_timeout_s = -1
    context.max_consecutive_actor_init_deaths = _MOST_START_DEATHS
    context.enable_progress_bars = False
    # Ours are lines of rows/s, and an error is raised as well: the log had a traceback of it.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    items = [{"number": i, "piece": piece_to_json(piece)} for i, piece in enumerate(pieces)]
    return ray.data.from_items(items, override_num_blocks=len(items))


def piece_to_json(piece: Piece) -> str:
    """Return a piece as text."""
    return json.dumps(asdict(piece))


def piece_from_json(text: str) -> Piece:
    """Return the piece that `piece_to_json` wrote."""
    content = json.loads(text)
    content["families"] = tuple(content["families"])
    content["version"] = FileVersion(**content["version"])
    content["limits"] = ReadLimits(*content["limits"])
    read_as = content["read_as"]
    keys = tuple((name, value) for name, value in read_as["keys"])
    content["read_as"] = ReadAs(**{**read_as, "keys": keys})
    content["shards"] = tuple(RowRange(*rows) for rows in content["shards"])
    return Piece(**content)


def commits_from_json(text: str) -> list[Commit]:
    """Return what was committed of a shard."""
    return [
        Commit(**{**own, "rows": RowRange(*own["rows"]), "stats": PassStats(**own["stats"])})
        for own in json.loads(text)
    ]
