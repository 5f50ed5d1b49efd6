"""Local executor: a job on this machine, without Ray; the oracle of the cluster's path."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from qaeval_core.configure import ClusterSection
from qaeval_core.errors import DeviceError
from qaeval_core.families.chat.family import is_chat
from qaeval_core.families.contract import Engine, FamilyPlan
from qaeval_core.families.words.family import WordsFamilyPlan
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.engine import Device
from qaeval_core.models.onnx_runtime import load_onnxruntime
from qaeval_core.planning.job import Job
from qaeval_core.planning.run_plan import pass_title
from qaeval_core.planning.shards import Piece
from qaeval_core.running.passes import OnShard, load_frequencies
from qaeval_core.running.piece_worker import Done, PieceWorker, worker_store
from qaeval_core.running.progress import LabelProgress, ProgressCounter, ProgressPrinter
from qaeval_core.running.range_executor import LocalRangeExecutor, Processes, RangeExecutor
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.visibility import Sight
from qaeval_core.running.word_processes import WordPass, commit_piece, process_count
from qaeval_core.store.row_ranges import RowRange

# So long words are counted here before it is known how long they take; of few rows always.
_TRIED_S = 0.5
_LEAST_ROWS = 8_192
# Nobody counts words of more rows in a second.
_MOST_ROWS_PER_S = 200_000


def local_device(cluster: ClusterSection) -> Device:
    """Return where models run without a cluster: a GPU that the driver and ONNX Runtime know."""
    if cluster.device != "auto":
        return cluster.device
    if shutil.which("nvidia-smi") is None:
        return "cpu"  # Asked before ONNX Runtime, whose import takes longer than lexical metrics.
    try:
        if "CUDAExecutionProvider" not in load_onnxruntime().get_available_providers():
            return "cpu"
    except DeviceError:
        return "cpu"  # None is installed: lexical metrics need none.
    try:
        found = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if found.returncode == 0 and "GPU" in found.stdout else "cpu"


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
        StopSign(self._stop).look()

    @property
    def n_rows(self) -> float:
        """Rows that are done."""
        return self.counter.snapshot().n_rows

    def set_status(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        self.counter.set_status(note)


class LocalPieceExecutor:
    """Runs pieces one after another with all CPUs, or on one GPU; of words, several at a time.

    Parameters
    ----------
    n_threads : int, optional
        Threads of one operator; default all CPUs this process may use.
    stop : threading.Event, optional
        Ends the run after the batch in hand once it is set; default one of its own.
    """

    n_actors = 1

    def __init__(
        self, *, n_threads: int | None = None, stop: threading.Event | None = None
    ) -> None:
        self.stop = stop or threading.Event()
        self._n_threads = n_threads
        self._processes = Processes(n_threads or available_cpus())

    def close(self) -> None:
        """End the processes that it began."""
        self._processes.close()

    def begin(self, sight: Sight) -> None:
        """Nothing to look at: this process found the files and made the folders itself."""

    @contextmanager
    def ranges(self, *, interval_s: float) -> Iterator[RangeExecutor]:
        """Yield who works on ranges of rows: this process, or a few where rows are many."""
        with LabelProgress(interval_s, is_brief=True) as tell:
            n_processes = self._n_threads or available_cpus()
            look = StopSign(self.stop).look
            executor = LocalRangeExecutor(
                tell, n_processes=n_processes, look=look, processes=self._processes
            )
            try:
                yield executor
            finally:
                executor.settle()

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
        n_rows = sum(piece.n_rows for piece in pieces)
        with ProgressPrinter(
            pass_title(families),
            n_rows_total=n_rows,
            interval_s=job.config.scoring.progress_s,
        ) as printer:
            supervisor = LocalSupervisor(self.stop, printer)
            try:
                with closing(self._commits(job, families, pieces, supervisor)) as found:
                    for done in found:
                        on_shard(done)
            finally:
                printer.update(supervisor.counter.snapshot(), is_last=True)

    def _commits(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        supervisor: LocalSupervisor,
    ) -> Generator[Done]:
        """Yield what is committed, here or by processes once words turn out to take so long."""
        store = worker_store(
            job.store.out,
            job.store.mark,
            supervisor,
            retry_s=job.config.scoring.retry_storage_s,
            sample=job.sample,
        )
        with self._worker(replace(job, store=store), families, supervisor) as worker:
            # A function of the user's need not be one that processes can be given.
            if not all(isinstance(family, WordsFamilyPlan) for family in families):
                yield from worker.run(pieces)
                return
            n_rows, began = sum(own.n_rows for own in pieces), None
            n_cpus = min(self._n_threads or available_cpus(), len(pieces))
            n_surely = process_count(n_rows / _MOST_ROWS_PER_S, n_cpus)
            if n_surely > 1:  # They load while the first pieces are counted here.
                self._processes.begin(n_surely)
            for n_tried, piece in enumerate(pieces, 1):
                for done in worker.run([piece]):
                    yield done
                    # The first shard loads what the others use.
                    began = began or (time.perf_counter(), supervisor.n_rows)
                n_left = n_rows - supervisor.n_rows
                if n_left < _LEAST_ROWS:
                    yield from worker.run(pieces[n_tried:])
                    return
                if began is None:
                    continue
                passed, n_timed = time.perf_counter() - began[0], supervisor.n_rows - began[1]
                if passed >= _TRIED_S and n_timed:
                    n_most = min(n_cpus, len(pieces) - n_tried)
                    n_processes = process_count(passed / n_timed * n_left, n_most)
                    if n_processes > 1:
                        break
            else:
                return
        yield from self._run_apart(job, families, pieces[n_tried:], supervisor, n=n_processes)

    def _run_apart(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        supervisor: LocalSupervisor,
        *,
        n: int,
    ) -> Generator[Done]:
        """Yield what processes commit of a pass of words."""
        given = WordPass(
            plans=families,
            models=job.config.models,
            out=job.store.out,
            mark=job.store.mark,
            sample=job.sample,
            retry_s=job.config.scoring.retry_storage_s,
            others=job.commits.with_other_samples([family.key for family in families]),
        )

        def look() -> None:
            supervisor.set_status(self._processes.note)
            supervisor.report(0.0, 0, 0)

        executor = LocalRangeExecutor(
            n_processes=n, look=look, least_rows=0, processes=self._processes
        )
        sizes = [piece.n_rows for piece in pieces]
        work = partial(commit_piece, given=given)
        try:
            results = executor.map(work, pieces, label="words", n_rows=sizes)
            for committed, n_rows in zip(results, sizes, strict=True):
                supervisor.report(n_rows, 0, 0)
                yield from committed
            supervisor.set_status("")
        finally:
            executor.settle()

    @contextmanager
    def _worker(
        self, job: Job, families: Sequence[FamilyPlan], supervisor: LocalSupervisor
    ) -> Iterator[Any]:
        """Yield who runs the pieces of these families."""
        (family, *_) = families
        if is_chat(family):
            # Not at the top: who asks nobody would wait for an HTTP client.
            from qaeval_core.running.local_asking import local_worker

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
