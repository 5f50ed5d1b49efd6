"""Statistics out of commits, as formulas read them: `metrics.targets.Statistics` over a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.metrics.targets import IntArray


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
