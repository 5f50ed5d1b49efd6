"""Family ``grg``: likelihood of a target with and without the candidate as a prompt, per window.

Source: QRelScore section 2.2 (``metrics.qrelscore`` has the equations). The likelihood of the
target alone does not depend on the candidate: one unit per distinct window, shared by all
candidates. Profile ``authors`` scores whole texts, EOS included, by mean probability, and cuts
them where the model ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ModelError
from qaeval_core.families.model_units import (
    CANDIDATE_TOO_LONG,
    EMPTY_CANDIDATE,
    EMPTY_TARGET,
    MIN_CONTEXT_TOKENS,
    ModelScorer,
    PairWindows,
    Units,
    Work,
    list_column,
    row_totals,
    target_windows,
)
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds, equal_windows


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
        work = GrgWork(shared, is_mean_probability=self._is_authors)
        if self._is_authors:
            self._lay_out_texts(shared, work)
        else:
            self._lay_out_windows(shared, work)
        work.n_units_unshared = 2 * work.pairs.n_row_windows(shared)
        return work

    def _lay_out_windows(self, shared: SharedPairs[str], work: GrgWork) -> None:
        """BOS + window, and BOS + candidate + window; only window tokens are scored."""
        candidates = self.encoder.encode(shared.candidates)
        targets = self.encoder.encode([" " + text for text in shared.targets])
        for i, j in shared.pairs():
            candidate, target = candidates[i], targets[j]
            n_target = len(target) if shared.targets[j] else 0  # Not the added space alone.
            room, reason = target_windows(
                len(candidate), n_target, n_positions=self._n_positions, n_special=1
            )
            windows = equal_windows(len(target), max_tokens=room) if reason is None else []
            work.pairs.add(windows, reason)
            for start, stop in windows:
                window = target[start:stop]
                base = work.add_base((j, start, stop), np.concatenate([self._bos, window]))
                prompted = np.concatenate([self._bos, candidate, window])
                work.add_prompted(base, prompted, n_prompt=1 + len(candidate))

    def _lay_out_texts(self, shared: SharedPairs[str], work: GrgWork) -> None:
        """BOS + text + EOS of the target, and of candidate, space and target; all are scored."""
        candidates = self.encoder.encode(shared.candidates)
        targets = self.encoder.encode(shared.targets)
        pairs = shared.pairs()
        joined = self.encoder.encode(
            [f"{shared.candidates[i]} {shared.targets[j]}" for i, j in pairs]
        )
        room = self._n_positions - 2
        for (i, j), text in zip(pairs, joined, strict=True):
            reason = _text_reason(len(candidates[i]), len(targets[j]), len(text), room)
            work.pairs.add([(0, len(targets[j]))] if reason is None else [], reason)
            if reason is None:
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


class GrgUnits(Units):
    """Sequences, and one number of each: a sum of log-probabilities, or a mean probability."""

    def __init__(self, *, is_mean_probability: bool) -> None:
        super().__init__(kept=("first_scored",))
        self._is_mean_probability = is_mean_probability

    @cached_property
    def n_scored(self) -> IntArray:
        """Tokens of each unit that are scored."""
        return self.lengths - self.facts["first_scored"]

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The number of each unit; NaN where it has not run."""
        return np.full(len(self.sequences), np.nan)

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``token_logprobs`` for some units."""
        input_ids = pad([self.sequences[i] for i in batch])
        width = input_ids.shape[1]
        prefix_rows, target_ids = [], []
        for row, i in enumerate(batch):
            first, n_tokens = int(self.facts["first_scored"][i]), len(self.sequences[i])
            prefix_rows.append(np.arange(row * width + first - 1, row * width + n_tokens - 1))
            target_ids.append(self.sequences[i][first:])
        return {
            "input_ids": input_ids,
            "prefix_rows": np.concatenate(prefix_rows),
            "target_ids": np.concatenate(target_ids),
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the number of these units; output has shape (n_scored of all,)."""
        units = list(batch)
        counts = self.n_scored[units]
        found = output.astype(np.float64)
        if self._is_mean_probability:
            found = np.exp(found)
        sums = np.add.reduceat(found, np.cumsum(counts) - counts)
        self.values[units] = sums / counts if self._is_mean_probability else sums


class GrgWork(Work):
    """Units of one shard: base and prompted sequences, and which window each is of."""

    units: GrgUnits

    def __init__(self, shared: SharedPairs[str], *, is_mean_probability: bool) -> None:
        self.pairs = PairWindows()
        self.units = GrgUnits(is_mean_probability=is_mean_probability)
        self._shared = shared
        self._unit = "probability" if is_mean_probability else "nats"
        self._base_units: dict[tuple[int, int, int], int] = {}
        self._window_units: list[tuple[int, int]] = []

    def add_base(self, key: tuple[int, int, int], sequence: TokenIds) -> int:
        """Return the unit of a window alone, adding it if it is new."""
        if key not in self._base_units:
            self._base_units[key] = self.units.add(sequence, first_scored=1)
        return self._base_units[key]

    def add_prompted(self, base: int, sequence: TokenIds, *, n_prompt: int) -> None:
        """Add a window's prompted unit; ``n_prompt`` tokens come before the first scored one."""
        self._window_units.append((base, self.units.add(sequence, first_scored=n_prompt)))

    def statistics(self) -> dict[str, pa.Array]:
        """Return windows per target and, per window, base, prompted and scored tokens."""
        shared = self._shared
        units = np.array(self._window_units, dtype=np.int64).reshape(-1, 2)
        base, prompted = self.units.values[units[:, 0]], self.units.values[units[:, 1]]
        self.pairs.refuse_non_finite(np.isfinite(base) & np.isfinite(prompted))
        windows, per_target = self.pairs.row_windows(shared)
        n_values = row_totals(per_target, shared.n_targets)
        n_scored = self.units.n_scored[units[windows, 0]].astype(np.int32)
        return {
            "n_windows": list_column(per_target.astype(np.int32), shared.n_targets),
            f"base_{self._unit}": list_column(base[windows], n_values),
            f"prompted_{self._unit}": list_column(prompted[windows], n_values),
            "n_context_tokens": list_column(n_scored, n_values),
            "reasons": list_column(self.pairs.row_reasons(shared), shared.n_targets),
        }
