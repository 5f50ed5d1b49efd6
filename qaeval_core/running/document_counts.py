"""Document counts: the frequencies of a corpus, counted by tasks that each hold a part of them.

What shards list is counted first: a run of hashes for some commits (`store.hash_runs`). Then each
cut of all runs is added up. A killed run leaves both; its successor counts what is not there.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ReconcileError
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.families.words.frequencies import count_grams, table_of_counts
from qaeval_core.planning.job import Job
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.task_store import TaskStore
from qaeval_core.signature import hash_text
from qaeval_core.storage.parquet_parts import join_parts
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.hash_runs import n_cuts_for, read_cut, read_metadata, write_run
from qaeval_core.store.row_ranges import RowRange, tiles

# Commits of so many bytes are counted at once: mostly hashes, 8 bytes each. Of more than so many
# runs, cuts would be read in too many pieces.
_LEAST_BYTES_PER_RUN, _MOST_RUNS = 16 << 20, 1024
_HASHES_PER_CUT = 1 << 24
_N_DOCUMENTS = "qaeval.n_documents"


@dataclass(frozen=True, slots=True)
class GramRun:
    """Commits that are counted at once, and the name of their run."""

    name: str
    shards: tuple[tuple[str, RowRange], ...]

    @property
    def n_rows(self) -> int:
        """Rows of all shards."""
        return sum(rows.n_rows for _, rows in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPlan:
    """What every task needs to know.

    Attributes
    ----------
    listed : str
        Key of the family whose commits list n-grams.
    folder : StoragePath
        Of runs and cuts.
    words : str
        How texts were split.
    min_rows : int
        N-grams of fewer rows are not kept.
    n_cuts : int
    """

    at: TaskStore
    listed: str
    folder: StoragePath
    words: str
    min_rows: int
    n_cuts: int


def build_document_frequencies(
    job: Job, family: FamilyPlan, executor: RangeExecutor, *, stop: StopSign
) -> None:
    """Write the document frequencies that a family waits for, unless they are there.

    Raises
    ------
    ReconcileError
        If the pass that lists n-grams is not complete.
    """
    path = job.store.out / family.frequencies_path
    if job.store.call(path.is_file, f"cannot look at {path}"):
        return
    listed = family.after
    folder = path.with_name(f"{path.stem}.counting")
    job.store.check_inside(folder / "any")
    runs, n_bytes = _runs(job, listed)
    plan = CountPlan(
        at=TaskStore.of_job(job, stop),
        listed=listed,
        folder=folder,
        words=family.words,
        min_rows=family.min_documents,
        n_cuts=n_cuts_for(n_bytes // 8, per_cut=_HASHES_PER_CUT),
    )
    n_rows = [run.n_rows for run in runs]
    title = f"{family.title}: document frequencies"
    counted = executor.map(partial(count_run, plan=plan), runs, label=title, n_rows=n_rows)
    n_documents = sum(counted)
    cuts = [
        HashCut(number, tuple(run.name for run in runs), n_documents)
        for number in range(plan.n_cuts)
    ]
    n_rows = [sum(n_rows) // plan.n_cuts] * plan.n_cuts
    title = f"{family.title}: document frequencies added up"
    parts = list(executor.map(partial(add_up, plan=plan), cuts, label=title, n_rows=n_rows))
    job.store.change(partial(_put_together, parts, path), f"cannot write {path}")
    job.store.change(folder.delete_folder, f"cannot delete {folder}")


def _put_together(parts: Sequence[StoragePath], path: StoragePath) -> None:
    with path.writer() as sink:
        join_parts(parts, sink)


def _runs(job: Job, listed: str) -> tuple[list[GramRun], int]:
    """Return all commits of a family in groups, and their bytes."""
    commits, done = job.commits.of(listed), []
    for file in job.files:
        n_rows = job.n_rows[file.file_id]
        ranges = commits.covered(file.file_id, n_rows=n_rows)
        if not tiles(ranges, n_rows=n_rows):
            raise ReconcileError(
                f"{listed}: rows of {file.name} are missing; run the same command again [QA0509]"
            )
        versions = commits.versions(file.file_id, n_rows=n_rows)
        sizes = commits.sizes(file.file_id, n_rows=n_rows)
        done += [(file.file_id, *own) for own in zip(ranges, versions, sizes, strict=True)]
    groups: list[list[tuple[str, RowRange, str]]] = [[]]
    n_all = sum(size for *_, size in done)
    n_bytes, most = 0, max(_LEAST_BYTES_PER_RUN, -(-n_all // _MOST_RUNS))
    for file_id, rows, version, size in done:
        if groups[-1] and n_bytes + size > most:
            groups.append([])
            n_bytes = 0
        groups[-1].append((file_id, rows, version))
        n_bytes += size
    return [
        GramRun(
            f"{i:06d}-{hash_text('|'.join(version for _, _, version in group))}",
            tuple((file_id, rows) for file_id, rows, _ in group),
        )
        for i, group in enumerate(groups)
    ], n_all


def count_run(run: GramRun, plan: CountPlan) -> int:
    """Write the run of some commits, unless it is there; return how many rows have n-grams."""
    store = plan.at.open()
    path = _run_path(run.name, plan)
    if store.call(path.is_file, f"cannot look at {path}"):
        told = store.call(lambda: read_metadata(path), f"cannot read {path}")
        return int(told[_N_DOCUMENTS])

    def columns() -> Iterator[pa.Array]:
        for file_id, rows in run.shards:
            store.outages.look()
            table = store.read(plan.listed, file_id, rows, columns=["grams"])
            yield table.column("grams").combine_chunks()

    counted, n_documents = count_grams(columns())
    content = write_run(counted, n_cuts=plan.n_cuts, metadata={_N_DOCUMENTS: str(n_documents)})
    store.write(path, content)
    return n_documents


def _run_path(name: str, plan: CountPlan) -> StoragePath:
    """Return where a run lies: of as many cuts as this plan has."""
    return plan.folder / f"{name}-{plan.n_cuts}.parquet"


@dataclass(frozen=True, slots=True)
class HashCut:
    """The hashes of one cut of all runs."""

    number: int
    runs: tuple[str, ...]
    n_documents: int


def add_up(cut: HashCut, plan: CountPlan) -> StoragePath:
    """Write the frequencies of one cut, unless they are there; return where they lie."""
    store = plan.at.open()
    name = hash_text("|".join([*cut.runs, str(plan.min_rows), plan.words]))
    path = plan.folder / f"cut-{cut.number}-of-{plan.n_cuts}-{name}.parquet"
    if store.call(path.is_file, f"cannot look at {path}"):
        return path
    store.outages.look()
    paths = [_run_path(run, plan) for run in cut.runs]
    counted = store.call(lambda: read_cut(paths, cut.number), f"cannot read below {plan.folder}")
    table = table_of_counts(
        counted.of_at_least(plan.min_rows), n_documents=cut.n_documents, words=plan.words
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    store.write(path, buffer.getvalue())
    return path
