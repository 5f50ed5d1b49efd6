"""Frequencies: the document frequencies of a run's corpus, from commits to a file in OUT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from qaeval_core.errors import ReconcileError
from qaeval_core.families.plan import FamilyPlan
from qaeval_core.families.words.frequencies import (
    DocumentFrequencies,
    count_documents,
    read_frequencies,
    to_bytes,
)
from qaeval_core.job import Job
from qaeval_core.store.store import tiles


def make_frequencies(job: Job, family: FamilyPlan) -> None:
    """Write the document frequencies that a family waits for, unless they are there.

    Raises
    ------
    ReconcileError
        If the pass that lists n-grams is not complete.
    """
    path = job.store.out / family.frequencies_path
    if not family.after or path.exists():
        return
    counted = next(plan for plan in job.run.families if plan.key == family.after)
    content = count_documents(
        _gram_columns(job, counted.key), words=family.words, min_rows=family.min_documents
    )
    job.store.write(path, to_bytes(content))


def forget_frequencies(job: Job, key: str) -> None:
    """Take back what was computed from a corpus whose rows are listed once more."""
    for family in job.run.families:
        if family.after == key:
            job.store.delete(job.store.out / family.frequencies_path)
            for file_id, ranges in job.done_ranges(family).items():
                for rows in ranges:
                    job.store.drop(family.key, file_id, rows)


def _gram_columns(job: Job, key: str) -> Iterator[pa.Array]:
    family = next(plan for plan in job.run.families if plan.key == key)
    done = job.done_ranges(family)
    for file in job.files:
        ranges = done[file.file_id]
        if not tiles(ranges, n_rows=job.n_rows[file.file_id]):
            raise ReconcileError(f"{key}: rows of {file.relative} are missing; run again")
        for rows in ranges:
            table = job.store.read(key, file.file_id, rows, columns=["grams"])
            yield table.column("grams").combine_chunks()


def load_frequencies(plan: FamilyPlan, out: Path) -> DocumentFrequencies:
    """Return the document frequencies that a family reads: given ones, or those of OUT."""
    path = out / plan.frequencies_path if plan.after else Path(plan.frequencies_path)
    return read_frequencies(path, words=plan.words)
