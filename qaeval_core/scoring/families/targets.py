"""Targets: what pairs have, put in the order of rows, and why a pair has nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.scoring.families.base import (
    EMPTY_CANDIDATE,
    EMPTY_TARGET,
    list_column,
    row_totals,
)
from qaeval_core.scoring.sharing import IntArray, SharedPairs
from qaeval_core.text.encode import TokenIds
from qaeval_core.text.ngrams import concat_ranges


def token_counts(texts: Sequence[TokenIds]) -> IntArray:
    """Return how many tokens each text has."""
    return np.array([len(ids) for ids in texts], dtype=np.int64)


def empty_reasons(n_candidate: IntArray, n_target: IntArray) -> list[str | None]:
    """Return why pairs of texts have no score: one is empty; None where there is one.

    Examples
    --------
    >>> empty_reasons(np.array([2, 0, 3]), np.array([1, 0, 0]))
    [None, 'empty_candidate', 'empty_target']
    """
    return [
        EMPTY_CANDIDATE if not candidate else None if target else EMPTY_TARGET
        for candidate, target in zip(n_candidate.tolist(), n_target.tolist(), strict=True)
    ]


def per_target(shared: SharedPairs[Any], values: NDArray[np.generic]) -> pa.Array:
    """Return one value per target of every row, as lists."""
    return list_column(values[shared.row_pair], shared.n_targets)


def reasons_column(shared: SharedPairs[Any], reasons: Sequence[str | None]) -> pa.Array:
    """Return the reason of every target of every row, as lists."""
    return list_column([reasons[i] for i in shared.row_pair.tolist()], shared.n_targets)


def spread(
    shared: SharedPairs[Any], values: NDArray[np.generic], first: IntArray, count: IntArray
) -> pa.Array:
    """Return the values of every target of every row, one target's after another's, as lists.

    Parameters
    ----------
    values : ndarray
        Values of distinct pairs.
    first, count : int ndarray of shape (n_pairs,)
        Where each pair's values lie.
    """
    per_row_target = count[shared.row_pair]
    places = concat_ranges(first[shared.row_pair], per_row_target)
    return list_column(values[places], row_totals(per_row_target, shared.n_targets))
