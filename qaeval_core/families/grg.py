"""Family ``grg``: likelihood of a target with and without the candidate as a prompt, per window.

Source: QRelScore section 2.2 (``metrics.qrelscore`` has the equations). The likelihood of the
target alone does not depend on the candidate: one unit per distinct window, shared by all
candidates. Profile ``authors`` scores whole texts, EOS included, by mean probability, and cuts
them where the model ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ModelError
from qaeval_core.families.base import (
    CANDIDATE_TOO_LONG,
    EMPTY_CANDIDATE,
    EMPTY_TARGET,
    MIN_CONTEXT_TOKENS,
    PairWindows,
    list_column,
    row_totals,
    target_windows,
)
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds, equal_windows


class GrgScorer:
    """Lays out texts for the graph ``token_logprobs``.

    Parameters
    ----------
    artifact : Artifact
        An exported causal LM.
    encoder : TextEncoder
        Its tokenizer.
    options : mapping
        ``profile``: "paper" or "authors"; ``max_window_tokens``: special tokens included.
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        record = artifact.record
        if record.bos_id is None or record.eos_id is None:
            raise ModelError(f"{artifact.folder.name} has no BOS and EOS: not a causal LM")
        self._encoder = encoder
        self._bos = np.array([record.bos_id], dtype=np.int64)
        self._eos = np.array([record.eos_id], dtype=np.int64)
        self._n_positions = min(record.max_positions, int(str(options["max_window_tokens"])))
        self._is_authors = options["profile"] == "authors"

    def lay_out(self, shared: SharedPairs[str]) -> GrgWork:
        """Encode texts and lay out base units (shared) and prompted units."""
        work = GrgWork(shared, is_mean_probability=self._is_authors)
        if self._is_authors:
            self._lay_out_texts(shared, work)
        else:
            self._lay_out_windows(shared, work)
        return work.close()

    def _lay_out_windows(self, shared: SharedPairs[str], work: GrgWork) -> None:
        """BOS + window, and BOS + candidate + window; only window tokens are scored."""
        candidates = self._encoder.encode(shared.candidates)
        targets = self._encoder.encode([" " + text for text in shared.targets])
        pairs = zip(shared.pair_candidate.tolist(), shared.pair_target.tolist(), strict=True)
        for i, j in pairs:
            candidate, target = candidates[i], targets[j]
            n_target = len(target) if shared.targets[j] else 0  # Not the added space alone.
            room, reason = target_windows(
                len(candidate), n_target, n_positions=self._n_positions, n_special=1
            )
            if reason is not None:
                work.pairs.refuse(reason)
                continue
            windows = equal_windows(len(target), max_tokens=room)
            work.pairs.add(windows)
            for start, stop in windows:
                window = target[start:stop]
                base = work.add_base((j, start, stop), np.concatenate([self._bos, window]))
                prompted = np.concatenate([self._bos, candidate, window])
                work.add_prompted(base, prompted, n_prompt=1 + len(candidate))

    def _lay_out_texts(self, shared: SharedPairs[str], work: GrgWork) -> None:
        """BOS + text + EOS of the target, and of candidate, space and target; all are scored."""
        candidates = self._encoder.encode(shared.candidates)
        targets = self._encoder.encode(shared.targets)
        pairs = list(zip(shared.pair_candidate.tolist(), shared.pair_target.tolist(), strict=True))
        joined = self._encoder.encode(
            [f"{shared.candidates[i]} {shared.targets[j]}" for i, j in pairs]
        )
        room = self._n_positions - 2
        for (i, j), text in zip(pairs, joined, strict=True):
            reason = _text_reason(len(candidates[i]), len(targets[j]), len(text), room)
            if reason is not None:
                work.pairs.refuse(reason)
                continue
            work.pairs.add([(0, len(targets[j]))])
            work.n_truncated += int(len(text) > room)
            base = work.add_base((j, 0, 0), self._text(targets[j][:room]))
            work.add_prompted(base, self._text(text[:room]), n_prompt=1)

    def _text(self, ids: TokenIds) -> TokenIds:
        return np.concatenate([self._bos, ids, self._eos])


def _text_reason(n_candidate: int, n_target: int, n_joined: int, room: int) -> str | None:
    if n_candidate == 0:
        return EMPTY_CANDIDATE
    if n_target == 0:
        return EMPTY_TARGET
    if n_joined > room and n_candidate + MIN_CONTEXT_TOKENS > room:
        return CANDIDATE_TOO_LONG
    return None


class GrgWork:
    """Units of one shard: base and prompted sequences, and one number of each."""

    def __init__(self, shared: SharedPairs[str], *, is_mean_probability: bool) -> None:
        self.pairs = PairWindows()
        self.lengths: IntArray = np.zeros(0, dtype=np.int64)
        self.n_units_unshared = 0
        self.n_truncated = 0
        self._shared = shared
        self._is_mean_probability = is_mean_probability
        self._sequences: list[TokenIds] = []
        self._first_scored: list[int] = []
        self._base_units: dict[tuple[int, int, int], int] = {}
        self._window_units: list[tuple[int, int]] = []

    def add_base(self, key: tuple[int, int, int], sequence: TokenIds) -> int:
        """Return the unit of a window alone, adding it if it is new."""
        if key not in self._base_units:
            self._base_units[key] = self._add_unit(sequence, first_scored=1)
        return self._base_units[key]

    def add_prompted(self, base: int, sequence: TokenIds, *, n_prompt: int) -> None:
        """Add a window's prompted unit; ``n_prompt`` tokens come before the first scored one."""
        self._window_units.append((base, self._add_unit(sequence, first_scored=n_prompt)))

    def _add_unit(self, sequence: TokenIds, *, first_scored: int) -> int:
        self._sequences.append(sequence)
        self._first_scored.append(first_scored)
        return len(self._sequences) - 1

    def close(self) -> GrgWork:
        """Fix the units; called once after the last one."""
        self.lengths = np.array([len(ids) for ids in self._sequences], dtype=np.int64)
        self._n_scored = self.lengths - np.array(self._first_scored, dtype=np.int64)
        self._value = np.full(len(self.lengths), np.nan)
        _, per_target = self.pairs.row_windows(self._shared)
        self.n_units_unshared = 2 * int(per_target.sum())
        return self

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``token_logprobs`` for some units."""
        input_ids = pad([self._sequences[i] for i in batch])
        width = input_ids.shape[1]
        prefix_rows, target_ids = [], []
        for row, i in enumerate(batch):
            first, n_tokens = self._first_scored[i], len(self._sequences[i])
            prefix_rows.append(np.arange(row * width + first - 1, row * width + n_tokens - 1))
            target_ids.append(self._sequences[i][first:])
        return {
            "input_ids": input_ids,
            "prefix_rows": np.concatenate(prefix_rows),
            "target_ids": np.concatenate(target_ids),
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the sum of log-probabilities, or the mean probability, of these units."""
        units = list(batch)
        counts = self._n_scored[units]
        values = output.astype(np.float64)
        if self._is_mean_probability:
            values = np.exp(values)
        sums = np.add.reduceat(values, np.cumsum(counts) - counts)
        self._value[units] = sums / counts if self._is_mean_probability else sums

    def statistics(self) -> dict[str, pa.Array]:
        """Return windows per target and, per window, base, prompted and scored tokens."""
        shared = self._shared
        units = np.array(self._window_units, dtype=np.int64).reshape(-1, 2)
        base, prompted = self._value[units[:, 0]], self._value[units[:, 1]]
        self.pairs.refuse_non_finite(np.isfinite(base) & np.isfinite(prompted))
        windows, per_target = self.pairs.row_windows(shared)
        n_values = row_totals(per_target, shared.n_targets)
        n_scored = self._n_scored[units[windows, 0]].astype(np.int32)
        unit = "probability" if self._is_mean_probability else "nats"
        return {
            "n_windows": list_column(per_target.astype(np.int32), shared.n_targets),
            f"base_{unit}": list_column(base[windows], n_values),
            f"prompted_{unit}": list_column(prompted[windows], n_values),
            "n_context_tokens": list_column(n_scored, n_values),
            "reasons": list_column(self.pairs.row_reasons(shared), shared.n_targets),
        }
