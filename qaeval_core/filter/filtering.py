"""Filtering: a filter under way: its plan, its folder, who works for it, and its first pass."""

from __future__ import annotations

import contextlib
import os
import secrets
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import RunError, SchemaError
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.decide import decide
from qaeval_core.filter.join import put_in_place
from qaeval_core.filter.labels import LabeledRows, Labels, labeled_rows
from qaeval_core.filter.learn import Learned, learn_rank, look_up
from qaeval_core.filter.plan import FilterPlan
from qaeval_core.filter.quotas import CountedValues
from qaeval_core.filter.row_arrays import local_folder
from qaeval_core.filter.scan import (
    ScanPlan,
    find_near_duplicates,
    hash_ids,
    n_buckets,
    scan_range,
)
from qaeval_core.filter.unfenced import check_declared, declared
from qaeval_core.planning.listing import one_a_folder
from qaeval_core.running.range_executor import RETRY_S, R, RangeExecutor
from qaeval_core.storage import files
from qaeval_core.storage.path import StoragePath
from qaeval_core.storage.retry import Outages
from qaeval_core.store.lock import Tenure
from qaeval_core.store.store import Store
from qaeval_core.tables.corpus import RangeTask

WORK = ".work-"
OUTPUTS = ("kept", "decisions")
COMBINE_NAME = "combine.json"


@dataclass(slots=False)
class Filtering:
    """A filter under way, in a folder that it holds; ``retry_s`` is how long stores are tried.

    Attributes
    ----------
    is_mapped : bool
        Whether what is known of all rows lies on disk, in memory else.
    """

    plan: FilterPlan
    folder: StoragePath
    executor: RangeExecutor
    say: Callable[[str], None]
    tenure: Tenure
    fingerprint: str
    retry_s: float = RETRY_S
    is_mapped: bool = False

    @cached_property
    def work(self) -> StoragePath:
        """Folder for what is not whole yet; workers of a killed run may still write to theirs.

        It lies in KEPT, on a disk or in a bucket: what one worker puts aside another one reads, on
        whatever node.
        """
        return self.folder / f"{WORK}{uuid.uuid4().hex}"

    @cached_property
    def _salt(self) -> int:
        return secrets.randbits(64)

    @cached_property
    def outages(self) -> Outages:
        """How long the driver tries stores."""
        return Outages(retry_s=self.retry_s)

    @cached_property
    def store(self) -> Store:
        """KEPT."""
        return Store(self.folder, outages=self.outages, guard=self.tenure.check)

    @cached_property
    def tasks(self) -> list[RangeTask]:
        """All rows, in ranges."""
        return self.plan.corpus.tasks()

    def map_ranges(
        self, function: Callable[[Any], R], label: str, items: Sequence[Any] | None = None
    ) -> Iterator[R]:
        """Yield what a function returns of each range, in order."""
        n_rows = [task.rows.n_rows for task in self.tasks]
        return self.executor.map(function, items or self.tasks, label=label, n_rows=n_rows)

    def scan_plan(
        self, *, wanted_ids: Sequence[str] = (), features: Sequence[str] = ()
    ) -> ScanPlan:
        """Return what ranges need to know for the first pass."""
        corpus = self.plan.corpus
        return ScanPlan(
            stages=replace(self.plan.stages, salt=self._salt),
            score_names=corpus.score_names,
            id_column=corpus.id_column,
            work=str(self.work),
            n_buckets=n_buckets(corpus.n_rows),
            wanted_ids=tuple(wanted_ids),
            features=tuple(features),
            retry_s=self.retry_s,
        )

    def remove_leftovers(self) -> None:
        """Delete what killed writers left in KEPT, and where they worked, and nothing else.

        A worker of a frozen filter that counted as dead may wake up at any time. On a
        disk it then finds no work to read from, or no temporary file to rename.
        """

        def remove() -> None:
            # Listed before the look: a successor that begins behind it is not among them.
            found = [name for name in self.folder.folders() if name.startswith(WORK)]
            self.tenure.check()
            for name in found:
                path = self.folder / name
                if path.local is not None and path.local.is_symlink():
                    raise RunError(f"{path} is a link; remove it [QA0508]")
                path.delete_folder()
            local = self.folder.local
            if local is None:  # What was not sent whole is no object.
                return
            # After the folders of work: what is begun from now on has nothing to read.
            files.remove_temporaries(local, is_deep=False)
            for name in OUTPUTS:
                files.remove_temporaries(local / name)

        self.store.call(remove, f"cannot write below {self.folder}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file of KEPT, as a worker does: never after a successor has begun."""
        whole, path = self.work / "whole" / name, self.folder / name
        self.store.write(whole, content)
        self.store.check_inside(path)
        put = partial(put_in_place, whole, path, self.tenure, self.fingerprint)
        self.store.call(put, f"cannot write {path}")
        if (local := self.folder.local) is not None:
            self.store.call(lambda: files.flush_folder(local), f"cannot write {path}")

    def delete(self, paths: Sequence[StoragePath]) -> None:
        """Delete files of KEPT: never those of a successor, whenever that begins.

        On a disk they are moved into the folder of work, which is not there any more then.
        """
        for path in paths:
            self.store.check_inside(path)

        def move() -> None:
            for i, path in enumerate(paths):
                self.tenure.check()
                if os.path.lexists(path):
                    files.move(Path(path), Path(self.work) / f"deleted-{i}")

        def delete() -> None:
            there = [path for path in paths if path.is_file()]
            if there:
                with declared("delete", there, self.tenure, self.fingerprint):
                    self.folder.storage.delete([path.key for path in there])

        change = move if self.folder.local is not None else delete
        self.store.call(change, f"cannot delete files of {self.folder}")

    def check_declared(self) -> None:
        """Raise StoreLockedError if a filter that was lost may still change this one's files."""
        if self.folder.local is not None:
            return
        relative = [file.relative for file in self.plan.corpus.files]
        names = {f"{what}/{name}" for what in OUTPUTS for name in relative}
        names |= {COMBINE_NAME} if self.plan.request.learn else set()

        def check() -> None:
            _, lock = self.tenure.path.fetch()
            check_declared(self.folder, self.fingerprint, names, lock=lock, outages=self.outages)

        self.store.call(check, f"cannot list {self.folder}")

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Make an empty folder for work, and take it away at the end."""

        def make() -> None:
            if (local := self.work.local) is not None:
                for name in ("ids", "questions", *OUTPUTS):
                    files.make_folder(local / name)

        self.store.call(make, f"cannot write below {self.folder}")
        given = [
            own for file in self.plan.corpus.files for own in (file.source, file.scores) if own
        ]
        self.executor.begin(self.work, one_a_folder([file.uri for file in given]))
        try:
            yield
        finally:
            # What counts is in its place by now, or an error is on its way. Who still works would
            # make the folder anew.
            self.executor.settle()
            with contextlib.suppress(OSError):
                self.work.delete_folder()


def learn(run: Filtering, labels: Labels) -> Learned:
    """Learn the rank from a third of the labels; the plan ranks by it from then on."""
    plan = run.plan
    work = run.scan_plan(wanted_ids=sorted(labels.is_good), features=plan.request.learn)
    parts = list(run.map_ranges(partial(look_up, plan=work), "labels"))
    learned = learn_rank(plan, pa.concat_tables(parts), labels)
    for line in learned.lines():
        run.say(line)
    run.plan = replace(plan, stages=replace(plan.stages, rank=learned.combined()))
    return learned


def scan(run: Filtering, labels: Labels | None) -> tuple[CorpusRows, LabeledRows | None]:
    """Return the facts of all rows, and the labeled ones.

    Raises
    ------
    SchemaError
        If labels are of no row; or a value is missing and the user wants none to be.
    """
    work = run.scan_plan(wanted_ids=sorted([*labels.is_good, *labels.blank]) if labels else ())
    folder = local_folder(run.work) if run.is_mapped else None
    rows = CorpusRows(run.plan.corpus.n_rows, run.plan.stages, folder=folder)
    found: list[tuple[int, str]] = []
    scanned = run.map_ranges(partial(scan_range, plan=work), "scan")
    for task, own in zip(run.tasks, scanned, strict=True):
        rows.put(task.start, own.facts)
        found += zip(own.wanted_rows.tolist(), own.wanted, strict=True)
    if not run.plan.stages.has_ties:
        rows.find_ties = partial(_find_ties, run, rows)
    if run.plan.request.undefined == "fail":
        _check_undefined(rows, run.tasks)
    if labels is None:
        return rows, None
    return rows, labeled_rows(labels, found, run.plan.request.labels_name)


def _find_ties(run: Filtering, rows: CorpusRows) -> None:
    hashed = run.map_ranges(partial(hash_ids, plan=run.scan_plan()), "ties")
    for task, own in zip(run.tasks, hashed, strict=True):
        rows.tie[task.start : task.start + len(own)] = own


def _check_undefined(rows: CorpusRows, tasks: Sequence[RangeTask]) -> None:
    missing = {name: n for name, n in rows.counts().items() if n and name.startswith("undefined_")}
    if not missing:
        return
    reason, n = max(missing.items(), key=lambda item: item[1])
    row = int(np.argmax(rows.reason == rows.stages.code(reason)))
    task = next(task for task in reversed(tasks) if task.start <= row)
    raise SchemaError(
        f"--undefined fail: {n:,} rows are {reason}; the first is row {row - task.file.start} of "
        f"{task.file.source.name} [QA0708]"
    )


def decide_early(run: Filtering, rows: CorpusRows) -> dict[str, CountedValues]:
    """Run the stages before the last one."""

    def find() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        work = run.scan_plan()
        buckets = list(range(work.n_buckets))
        compare = partial(find_near_duplicates, plan=work, n_tasks=len(run.tasks))
        n_rows = [len(rows) // len(buckets)] * len(buckets)
        return run.executor.map(compare, buckets, label="near-duplicates", n_rows=n_rows)

    return decide(rows, run.plan.request, near_duplicates=find)
