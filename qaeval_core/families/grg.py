"""Family ``grg``: likelihood of a target with and without the candidate as a prompt, per window.

Source: QRelScore section 2.2 (``metrics.qrelscore`` has the equations). The likelihood of the
target alone does not depend on the candidate: one unit per distinct window, shared by all
candidates. Profile ``authors`` scores whole texts, EOS included, by mean probability, and cuts
them where the model ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ModelError
from qaeval_core.families.model_units import (
    CANDIDATE_TOO_LONG,
    MIN_CONTEXT_TOKENS,
    Batch,
    ModelScorer,
    PairWindows,
    Units,
    Work,
    empty_reasons,
    has_score,
    list_column,
    per_target,
    row_totals,
    target_windows,
)
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.text.encode import TextEncoder, equal_cuts
from qaeval_core.text.ngrams import concat_ranges
from qaeval_core.text.token_runs import TokenRuns


class GrgScorer(ModelScorer):
    """Lays out texts for the graph ``token_logprobs``.

    Options are ``profile``, "paper" or "authors", and ``max_window_tokens``, special tokens
    included.
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        super().__init__(artifact, encoder, options)
        record = artifact.record
        if record.bos_id is None or record.eos_id is None:
            raise ModelError(
                f"{artifact.folder.name} has no BOS or EOS token, so it is not a causal language "
                "model [QA0408]"
            )
        self._bos = np.array([record.bos_id], dtype=np.int64)
        self._eos = np.array([record.eos_id], dtype=np.int64)
        self._n_positions = min(record.max_positions, int(str(options["max_window_tokens"])))
        self._is_authors = options["profile"] == "authors"

    def lay_out(self, shared: SharedPairs[str]) -> GrgWork:
        """Encode texts and lay out base units (shared) and prompted units."""
        return self._lay_out_texts(shared) if self._is_authors else self._lay_out_windows(shared)

    def _lay_out_windows(self, shared: SharedPairs[str]) -> GrgWork:
        """BOS + window, and BOS + candidate + window; only window tokens are scored."""
        candidates = self.encoder.encode(shared.candidates).take(shared.pair_candidate)
        texts = self.encoder.encode([" " + text for text in shared.targets])
        has_text = np.array([text != "" for text in shared.targets], dtype=bool)
        targets = texts.cut(0, np.where(has_text, texts.counts, 0))  # Not the added space alone.
        targets = targets.take(shared.pair_target)
        room, reasons = target_windows(
            candidates.counts, targets.counts, n_positions=self._n_positions, n_special=1
        )
        n_read = np.where(has_score(reasons), targets.counts, 0)
        pair, start, n_tokens = equal_cuts(n_read, max_tokens=np.maximum(room, 1))
        windows, candidate = targets.take(pair).cut(start, n_tokens), candidates.take(pair)
        order = UnitOrder.of(shared.pair_target[pair], start, n_tokens)
        candidate = candidates.take(pair[order.window])
        prompt = candidate.cut(0, np.where(order.is_base, 0, candidate.counts))
        bos = TokenRuns.repeated(self._bos, len(prompt))
        units = GrgUnits(
            TokenRuns.joined([bos, prompt, windows.take(order.window)]),
            first_scored=1 + prompt.counts,
            is_mean_probability=False,
        )
        pairs = PairWindows(np.bincount(pair, minlength=len(reasons)), reasons)
        return GrgWork(shared, pairs, units, order)

    def _lay_out_texts(self, shared: SharedPairs[str]) -> GrgWork:
        """BOS + text + EOS of the target, and of candidate, space and target; all are scored."""
        joined = [f"{shared.candidates[i]} {shared.targets[j]}" for i, j in shared.pairs()]
        texts = self.encoder.encode([*shared.targets, *joined])
        n_candidate = self.encoder.encode(shared.candidates).counts[shared.pair_candidate]
        n_joined = texts.counts[len(shared.targets) :]
        room = self._n_positions - 2
        reasons = empty_reasons(n_candidate, texts.counts[shared.pair_target])
        is_too_long = (n_joined > room) & (n_candidate + MIN_CONTEXT_TOKENS > room)
        reasons[has_score(reasons) & is_too_long] = CANDIDATE_TOO_LONG
        pair = np.flatnonzero(has_score(reasons))
        order = UnitOrder.of(shared.pair_target[pair])
        own = pair[order.window]
        read = texts.take(
            np.where(order.is_base, shared.pair_target[own], len(shared.targets) + own)
        )
        bos, eos = (TokenRuns.repeated(ids, len(read)) for ids in (self._bos, self._eos))
        units = GrgUnits(
            TokenRuns.joined([bos, read.cut(0, np.minimum(read.counts, room)), eos]),
            first_scored=np.ones(len(read), dtype=np.int64),
            is_mean_probability=True,
        )
        pairs = PairWindows(has_score(reasons).astype(np.int64), reasons)
        work = GrgWork(shared, pairs, units, order)
        work.n_truncated = int((n_joined[pair] > room).sum())
        return work


class UnitOrder(NamedTuple):
    """The units of windows: each one's prompted sequence, before it its base where that is new.

    Attributes
    ----------
    base, prompted : int ndarray of shape (n_windows,)
        Units of each window.
    window : int ndarray of shape (n_units,)
        Of each unit.
    is_base : bool ndarray of shape (n_units,)
    """

    base: IntArray
    prompted: IntArray
    window: IntArray
    is_base: NDArray[np.bool_]

    @classmethod
    def of(cls, *parts: IntArray) -> UnitOrder:
        """Return the order; windows of which all these numbers are equal share their base.

        Examples
        --------
        >>> order = UnitOrder.of(np.array([7, 7, 7]), np.array([0, 1, 0]))
        >>> order.base.tolist(), order.prompted.tolist(), order.window.tolist()
        ([0, 2, 0], [1, 3, 4], [0, 0, 1, 1, 2])
        """
        key = np.zeros(len(parts[0]), dtype=np.int64)
        for part in parts:
            key = key * (part.max(initial=0) + 1) + part
        _, first, place = np.unique(key, return_index=True, return_inverse=True)
        windows = np.arange(len(key))
        is_new = first[place] == windows
        prompted = windows + np.cumsum(is_new)
        window = np.repeat(windows, 1 + is_new)
        is_base = np.ones(len(window), dtype=bool)
        is_base[prompted] = False
        return cls((prompted - 1)[first[place]], prompted, window, is_base)


class GrgUnits(Units):
    """Sequences, and one number of each: a sum of log-probabilities, or a mean probability."""

    has_short_steps = False

    def __init__(
        self, sequences: TokenRuns, *, first_scored: IntArray, is_mean_probability: bool
    ) -> None:
        super().__init__(sequences, kept={"first_scored": first_scored})
        self.is_mean_probability = is_mean_probability

    @property
    def n_scored(self) -> IntArray:
        """Tokens of each unit that are scored."""
        return self.lengths - self.facts["first_scored"]

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The number of each unit; NaN where it has not run."""
        return np.full(len(self.sequences), np.nan)

    def make_inputs(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``token_logprobs`` for some units."""
        input_ids = self.padded(batch)
        n_rows, width = input_ids.shape
        first, n_scored = self.facts["first_scored"][batch], self.n_scored[batch]
        targets = concat_ranges(np.arange(n_rows) * width + first, n_scored)
        return {
            "input_ids": input_ids,
            "prefix_rows": targets - 1,
            "target_ids": input_ids.ravel()[targets],
        }

    def take(self, batch: Batch, output: NDArray[np.float32]) -> None:
        """Keep the number of these units; output has shape (n_scored of all,)."""
        counts = self.n_scored[batch]
        found = output.astype(np.float64)
        if self.is_mean_probability:
            found = np.exp(found)
        sums = np.add.reduceat(found, np.cumsum(counts) - counts)
        self.values[batch] = sums / counts if self.is_mean_probability else sums


class GrgWork(Work):
    """Units of one shard: base and prompted sequences, and which window each is of."""

    units: GrgUnits

    def __init__(
        self,
        shared: SharedPairs[str],
        pairs: PairWindows,
        units: GrgUnits,
        order: UnitOrder,
    ) -> None:
        self._shared = shared
        self._pairs = pairs
        self._order = order
        self.units = units
        self.n_units_unshared = 2 * pairs.n_row_windows(shared)

    def statistics(self) -> dict[str, pa.Array]:
        """Return windows per target and, per window, base, prompted and scored tokens."""
        shared, unit = self._shared, "probability" if self.units.is_mean_probability else "nats"
        base, prompted = (self.units.values[own] for own in self._order[:2])
        reasons = self._pairs.reasons(np.isfinite(base) & np.isfinite(prompted))
        windows, n_windows = self._pairs.row_windows(shared)
        n_values = row_totals(n_windows, shared.n_targets)
        n_scored = self.units.n_scored[self._order.base[windows]].astype(np.int32)
        return {
            "n_windows": list_column(n_windows.astype(np.int32), shared.n_targets),
            f"base_{unit}": list_column(base[windows], n_values),
            f"prompted_{unit}": list_column(prompted[windows], n_values),
            "n_context_tokens": list_column(n_scored, n_values),
            "reasons": per_target(shared, reasons),
        }
