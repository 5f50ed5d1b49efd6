"""Join: committed statistics and the input's own columns to scores, some files or a part at a time.

Streams: neither the input nor the statistics of a file are ever in memory as a whole. What is
counted of rows is kept beside what is written of them (`scoring.joined`), so neither is made again
after a kill. The cuts follow from the files alone, so whoever works writes the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import ReconcileError
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.run_plan import CompiledRun, columns_metadata, score_fields
from qaeval_core.running.carried_columns import Copied, CopiedColumns
from qaeval_core.running.piece_worker import UNREADABLE
from qaeval_core.running.reader import check_unchanged
from qaeval_core.running.score_rows import score_rows
from qaeval_core.running.task_store import TaskStore
from qaeval_core.running.word_processes import forget_words
from qaeval_core.schema import (
    NOT_SAMPLED,
    QUARANTINE_MESSAGE,
    QUARANTINE_REASON,
    QUARANTINE_SCHEMA,
)
from qaeval_core.scoring.joined import Joined, to_bytes
from qaeval_core.scoring.summary import Overview
from qaeval_core.storage import checksums
from qaeval_core.storage.checksums import HashedFile, SealedFile, hash_of
from qaeval_core.storage.parquet_parts import join_parts
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.family_stream import FamilyStream
from qaeval_core.store.hash_runs import HashCounts, read_cut, write_run
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Store
from qaeval_core.text.column_hashes import hashes, readable, text_of

# Below OUT: what is joined and not whole yet.
FOLDER = "joined"
# Commits of all families that are read while others are scored.
_N_READERS = 8


@dataclass(frozen=True, slots=True)
class FilePart:
    """Neighboring rows of a file, or all of them.

    Attributes
    ----------
    ranges : mapping of family key to tuple of RowRange
        Committed ranges that hold them, in order. They tile the rows, but for families that ask:
        rows that are missing there have no score, and the reason ``pending``.
    number : int or None
        Of the part; None where it is the file.
    n_before : int
        Rows of the files before its own.
    """

    file: InputFile
    rows: RowRange
    ranges: Mapping[str, tuple[RowRange, ...]]
    number: int | None = None
    n_before: int = 0


@dataclass(frozen=True, slots=True)
class JoinTask:
    """What is joined at once, and the name of what is kept of it."""

    name: str
    parts: tuple[FilePart, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows.n_rows for part in self.parts)

    @property
    def record(self) -> str:
        """Name below OUT of what is counted of it."""
        return f"{FOLDER}/{self.name}.npz"


@dataclass(frozen=True, kw_only=True)
class JoinPlan:
    """What every task needs to know.

    Attributes
    ----------
    id_column : str or None
        None: a row's id is its file and row number.
    carry : mapping of column to type
        Input columns to copy; a file that lacks one has nulls of that type.
    by : tuple of str
        Carried columns whose values may be slices.
    cluster : str or None
        Column of the input that says which rows belong together.
    clusters : str
        What they share, for people.
    with_statistics : bool
        Whether what corpus scores are summed from is written, too.
    n_id_cuts : int
        Ids of the parts of a file are counted in so many tasks.
    """

    at: TaskStore
    run: CompiledRun
    id_column: str | None = None
    carry: Mapping[str, pa.DataType]
    by: tuple[str, ...] = ()
    cluster: str | None = None
    clusters: str = "rows"
    with_statistics: bool = False
    n_id_cuts: int = 1

    @property
    def out(self) -> StoragePath:
        """OUT."""
        return self.at.out

    @cached_property
    def store(self) -> Store:
        """OUT, as a worker sees it."""
        return self.at.open()

    def __getstate__(self) -> dict[str, object]:
        return {name: own for name, own in self.__dict__.items() if name != "store"}

    def overview(self) -> Overview:
        """Return the overview of no rows."""
        return Overview.of_run(self.run, by=self.by, cluster=self.clusters)

    def scores_of(self, file: InputFile) -> StoragePath:
        """Return where the scores of a file lie."""
        relative = PurePosixPath(os.path.normpath(file.relative))
        leads_out = relative.is_absolute() or relative.parts[:1] in ((), ("..",))
        assert not leads_out, f"{file.relative} leads out of OUT"
        return self.out / "scores" / relative

    def name_of(self, part: FilePart, task: str, what: str) -> str:
        """Return the name below OUT of a part's ``scores``, ``quarantine`` or ``ids``."""
        if part.number is not None:
            return f"{FOLDER}/{task}-{what}.parquet"
        return f"{what}/{part.file.relative}"


def join_task(task: JoinTask, plan: JoinPlan) -> None:
    """Write the scores and quarantine records of a task, and then what is counted of it.

    Raises
    ------
    StorageError
        If the disk refuses for as long as it is tried.
    InputChangedError
        If a file is another one than when the run began.
    ReconcileError
        If commits lack what metrics read, or are damaged.
    RunStoppedError, LockLostError
        If the run is to stop, or OUT is another run's.
    """
    forget_words()
    joined = Joined(plan.overview())
    with ThreadPoolExecutor(_N_READERS) as pool:
        try:
            for part in task.parts:
                joined.add(_PartJoin(plan, task.name, part, pool).write())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    plan.store.write(plan.out / task.record, to_bytes(joined))


class _PartJoin:
    """Writes the scores of a part of a file."""

    def __init__(self, plan: JoinPlan, name: str, part: FilePart, pool: ThreadPoolExecutor) -> None:
        self._plan, self._name, self._part, self._pool = plan, name, part, pool
        self._store = plan.store
        self._copied = CopiedColumns(
            plan.store, id_column=plan.id_column, carry=plan.carry, cluster=plan.cluster
        )
        self._metadata = {**columns_metadata(plan.run), checksums.KEY: checksums.PLACEHOLDER}
        # A family that asks may have ended early: its other rows are pending.
        self._schemas = {
            own.key: own.pending_schema for own in plan.run.families if own.pending_schema
        }

    def write(self) -> Joined:
        """Write the part, whole or not at all; return what is counted of it."""
        joined, quarantine, ids = self._store.call(
            self._write, f"cannot write {self._path('scores')}"
        )
        self._write_quarantine(quarantine, joined)
        if self._plan.id_column is not None:
            counted = HashCounts.of(ids)
            if self._part.number is None:
                joined.totals.n_duplicate_ids += counted.n_repeats
            else:
                self._put("ids", write_run(counted, n_cuts=self._plan.n_id_cuts), joined)
        return joined

    def _put(self, what: str, content: bytes, joined: Joined) -> None:
        self._store.write(self._path(what), content)
        joined.files[self._plan.name_of(self._part, self._name, what)] = (len(content), "")

    def _path(self, what: str) -> StoragePath:
        if what == "scores" and self._part.number is None:
            return self._plan.scores_of(self._part.file)
        return self._plan.out / self._plan.name_of(self._part, self._name, what)

    def _write(self) -> tuple[Joined, list[pa.Table], list[NDArray[np.uint64]]]:
        part, path = self._part, self._path("scores")
        joined = Joined(self._plan.overview())
        quarantine: list[pa.Table] = []
        ids: list[NDArray[np.uint64]] = []
        streams = {
            key: FamilyStream(
                self._store,
                key,
                part.file.file_id,
                own,
                schema=self._schemas.get(key),
                start=part.rows.start,
                pool=self._pool,
            )
            for key, own in part.ranges.items()
        }
        self._store.check_inside(path)
        with path.writer() as opened:
            # A part is sealed with its whole file.
            sink = SealedFile(opened) if part.number is None else HashedFile(opened)
            self._write_rows(sink, streams, joined, quarantine=quarantine, ids=ids)
            if isinstance(sink, SealedFile):
                sink.seal()
            digest = "" if isinstance(sink, SealedFile) else sink.hash.hexdigest()
            name = self._plan.name_of(part, self._name, "scores")
            joined.files[name] = (sink.tell(), digest)
            check_unchanged(part.file, outages=self._store.outages)
            self._store.guard()
        return joined, quarantine, ids

    def _write_rows(
        self,
        sink: SealedFile | HashedFile,
        streams: Mapping[str, FamilyStream],
        joined: Joined,
        *,
        quarantine: list[pa.Table],
        ids: list[NDArray[np.uint64]],
    ) -> None:
        part, run, writer = self._part, self._plan.run, None
        with contextlib.ExitStack() as stack:
            for given in self._copied.chunks(part.file, part.rows):
                self._store.outages.look()  # Joining many rows takes minutes, too.
                n_given, first_row = given.table.num_rows, part.rows.start + joined.totals.n_rows
                try:
                    statistics = {key: own.take(n_given) for key, own in streams.items()}
                    scores = score_rows(
                        run,
                        statistics,
                        joined.totals,
                        with_statistics=self._plan.with_statistics,
                        chosen=given.chosen,
                    )
                except (KeyError, pa.ArrowException) as error:
                    raise ReconcileError(
                        f"commits of {part.file.name} lack what its metrics read ({error}); delete "
                        f"{self._plan.out / 'families'} and run again [QA0509]"
                    ) from None
                quarantine.append(_quarantine_rows(given.table, scores, statistics))
                rows = _beside(_readable(given.table), scores)
                rows = rows.replace_schema_metadata(self._metadata)
                if writer is None:
                    writer = stack.enter_context(
                        pq.ParquetWriter(sink, rows.schema, compression="zstd")
                    )
                writer.write_table(rows)
                own = self._count_ids(given, joined, ids)
                joined.overview.count(
                    rows, own, file=part.file.relative, first_row=first_row, n_before=part.n_before
                )
            if writer is None:
                pq.write_table(self._empty(), sink)

    def _count_ids(
        self, given: Copied, joined: Joined, ids: list[NDArray[np.uint64]]
    ) -> NDArray[np.uint64]:
        """Keep the hashes of ids; return those of what rows share, of its id where one does not."""
        own = hashes(given.table.column("id"))
        if not given.is_lost:
            ids.append(own)
        elif self._copied.names:
            joined.lost[self._part.file.name] += given.table.num_rows
        if given.clusters is not None:
            shared, is_shared = given.clusters
            own = np.where(is_shared, shared, own)
        return own

    def _empty(self) -> pa.Table:
        given = self._copied.missing(self._part.file, RowRange(0, 0))
        fields = [
            *given.schema,
            *score_fields(self._plan.run, with_statistics=self._plan.with_statistics),
            pa.field(QUARANTINE_REASON, pa.string()),
        ]
        return pa.schema(fields, metadata=self._metadata).empty_table()

    def _write_quarantine(self, parts: Sequence[pa.Table], joined: Joined) -> None:
        rows = pa.concat_tables(parts) if parts else QUARANTINE_SCHEMA.empty_table()
        if rows.num_rows == 0:
            self._store.delete(self._path("quarantine"))
            return
        buffer = io.BytesIO()
        pq.write_table(rows, buffer)
        self._put("quarantine", buffer.getvalue(), joined)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A file of many rows, to be put together.

    Attributes
    ----------
    parts : tuple of (str, FilePart)
        In order, each with the name of the task that wrote it.
    digests : tuple of str
        The SHA-256 of the scores of each.
    """

    file: InputFile
    parts: tuple[tuple[str, FilePart], ...]
    digests: tuple[str, ...]

    def paths(self, what: str, plan: JoinPlan) -> list[StoragePath]:
        """Return where something of its parts lies."""
        return [plan.out / plan.name_of(part, name, what) for name, part in self.parts]


def assemble(own: Assembly, plan: JoinPlan) -> None:
    """Put the parts of a file's scores and quarantine records together.

    Raises
    ------
    ReconcileError
        If a bit of a part has turned.
    """
    store, target = plan.store, plan.out / "quarantine" / own.file.relative
    paths = own.paths("quarantine", plan)
    there = [path for path in paths if store.call(path.is_file, f"cannot look at {path}")]
    if there:
        _put_together(there, target, store, is_sealed=False)
    else:
        store.delete(target)
    parts = own.paths("scores", plan)
    for path, digest in zip(parts, own.digests, strict=True):
        if store.call(partial(hash_of, path), f"cannot read {path}") != digest:
            raise ReconcileError(f"{path} is damaged; delete it and run again [QA0510]")
    _put_together(parts, plan.scores_of(own.file), store, is_sealed=True)


def _put_together(
    parts: Sequence[StoragePath], target: StoragePath, store: Store, *, is_sealed: bool
) -> None:
    store.check_inside(target)

    def write() -> None:
        with target.writer() as opened:
            if is_sealed:
                sink = SealedFile(opened)
                join_parts(parts, sink)
                sink.seal()
            else:
                join_parts(parts, opened)
            store.guard()

    store.call(write, f"cannot write {target}")


def count_repeats(work: tuple[Assembly, int], plan: JoinPlan) -> int:
    """Return how many ids of a file, of those in one cut of all hashes, occur again."""
    own, cut = work
    paths = own.paths("ids", plan)
    return plan.store.call(lambda: read_cut(paths, cut), f"cannot read {paths[0]}").n_repeats


def check_file(file: InputFile, plan: JoinPlan) -> None:
    """Raise ReconcileError if a bit of a file's scores has turned since it was written."""
    plan.store.check_scores(plan.scores_of(file))


def _readable(given: pa.Table) -> pa.Table:
    columns = {name: readable(given.column(name)) for name in given.column_names}
    return pa.table(columns)


def _beside(left: pa.Table, right: pa.Table) -> pa.Table:
    for name in right.column_names:
        left = left.append_column(name, right.column(name))
    return left


def _quarantine_rows(
    given: pa.Table, scores: pa.Table, statistics: Mapping[str, pa.Table]
) -> pa.Table:
    """Return the quarantine records of some rows, messages and stages from their families."""
    why = scores.column(QUARANTINE_REASON)
    rows = np.flatnonzero(pc.not_equal(why, NOT_SAMPLED).fill_null(False))
    positions = next(iter(statistics.values())).column("position")
    messages = {key: table.column(QUARANTINE_MESSAGE) for key, table in statistics.items()}
    records = []
    for i in rows.tolist():
        reason = why[i].as_py()
        told = ((key, column[i].as_py()) for key, column in messages.items())
        key, message = next((key, text) for key, text in told if text is not None)
        kinds = (UNREADABLE, "killed_worker")
        records.append(
            {
                "id": text_of(given.column("id")[i]),
                "position": positions[i].as_py(),
                "reason": reason,
                "message": message,
                "stage": key if reason in kinds else "validate",
            }
        )
    return pa.Table.from_pylist(records, schema=QUARANTINE_SCHEMA)
