"""Reuse of samples: rows that a run into the same OUT has computed, with another sample or none.

A row's statistics do not depend on which other rows are scored; those that do, by counts over the
corpus, have a key of their own for each sample. So what is known is taken over into the commits of
this sample, and a sample that grows costs the rows that are new in it.

But: replies that were paid for come from the journal, as they always do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.schema import NOT_SAMPLED, QUARANTINE_REASON
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Store

Mask = NDArray[np.bool_]


class OtherSamples:
    """Finds commits of the same shards under other samples; they do not change during a run.

    Parameters
    ----------
    store : Store
        Of this run's sample.
    families : collection of str
        Keys of those that have such commits: the driver has listed all.
    """

    def __init__(self, store: Store, families: Collection[str]) -> None:
        self._store = store
        self._families = frozenset(families)
        self._paths: dict[str, Mapping[tuple[str, RowRange], list[StoragePath]]] = {}

    def known(self, family: str, file_id: str, rows: RowRange) -> pa.Table | None:
        """Return the statistics of a shard as far as they are known; None where nothing is.

        Raises
        ------
        ReconcileError, StorageError
            If a commit is damaged, or does not come.
        """
        if family not in self._families:
            return None
        if family not in self._paths:
            self._paths[family] = self._store.committed_otherwise(family)
        found: pa.Table | None = None
        for path in self._paths[family].get((file_id, rows), ()):
            own = self._store.read_commit(path, family, rows)
            found = own if found is None else _filled(found, own, ~is_known(found))
        return found


def is_known(table: pa.Table) -> Mask:
    """Return which rows have statistics; bool ndarray of shape (n_rows,)."""
    return np.asarray(table.column(QUARANTINE_REASON).is_null(), dtype=bool)


def left_to_do(chosen: Mask | None, known: Iterable[pa.Table | None]) -> Mask | None:
    """Return which rows some family still has to compute; None is all.

    Parameters
    ----------
    chosen : bool ndarray of shape (n_rows,), optional
        Rows of the sample; None is all.
    known : iterable of tables
        What is known of the shard, for each of its families.
    """
    tables = list(known)
    masks = [is_known(table) for table in tables if table is not None]
    if not masks or len(masks) < len(tables):
        return chosen
    left = ~np.all(masks, axis=0)
    return np.asarray(left if chosen is None else chosen & left, dtype=bool)


def taken_over(
    table: pa.Table, known: pa.Table, *, sampled: Mask | None, stats: PassStats
) -> pa.Table:
    """Return statistics with those that were known of rows that were not computed anew.

    Parameters
    ----------
    sampled : bool ndarray of shape (n_rows,), optional
        Rows of the sample; None is all.
    stats : PassStats
        Rows that are taken over are counted as such of the sample; what they cost, where they were
        computed.
    """
    reasons = table.column(QUARANTINE_REASON).fill_null("")
    taken = np.asarray(pc.equal(reasons, NOT_SAMPLED), dtype=bool) & is_known(known)
    if sampled is not None:
        taken &= sampled
    stats.n_rows += int(taken.sum())
    stats.n_not_sampled -= int(taken.sum())
    return _filled(table, known, taken)


def _filled(table: pa.Table, other: pa.Table, rows: Mask) -> pa.Table:
    """Return a table with some rows of another one, each at its place."""
    places = np.arange(table.num_rows) + table.num_rows * rows
    return pa.concat_tables([table, other.select(table.column_names)]).take(pa.array(places))
