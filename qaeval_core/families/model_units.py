"""Model units: rows in, what a model runs once, one row of statistics per row out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ModelError
from qaeval_core.families.contract import DocumentFrequencies
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.batches import exact_widths
from qaeval_core.text.encode import TextEncoder
from qaeval_core.text.ngrams import concat_ranges
from qaeval_core.text.token_runs import TokenRuns

# Fixed per model, so that a context's windows are the same for every candidate.
CANDIDATE_RESERVE_TOKENS = 64
MIN_CONTEXT_TOKENS = 32

EMPTY_CANDIDATE = "empty_candidate"
EMPTY_TARGET = "empty_target"
CANDIDATE_TOO_LONG = "candidate_too_long"
TOO_SHORT = "too_short"
NON_FINITE = "non_finite_model_output"
NO_WEIGHT = "no_weight"

# Which units run together.
Batch = IntArray | Sequence[int]
# Why pairs have no score, by pair; None where they have.
Reasons = NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Special tokens around the one text, or the two, that an encoder reads."""

    prefix: IntArray
    middle: IntArray
    suffix: IntArray

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

    def single(self, texts: TokenRuns) -> TokenRuns:
        """Return the sequence of each text."""
        prefix, suffix = (TokenRuns.repeated(ids, len(texts)) for ids in (self.prefix, self.suffix))
        return TokenRuns.joined([prefix, texts, suffix])

    def pair(self, first: TokenRuns, second: TokenRuns) -> TokenRuns:
        """Return the sequence of each first text and its second one."""
        prefix, middle, suffix = (
            TokenRuns.repeated(ids, len(first)) for ids in (self.prefix, self.middle, self.suffix)
        )
        return TokenRuns.joined([prefix, first, middle, second, suffix])

    def second_start(self, n_first: IntArray) -> IntArray:
        """Return where the second text begins after a first one of so many tokens."""
        return len(self.prefix) + n_first + len(self.middle)


class Units:
    """Token sequences that a graph runs, what is known of each, and what the graph returned.

    Parameters
    ----------
    sequences : TokenRuns
        One a unit.
    told : mapping of str to int ndarray of shape (n_units,)
        What the graph is told of each unit, by names of its inputs.
    kept : mapping of str to int ndarray of shape (n_units,)
        What is kept of each unit besides.
    shape : tuple of int
        Of what the graph returns of a unit; () for one number.

    Attributes
    ----------
    has_short_steps : bool
        Whether `exact_widths` of short units lie closer.
    """

    has_short_steps = True

    def __init__(
        self,
        sequences: TokenRuns,
        *,
        told: Mapping[str, IntArray] = MappingProxyType({}),
        kept: Mapping[str, IntArray] = MappingProxyType({}),
        shape: tuple[int, ...] = (),
    ) -> None:
        self.sequences = sequences
        # Of each unit, how wide its row is at least; of shape (n_units,).
        self.widths: IntArray = sequences.counts
        self.is_exact = False
        self.facts = {**told, **kept}
        self._told = tuple(told)
        self._shape = shape

    @property
    def lengths(self) -> IntArray:
        """Tokens of each unit, special tokens included; of shape (n_units,)."""
        return self.sequences.counts

    def pad_exactly(self, most: int) -> None:
        """Pad each unit to a width that follows from its own length; to ``most`` at most."""
        exact = exact_widths(self.lengths, has_short_steps=self.has_short_steps)
        self.widths = np.minimum(exact, most)
        self.is_exact = True

    @property
    def groups(self) -> IntArray:
        """Numbers of units that exact batches keep apart though they are as wide; (n_units,)."""
        return np.zeros(len(self.widths), np.int64)

    def padded(self, batch: Batch) -> IntArray:
        """Return token ids of some units, of shape (n_rows, width)."""
        return self.sequences.padded(batch, width=int(self.widths[batch].max()))

    @cached_property
    def output(self) -> NDArray[np.float32]:
        """What the graph returned, of shape (n_units, *shape); NaN where a unit has not run."""
        return np.full((len(self.sequences), *self._shape), np.nan, dtype=np.float32)

    def make_inputs(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units."""
        return {
            "input_ids": self.padded(batch),
            "n_tokens": self.lengths[batch],
            **{name: self.facts[name][batch] for name in self._told},
        }

    def take(self, batch: Batch, output: NDArray[np.float32]) -> None:
        """Keep the graph's output for these units."""
        self.output[batch] = output


class TokenValueUnits(Units):
    """Units of which the graph returns a number, or a vector, for some tokens.

    Parameters
    ----------
    sequences, told
        As for `Units`.
    first_token, first_value, n_values : int ndarray of shape (n_units,)
        First position that is asked for, first value that it becomes, how many.
    values_shape : tuple of int
        Of the values of all texts.
    """

    def __init__(
        self,
        sequences: TokenRuns,
        *,
        first_token: IntArray,
        first_value: IntArray,
        n_values: IntArray,
        values_shape: tuple[int, ...],
        told: Mapping[str, IntArray] = MappingProxyType({}),
    ) -> None:
        kept = {"first_token": first_token, "first_value": first_value, "n_values": n_values}
        super().__init__(sequences, told=told, kept=kept)
        self._values_shape = values_shape

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Values of all texts; NaN where the unit has not run.

        Made when the first unit has run: the next shard waits laid out, and must not hold them yet.
        """
        return np.full(self._values_shape, np.nan, dtype=np.float32)

    def make_inputs(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units; tokens asked for as rows of the batch."""
        inputs = super().make_inputs(batch)
        n_rows, width = inputs["input_ids"].shape
        first = np.arange(n_rows) * width + self.facts["first_token"][batch]
        return {**inputs, "token_rows": concat_ranges(first, self.facts["n_values"][batch])}

    def take(self, batch: Batch, output: NDArray[np.float32]) -> None:
        """Keep the values of these units; output has shape (n_asked, ...)."""
        places = concat_ranges(self.facts["first_value"][batch], self.facts["n_values"][batch])
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


class PairWindows:
    """Windows of distinct pairs, pair by pair, and why a pair has none.

    Parameters
    ----------
    count : int ndarray of shape (n_pairs,)
    reasons : object ndarray of shape (n_pairs,)
    """

    def __init__(self, count: IntArray, reasons: Reasons) -> None:
        self._count = count
        self._reasons = reasons

    def row_windows(self, shared: SharedPairs[Any]) -> tuple[IntArray, IntArray]:
        """Return (window index of every window of every row target, windows per row target)."""
        first = np.cumsum(self._count) - self._count
        per_target = self._count[shared.row_pair]
        return concat_ranges(first[shared.row_pair], per_target), per_target

    def n_row_windows(self, shared: SharedPairs[Any]) -> int:
        """Return the windows of all row targets, had no pair been shared."""
        return int(self._count[shared.row_pair].sum())

    def reasons(self, is_finite: NDArray[np.bool_]) -> Reasons:
        """Return why pairs have no score, where some windows have no number; (n_windows,)."""
        owner = np.repeat(np.arange(len(self._count)), self._count)
        reasons = self._reasons.copy()
        reasons[owner[~is_finite]] = NON_FINITE
        return reasons


def target_windows(
    n_candidate: IntArray, n_target: IntArray, *, n_positions: int, n_special: int
) -> tuple[IntArray, Reasons]:
    """Return the target tokens of each pair that fit one window, 0 where it has none, and why.

    Up to 64 candidate tokens the capacity is that of a 64-token candidate, so windows do not
    depend on the candidate; a longer one gets the room it leaves.

    Examples
    --------
    >>> room, reasons = target_windows(
    ...     np.array([10, 490]), np.array([900, 900]), n_positions=512, n_special=3
    ... )
    >>> room.tolist(), reasons.tolist()
    ([445, 0], [None, 'candidate_too_long'])
    """
    reasons = empty_reasons(n_candidate, n_target)
    room = n_positions - n_special - np.maximum(n_candidate, CANDIDATE_RESERVE_TOKENS)
    reasons[has_score(reasons) & (room < MIN_CONTEXT_TOKENS)] = CANDIDATE_TOO_LONG
    return np.where(has_score(reasons), room, 0), reasons


def list_column(values: NDArray[np.generic] | list[str | None], counts: IntArray) -> pa.Array:
    """Return a list column from flat values and the number of values of each row."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    are_texts = isinstance(values, list) or values.dtype == object
    flat = pa.array(values, pa.string() if are_texts else None)
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def sum_by_owner(values: NDArray[np.int64], owner: IntArray, n_owners: int) -> IntArray:
    """Return how much of ``values`` each owner has."""
    return np.bincount(owner, weights=values, minlength=n_owners).astype(np.int64)


def row_totals(per_target: IntArray, n_targets: IntArray) -> IntArray:
    """Return each row's sum over its targets."""
    owner = np.repeat(np.arange(len(n_targets)), n_targets)
    return sum_by_owner(per_target, owner, len(n_targets))


def empty_reasons(n_candidate: IntArray, n_target: IntArray) -> Reasons:
    """Return why pairs of texts have no score: one is empty; None where there is one.

    Examples
    --------
    >>> empty_reasons(np.array([2, 0, 3]), np.array([1, 0, 0])).tolist()
    [None, 'empty_candidate', 'empty_target']
    """
    reasons = np.full(len(n_candidate), None, dtype=object)
    reasons[n_target == 0] = EMPTY_TARGET
    reasons[n_candidate == 0] = EMPTY_CANDIDATE
    return reasons


def has_score(reasons: Reasons) -> NDArray[np.bool_]:
    """Return which pairs have no reason to have none."""
    return np.array([reason is None for reason in reasons.tolist()], dtype=bool)


def refuse_non_finite(
    reasons: Reasons, values: NDArray[np.floating]
) -> tuple[Reasons, NDArray[np.floating]]:
    """Return reasons and values of pairs; one that should have a value and has none is undefined.

    An infinite value becomes NaN: a sigmoid would make the best score of it.
    """
    is_bad = ~np.isfinite(values)
    told = np.where(is_bad & has_score(reasons), NON_FINITE, reasons)
    return told, np.where(is_bad, np.nan, values).astype(values.dtype)


def per_target(shared: SharedPairs[Any], values: NDArray[np.generic]) -> pa.Array:
    """Return one value per target of every row, as lists."""
    return list_column(values[shared.row_pair], shared.n_targets)


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
