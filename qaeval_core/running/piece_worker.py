"""Work: the shards of pieces, one after another: read, encode, run, commit.

The next shard is read and tokenized while the device runs this one. A shard that killed its
process twice is split, then its rows are quarantined one by one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import RowFailedError, UnreadableFileError
from qaeval_core.families.contract import Prepared, Runner, statistics_table
from qaeval_core.families.words.rows import Tokenizers, WordTables
from qaeval_core.planning.sample import chosen_values, sampled_rows
from qaeval_core.planning.shards import Piece
from qaeval_core.running.reader import ShardReader
from qaeval_core.running.reuse_samples import OtherSamples, left_to_do, taken_over
from qaeval_core.schema import UNREADABLE_LINE
from qaeval_core.storage.path import AnyPath
from qaeval_core.storage.retry import STORAGE_SETTING, Outages
from qaeval_core.store.leftovers import remove_leftovers_of
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.row_ranges import RowRange, cover, open_ranges, split
from qaeval_core.store.sample import Sample
from qaeval_core.store.store import Commit, Mark, Store

KILLED_WORKER = "killed_worker"
UNREADABLE = "unreadable"
# A shard may have died with its neighbor's process once; a part of a split one may not.
_MAX_DEATHS_OF_SHARD = 2
_MAX_DEATHS_OF_PART = 1
_N_PARTS = 8


class Supervisor(Protocol):
    """Who counts attempts and progress: this process, or an actor of the cluster."""

    def start_attempt(self, family: str, file_id: str, rows: RowRange) -> int:
        """Note that a shard is begun; return its attempts, this time included."""

    def report(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> None:
        """Note progress; raises RunStoppedError when the run shall stop."""

    def set_status(self, note: str) -> None:
        """Take what a line of progress shall end with."""


# What was committed of a shard: in every family of its pass, in parts where it was split.
Done = list[Commit]


def worker_store(
    out: AnyPath,
    mark: Mark | None,
    supervisor: Supervisor,
    *,
    retry_s: float,
    sample: Sample | None = None,
) -> Store:
    """Return a worker's store: what it waits for is in the line of progress."""
    outages = Outages(
        retry_s=retry_s,
        tell=supervisor.set_status,
        look=lambda: supervisor.report(0.0, 0, 0),
        setting=STORAGE_SETTING,
    )
    return Store(out, mark=mark, outages=outages, sample=sample)


def open_reader(columns: Mapping[str, str], store: Store) -> ShardReader:
    """Return a reader of the columns of some roles, and of contexts where they are sampled."""
    sampled = [store.sample.column] if store.sample is not None else []
    return ShardReader([*columns.values(), *sampled, UNREADABLE_LINE], outages=store.outages)


class _Job(NamedTuple):
    piece: Piece
    rows: RowRange
    n_attempts: int
    prepared: dict[str, Prepared[Any]] | None  # by family
    read_s: float = 0.0
    left: RowRange = RowRange(0, 0)  # of the shard, if it is larger than what is read at once
    known: Mapping[str, pa.Table | None] = MappingProxyType({})  # of other samples, by family
    sampled: NDArray[np.bool_] | None = None


def _cut(rows: RowRange, n_rows: int) -> tuple[RowRange, RowRange]:
    """Return the first rows of a range, and the others."""
    middle = rows.start + n_rows
    return RowRange(rows.start, middle), RowRange(middle, rows.stop)


class PieceWorker:
    """Runs pieces of one pass: of one model family, or of several statistics of words.

    Parameters
    ----------
    runners : mapping of family key to Runner
    store : Store
    supervisor : Supervisor
    others : collection of str
        Keys of families that have commits of other samples.
    """

    def __init__(
        self,
        runners: Mapping[str, Runner],
        store: Store,
        supervisor: Supervisor,
        *,
        others: Collection[str] = (),
    ) -> None:
        self._runners = dict(runners)
        self._store = store
        self._supervisor = supervisor
        self._columns: dict[str, str] = {}
        for runner in self._runners.values():
            self._columns.update(runner.plan.columns)
        self._reader = open_reader(self._columns, store)
        self._others = OtherSamples(store, others)
        self._tokenizers = Tokenizers()

    @property
    def n_streams_opened(self) -> int:
        """How often a stretch of row groups was opened and decoded from its start."""
        return self._reader.n_streams_opened

    def run(self, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Commit every shard; yield each with what it cost."""
        with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
            todo = deque((piece, rows) for piece in pieces for rows in piece.shards)
            ahead = self._submit(pool, todo)
            while ahead is not None:
                started = time.perf_counter()
                job = ahead.result()
                waited = time.perf_counter() - started
                if job.left.n_rows:
                    todo.appendleft((job.piece, job.left))
                # Alone if it has died before: a neighbor must not be blamed for its death.
                ahead = self._submit(pool, todo) if job.n_attempts == 1 else None
                done = self._finish(job)
                if done:
                    done[0].stats.spend("wait", waited)
                    yield done
                ahead = ahead if ahead is not None else self._submit(pool, todo)

    def _submit(
        self, pool: ThreadPoolExecutor, todo: deque[tuple[Piece, RowRange]]
    ) -> Future[_Job] | None:
        if todo:
            return pool.submit(self._prepare, *todo.popleft(), _MAX_DEATHS_OF_SHARD)
        return None

    def _open_families(self, piece: Piece, rows: RowRange, n_attempts: int) -> list[str]:
        """Return the families that a shard is open for: all that were planned, the first time."""
        return [
            family
            for family in piece.families
            if n_attempts == 1 or not self._store.is_committed(family, piece.file_id, rows)
        ]

    def _prepare(self, piece: Piece, rows: RowRange, max_deaths: int) -> _Job:
        self._supervisor.report(0.0, 0, 0)  # A run that is to stop begins no shard.
        n_attempts = self._supervisor.start_attempt(piece.families[0], piece.file_id, rows)
        if n_attempts > 1:
            for family in piece.families:
                remove_leftovers_of(self._store, family, piece.file_id, rows)
        families = self._open_families(piece, rows, n_attempts)
        if not families:
            return _Job(piece, rows, n_attempts, {})
        if n_attempts > max_deaths:
            return _Job(piece, rows, n_attempts, None)
        started = time.perf_counter()
        try:
            table = self._reader.read(piece, rows)
        except UnreadableFileError as error:
            prepared = self._all(families, rows, UNREADABLE, str(error))
            return _Job(piece, rows, n_attempts, prepared)
        rows, left = _cut(rows, table.num_rows)
        if left.n_rows:  # What is read at once may have been committed by who died behind it.
            families = self._open_families(piece, rows, n_attempts)
        known = {family: self._others.known(family, piece.file_id, rows) for family in families}
        sampled = sampled_rows(table, self._store.sample)
        chosen = left_to_do(sampled, known.values())
        values = chosen_values(table, chosen, columns=self._columns, piece=piece)
        read_s = time.perf_counter() - started
        texts = WordTables(self._tokenizers)
        prepared = {
            family: self._runners[family].layout.prepare(
                self._own(family, values), texts, chosen=chosen
            )
            for family in families
        }
        return _Job(piece, rows, n_attempts, prepared, read_s, left, known, sampled)

    def _own(self, family: str, values: Mapping[str, list[object]]) -> dict[str, list[object]]:
        return {role: values[role] for role in self._runners[family].plan.columns}

    def _finish(self, job: _Job) -> Done:
        """Run and commit a shard, or its parts if it has killed its process too often."""
        if job.prepared is None:
            return self._run_parts(job)
        done = [
            self._run_family(job, family, share=job.rows.n_rows / len(job.prepared))
            for family in job.prepared
        ]
        if done:
            done[0].stats.spend("read", job.read_s)
        return done

    def _run_family(self, job: _Job, family: str, *, share: float) -> Commit:
        assert job.prepared is not None
        prepared = job.prepared[family]
        done = 0.0

        def on_batch(n_tokens: int, n_padded_tokens: int, fraction: float) -> None:
            nonlocal done
            done += fraction * share
            self._supervisor.report(fraction * share, n_tokens, n_padded_tokens)

        try:
            self._runners[family].run(prepared, on_batch)
        except RowFailedError as error:
            raise error.at(job.piece.relative, job.rows.start) from error.__cause__
        started = time.perf_counter()
        table = statistics_table(prepared, first_position=job.rows.start)
        known = job.known.get(family)
        if known is not None:
            table = taken_over(table, known, sampled=job.sampled, stats=prepared.stats)
        commit = self._commit(job, family, table, prepared.stats)
        prepared.stats.spend("commit", time.perf_counter() - started)
        self._supervisor.report(share - done, 0, 0)
        return commit

    def _commit(self, job: _Job, family: str, table: pa.Table, stats: PassStats) -> Commit:
        return self._store.commit(
            family,
            job.piece.file_id,
            job.rows,
            table,
            signature=str(self._runners[family].plan.signature),
            stats=stats,
        )

    def _run_parts(self, job: _Job) -> Done:
        piece, rows = job.piece, job.rows
        if rows.n_rows == 1:
            message = f"its worker died {job.n_attempts - 1} times while it was scored"
            families = self._open_families(piece, rows, job.n_attempts)
            prepared = self._all(families, rows, KILLED_WORKER, message)
            return self._finish(job._replace(prepared=prepared))
        # Parts that were committed before the last death, in whatever sizes.
        before = {
            family: cover(
                self._store.committed(family).get(piece.file_id, ()),
                n_rows=rows.stop,
            )
            for family in piece.families
        }
        total: Done = []
        for part in split(rows, rows_per_shard=-(-rows.n_rows // _N_PARTS)):
            for family in piece.families:
                alone = replace(piece, families=(family,))
                todo = deque(open_ranges(part, before[family]))
                while todo:
                    own = self._prepare(alone, todo.popleft(), _MAX_DEATHS_OF_PART)
                    if own.left.n_rows:
                        todo.appendleft(own.left)
                    total += self._finish(own)
        return total

    def _all(
        self, families: Sequence[str], rows: RowRange, reason: str, message: str
    ) -> dict[str, Prepared[Any]]:
        """Return a shard all of whose rows are quarantined."""
        return {
            family: self._runners[family].layout.quarantined(
                n_rows=rows.n_rows, reason=reason, message=message
            )
            for family in families
        }
