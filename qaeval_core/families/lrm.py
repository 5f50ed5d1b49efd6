"""Family ``lrm``: layer-wise matching precision of (candidate, target) pairs, per window.

Source: QRelScore section 2.1 (``metrics.qrelscore`` has the equations). Profile ``authors`` cuts
the target where the encoder ends and leaves out the last token of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.model_units import (
    CANDIDATE_TOO_LONG,
    TOO_SHORT,
    Batch,
    ModelScorer,
    PairTemplate,
    PairWindows,
    Reasons,
    Units,
    Work,
    empty_reasons,
    has_score,
    list_column,
    per_target,
    row_totals,
    target_windows,
)
from qaeval_core.families.transport import transport_plan
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.batches import exact_widths
from qaeval_core.text.encode import TextEncoder, equal_cuts


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
        candidates = self.encoder.encode(shared.candidates).take(shared.pair_candidate)
        targets = self.encoder.encode(shared.targets).take(shared.pair_target)
        room, reasons = self._room(candidates.counts, targets.counts)
        n_most = room if self._is_authors else targets.counts
        n_read = np.where(has_score(reasons), np.minimum(targets.counts, n_most), 0)
        pair, start, n_tokens = equal_cuts(n_read, max_tokens=np.maximum(room, 1))
        candidate, n_dropped = candidates.take(pair), int(self._is_authors)
        told = {
            "n_candidate": candidate.counts - n_dropped,
            "context_start": self._template.second_start(candidate.counts),
            "n_context": n_tokens - n_dropped,
        }
        sequences = self._template.pair(candidate, targets.take(pair).cut(start, n_tokens))
        record = self.artifact.record
        is_mover = record.options["aggregate"] == "mover"
        units = (MoverUnits if is_mover else LrmUnits)(
            sequences, told=told, shape=(record.n_layers,)
        )
        pairs = PairWindows(np.bincount(pair, minlength=len(reasons)), reasons)
        n_truncated = int((has_score(reasons) & (n_read < targets.counts)).sum())
        return LrmWork(shared, pairs, units, n_truncated)

    def _room(self, n_candidate: IntArray, n_target: IntArray) -> tuple[IntArray, Reasons]:
        """Return the target's tokens that fit a window of each pair, and why it has none."""
        n_positions, n_special = self.artifact.record.max_positions, self._template.n_special
        if not self._is_authors:
            return target_windows(
                n_candidate, n_target, n_positions=n_positions, n_special=n_special
            )
        # The one cut window of the authors' program; both sides need 2 tokens there.
        room = n_positions - n_special - n_candidate
        reasons = empty_reasons(n_candidate, n_target)
        reasons[has_score(reasons) & ((n_candidate == 1) | (n_target == 1))] = TOO_SHORT
        reasons[has_score(reasons) & (room < 2)] = CANDIDATE_TOO_LONG
        return room, reasons


class LrmUnits(Units):
    """Pairs, and Prec_l of each."""

    def make_inputs(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Return the graph's inputs for some units."""
        inputs = super().make_inputs(batch)
        n, last = int(inputs["n_candidate"].max()), inputs["input_ids"].shape[1] - 1
        if self.is_exact:
            n = int(self.groups[batch].max())
        # Those beyond a candidate are left out by the graph, whatever they name.
        positions = np.minimum(np.arange(1, n + 1, dtype=np.int64), last)
        return {**inputs, "candidate_positions": positions}

    @property
    def groups(self) -> IntArray:
        """To how many tokens candidates are padded in exact batches."""
        return exact_widths(self.facts["n_candidate"], has_short_steps=False)


class MoverUnits(LrmUnits):
    """Pairs of which the graph returns cosines of tokens; of these, Prec_l of each is kept."""

    def take(self, batch: Batch, output: NDArray[np.float32]) -> None:
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

    def __init__(
        self, shared: SharedPairs[str], pairs: PairWindows, units: LrmUnits, n_truncated: int
    ) -> None:
        self._shared = shared
        self._pairs = pairs
        self.units = units
        self.n_units_unshared = pairs.n_row_windows(shared)
        self.n_truncated = n_truncated

    def statistics(self) -> dict[str, pa.Array]:
        """Return windows per target, Prec_l per window and layer, and reasons, for every row."""
        shared, precision = self._shared, self.units.output
        reasons = self._pairs.reasons(np.asarray(np.isfinite(precision).all(axis=1)))
        windows, n_windows = self._pairs.row_windows(shared)
        n_values = row_totals(n_windows, shared.n_targets) * precision.shape[1]
        return {
            "n_windows": list_column(n_windows.astype(np.int32), shared.n_targets),
            "layer_precision": list_column(precision[windows].ravel(), n_values),
            "reasons": per_target(shared, reasons),
        }
