"""Score rows: statistics of rows to columns of scores, the one place where formulas are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.metrics.base import Scores
from qaeval_core.metrics.targets import IntArray, Targets
from qaeval_core.planning.run_plan import (
    CompiledRun,
    InstancePlan,
    column_array,
)
from qaeval_core.running.totals import Totals
from qaeval_core.schema import (
    NOT_SAMPLED,
    QUARANTINE_REASON,
)


def score_rows(
    run: CompiledRun,
    statistics: Mapping[str, pa.Table],
    totals: Totals | None = None,
    *,
    with_statistics: bool = False,
    chosen: NDArray[np.bool_] | None = None,
) -> pa.Table:
    """Return the score columns of rows from their statistics, quarantined rows with nulls.

    Parameters
    ----------
    run : CompiledRun
    statistics : mapping of family key to table
        The same rows of every family, quarantined ones included.
    totals : Totals, optional
        Counted up.
    with_statistics : bool, default False
        Also return what corpus scores are summed from.
    chosen : bool ndarray of shape (n_rows,), optional
        Which rows are in the sample: the others have nulls, whatever is known of them.

    Returns
    -------
    pyarrow.Table
        The fields of `score_columns.score_fields`.
    """
    reasons = pc.coalesce(*(own.column(QUARANTINE_REASON) for own in statistics.values()))
    if chosen is not None:
        reasons = pc.if_else(pa.array(chosen), reasons, NOT_SAMPLED)
    good = np.asarray(reasons.is_null())
    slots = np.where(good, np.cumsum(good) - 1, -1)
    indices = pa.array(slots, mask=~good)
    kept = {key: table.filter(pa.array(good)) for key, table in statistics.items()}
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for plan in run.instances:
        scores = score_instance(plan, kept)
        for own in plan.columns:
            array = column_array(own, scores.columns[own.name])
            columns[plan.column(own.name)] = array.take(indices)
        if with_statistics and scores.sums is not None:
            columns[plan.statistics_column] = _statistics(scores.sums).take(indices)
        columns[plan.reason_column] = pa.array(scores.reasons, pa.string()).take(indices)
        if totals is not None:
            totals.count_instance(plan, scores)
    if totals is not None:
        totals.n_rows += len(reasons)
        counts = Counter(reasons.drop_null().to_pylist())
        totals.n_not_sampled += counts.pop(NOT_SAMPLED, 0)
        totals.quarantined.update(counts)
    columns[QUARANTINE_REASON] = reasons
    return pa.table(columns)


def score_instance(plan: InstancePlan, statistics: Mapping[str, pa.Table]) -> Scores:
    """Return the scores of an instance, and the reason of each row with an undefined one.

    Parameters
    ----------
    plan : InstancePlan
    statistics : mapping of family key to table
        The same rows in the same order, quarantined ones left out.
    """
    read = {
        name: Targets(ArrowStatistics(statistics[family.key]))
        for name, family in plan.families.items()
    }
    return plan.metric.score(plan.settings, read)


def _statistics(sums: NDArray[np.float64]) -> pa.Array:
    """Return a list column of statistics; null where a row does not count."""
    offsets = np.arange(len(sums) + 1, dtype=np.int32) * sums.shape[1]
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(sums.ravel()))
    is_missing = np.isnan(sums).any(axis=1)
    return lists.take(pa.array(np.arange(len(sums)), mask=is_missing))


class ArrowStatistics:
    """Columns of a table of statistics."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.column_names)

    def rows(self, name: str) -> list[Any]:
        """Return what a column holds, as Python values."""
        return list(self._table.column(name).to_pylist())

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers; of shape (n_rows,)."""
        return _numpy(self._column(name))

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of a list column, one row's after another's."""
        return _numpy(self._column(name).flatten())

    def items(self, name: str) -> list[Any]:
        """Return the same as Python values."""
        return list(self._column(name).flatten().to_pylist())

    def counts(self, name: str) -> IntArray:
        """Return how many values each row of a list column has."""
        return np.asarray(np.diff(self._column(name).offsets.to_numpy()), dtype=np.int64)

    def _column(self, name: str) -> pa.Array:
        return self._table.column(name).combine_chunks()


def _numpy(values: pa.Array) -> NDArray[Any]:
    return np.asarray(values.to_numpy(zero_copy_only=False))
