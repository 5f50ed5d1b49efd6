"""Output: KEPT's files: kept rows, decisions and yields, each whole or not there."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.filtering import OUTPUTS, Filtering
from qaeval_core.filter.groups import GroupCounts
from qaeval_core.filter.join import FileTask, join_file
from qaeval_core.filter.write import Decisions, WantedRows, WritePlan, WrittenRange, write_range
from qaeval_core.schema import COLUMNS_METADATA
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.tables.corpus import Corpus, RangeTask


class RangeDecisions(Sequence[tuple[RangeTask, Decisions]]):
    """Ranges with their decisions, made when they are asked for: all at once are a copy of all.

    Parameters
    ----------
    tasks : sequence of RangeTask
    rows : CorpusRows
        Decided.
    share : uint8 ndarray
        Of `smallest_shares`.
    groups : GroupCounts, optional
    shown : WantedRows
        Rows of which more is wanted.
    """

    def __init__(
        self,
        tasks: Sequence[RangeTask],
        rows: CorpusRows,
        share: NDArray[np.uint8],
        groups: GroupCounts | None,
        shown: WantedRows,
    ) -> None:
        self._tasks, self._rows, self._share = tasks, rows, share
        self._groups, self._shown = groups, shown

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, i: Any) -> Any:
        task, rows = self._tasks[i], self._rows
        own = slice(task.start, task.start + task.rows.n_rows)
        decisions = Decisions(
            rows.reason[own],
            rows.rank[own],
            self._share[own],
            twin=rows.twin[own] if rows.twin is not None else None,
            group_size=self._groups.size[own] if self._groups is not None else None,
            group_kept=self._groups.kept[own] if self._groups is not None else None,
            shown=self._shown.among(own),
        )
        return task, decisions


def write_plan(run: Filtering, *, rank_range: tuple[float, float], keeps: bool) -> WritePlan:
    """Return what ranges need to know for the second pass."""
    corpus, stages = run.plan.corpus, run.plan.stages
    return WritePlan(
        reasons=stages.reasons,
        score_names=corpus.score_names,
        id_column=corpus.id_column,
        metrics=run.plan.metrics,
        rank_range=rank_range,
        roles=corpus.roles,
        counted=stages.counted,
        starts=tuple(task.start for task in run.tasks),
        work=str(run.work),
        tenure=run.tenure,
        fingerprint=run.fingerprint,
        keeps=keeps,
        higher_is_better=stages.rank.higher_is_better,
        columns_metadata=_columns_metadata(corpus),
        retry_s=run.retry_s,
    )


def write_rows(
    run: Filtering,
    rows: CorpusRows,
    share: NDArray[np.uint8],
    groups: GroupCounts | None,
    shown: WantedRows,
    *,
    keeps: bool,
) -> tuple[list[WrittenRange], dict[str, dict[str, Any]]]:
    """Write kept rows and decisions; return what was summed, and the sizes of files."""
    plan = write_plan(run, rank_range=rows.rank_range(), keeps=keeps)
    pairs = RangeDecisions(run.tasks, rows, share, groups, shown)
    written = list(run.map_ranges(partial(_write_pair, plan=plan), "write", pairs))
    return written, _join(run, plan)


def _write_pair(pair: tuple[RangeTask, Decisions], plan: WritePlan) -> WrittenRange:
    return write_range(*pair, plan)


def _columns_metadata(corpus: Corpus) -> bytes:
    for file in corpus.files:
        metadata = (file.scores or file.source).schema.metadata or {}
        if COLUMNS_METADATA in metadata:
            return bytes(metadata[COLUMNS_METADATA])
    return b""


def _join(run: Filtering, plan: WritePlan) -> dict[str, dict[str, Any]]:
    """Put the parts of each output file together, and delete what is no file of this filter."""
    numbers: dict[str, list[int]] = {}
    for task in run.tasks:
        numbers.setdefault(task.file.relative, []).append(task.number)
    for what in OUTPUTS:
        for name in ("any", *numbers):
            run.store.check_inside(run.folder / what / name)
    written = [what for what in OUTPUTS if what == "decisions" or plan.keeps]
    made = [FileTask(what, name, tuple(own)) for what in written for name, own in numbers.items()]
    n_rows = [sum(run.tasks[i].rows.n_rows for i in own.numbers) for own in made]
    sizes: dict[str, dict[str, Any]] = {name: {"bytes": {}} for name in numbers}
    join = partial(join_file, folder=str(run.folder), plan=plan)
    found = run.executor.map(join, made, label="", n_rows=n_rows)
    for own, (n_bytes, sha256) in zip(made, found, strict=True):
        sizes[own.relative]["bytes"][own.what] = n_bytes
        if sha256:
            sizes[own.relative]["sha256"] = sha256
    for what in OUTPUTS:
        _delete_others(run, what, tuple(numbers) if what in written else ())
    return sizes


def _delete_others(run: Filtering, what: str, names: Sequence[str]) -> None:
    folder = run.folder / what
    own = {folder / name for name in names}
    run.delete([path for path in _files_in(folder) if path not in own])


def _files_in(folder: StoragePath) -> list[StoragePath]:
    local = folder.local
    if local is None:
        return [folder / name for name in sorted(found.name for found in folder.list(is_deep=True))]
    if not local.is_dir() or local.is_symlink():
        return []
    # Links, too, whatever they lead to.
    return [
        as_path(path) for path in sorted(local.rglob("*")) if path.is_file() or path.is_symlink()
    ]


def write_yields(run: Filtering, table: pl.DataFrame) -> None:
    """Write yield.parquet."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    run.write("yield.parquet", buffer.getvalue())
