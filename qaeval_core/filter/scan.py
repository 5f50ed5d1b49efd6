"""Scan: the first pass: the facts of each row, and what later steps look up, put aside.

One range of rows in, some arrays out; ids and questions go to scratch files, for they are too large
for one machine's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.filter import texts
from qaeval_core.filter.corpus_rows import bucket_of
from qaeval_core.filter.facts import KEPT, Facts, Stages, row_facts
from qaeval_core.filter.near import near_duplicates
from qaeval_core.filter.order import have_equals, rank_keys
from qaeval_core.filter.values import ValueCodes
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.range_reader import RangeReader, check_intact

# Rows whose questions are compared in one task, on average.
_ROWS_PER_BUCKET = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """What every range of a scan needs to know.

    Attributes
    ----------
    work : str
        Folder for scratch files: a path, or the URI of one in a bucket.
    n_buckets : int
        Into how many parts questions are sorted by group, for near-duplicates.
    wanted_ids : tuple of str
        Rows of these ids are reported: they have labels.
    features : tuple of str
        Columns of theirs that are reported.
    """

    stages: Stages
    score_names: tuple[str, ...]
    id_column: str | None
    work: str = ""
    n_buckets: int = 1
    wanted_ids: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    retry_s: float = 0.0

    @property
    def outages(self) -> Outages:
        """How long stores are tried."""
        return Outages(retry_s=self.retry_s)


@dataclass(slots=True)
class Scanned:
    """The facts of a range, and its rows of wanted ids: numbers over the corpus, and ids."""

    facts: Facts
    wanted_rows: NDArray[np.int64]
    wanted: list[str]


def n_buckets(n_rows: int) -> int:
    """Return into how many parts the questions of a corpus are sorted."""
    return max(-(-n_rows // _ROWS_PER_BUCKET), 1)


def scan_range(task: RangeTask, plan: ScanPlan) -> Scanned:
    """Return what is known of the rows of a range.

    Raises
    ------
    ReconcileError
        If a bit of the scores has turned since they were written.
    InputChangedError, StorageError, UnreadableFileError
        If rows cannot be read.
    """
    if task.is_first and task.file.scores is not None:
        check_intact(as_path(task.file.scores.uri), plan.outages)
    stages = plan.stages
    parts: list[Facts] = []
    ids: list[pa.ChunkedArray] = []
    reader = _reader(task, plan)
    wanted = pa.array(plan.wanted_ids, pa.string())
    rows_found: list[NDArray[np.int64]] = []
    found: list[str] = []
    for rows, table, own_ids in reader:
        first_row = task.file.start + rows.start
        parts.append(row_facts(table, own_ids, stages, first_row=first_row))
        if stages.group is not None:
            ids.append(own_ids)
        if plan.wanted_ids:
            is_wanted = np.asarray(pc.is_in(own_ids, value_set=wanted))
            rows_found.append(first_row + np.flatnonzero(is_wanted))
            found += own_ids.filter(pa.array(is_wanted)).to_pylist()
    reader.close()
    facts = _joined(parts, stages)
    if facts.tie is None and facts.group is not None:
        facts.tie = _tied_hashes(facts, facts.group, ids, stages)
    if stages.duplicates.kind != "none":
        _put_ids_aside(task, plan, ids)
    if stages.duplicates.kind == "rouge_l":
        _put_questions_aside(task, plan, facts)
    return Scanned(
        replace(facts, tokens=None),
        np.concatenate([np.zeros(0, np.int64), *rows_found]),
        found,
    )


def _reader(task: RangeTask, plan: ScanPlan) -> RangeReader:
    stages = plan.stages
    return RangeReader(
        task,
        names=[*stages.columns, *([QUARANTINE_REASON] if task.file.scores is not None else [])],
        score_names=plan.score_names,
        shared=stages.group or next(iter(stages.counted), None),
        id_column=plan.id_column,
        has_ids=stages.has_ties or stages.group is not None or bool(plan.wanted_ids),
        outages=plan.outages,
    )


def _tied_hashes(
    facts: Facts, group: NDArray[np.uint64], ids: Sequence[pa.ChunkedArray], stages: Stages
) -> NDArray[np.uint64]:
    """Return hashes of the ids of rows that have an equal in their group, and 0 of the others."""
    tied = have_equals(group, rank_keys(facts.rank)) & (facts.reason == KEPT)
    chunks = [chunk.cast(pa.large_string()) for column in ids for chunk in column.chunks]
    found = np.zeros(len(tied), np.uint64)
    wanted = pa.chunked_array(chunks, pa.large_string()).filter(pa.array(tied))
    found[tied] = texts.tie_hashes(wanted, stages.seed)
    return found


def hash_ids(task: RangeTask, plan: ScanPlan) -> NDArray[np.uint64]:
    """Return the hashes that break ties, of the ids of a range.

    Raises
    ------
    InputChangedError, StorageError, UnreadableFileError
        If rows cannot be read.
    """
    reader = RangeReader(
        task,
        names=(),
        score_names=plan.score_names,
        id_column=plan.id_column,
        outages=plan.outages,
    )
    parts = [texts.tie_hashes(ids, plan.stages.seed) for _, _, ids in reader]
    reader.close()
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _joined(parts: Sequence[Facts], stages: Stages) -> Facts:
    """Return the facts of neighboring parts as one; of none, if there are no rows."""

    def whole(name: str, kind: type) -> Any:
        return np.concatenate([np.zeros(0, kind), *(getattr(part, name) for part in parts)])

    joined = Facts(whole("reason", np.uint8), whole("rank", np.float64))
    if stages.has_ties:
        joined.tie = whole("tie", np.uint64)
    if stages.group is not None:
        joined.group = whole("group", np.uint64)
    if stages.duplicates.kind != "none":
        joined.question = whole("question", np.uint64)
    if stages.duplicates.kind == "rouge_l":
        tokens = [part.tokens for part in parts if part.tokens is not None]
        joined.tokens = pl.concat(tokens) if tokens else pl.Series([], dtype=pl.String)
    for name in stages.counted:
        joined.values[name] = ValueCodes.joined([part.values[name] for part in parts])
    return joined


class IdsAside:
    """The ids of ranges, read again where the first pass put them.

    Parameters
    ----------
    plan : ScanPlan or WritePlan
        Names the folder for work, and how long its store is tried.
    """

    # Twins lie in the same range, or in one beside it: of an object each look is a transfer.
    _N_HELD = 4

    def __init__(self, plan: Aside) -> None:
        self._plan = plan
        self._held: dict[int, pa.Array] = {}

    def of(self, number: int) -> pa.Array:
        """Return the ids of a range."""
        if number not in self._held:
            while len(self._held) >= self._N_HELD:
                del self._held[next(iter(self._held))]
            path = _ids_path(self._plan.work, number)
            self._held[number] = _read_batch(path, 0, self._plan).column(0)
        return self._held[number]


class Aside(Protocol):
    """What is known of the folder for work."""

    @property
    def work(self) -> str:
        """Path or URI."""

    @property
    def outages(self) -> Outages:
        """How long its store is tried."""


def _read_batch(path: StoragePath, number: int, plan: Aside) -> pa.RecordBatch:
    local = path.local
    if local is not None:
        with pa.memory_map(str(local)) as source:
            return pa.ipc.open_file(source).get_batch(number)

    def read() -> pa.RecordBatch:
        return pa.ipc.open_file(path.source()).get_batch(number)

    return plan.outages.call(read, store=plan.work, what=f"cannot read {path}")


def _ids_path(work: str, number: int) -> StoragePath:
    return as_path(work) / "ids" / f"{number}.arrow"


def _questions_path(work: str, number: int) -> StoragePath:
    return as_path(work) / "questions" / f"{number}.arrow"


def _put_ids_aside(task: RangeTask, plan: ScanPlan, ids: Sequence[pa.ChunkedArray]) -> None:
    chunks = [chunk.cast(pa.large_string()) for column in ids for chunk in column.chunks]
    column = pa.chunked_array(chunks, pa.large_string()).combine_chunks()
    _write_batches(_ids_path(plan.work, task.number), [pa.record_batch({"id": column})], plan)


def _put_questions_aside(task: RangeTask, plan: ScanPlan, facts: Facts) -> None:
    """Write the questions that are left, a batch a bucket of groups."""
    assert facts.tokens is not None
    left = np.flatnonzero((facts.reason == KEPT) & facts.tokens.is_not_null().to_numpy())
    group = facts.group if facts.group is not None else np.zeros(len(facts.reason), np.uint64)
    bucket = bucket_of(group[left], plan.n_buckets)
    batches = []
    for number in range(plan.n_buckets):
        own = left[bucket == number]
        batches.append(
            pa.record_batch(
                {
                    "group": group[own],
                    "rank": facts.rank[own],
                    "tie": facts.tie[own] if facts.tie is not None else None,
                    "row": task.start + own.astype(np.int64),
                    "tokens": facts.tokens.gather(own).to_arrow().cast(pa.large_string()),
                }
            )
        )
    _write_batches(_questions_path(plan.work, task.number), batches, plan)


def _write_batches(path: StoragePath, batches: Sequence[pa.RecordBatch], plan: ScanPlan) -> None:
    def write() -> None:
        with (
            path.writer(is_flushed=False) as sink,
            pa.ipc.new_file(sink, batches[0].schema) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)

    plan.outages.call(write, store=plan.work, what=f"cannot write {path}")


def find_near_duplicates(
    bucket: int, plan: ScanPlan, n_tasks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the near-duplicates among the groups of a bucket: rows, and their twins."""
    batches = []
    for number in range(n_tasks):
        batches.append(_read_batch(_questions_path(plan.work, number), bucket, plan))
    table = pa.Table.from_batches(batches)
    own = {name: table[name].to_numpy() for name in ("group", "rank", "tie", "row")}
    return near_duplicates(
        **own,
        tokens=table["tokens"].to_pylist(),
        threshold=plan.stages.duplicates.threshold,
    )
