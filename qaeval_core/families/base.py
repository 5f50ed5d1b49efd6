"""What a family of raw statistics is: rows in, model units, one row of statistics per row out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.families.words.frequencies import DocumentFrequencies
from qaeval_core.models.artifact import Artifact
from qaeval_core.text.encode import TextEncoder, TokenIds
from qaeval_core.text.ngrams import concat_ranges

# Fixed per model, so that a context's windows are the same for every candidate (METRICS.md 1).
CANDIDATE_RESERVE_TOKENS = 64
MIN_CONTEXT_TOKENS = 32

EMPTY_CANDIDATE = "empty_candidate"
EMPTY_TARGET = "empty_target"
CANDIDATE_TOO_LONG = "candidate_too_long"
TOO_SHORT = "too_short"
NON_FINITE = "non_finite_model_output"
NO_WEIGHT = "no_weight"

Window = tuple[int, int]


class Work(Protocol):
    """The model units of one shard of one family."""

    lengths: IntArray
    n_units_unshared: int
    n_truncated: int

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units."""

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the graph's output for these units."""

    def statistics(self) -> dict[str, pa.Array]:
        """Return the raw statistics of every row, in row order."""


class FamilyScorer(Protocol):
    """Turns good rows into work; one class per family, in a file of its own."""

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None: ...

    def lay_out(self, shared: SharedPairs[Any]) -> Work:
        """Encode, window and lay out the units of a shard; runs no model."""


@runtime_checkable
class ReadsFrequencies(Protocol):
    """A family that weighs tokens by the documents of the corpus that have them."""

    def use_frequencies(self, frequencies: DocumentFrequencies) -> None:
        """Take the document frequencies; called before the first shard is run."""


@dataclass(slots=True)
class PairWindows:
    """Windows of each distinct pair, or why it has none.

    ``first`` and ``count`` delimit each pair's windows in the family's window arrays.
    """

    reasons: list[str | None] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    def add(self, windows: Sequence[Window]) -> None:
        """Note the windows of the next pair."""
        self.reasons.append(None)
        self.count.append(len(windows))

    def refuse(self, reason: str) -> None:
        """Note that the next pair has no score, and why."""
        self.reasons.append(reason)
        self.count.append(0)

    def row_windows(self, shared: SharedPairs[Any]) -> tuple[IntArray, IntArray]:
        """Return (window index of every window of every row target, windows per row target)."""
        counts = np.array(self.count, dtype=np.int64)
        first = np.cumsum(counts) - counts
        per_target = counts[shared.row_pair]
        return concat_ranges(first[shared.row_pair], per_target), per_target

    def row_reasons(self, shared: SharedPairs[Any]) -> list[str | None]:
        """Return the reason of every row target."""
        return [self.reasons[pair] for pair in shared.row_pair.tolist()]

    def refuse_non_finite(self, is_finite: NDArray[np.bool_]) -> None:
        """Turn pairs with a NaN or infinite window into undefined ones; windows stay counted."""
        counts = np.array(self.count, dtype=np.int64)
        owner = np.repeat(np.arange(len(counts)), counts)
        for pair in np.unique(owner[~is_finite]).tolist():
            self.reasons[pair] = NON_FINITE


def target_windows(
    n_candidate: int, n_target: int, *, n_positions: int, n_special: int
) -> tuple[int, str | None]:
    """Return (target tokens that fit one window, None), or (0, reason).

    Up to 64 candidate tokens the capacity is that of a 64-token candidate, so windows do not
    depend on the candidate; a longer one gets the room it leaves.

    Examples
    --------
    >>> target_windows(10, 900, n_positions=512, n_special=3)
    (445, None)
    >>> target_windows(490, 900, n_positions=512, n_special=3)
    (0, 'candidate_too_long')
    """
    if n_candidate == 0:
        return 0, EMPTY_CANDIDATE
    if n_target == 0:
        return 0, EMPTY_TARGET
    room = n_positions - n_special - max(n_candidate, CANDIDATE_RESERVE_TOKENS)
    if room < MIN_CONTEXT_TOKENS:
        return 0, CANDIDATE_TOO_LONG
    return room, None


def list_column(values: NDArray[np.generic] | list[str | None], counts: IntArray) -> pa.Array:
    """Return a list column from flat values and the number of values of each row."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    flat = pa.array(values, pa.string()) if isinstance(values, list) else pa.array(values)
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def sum_by_owner(values: NDArray[np.int64], owner: IntArray, n_owners: int) -> IntArray:
    """Return how much of ``values`` each owner has."""
    return np.bincount(owner, weights=values, minlength=n_owners).astype(np.int64)


def row_totals(per_target: IntArray, n_targets: IntArray) -> IntArray:
    """Return each row's sum over its targets."""
    owner = np.repeat(np.arange(len(n_targets)), n_targets)
    return sum_by_owner(per_target, owner, len(n_targets))


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
