"""Family ``lrm``: layer-wise matching precision of (candidate, target) pairs, per window.

Source: QRelScore section 2.1 (``metrics.qrelscore`` has the equations). Profile ``authors`` cuts
the target where the encoder ends and leaves out the last token of both sides.
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
    TOO_SHORT,
    PairWindows,
    Window,
    list_column,
    row_totals,
    target_windows,
)
from qaeval_core.families.validate import SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds, equal_windows


class LrmScorer:
    """Lays out pairs for the graph ``relevance_matching``.

    Parameters
    ----------
    artifact : Artifact
        An exported encoder.
    encoder : TextEncoder
        Its tokenizer.
    options : mapping
        ``profile``: "paper" or "authors".
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        record = artifact.record
        if record.template is None:
            raise ModelError(f"{artifact.folder.name} has no pair template: not an encoder")
        self._encoder = encoder
        self._prefix = np.array(record.template.prefix_ids, dtype=np.int64)
        self._middle = np.array(record.template.middle_ids, dtype=np.int64)
        self._suffix = np.array(record.template.suffix_ids, dtype=np.int64)
        self._n_positions = record.max_positions
        self._n_layers = record.n_layers
        self._is_authors = options["profile"] == "authors"

    def lay_out(self, shared: SharedPairs[str]) -> LrmWork:
        """Encode distinct texts and lay out one unit per window of each distinct pair."""
        candidates = self._encoder.encode(shared.candidates)
        targets = self._encoder.encode(shared.targets)
        work = LrmWork(shared, self._n_layers, n_dropped=int(self._is_authors))
        pairs = zip(shared.pair_candidate.tolist(), shared.pair_target.tolist(), strict=True)
        for i, j in pairs:
            candidate, target = candidates[i], targets[j]
            windows, reason = self._windows(len(candidate), len(target))
            if reason is not None:
                work.pairs.refuse(reason)
                continue
            work.pairs.add(windows)
            work.n_truncated += int(windows[-1][1] < len(target))
            for start, stop in windows:
                work.add_unit(
                    np.concatenate(
                        [self._prefix, candidate, self._middle, target[start:stop], self._suffix]
                    ),
                    n_candidate=len(candidate),
                    context_start=len(self._prefix) + len(candidate) + len(self._middle),
                    n_context=stop - start,
                )
        return work.close()

    def _windows(self, n_candidate: int, n_target: int) -> tuple[list[Window], str | None]:
        n_special = len(self._prefix) + len(self._middle) + len(self._suffix)
        if self._is_authors:
            return self._cut(n_candidate, n_target, self._n_positions - n_special)
        room, reason = target_windows(
            n_candidate, n_target, n_positions=self._n_positions, n_special=n_special
        )
        return ([], reason) if reason else (equal_windows(n_target, max_tokens=room), None)

    @staticmethod
    def _cut(n_candidate: int, n_target: int, room: int) -> tuple[list[Window], str | None]:
        """Return the one cut window of the authors' program; both sides need 2 tokens there."""
        if n_candidate == 0 or n_target == 0:
            return [], EMPTY_CANDIDATE if n_candidate == 0 else EMPTY_TARGET
        if n_candidate == 1 or n_target == 1:
            return [], TOO_SHORT
        kept = min(n_target, room - n_candidate)
        return ([], CANDIDATE_TOO_LONG) if kept < 2 else ([(0, kept)], None)


class LrmWork:
    """Units of one shard: token sequences, and Prec_l of each once the model ran."""

    def __init__(self, shared: SharedPairs[str], n_layers: int, *, n_dropped: int) -> None:
        self.pairs = PairWindows()
        self.lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.n_units_unshared = 0
        self.n_truncated = 0
        self._shared = shared
        self._n_layers = n_layers
        self._n_dropped = n_dropped
        self._sequences: list[TokenIds] = []
        self._spans: list[tuple[int, int, int]] = []

    def add_unit(
        self, sequence: TokenIds, *, n_candidate: int, context_start: int, n_context: int
    ) -> None:
        """Note one window of one pair."""
        self._sequences.append(sequence)
        self._spans.append((n_candidate, context_start, n_context))

    def close(self) -> LrmWork:
        """Fix the units; called once after the last one."""
        self.lengths = np.array([len(ids) for ids in self._sequences], dtype=np.int64)
        self._span_array = np.array(self._spans, dtype=np.int64).reshape(-1, 3)
        self._precision = np.full((len(self.lengths), self._n_layers), np.nan, dtype=np.float32)
        _, per_target = self.pairs.row_windows(self._shared)
        self.n_units_unshared = int(per_target.sum())
        return self

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``relevance_matching`` for some units."""
        rows = list(batch)
        spans = self._span_array[rows]
        n_candidate = spans[:, 0] - self._n_dropped
        return {
            "input_ids": pad([self._sequences[i] for i in rows]),
            "n_tokens": self.lengths[rows],
            "n_candidate": n_candidate,
            "context_start": spans[:, 1],
            "n_context": spans[:, 2] - self._n_dropped,
            "candidate_positions": np.arange(1, int(n_candidate.max()) + 1, dtype=np.int64),
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep Prec_l of these units; output has shape (n_pairs, n_layers)."""
        self._precision[list(batch)] = output

    def statistics(self) -> dict[str, pa.Array]:
        """Return windows per target, Prec_l per window and layer, and reasons, for every row."""
        shared = self._shared
        is_finite = np.asarray(np.isfinite(self._precision).all(axis=1))
        self.pairs.refuse_non_finite(is_finite)
        windows, per_target = self.pairs.row_windows(shared)
        n_values = row_totals(per_target, shared.n_targets) * self._n_layers
        return {
            "n_windows": list_column(per_target.astype(np.int32), shared.n_targets),
            "layer_precision": list_column(self._precision[windows].ravel(), n_values),
            "reasons": list_column(self.pairs.row_reasons(shared), shared.n_targets),
        }
