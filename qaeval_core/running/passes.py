"""Passes: run what is open of every family; what asks a language model runs beside the models.

Passes over the rows follow each other, for they share CPUs and GPUs. Calls to a language model only
wait, so they are made in a second thread from the start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from qaeval_core.errors import (
    LanguageModelError,
    RunStoppedError,
    TooManyQuarantinedError,
)
from qaeval_core.families.contract import DocumentFrequencies, FamilyPlan
from qaeval_core.families.words.frequencies import read_frequencies
from qaeval_core.planning.job import Job
from qaeval_core.planning.shards import Piece
from qaeval_core.running.document_counts import build_document_frequencies
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.visibility import Sight
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.store import Commit, Store

# Called with what was committed of each shard, in every family of its pass.
OnShard = Callable[[Sequence[Commit]], None]


class PieceExecutor(Protocol):
    """Runs the pieces of one pass: in this process, or on a cluster."""

    n_actors: int
    stop: threading.Event  # set to end the run after what is in hand

    def begin(self, sight: Sight) -> None:
        """Look whether all workers see what they must; BlindNodeError if one does not."""

    def close(self) -> None:
        """End what it began, whether or not the run did."""

    def ranges(self, *, interval_s: float) -> AbstractContextManager[RangeExecutor]:
        """Return who works on ranges of rows, for a while, and prints how far it is."""

    def make_pass(
        self,
        job: Job,
        families: Sequence[FamilyPlan],
        pieces: Sequence[Piece],
        on_shard: OnShard,
    ) -> Callable[[], None]:
        """Return what commits every shard of every piece; RunStoppedError when asked to stop.

        Called in the main thread; what it returns may be called in another.
        """


@dataclass(slots=True)
class RunCosts:
    """What a run did.

    Attributes
    ----------
    this_run : dict of family key to PassStats
    wall_s : dict of family key to float
        Families of one pass share its time; ``total`` for all.
    stopped : dict of family key to str
        Families that ended before all rows were asked, and why; the others do not depend on them.
    """

    this_run: dict[str, PassStats] = field(default_factory=dict)
    wall_s: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)


def run_passes(job: Job, executor: PieceExecutor, *, say: Callable[[str], None]) -> RunCosts:
    """Run what is open of every family.

    Parameters
    ----------
    say : callable
        Gets one line per fact that a user should know.

    Raises
    ------
    QAEvalError
        What is committed stays.
    """
    done = RunCosts()
    started = time.perf_counter()
    beside = _BackgroundPasses(executor, say)
    for families in job.run.passes:
        if families[0].resources == "calls":
            beside.add(_prepare(job, executor, families, done, say))
    beside.start()
    try:
        for families in job.run.passes:
            if families[0].resources != "calls":
                _prepare(job, executor, families, done, say)()
    except BaseException as error:
        beside.give_up(error)
        raise
    beside.join()
    done.wall_s["total"] = time.perf_counter() - started
    return done


class _BackgroundPasses:
    """The passes that run in a second thread, one after another."""

    def __init__(self, executor: PieceExecutor, say: Callable[[str], None]) -> None:
        self._executor = executor
        self._say = say
        self._todo: list[Callable[[], None]] = []
        # A second Ctrl-C ends the process at once, whatever is under way.
        self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
        self._error: BaseException | None = None

    def add(self, run: Callable[[], None]) -> None:
        self._todo.append(run)

    def start(self) -> None:
        if self._todo:
            self._thread.start()

    def _run(self) -> None:
        try:
            for run in self._todo:
                run()
        except BaseException as error:
            self._error = error  # Raised again in the main thread.
            self._executor.stop.set()  # The models' passes end after the batch in hand.

    def join(self) -> None:
        """Wait for the end; raise what went wrong."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def give_up(self, error: BaseException) -> None:
        """End it because of an error elsewhere; raises its own where that was the first."""
        if self._thread.ident is None:
            return
        self._executor.stop.set()
        if isinstance(error, KeyboardInterrupt):
            return  # Asked a second time: at once.
        self._thread.join()
        if isinstance(self._error, RunStoppedError | None):
            return  # It ended because it was told to.
        if isinstance(error, RunStoppedError):
            raise self._error from None
        self._say(f"beside it: {type(self._error).__name__}: {self._error}")


def _prepare(
    job: Job,
    executor: PieceExecutor,
    families: Sequence[FamilyPlan],
    done: RunCosts,
    say: Callable[[str], None],
) -> Callable[[], None]:
    """Return what runs one pass, and notes what it cost."""
    for family in families:
        if job.config.scoring.retry_quarantined:
            _drop_unscored(job, family, say)
        if family.after:
            with executor.ranges(interval_s=job.config.scoring.progress_s) as ranges:
                build_document_frequencies(job, family, ranges, stop=StopSign(executor.stop))
    pieces = job.pieces(families, n_actors=executor.n_actors)
    opened = _say_open(job, families, pieces, say)
    if not pieces:
        return lambda: None
    done.this_run.update({family.key: PassStats() for family in opened})
    on_shard = _shard_counter(job, opened, done.this_run)
    execute = executor.make_pass(job, opened, pieces, on_shard)

    def run() -> None:
        started = time.perf_counter()
        try:
            execute()
        except LanguageModelError as error:
            (family,) = opened
            done.stopped[family.key] = str(error)
            say(f"{family.title}: {error}")
        passed = time.perf_counter() - started
        done.wall_s.update({family.key: passed for family in opened})

    return run


def _say_open(
    job: Job, families: Sequence[FamilyPlan], pieces: Sequence[Piece], say: Callable[[str], None]
) -> list[FamilyPlan]:
    """Say what is committed and what is left; return the families with open rows."""
    opened = []
    for family in families:
        n_open = sum(piece.n_rows for piece in pieces if family.key in piece.families)
        done = job.n_rows_total - n_open
        if not n_open:
            say(f"{family.title}: all {done:,} rows are done, nothing to compute")
            continue
        opened.append(family)
        if done:
            say(f"{family.title}: {done:,} rows are done, {n_open:,} remain")
    return opened


def _shard_counter(
    job: Job, families: Sequence[FamilyPlan], this_run: Mapping[str, PassStats]
) -> OnShard:
    """Return what counts the costs of shards and stops where too many rows are quarantined."""
    has_limit = job.config.scoring.max_quarantined < 1
    earlier = {family.key: _quarantined(job, family) if has_limit else 0 for family in families}

    def on_shard(commits: Sequence[Commit]) -> None:
        job.commits.note(commits)
        for commit in commits:
            this_run[commit.family].add(commit.stats)
        for key in {commit.family for commit in commits}:
            check_quarantined(job, earlier[key] + this_run[key].n_quarantined)

    return on_shard


def check_quarantined(job: Job, n_quarantined: int) -> None:
    """Raise TooManyQuarantinedError if more rows are quarantined than the run allows."""
    allowed = job.config.scoring.max_quarantined
    if n_quarantined > allowed * job.n_rows_wanted:
        raise TooManyQuarantinedError(
            f"{n_quarantined:,} of {job.n_rows_wanted:,} rows are quarantined, more than "
            f"--max-quarantined {allowed:g}; the commits of {job.store.out} hold the reasons "
            "[QA0511]"
        )


def _quarantined(job: Job, family: FamilyPlan) -> int:
    return job.commits.of(family.key).total(job.n_rows).n_quarantined


def _drop_unscored(job: Job, family: FamilyPlan, say: Callable[[str], None]) -> None:
    """Take back commits with quarantined rows, and with calls that were given up."""
    commits = job.commits.of(family.key)
    unscored = commits.unscored(job.n_rows)
    commits.drop(unscored)
    if unscored:
        invalidate_document_frequencies(job, family.key)
        say(f"{family.key}: {len(unscored)} shards with unscored rows are scored again")


def invalidate_document_frequencies(job: Job, key: str) -> None:
    """Take back what was computed from a corpus whose rows are listed once more."""
    for family in job.run.families:
        if family.after == key:
            job.store.delete(job.store.out / family.frequencies_path)
            done = job.done_ranges(family)
            own = [(file_id, rows) for file_id, ranges in done.items() for rows in ranges]
            job.commits.of(family.key).drop(own)


def load_frequencies(plan: FamilyPlan, store: Store) -> DocumentFrequencies:
    """Return the document frequencies that a family reads: given ones, or those of OUT."""
    path = store.out / plan.frequencies_path if plan.after else plan.frequencies_path
    return read_frequencies(path, words=plan.words, outages=store.outages)
