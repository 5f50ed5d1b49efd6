"""Model units: rows in, what a model runs once, one row of statistics per row out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ModelError
from qaeval_core.families.contract import DocumentFrequencies
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds
from qaeval_core.text.ngrams import concat_ranges

# Fixed per model, so that a context's windows are the same for every candidate.
CANDIDATE_RESERVE_TOKENS = 64
MIN_CONTEXT_TOKENS = 32

EMPTY_CANDIDATE = "empty_candidate"
EMPTY_TARGET = "empty_target"
CANDIDATE_TOO_LONG = "candidate_too_long"
TOO_SHORT = "too_short"
NON_FINITE = "non_finite_model_output"
NO_WEIGHT = "no_weight"

Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Special tokens around the one text, or the two, that an encoder reads."""

    prefix: TokenIds
    middle: TokenIds
    suffix: TokenIds

    @classmethod
    def of(cls, artifact: Artifact) -> PairTemplate:
        """Return the template of an encoder.

        Raises
        ------
        ModelError
            If the model is none.
        """
        record = artifact.record.template
        if record is None:
            raise ModelError(
                f"{artifact.folder.name} has no template for pairs, so it is not an encoder "
                "[QA0408]"
            )
        parts = (record.prefix_ids, record.middle_ids, record.suffix_ids)
        return cls(*(np.array(ids, dtype=np.int64) for ids in parts))

    @property
    def n_special(self) -> int:
        """Special tokens of a pair."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def single(self, text: TokenIds) -> TokenIds:
        """Return the sequence of one text."""
        return np.concatenate([self.prefix, text, self.suffix])

    def pair(self, first: TokenIds, second: TokenIds) -> TokenIds:
        """Return the sequence of two texts."""
        return np.concatenate([self.prefix, first, self.middle, second, self.suffix])

    def second_start(self, n_first: int) -> int:
        """Return where the second text begins after a first one of so many tokens."""
        return len(self.prefix) + n_first + len(self.middle)


class Units:
    """Token sequences that a graph runs, what is known of each, and what the graph returned.

    Parameters
    ----------
    told : sequence of str
        What the graph is told of each unit: names of its inputs.
    kept : sequence of str
        What is kept of each unit besides.
    shape : tuple of int
        Of what the graph returns of a unit; () for one number.
    """

    def __init__(
        self, *, told: Sequence[str] = (), kept: Sequence[str] = (), shape: tuple[int, ...] = ()
    ) -> None:
        self.sequences: list[TokenIds] = []
        self._told = told
        self._facts: dict[str, list[int]] = {name: [] for name in (*told, *kept)}
        self._shape = shape

    def add(self, sequence: TokenIds, **facts: int) -> int:
        """Add a unit and all that is known of it; return its index. Before the first batch."""
        self.sequences.append(sequence)
        for name, values in self._facts.items():
            values.append(facts[name])
        return len(self.sequences) - 1

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of each unit, special tokens included; of shape (n_units,)."""
        return token_counts(self.sequences)

    @cached_property
    def facts(self) -> Mapping[str, IntArray]:
        """What is known of units, each of shape (n_units,)."""
        return {name: np.array(values, dtype=np.int64) for name, values in self._facts.items()}

    @cached_property
    def output(self) -> NDArray[np.float32]:
        """What the graph returned, of shape (n_units, *shape); NaN where a unit has not run."""
        return np.full((len(self.sequences), *self._shape), np.nan, dtype=np.float32)

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units."""
        rows = list(batch)
        return {
            "input_ids": pad([self.sequences[i] for i in rows]),
            "n_tokens": self.lengths[rows],
            **{name: self.facts[name][rows] for name in self._told},
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the graph's output for these units."""
        self.output[list(batch)] = output


class TokenValueUnits(Units):
    """Units of which the graph returns a number, or a vector, for some tokens.

    Parameters
    ----------
    n_values : int
        Of all texts.
    told : sequence of str
        As for `Units`.
    shape : tuple of int
        Of one value.
    """

    def __init__(
        self, n_values: int, *, told: Sequence[str] = (), shape: tuple[int, ...] = ()
    ) -> None:
        # First position that is asked for, first value that it becomes, how many.
        super().__init__(told=told, kept=("first_token", "first_value", "n_values"))
        self._values_shape = (n_values, *shape)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Values of all texts; NaN where the unit has not run.

        Made when the first unit has run: the next shard waits laid out, and must not hold them yet.
        """
        return np.full(self._values_shape, np.nan, dtype=np.float32)

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units; tokens asked for as rows of the batch."""
        inputs = super().make_inputs(batch)
        n_rows, width = inputs["input_ids"].shape
        rows = list(batch)
        first = np.arange(n_rows) * width + self.facts["first_token"][rows]
        return {**inputs, "token_rows": concat_ranges(first, self.facts["n_values"][rows])}

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the values of these units; output has shape (n_asked, ...)."""
        rows = list(batch)
        places = concat_ranges(self.facts["first_value"][rows], self.facts["n_values"][rows])
        self.values[places] = output


class Work(ABC):
    """The model units of one shard of one family, and what becomes of them.

    Attributes
    ----------
    units : Units
    n_units_unshared : int
        Units, had no text been shared.
    n_truncated : int
        Units whose text was cut.
    """

    units: Units
    n_units_unshared = 0
    n_truncated = 0

    @property
    def n_units(self) -> int:
        """Units to run."""
        return len(self.units.sequences)

    @abstractmethod
    def statistics(self) -> dict[str, pa.Array]:
        """Return the raw statistics of every row, in row order."""


class ModelScorer(ABC):
    """Turns good rows into work; one class per family, in a file of its own.

    Parameters
    ----------
    artifact : Artifact
        Exported for the family's graph.
    encoder : TextEncoder
        Its tokenizer.
    options : mapping
        Of the family.
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        self.artifact = artifact
        self.encoder = encoder
        self.options = options
        # Of the corpus, given before the first shard to a family that weighs tokens by them.
        self.frequencies: DocumentFrequencies | None = None

    @abstractmethod
    def lay_out(self, shared: SharedPairs[Any]) -> Work:
        """Encode, window and lay out the units of a shard; runs no model."""


@dataclass(slots=True)
class PairWindows:
    """Windows of each distinct pair, or why it has none.

    ``first`` and ``count`` delimit each pair's windows in the family's window arrays.
    """

    reasons: list[str | None] = field(default_factory=list)
    count: list[int] = field(default_factory=list)

    def add(self, windows: Sequence[Window], reason: str | None = None) -> None:
        """Note the windows of the next pair, or why it has none."""
        self.reasons.append(reason)
        self.count.append(len(windows))

    def row_windows(self, shared: SharedPairs[Any]) -> tuple[IntArray, IntArray]:
        """Return (window index of every window of every row target, windows per row target)."""
        counts = np.array(self.count, dtype=np.int64)
        first = np.cumsum(counts) - counts
        per_target = counts[shared.row_pair]
        return concat_ranges(first[shared.row_pair], per_target), per_target

    def n_row_windows(self, shared: SharedPairs[Any]) -> int:
        """Return the windows of all row targets, had no pair been shared."""
        return int(np.array(self.count, dtype=np.int64)[shared.row_pair].sum())

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


def refuse_non_finite(
    reasons: Sequence[str | None], values: NDArray[np.floating]
) -> tuple[list[str | None], NDArray[np.floating]]:
    """Return reasons and values of pairs; one that should have a value and has none is undefined.

    An infinite value becomes NaN: a sigmoid would make the best score of it.
    """
    is_bad = ~np.isfinite(values)
    told = [
        reason or NON_FINITE if bad else reason
        for reason, bad in zip(reasons, is_bad.tolist(), strict=True)
    ]
    return told, np.where(is_bad, np.nan, values).astype(values.dtype)


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
