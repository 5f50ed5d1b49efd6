"""Columns: statistics out of commits, scores into columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InstanceScores:
    """Scores of one instance for some rows.

    Attributes
    ----------
    outputs : mapping of sub-score to array
    reasons : list of str or None
        Why a row's score is undefined; None where it is not.
    sums : float ndarray of shape (n_rows, n_statistics), optional
        What the corpus score is summed from; NaN in rows that do not count.
    """

    outputs: Mapping[str, pa.Array]
    reasons: list[str | None]
    sums: FloatArray | None = None


def list_values(table: pa.Table, name: str) -> pa.Array:
    """Return the values of a list column, one row's after another's."""
    return table.column(name).combine_chunks().flatten()


def flat(table: pa.Table, name: str) -> FloatArray:
    """Return the values of a list column as floats."""
    values = list_values(table, name).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def counts(table: pa.Table, name: str) -> IntArray:
    """Return how many values each row of a list column has."""
    column = table.column(name).combine_chunks()
    return np.asarray(np.diff(column.offsets.to_numpy()), dtype=np.int64)


def plain(table: pa.Table, name: str) -> FloatArray:
    """Return a column of numbers as floats."""
    values = table.column(name).combine_chunks().to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def exact_column(values: FloatArray) -> pa.Array:
    """Return scores of words as a column: NaN is null.

    64 bits: they equal the peers' to the last digits that those print.
    """
    return pa.array(values, from_pandas=True)


def score_column(values: FloatArray | IntArray) -> pa.Array:
    """Return scores as a column: NaN is null, counts are integers."""
    if values.dtype.kind == "i":
        return pa.array(values.astype(np.int32))
    return pa.array(values.astype(np.float32), from_pandas=True)
