"""Family ``lrm``: layer-wise matching precision of (candidate, target) pairs, per window.

Source: QRelScore section 2.1 (``metrics.qrelscore`` has the equations). Profile ``authors`` cuts
the target where the encoder ends and leaves out the last token of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.model_units import (
    CANDIDATE_TOO_LONG,
    EMPTY_CANDIDATE,
    EMPTY_TARGET,
    TOO_SHORT,
    ModelScorer,
    PairTemplate,
    PairWindows,
    Units,
    Window,
    Work,
    list_column,
    row_totals,
    target_windows,
)
from qaeval_core.families.transport import transport_plan
from qaeval_core.families.validate import SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.text.encode import TextEncoder, equal_windows


class LrmScorer(ModelScorer):
    """Lays out pairs for the graph ``relevance_matching``; ``profile`` is "paper" or "authors"."""

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        super().__init__(artifact, encoder, options)
        self._template = PairTemplate.of(artifact)
        self._is_authors = options["profile"] == "authors"

    def lay_out(self, shared: SharedPairs[str]) -> LrmWork:
        """Encode distinct texts and lay out one unit per window of each distinct pair."""
        candidates = self.encoder.encode(shared.candidates)
        targets = self.encoder.encode(shared.targets)
        record = self.artifact.record
        is_mover = record.options["aggregate"] == "mover"
        work = LrmWork(shared, record.n_layers, is_mover=is_mover)
        n_dropped = int(self._is_authors)
        for i, j in shared.pairs():
            candidate, target = candidates[i], targets[j]
            windows, reason = self._windows(len(candidate), len(target))
            work.pairs.add(windows, reason)
            if reason is not None:
                continue
            work.n_truncated += int(windows[-1][1] < len(target))
            for start, stop in windows:
                work.units.add(
                    self._template.pair(candidate, target[start:stop]),
                    n_candidate=len(candidate) - n_dropped,
                    context_start=self._template.second_start(len(candidate)),
                    n_context=stop - start - n_dropped,
                )
        work.n_units_unshared = work.pairs.n_row_windows(shared)
        return work

    def _windows(self, n_candidate: int, n_target: int) -> tuple[list[Window], str | None]:
        n_positions, n_special = self.artifact.record.max_positions, self._template.n_special
        if self._is_authors:
            return self._cut(n_candidate, n_target, n_positions - n_special)
        room, reason = target_windows(
            n_candidate, n_target, n_positions=n_positions, n_special=n_special
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


class LrmUnits(Units):
    """Pairs, and Prec_l of each."""

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units."""
        inputs = super().make_inputs(batch)
        positions = np.arange(1, int(inputs["n_candidate"].max()) + 1, dtype=np.int64)
        return {**inputs, "candidate_positions": positions}


class MoverUnits(LrmUnits):
    """Pairs of which the graph returns cosines of tokens; of these, Prec_l of each is kept."""

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep Prec_l of these units; output has shape (n_units, n_layers, n_cand, n_tokens)."""
        facts = ("n_candidate", "context_start", "n_context")
        for cosines, i in zip(output, batch, strict=True):
            n_candidate, start, n_context = (int(self.facts[name][i]) for name in facts)
            own = cosines[:, :n_candidate, start : start + n_context]
            own = own.astype(np.float64)
            self.output[i] = (mover_plans(own) * own).sum(axis=2).mean(axis=1)  # Prec_l


def mover_plans(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each candidate token hands to each context token, in each layer.

    Parameters
    ----------
    cosines : float ndarray of shape (n_layers, n_candidate, n_context)

    Returns
    -------
    float ndarray of shape (n_layers, n_candidate, n_context)
        P of the plan that moves the candidate onto the context at the least cost 1 - cos, all
        tokens of a side weighing the same; its rows sum to 1. NaN where a cosine is not finite.

    Examples
    --------
    >>> mover_plans(np.array([[[1.0, 0.0], [0.5, 0.25]]]))
    array([[[1., 0.],
            [0., 1.]]])
    """
    _, n_candidate, n_context = cosines.shape
    supply, demand = np.full(n_candidate, 1 / n_candidate), np.full(n_context, 1 / n_context)
    plans = np.full(cosines.shape, np.nan)
    for layer, own in enumerate(cosines):
        if np.isfinite(own).all():
            plans[layer] = n_candidate * transport_plan(costs=1 - own, supply=supply, demand=demand)
    return plans


class LrmWork(Work):
    """Units of one shard: token sequences, and Prec_l of each once the model ran."""

    def __init__(self, shared: SharedPairs[str], n_layers: int, *, is_mover: bool) -> None:
        self.pairs = PairWindows()
        told = ("n_candidate", "context_start", "n_context")
        self.units = (MoverUnits if is_mover else LrmUnits)(told=told, shape=(n_layers,))
        self._shared = shared
        self._n_layers = n_layers

    def statistics(self) -> dict[str, pa.Array]:
        """Return windows per target, Prec_l per window and layer, and reasons, for every row."""
        shared, precision = self._shared, self.units.output
        self.pairs.refuse_non_finite(np.asarray(np.isfinite(precision).all(axis=1)))
        windows, per_target = self.pairs.row_windows(shared)
        n_values = row_totals(per_target, shared.n_targets) * self._n_layers
        return {
            "n_windows": list_column(per_target.astype(np.int32), shared.n_targets),
            "layer_precision": list_column(precision[windows].ravel(), n_values),
            "reasons": list_column(self.pairs.row_reasons(shared), shared.n_targets),
        }
