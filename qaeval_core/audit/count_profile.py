"""Count a profile: from the rows of a run, a range of row groups at a time, wherever it is done.

With the cells of a reference each row is read once. Without, or with new columns, the values are
looked at before they are counted; and where there are slices, so are their columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from qaeval_core.audit.audited_columns import RowColumns, score_values
from qaeval_core.audit.source import ROW_ID, Source
from qaeval_core.errors import ConfigError
from qaeval_core.profile.cells import Cells, CellsFinder
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import Slices, choose_values
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.storage.path import as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.range_reader import RangeReader, check_intact

# More values than that are ids, not slices.
_MAX_VALUES = 1 << 20


@dataclass(slots=True)
class Survey:
    """What must be known of rows before they are counted."""

    values: dict[str, Counter[str | None]] = field(default_factory=dict)
    finders: dict[str, CellsFinder] = field(default_factory=dict)

    def merge(self, other: Survey) -> None:
        """Add what is known of other rows."""
        for name, counts in other.values.items():
            self.values.setdefault(name, Counter()).update(counts)
            if len(self.values[name]) > _MAX_VALUES:
                raise ConfigError(
                    f"--by {name}: it has more than {_MAX_VALUES:,} different values [QA0322]"
                )
        for name, finder in other.finders.items():
            if name in self.finders:
                self.finders[name].merge(finder)
            else:
                self.finders[name] = finder


def profile_source(
    source: Source,
    executor: RangeExecutor,
    *,
    reference: RunProfile | None = None,
    retry_s: float = 0.0,
) -> RunProfile:
    """Return the profile of a run; memory grows with slices and columns, not with rows.

    Parameters
    ----------
    source : Source
    executor : RangeExecutor
    reference : RunProfile, optional
        Its cells and slices are used where it has them: only so can the two be compared.
    retry_s : float
        How long stores are tried.

    Raises
    ------
    ReconcileError
        If a bit of the scores has turned since they were written.
    InputChangedError, StorageError, UnreadableFileError
        If rows cannot be read.
    """
    tasks = source.corpus.tasks()
    n_rows = [task.rows.n_rows for task in tasks]
    known = reference.columns if reference is not None else {}
    watch = source.rows.watch
    cells = {name: known[name].cells for name in watch if name in known}
    new = {name: own for name, own in watch.items() if name not in cells}
    survey = Survey()
    if new or source.rows.by:
        looked_at = replace(source, others=(), rows=RowColumns(watch=new, by=source.rows.by))
        look = partial(survey_range, source=looked_at, retry_s=retry_s)
        for own in executor.map(look, tasks, label="values", n_rows=n_rows):
            survey.merge(own)
    for name, said in new.items():
        finder = survey.finders.get(name) or CellsFinder(said.low, said.high)
        cells[name] = _cells(name, finder, source, retry_s=retry_s)
    given = reference.slices.values if reference is not None else {}
    slices = Slices(
        {
            name: choose_values(survey.values.get(name, Counter()), given.get(name, ()))
            for name in source.rows.by
        }
    )
    ordered = {name: cells[name] for name in watch}
    count = partial(count_range, source=source, cells=ordered, slices=slices, retry_s=retry_s)
    whole = empty_profile(source, ordered, slices)
    for counted in executor.map(count, tasks, label="audit", n_rows=n_rows):
        whole.merge(counted)
    return whole


def _cells(name: str, finder: CellsFinder, source: Source, *, retry_s: float) -> Cells:
    if len(finder.undecided):
        # Hardly ever: a value that nearly one row in a hundred has.
        alone = replace(source, others=(), rows=RowColumns(watch={name: source.rows.watch[name]}))
        for task in source.corpus.tasks():
            for table, _ in read_tables(task, alone, has_ids=False, retry_s=retry_s):
                finder.count_again(score_values(table[name]))
    return finder.cells()


def empty_profile(source: Source, cells: Mapping[str, Cells], slices: Slices) -> RunProfile:
    """Return a profile of no rows of a run."""
    watch = source.rows.watch
    return RunProfile.of(
        cells,
        slices,
        signatures={name: own.signature for name, own in watch.items()},
        ranges={name: (own.low, own.high) for name, own in watch.items()},
        cluster=source.cluster,
    )


def survey_range(task: RangeTask, *, source: Source, retry_s: float) -> Survey:
    """Return the values of slices in a range, and those that cells are chosen by."""
    survey = Survey()
    finders = {name: CellsFinder(own.low, own.high) for name, own in source.rows.watch.items()}
    survey.finders = finders
    for table, _ in read_tables(task, source, has_ids=False, retry_s=retry_s):
        survey.merge(Survey(source.rows.count_values(table)))
        for name, values in source.rows.values(table).items():
            finders[name].add(values)
    return survey


def count_range(
    task: RangeTask, *, source: Source, cells: Mapping[str, Cells], slices: Slices, retry_s: float
) -> RunProfile:
    """Return the profile of a range."""
    outages = Outages(retry_s=retry_s)
    if task.is_first:
        check_intact(as_path((task.file.scores or task.file.source).uri), outages)
    profile = empty_profile(source, cells, slices)
    for table, ids in read_tables(task, source, has_ids=True, retry_s=retry_s):
        source.rows.add(profile, table.append_column(ROW_ID, ids))
    return profile


def read_tables(
    task: RangeTask, source: Source, *, has_ids: bool, retry_s: float
) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
    """Yield the columns that a source names, and ids as texts where they are asked for."""
    reader = RangeReader(
        task,
        names=source.names,
        score_names=source.corpus.score_names,
        shared=source.rows.cluster,
        id_column=source.corpus.id_column,
        has_ids=has_ids,
        outages=Outages(retry_s=retry_s),
    )
    try:
        for rows in reader:
            yield rows.table, rows.ids
    finally:
        reader.close()
