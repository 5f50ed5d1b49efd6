"""Work: the shards of pieces, one after another: read, encode, run, commit.

The next shard is read and tokenised while the device runs this one. A shard that killed its
process twice is split, then its rows are quarantined one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import pyarrow as pa

from qaeval_core.errors import UnreadableFileError
from qaeval_core.scoring.pass_stats import PassStats
from qaeval_core.scoring.plan import Piece, RowRange, cover, open_ranges, split
from qaeval_core.scoring.reader import ShardReader
from qaeval_core.scoring.runner import FamilyRunner, Prepared
from qaeval_core.scoring.store import Store
from qaeval_core.scoring.validate import table_rows

KILLED_WORKER = "killed_worker"
UNREADABLE = "unreadable"
# A shard may have died with its neighbour's process once; a part of a split one may not.
_MAX_DEATHS_OF_SHARD = 2
_MAX_DEATHS_OF_PART = 1
_N_PARTS = 8


class Supervisor(Protocol):
    """Who counts attempts and progress: this process, or an actor of the cluster."""

    def begin(self, family: str, file_id: str, rows: RowRange) -> int:
        """Note that a shard begins; return how often it has begun, this time included."""

    def advance(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> None:
        """Note progress; raises RunStoppedError when the run shall stop."""


class _Job(NamedTuple):
    piece: Piece
    rows: RowRange
    n_begun: int
    prepared: Prepared | None
    max_deaths: int


class PieceWorker:
    """Runs pieces of one family.

    Parameters
    ----------
    runner : FamilyRunner
    store : Store
    supervisor : Supervisor
    """

    def __init__(self, runner: FamilyRunner, store: Store, supervisor: Supervisor) -> None:
        self._runner = runner
        self._store = store
        self._supervisor = supervisor
        self._columns = dict(runner.plan.columns)
        self._reader = ShardReader(list(self._columns.values()))

    @property
    def n_streams_opened(self) -> int:
        """How often a stretch of row groups was opened and decoded from its start."""
        return self._reader.n_streams_opened

    def run(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, RowRange, PassStats]]:
        """Commit every shard; yield each with what it cost."""
        with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
            todo = iter([(piece, rows) for piece in pieces for rows in piece.shards])
            ahead = self._submit(pool, todo)
            while ahead is not None:
                started = time.perf_counter()
                job = ahead.result()
                waited = time.perf_counter() - started
                # Alone if it has died before: a neighbour must not be blamed for its death.
                ahead = self._submit(pool, todo) if job.n_begun == 1 else None
                stats = self._finish(job)
                stats.spend("wait", waited)
                yield job.piece, job.rows, stats
                ahead = ahead if ahead is not None else self._submit(pool, todo)

    def _submit(
        self, pool: ThreadPoolExecutor, todo: Iterator[tuple[Piece, RowRange]]
    ) -> Future[_Job] | None:
        for piece, rows in todo:
            if not self._store.is_committed(piece.family, piece.file_id, rows):
                return pool.submit(self._prepare, piece, rows, _MAX_DEATHS_OF_SHARD)
        return None

    def _prepare(self, piece: Piece, rows: RowRange, max_deaths: int) -> _Job:
        n_begun = self._supervisor.begin(piece.family, piece.file_id, rows)
        if n_begun > max_deaths:
            return _Job(piece, rows, n_begun, None, max_deaths)
        started = time.perf_counter()
        try:
            table = self._reader.read(piece, rows)
        except UnreadableFileError as error:
            return _Job(piece, rows, n_begun, self._all(rows, UNREADABLE, str(error)), max_deaths)
        read_s = time.perf_counter() - started
        prepared = self._runner.prepare(table_rows(table, columns=self._columns))
        prepared.stats.spend("read", read_s)
        return _Job(piece, rows, n_begun, prepared, max_deaths)

    def _finish(self, job: _Job) -> PassStats:
        """Run and commit a shard, or its parts if it has killed its process too often."""
        if job.prepared is None:
            return self._run_parts(job)
        share = job.rows.n_rows
        done = 0.0

        def on_batch(n_tokens: int, n_padded_tokens: int, fraction: float) -> None:
            nonlocal done
            done += fraction * share
            self._supervisor.advance(fraction * share, n_tokens, n_padded_tokens)

        self._runner.run(job.prepared, on_batch)
        started = time.perf_counter()
        table = self._runner.finish(job.prepared, first_position=job.rows.start)
        self._commit(job.piece, job.rows, table, job.prepared.stats)
        job.prepared.stats.spend("commit", time.perf_counter() - started)
        self._supervisor.advance(share - done, 0, 0)
        return job.prepared.stats

    def _commit(self, piece: Piece, rows: RowRange, table: pa.Table, stats: PassStats) -> None:
        self._store.commit(
            piece.family,
            piece.file_id,
            rows,
            table,
            signature=str(self._runner.plan.signature),
            stats=stats,
        )

    def _run_parts(self, job: _Job) -> PassStats:
        piece, rows = job.piece, job.rows
        if rows.n_rows == 1:
            message = f"its worker died {job.n_begun - 1} times while it was scored"
            prepared = self._all(rows, KILLED_WORKER, message)
            return self._finish(job._replace(prepared=prepared))
        done = self._store.committed(piece.family).get(piece.file_id, [])
        total = PassStats()
        size = -(-rows.n_rows // _N_PARTS)
        for part in split(rows, rows_per_shard=size):
            for left in open_ranges(part, cover(done, n_rows=rows.stop)):
                total.add(self._finish(self._prepare(piece, left, _MAX_DEATHS_OF_PART)))
        return total

    def _all(self, rows: RowRange, reason: str, message: str) -> Prepared:
        """Return a shard all of whose rows are quarantined."""
        prepared = self._runner.prepare({role: [] for role in self._columns})
        prepared.n_rows = prepared.stats.n_rows = prepared.stats.n_quarantined = rows.n_rows
        quarantined = dict.fromkeys(range(rows.n_rows), (reason, message))
        prepared.validated.quarantined.update(quarantined)
        return prepared
