"""Units: the rows that every system has, a part of them at a time, cut by ids or by a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.compare.sides import ComparedSides
from qaeval_core.errors import ConfigError
from qaeval_core.running.progress import Tell
from qaeval_core.running.range_executor import RETRY_S
from qaeval_core.stats.paired_rows import match_rows
from qaeval_core.storage.retry import Outages
from qaeval_core.tables.corpus import Corpus, RangeTask
from qaeval_core.tables.range_reader import RangeReader, RangeRows
from qaeval_core.tables.row_parts import ROWS_PER_PART, RowParts
from qaeval_core.text.column_hashes import column_hashes, decoded, text_column

FloatArray = NDArray[np.float64]
MAX_SYSTEMS = 64
_NAME = "rows"
_KEY, _CLUSTER, _SYSTEM, _ROW, _N = "\x01key", "\x01cluster", "\x01system", "\x01row", "\x01n"


@dataclass(frozen=True, slots=True)
class SharedUnits:
    """Rows that every system has.

    Attributes
    ----------
    keys : pyarrow.ChunkedArray of shape (n_units,)
    clusters : uint64 ndarray of shape (n_units,)
    groups : dict of column to pyarrow.ChunkedArray of shape (n_units,)
        Values that tables of their own are made of.
    values : float ndarray of shape (n_metrics, n_systems, n_units)
        NaN where undefined.
    rows : int ndarray of shape (n_systems, n_units)
        Where a row is in its corpus; the first one where several are averaged.
    n_rows, n_matched, n_repeated, n_unnamed : int ndarray of shape (n_systems,)
        Rows of each system, those of these units, those whose key is there twice, and those
        without one.
    n_other_clusters : int
        SharedUnits whose cluster is another one for some system.
    """

    keys: pa.ChunkedArray
    clusters: NDArray[np.uint64]
    groups: dict[str, pa.ChunkedArray]
    values: FloatArray
    rows: NDArray[np.int64]
    n_rows: NDArray[np.int64]
    n_matched: NDArray[np.int64]
    n_repeated: NDArray[np.int64]
    n_unnamed: NDArray[np.int64]
    n_other_clusters: int


@dataclass(slots=True)
class SystemRows:
    """The rows of all systems, in parts.

    Attributes
    ----------
    systems : list of str
    n_nameless : int
        Rows that no system's name is known of.
    """

    sides: ComparedSides
    by: Sequence[str]
    on: str | None
    parts: RowParts
    systems: list[str] = field(default_factory=list)
    n_nameless: int = 0

    def codes(self, names: pa.ChunkedArray) -> NDArray[np.int16]:
        """Return the number of each row's system, -1 without a name; new ones are added.

        Raises
        ------
        ConfigError
            If there are too many.
        """
        coded = names.combine_chunks().dictionary_encode()
        own = coded.dictionary.to_pylist()
        self.systems += [name for name in own if name not in self.systems]
        if len(self.systems) > MAX_SYSTEMS:
            raise ConfigError(
                f"--system: the column has more than {MAX_SYSTEMS} names, such as "
                f"{self.systems[-1]!r} [QA0322]"
            )
        numbers = np.array([self.systems.index(name) for name in own], np.int16)
        is_there = np.asarray(coded.is_valid())
        self.n_nameless += int((~is_there).sum())
        at = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(is_there, numbers[at] if len(own) else -1, -1).astype(np.int16)

    def units(self) -> Iterator[SharedUnits]:
        """Yield what every system has, part by part."""
        for number in range(self.parts.n_parts):
            if (table := self.parts.take(_NAME, number)) is not None:
                yield self._matched(pl.DataFrame(table))

    def _matched(self, table: pl.DataFrame) -> SharedUnits:
        names = list(self.sides.metrics)
        own = [table.filter(pl.col(_SYSTEM) == i).drop(_SYSTEM) for i in range(len(self.systems))]
        n_rows = np.array([frame.height for frame in own])
        n_unnamed = np.array([frame[_KEY].null_count() for frame in own])
        if self.on is not None:
            own = [_averaged(frame, names) for frame in own]
        else:
            own = [frame.with_columns(pl.lit(1).alias(_N)) for frame in own]
        matched = match_rows([frame[_KEY].to_arrow() for frame in map(_plain, own)])
        taken = [frame[rows] for frame, rows in zip(own, matched.rows, strict=True)]
        clusters = np.stack([frame[_CLUSTER].to_numpy() for frame in taken])
        return SharedUnits(
            keys=pa.chunked_array([taken[0][_KEY].to_arrow()]),
            clusters=clusters[0],
            groups={name: pa.chunked_array([taken[0][name].to_arrow()]) for name in self.by},
            values=np.stack([[frame[name].to_numpy() for frame in taken] for name in names]),
            rows=np.stack([frame[_ROW].to_numpy() for frame in taken]),
            n_rows=n_rows,
            n_matched=np.array([frame[_N].sum() for frame in taken]),
            n_repeated=np.array(matched.n_repeated),
            n_unnamed=n_unnamed,
            n_other_clusters=int((clusters != clusters[0]).any(axis=0).sum()),
        )


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(_KEY).cast(pl.String))


def _averaged(frame: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """Return a row for each key: means of what is defined, and the rest of its first row."""
    others = [name for name in frame.columns if name not in (_KEY, *metrics)]
    return frame.group_by(_KEY, maintain_order=True).agg(
        *(pl.col(name).fill_nan(None).mean().fill_null(float("nan")) for name in metrics),
        *(pl.col(name).first() for name in others),
        pl.len().alias(_N),
    )


def read_systems(
    sides: ComparedSides,
    stack: ExitStack,
    *,
    system: str | None,
    on: str | None,
    by: Sequence[str],
    tell: Tell,
    rows_per_part: int = ROWS_PER_PART,
) -> SystemRows:
    """Read the scores of all systems into parts.

    Parameters
    ----------
    stack : ExitStack
        Closed when the parts are needed no more.
    system, on : str, optional
        Columns that tell systems apart, and that say which rows belong together.
    tell : callable
        Gets a label, the rows done and all rows.

    Raises
    ------
    ConfigError
        If a column has too many names of systems.
    InputError, RunError
        If rows cannot be read.
    """
    n_all = sum(side.corpus.n_rows for side in sides.sides)
    found = SystemRows(sides, by, on, RowParts(n_all, stack, rows_per_part=rows_per_part))
    if system is None:
        found.systems = [side.name for side in sides.sides]
    n_done = 0
    tell("compare", 0, n_all)
    with found.parts.writing(_NAME) as put:
        for i, side in enumerate(sides.sides):
            cluster = sides.cluster_columns[i] if sides.cluster_columns else None
            wanted = [*sides.metrics, *by, *filter(None, (system, on, cluster))]
            for task in side.corpus.tasks():
                for rows in _batches(task, side.corpus, wanted, cluster):
                    first = task.file.start + rows.rows.start
                    columns = {"system": system, "on": on, "cluster": cluster}
                    put(_prepared(rows, i, first, found, **columns), _KEY)
                n_done += task.rows.n_rows
                tell("compare", n_done, n_all)
    return found


def _batches(
    task: RangeTask, corpus: Corpus, wanted: Sequence[str], cluster: str | None
) -> Iterator[RangeRows]:
    reader = RangeReader(
        task,
        names=list(dict.fromkeys(wanted)),
        score_names=corpus.score_names,
        shared=cluster,
        id_column=corpus.id_column,
        outages=Outages(retry_s=RETRY_S),
    )
    try:
        yield from reader
    finally:
        reader.close()


def _prepared(
    own: RangeRows,
    side: int,
    first_row: int,
    given: SystemRows,
    *,
    system: str | None,
    on: str | None,
    cluster: str | None,
) -> pa.Table:
    """Return rows as parts have them."""
    table = own.table
    keys = text_column(table[on] if on is not None else own.ids).cast(pa.large_string())
    of_keys, _ = column_hashes(keys)
    clusters = of_keys
    if cluster is not None:
        hashes, is_there = column_hashes(table[cluster])
        clusters = np.where(is_there, hashes, of_keys)  # A row without a context is alone.
    codes = np.full(table.num_rows, side, np.int16)
    if system is not None:
        codes = given.codes(text_column(table[system]).cast(pa.string()))
    columns: dict[str, Any] = {
        _KEY: keys,
        _CLUSTER: clusters,
        _SYSTEM: codes,
        _ROW: first_row + np.arange(table.num_rows),
    }
    columns |= {name: text_column(table[name]).cast(pa.large_string()) for name in given.by}
    for name in given.sides.metrics:
        values = pl.Series(pl.from_arrow(decoded(table[name])))
        columns[name] = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    found = pa.table(columns)
    return found if system is None else found.filter(pa.array(codes >= 0))
