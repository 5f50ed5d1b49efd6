"""Joining: the tasks that join a run's scores, who works on them, and what they add up to.

A task that a killed run has finished is not done again: its name says which commits went into it,
and its record which files came out.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TypeVar

from qaeval_core.errors import UnreadableFileError
from qaeval_core.planning.columns import carried_types
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.job import Job
from qaeval_core.planning.shards import stretches
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.task_store import TaskStore
from qaeval_core.scoring.join import (
    FOLDER,
    Assembly,
    FilePart,
    JoinPlan,
    JoinTask,
    assemble,
    check_file,
    count_repeats,
    join_task,
)
from qaeval_core.scoring.joined import Joined, from_bytes
from qaeval_core.signature import hash_text
from qaeval_core.store.hash_runs import n_cuts_for
from qaeval_core.store.lock import Tenure
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Store

T = TypeVar("T")

# A task takes some seconds, and records of a thousand tasks are read in some more.
_SHARDS_PER_TASK, _ROWS_PER_SHARD = 16, 1 << 14
_MOST_TASKS = 1024
_IDS_PER_CUT = 1 << 23


def join_scores(
    job: Job,
    executor: RangeExecutor,
    *,
    tenure: Tenure | None,
    stop: StopSign,
) -> tuple[Joined, list[str]]:
    """Write the scores of a run whose commits are there; return what is counted, and notes.

    Parameters
    ----------
    tenure : Tenure or None
        Of OUT; None where nobody holds it.
    stop : StopSign

    Raises
    ------
    QAEvalError
        As `join.join_task` does.
    """
    tasks = join_tasks(job)
    plan = _plan(job, tasks, tenure=tenure, stop=stop)
    there = clear(plan.store, keep=[task.name for task in tasks])
    left = [task for task in tasks if not (task.name in there and _is_done(task, plan))]
    _each(executor, partial(join_task, plan=plan), left, [task.n_rows for task in left], "join")
    joined = Joined(plan.overview())
    for task in tasks:
        joined.add(_record(task, plan))
    cut = list(_assemblies(tasks, plan, joined))
    sizes = [job.n_rows[own.file.file_id] for own in cut]
    _each(executor, partial(assemble, plan=plan), cut, sizes, "put parts of files together")
    n_rows = [job.n_rows[file.file_id] for file in job.files]
    _each(executor, partial(check_file, plan=plan), job.files, n_rows, "check what is written")
    joined.totals.n_duplicate_ids += sum(_repeats(executor, cut, plan))
    return joined, list(_notes(joined, plan))


def clear(store: Store, *, keep: Collection[str] = ()) -> set[str]:
    """Delete what killed runs have left here, but for some tasks; return which of these did."""
    folder = store.out / FOLDER
    store.check_inside(folder / "any")
    if not keep:
        store.change(folder.delete_folder, f"cannot delete {folder}")
        return set()
    listed = store.call(lambda: [own.name for own in folder.list()], f"cannot list {folder}")
    by_task = {name: "-".join(name.partition(".")[0].split("-")[:2]) for name in listed}
    there = set(by_task.values()).intersection(keep)
    for name, task in by_task.items():
        if task not in there:
            store.delete(folder / name)
    return there


def join_tasks(job: Job) -> list[JoinTask]:
    """Return a run's rows as tasks: the same whoever works on them."""
    rows_per_shard = job.config.scoring.rows_per_shard or _ROWS_PER_SHARD
    size = max(_SHARDS_PER_TASK * rows_per_shard, -(-job.n_rows_total // _MOST_TASKS))
    ends = accumulate((job.n_rows[file.file_id] for file in job.files), initial=0)
    with_start = zip(job.files, ends, strict=False)  # The last end begins no file.
    own = [_CommittedFile(job, file, n_before) for file, n_before in with_start]
    fingerprint = job.fingerprint
    return [
        JoinTask(f"{i:06d}-{_digest(fingerprint, group)}", tuple(part for part, _ in group))
        for i, group in enumerate(_groups(own, size))
    ]


_Versioned = tuple[FilePart, Mapping[str, Sequence[str]]]


def _groups(files: Sequence[_CommittedFile], size: int) -> Iterator[list[_Versioned]]:
    """Yield parts that one task joins: small files together, large ones in parts."""
    group: list[_Versioned] = []
    n_rows = 0
    for own in files:
        cuts = own.cuts(size)
        if len(cuts) > 1:
            yield from ([own.part(rows, number)] for number, rows in enumerate(cuts))
            continue
        if group and n_rows + own.n_rows > size:
            yield group
            group, n_rows = [], 0
        group.append(own.part(RowRange(0, own.n_rows), None))
        n_rows += own.n_rows
    if group:
        yield group


def _digest(fingerprint: str, group: Sequence[_Versioned]) -> str:
    told = [
        (
            part.file.file_id,
            part.n_before,
            part.rows,
            part.number,
            {key: [*own] for key, own in versions.items()},
        )
        for part, versions in group
    ]
    return hash_text(json.dumps([fingerprint, told], sort_keys=True))


class _CommittedFile:
    """A file and its commits, by family."""

    def __init__(self, job: Job, file: InputFile, n_before: int) -> None:
        self.file, self.n_rows, self._n_before = file, job.n_rows[file.file_id], n_before
        self._ranges: dict[str, list[RowRange]] = {}
        self._versions: dict[str, list[str]] = {}
        for key in (family.key for family in job.run.families):
            own = job.commits.of(key)
            self._ranges[key] = own.covered(file.file_id, n_rows=self.n_rows)
            self._versions[key] = own.versions(file.file_id, n_rows=self.n_rows)

    def cuts(self, size: int) -> list[RowRange]:
        """Return its rows in parts of so many, cut between row groups."""
        if self.n_rows <= size:
            return []
        return [
            RowRange(own.rows.start, min(own.rows.stop, self.n_rows))
            for own in stretches(self.file.row_groups, rows_per_shard=size)
            if own.rows.start < min(own.rows.stop, self.n_rows)
        ]

    def part(self, rows: RowRange, number: int | None) -> _Versioned:
        """Return a part, with the commits that hold its rows and their versions."""
        ranges: dict[str, tuple[RowRange, ...]] = {}
        versions: dict[str, Sequence[str]] = {}
        for key, own in self._ranges.items():
            first = bisect_right(own, rows.start, key=attrgetter("stop"))
            last = bisect_right(own, max(rows.stop - 1, 0), key=attrgetter("start"))
            ranges[key] = tuple(own[first:last])
            versions[key] = self._versions[key][first:last]
        return FilePart(self.file, rows, ranges, number, self._n_before), versions


def _plan(
    job: Job, tasks: Sequence[JoinTask], *, tenure: Tenure | None, stop: StopSign
) -> JoinPlan:
    cluster, shared = job.cluster
    config, serving = job.config, set(job.columns.values())
    cut = [part.file for task in tasks for part in task.parts if part.number is not None]
    most = max((job.n_rows[file.file_id] for file in cut), default=0)
    return JoinPlan(
        at=TaskStore.of_job(job, stop, tenure=tenure),
        run=job.run,
        id_column=job.columns.get("id"),
        carry=carried_types(job.files, config.output.carry),
        # Those that serve no role are no texts.
        by=tuple(name for name in config.output.carry if name not in serving),
        cluster=cluster,
        clusters=shared,
        with_statistics=config.output.statistics,
        n_id_cuts=n_cuts_for(most, per_cut=_IDS_PER_CUT),
    )


def _is_done(task: JoinTask, plan: JoinPlan) -> bool:
    """Whether a killed run has done a task: its record is there, and all that it names."""
    try:
        files = _record(task, plan).files
    except UnreadableFileError:
        return False
    for name, (n_bytes, _) in files.items():
        found = plan.store.call((plan.out / name).head, f"cannot look at {name}")
        if found is None or found.size != n_bytes:
            return False
    return True


def _record(task: JoinTask, plan: JoinPlan) -> Joined:
    """Return what is counted of a task; UnreadableFileError where that is not there."""
    path = plan.out / task.record
    is_there = plan.store.call(path.is_file, f"cannot look at {path}")
    content = plan.store.call(path.read_bytes, f"cannot read {path}") if is_there else b""
    return from_bytes(content, plan.overview())


def _assemblies(tasks: Sequence[JoinTask], plan: JoinPlan, joined: Joined) -> Iterator[Assembly]:
    """Yield the files that were joined in parts."""
    parts = [(task.name, part) for task in tasks for part in task.parts if part.number is not None]
    for _, group in groupby(parts, key=lambda own: own[1].file.file_id):
        own = tuple(group)
        names = [plan.name_of(part, name, "scores") for name, part in own]
        yield Assembly(own[0][1].file, own, tuple(joined.files[name][1] for name in names))


def _repeats(executor: RangeExecutor, cut: Sequence[Assembly], plan: JoinPlan) -> Iterator[int]:
    """Yield how many ids occur again in files that were joined in parts, a cut of hashes each."""
    if plan.id_column is None:
        return
    work = [(own, number) for own in cut for number in range(plan.n_id_cuts)]
    sizes = [sum(part.rows.n_rows for _, part in own.parts) // plan.n_id_cuts for own, _ in work]
    yield from executor.map(
        partial(count_repeats, plan=plan), work, label="count ids", n_rows=sizes
    )


def _each(
    executor: RangeExecutor,
    work: Callable[[T], None],
    items: Sequence[T],
    n_rows: Sequence[int],
    label: str,
) -> None:
    """Do some work on each item."""
    for _ in executor.map(work, items, label=label, n_rows=n_rows):
        pass


def _notes(joined: Joined, plan: JoinPlan) -> Iterator[str]:
    names = ", ".join([*([plan.id_column] if plan.id_column else []), *plan.carry])
    for name, n_lost in joined.lost.items():
        yield (
            f"{name}: {names} of {n_lost:,} rows cannot be read and are null in the scores: the "
            "file is torn or damaged there"
        )
