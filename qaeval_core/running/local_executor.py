"""Local: the same job in one process, without Ray; the oracle of the cluster's path."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from qaeval_core.errors import RunStoppedError
from qaeval_core.families.chat.family import is_chat
from qaeval_core.families.contract import Engine, FamilyPlan
from qaeval_core.planning.job import Job
from qaeval_core.planning.run_plan import pass_title
from qaeval_core.planning.shards import Piece, RowRange
from qaeval_core.running.passes import OnShard, load_frequencies
from qaeval_core.running.piece_worker import PieceWorker, worker_store
from qaeval_core.running.progress import ProgressCounter, ProgressPrinter
from qaeval_core.running.visibility import Sight


class LocalSupervisor:
    """Counts attempts and progress in this process.

    Parameters
    ----------
    stop : threading.Event
        Set to end the run after the batch in hand.
    printer : ProgressPrinter
    """

    def __init__(self, stop: threading.Event, printer: ProgressPrinter) -> None:
        self._stop = stop
        self._printer = printer
        self._attempts: Counter[tuple[str, str, RowRange]] = Counter()
        self.counter = ProgressCounter()

    def start_attempt(self, family: str, file_id: str, rows: RowRange) -> int:
        """Note that a shard is begun; return its attempts."""
        self._attempts[family, file_id, rows] += 1
        return self._attempts[family, file_id, rows]

    def report(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> None:
        """Note progress; raises RunStoppedError when the run shall stop."""
        self.counter.add(n_rows, n_tokens, n_padded_tokens)
        self._printer.update(self.counter.snapshot())
        if self._stop.is_set():
            raise RunStoppedError("stopped as asked; run again to go on from here")

    def set_status(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        self.counter.set_status(note)


class LocalExecutor:
    """Runs pieces one after another with all CPUs, or on one GPU.

    Parameters
    ----------
    n_threads : int, optional
        Threads of one operator; default all CPUs this process may use.
    """

    n_actors = 1

    def __init__(self, *, n_threads: int | None = None) -> None:
        self.stop = threading.Event()
        self._n_threads = n_threads

    def begin(self, sight: Sight) -> None:
        """Nothing to look at: this process found the files and made the folders itself."""

    def make_pass(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        on_shard: OnShard,
    ) -> Callable[[], None]:
        """Return what commits every shard of every piece."""
        return partial(self._run, job, families, pieces, on_shard)

    def _run(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        on_shard: OnShard,
    ) -> None:
        printer = ProgressPrinter(
            pass_title(families),
            n_rows_total=sum(piece.n_rows for piece in pieces),
            interval_s=job.config.scoring.progress_s,
        )
        supervisor = LocalSupervisor(self.stop, printer)
        store = worker_store(
            job.store.out,
            job.store.mark,
            supervisor,
            retry_s=job.config.scoring.retry_storage_s,
            sample=job.sample,
        )
        try:
            with self._worker(replace(job, store=store), families, supervisor) as worker:
                for done in worker.run(pieces):
                    on_shard(done)
        finally:
            printer.update(supervisor.counter.snapshot(), is_last=True)

    @contextmanager
    def _worker(
        self, job: Job, families: Sequence[FamilyPlan], supervisor: LocalSupervisor
    ) -> Iterator[Any]:
        """Yield who runs the pieces of these families."""
        (family, *_) = families
        if is_chat(family):
            # Imported here: HTTP takes a tenth of a second that other runs need not pay.
            from qaeval_core.running.local_calls import local_worker

            with local_worker(family, job.store, supervisor) as asked:
                yield asked
            return
        engine = Engine(
            models=job.config.models,
            device=job.device,
            n_threads=self._n_threads,
            load_frequencies=partial(load_frequencies, store=job.store),
        )
        runners = {family.key: family.open_runner(engine) for family in families}
        others = job.commits.with_other_samples(runners)
        yield PieceWorker(runners, job.store, supervisor, others=others)
