"""Targets: a family's statistics of some rows, as a formula reads them.

A row is compared with a number of targets: references, or contexts. Values of all targets of all
rows lie in one array, rows in order. What targets score is reduced to one value a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NO_REFERENCES = "no_references"
NO_WORDS = "no_words"
NO_WEIGHT = "no_weight"
NON_FINITE = "non_finite_model_output"
EMPTY_TARGET = "empty_target"


class Statistics(Protocol):
    """Where columns of statistics come from."""

    @property
    def names(self) -> list[str]:
        """Names of the columns."""

    def rows(self, name: str) -> list[Any]:
        """Return what a column holds, as Python values."""

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers; of shape (n_rows,)."""

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of a list column, one row's after another's."""

    def items(self, name: str) -> list[Any]:
        """Return the same as Python values."""

    def counts(self, name: str) -> IntArray:
        """Return how many values each row of a list column has."""


class Targets:
    """Statistics of one family for some rows.

    Parameters
    ----------
    statistics : Statistics
        A list column holds a value for each target of a row, unless its family says otherwise.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        names = statistics.names
        self._has_reasons = "reasons" in names
        # Families of models have a reason a target, those of words the reference's length.
        column = "reasons" if self._has_reasons else "n_reference"
        self.n_targets: IntArray | None = None
        if column in names:
            self.n_targets = statistics.counts(column)

    def __getitem__(self, name: str) -> FloatArray:
        """Return the values of a list column as floats; of shape (n_values,)."""
        return np.asarray(self._statistics.values(name), dtype=np.float64)

    def ints(self, name: str) -> IntArray:
        """Return the values of a list column as integers; of shape (n_values,)."""
        return np.asarray(self._statistics.values(name), dtype=np.int64)

    def of_rows(self, name: str) -> FloatArray:
        """Return a column of numbers as floats; of shape (n_rows,)."""
        return np.asarray(self._statistics.numbers(name), dtype=np.float64)

    def lists(self, name: str) -> list[Any]:
        """Return what a column holds, row by row."""
        return self._statistics.rows(name)

    @property
    def per_row(self) -> IntArray:
        """How many targets each row has; of shape (n_rows,)."""
        assert self.n_targets is not None, "this family compares rows with nothing"
        return self.n_targets

    def per_target(self, name: str) -> FloatArray:
        """Return a row's number once for each of its targets; of shape (n_targets,)."""
        return np.repeat(self.of_rows(name), self.per_row)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return what rows have once for each of their targets."""
        return np.repeat(values, self.per_row, axis=0)

    def best(self, scores: FloatArray) -> FloatArray:
        """Return each row's best score over its targets; NaN where none is defined."""
        return best_over_targets(scores, self.per_row)

    def mean(self, scores: FloatArray) -> FloatArray:
        """Return each row's mean over its targets with a score; NaN where none is defined."""
        return mean_over_targets(scores, self.per_row)

    def first_best(self, scores: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Return what takes, of values of targets, those of each row's best one, ties the first."""
        at = first_best(scores, self.per_row)
        return lambda values: take(values, at)

    def total(self, name: str) -> IntArray:
        """Return each row's sum over its targets."""
        owner = np.repeat(np.arange(len(self.per_row)), self.per_row)
        return np.bincount(owner, weights=self[name], minlength=len(self.per_row)).astype(np.int64)

    def own_reasons(self) -> list[str | None]:
        """Return why each target has no score; None where it has one, or its numbers say why."""
        return self._statistics.items("reasons")

    def reasons(
        self,
        best: FloatArray,
        *,
        empty_target: str = "empty_reference",
        has_weight: BoolArray | None = None,
    ) -> list[str | None]:
        """Return why a row has no score: the reason of its first target; None where it has one.

        Parameters
        ----------
        best : float ndarray of shape (n_rows,)
            What the row scores.
        empty_target : str
            What an empty target is called here.
        has_weight : bool ndarray of shape (n_targets,), optional
            Whether the tokens of a target and its candidate weigh anything.
        """
        reasons: list[str | None] = [None] * len(best)
        per_row = self.per_row if self.n_targets is not None else np.ones(len(best), np.int64)
        own = self.own_reasons() if self._has_reasons else None
        first = np.cumsum(per_row) - per_row
        for i in np.flatnonzero(np.isnan(best)).tolist():
            if not per_row[i]:
                reasons[i] = NO_REFERENCES
            elif own is None:
                is_weightless = has_weight is not None and not has_weight[int(first[i])]
                reasons[i] = NO_WEIGHT if is_weightless else NO_WORDS
            else:
                at = int(first[i])
                is_weightless = has_weight is not None and not has_weight[at]
                reason = own[at] or (NO_WEIGHT if is_weightless else NON_FINITE)
                reasons[i] = empty_target if reason == EMPTY_TARGET else reason
        return reasons


def best_over_targets(scores: FloatArray, n_targets: IntArray) -> FloatArray:
    """Return max_r over each row's targets, undefined ones left out; NaN where none is left.

    Examples
    --------
    >>> best_over_targets(np.array([0.2, 0.4, np.nan]), np.array([2, 1, 0]))
    array([0.4, nan, nan])
    """
    best = np.full(len(n_targets), -np.inf)
    np.maximum.at(best, _owner(n_targets), np.where(np.isnan(scores), -np.inf, scores))
    return np.where(np.isneginf(best), np.nan, best)


def first_best(scores: FloatArray, n_targets: IntArray) -> IntArray:
    """Return the index in ``scores`` of each row's best target, ties the first; -1 for none.

    Examples
    --------
    >>> first_best(np.array([0.2, 0.4, 0.4, np.nan]), np.array([3, 1, 0]))
    array([ 1, -1, -1])
    """
    owner = _owner(n_targets)
    best = best_over_targets(scores, n_targets)
    at = np.flatnonzero(scores == best[owner])
    found = np.full(len(n_targets), -1, dtype=np.int64)
    found[owner[at][::-1]] = at[::-1]  # The last write wins: the first of each row.
    return found


def mean_over_targets(scores: FloatArray, n_targets: IntArray) -> FloatArray:
    """Return the mean over each row's targets, undefined ones left out; NaN where none is left.

    Examples
    --------
    >>> mean_over_targets(np.array([0.2, 0.4, np.nan]), np.array([3, 0])).round(2)
    array([0.3, nan])
    """
    is_defined = ~np.isnan(scores)
    owner = _owner(n_targets)[is_defined]
    total = np.bincount(owner, weights=scores[is_defined], minlength=len(n_targets))
    n_defined = np.bincount(owner, minlength=len(n_targets))
    return np.where(n_defined > 0, total / np.maximum(n_defined, 1), np.nan)


def take(values: FloatArray, at: IntArray) -> FloatArray:
    """Return values at indices; NaN where the index is -1.

    Examples
    --------
    >>> take(np.array([0.5, 0.7]), np.array([1, -1]))
    array([0.7, nan])
    """
    if len(values) == 0:
        return np.full(len(at), np.nan)
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def _owner(n_targets: IntArray) -> IntArray:
    return np.repeat(np.arange(len(n_targets)), n_targets)
