"""QRelScore: likelihoods and layer precisions of model passes to the columns of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.metrics import qrelscore
from qaeval_core.metrics.references import best_over_references
from qaeval_core.metrics.settings import QRelScoreSettings
from qaeval_core.scoring.families.base import EMPTY_TARGET
from qaeval_core.scoring.formulas.columns import (
    InstanceScores,
    counts,
    flat,
    list_values,
    score_column,
)
from qaeval_core.scoring.plans import InstancePlan, ModelFamilyPlan

FloatArray = NDArray[np.float64]

NO_REFERENCES = "no_references"
NO_DEFINED_REFERENCE = "no_defined_reference"
ZERO_BASE = "zero_base_likelihood"


@dataclass(frozen=True, slots=True)
class PartScores:
    """Scores of one family for every target of every row."""

    raw: FloatArray
    rescaled: FloatArray
    n_windows: NDArray[np.int64]
    n_targets: NDArray[np.int64]
    reasons: list[str | None]


def score_qrelscore(
    plan: InstancePlan, settings: QRelScoreSettings, statistics: Mapping[str, pa.Table]
) -> InstanceScores:
    """Return the scores of a QRelScore or Ref-QRelScore instance; see `score_instance`."""
    parts = {
        name: part_scores(plan, name, statistics[family.key])
        for name, family in plan.families.items()
    }
    lrm, grg = parts["lrm"], parts["grg"]
    score = qrelscore.combine(lrm.rescaled, grg.rescaled)
    values: dict[str, FloatArray | NDArray[np.int64]] = {
        "": score,
        "lrm": lrm.rescaled,
        "lrm_raw": lrm.raw,
        "lrm_windows": lrm.n_windows,
        "grg": grg.rescaled,
        "grg_raw": grg.raw,
        "grg_windows": grg.n_windows,
    }
    reasons = _first_reason(lrm.reasons, grg.reasons)
    if settings.metric == "ref_qrelscore":
        best, reference_reasons = _best_reference(parts["lrm_references"], parts["grg_references"])
        values = {"": (score + best) / 2, "context": score, "reference": best}  # eq. 10
        reasons = _first_reason(reasons, reference_reasons)
    return InstanceScores({name: score_column(values[name]) for name in plan.outputs}, reasons)


def part_scores(plan: InstancePlan, name: str, table: pa.Table) -> PartScores:
    """Return raw and rescaled scores of one family of an instance, for every row target."""
    settings, family = plan.settings, plan.families[name]
    if not isinstance(settings, QRelScoreSettings) or not isinstance(family, ModelFamilyPlan):
        raise TypeError(f"{plan.name} is no QRelScore")
    per_target = flat(table, "n_windows").astype(np.int64)
    if name.startswith("lrm"):
        n_layers = family.artifact.record.n_layers
        precision = flat(table, "layer_precision").reshape(-1, n_layers)
        layers = qrelscore.layer_indices(settings.layers, n_layers=n_layers)
        per_window = qrelscore.lrm_per_window(precision, layers=layers, exponent=settings.exponent)
        baseline = plan.baseline.lrm
    else:
        unit = "probability" if settings.profile == "authors" else "nats"
        per_window = qrelscore.grg_per_window(
            flat(table, f"base_{unit}"),
            flat(table, f"prompted_{unit}"),
            profile=settings.profile,
            gain=settings.gain,
        )
        baseline = plan.baseline.grg
    raw = qrelscore.mean_over_windows(per_window, per_target)
    reasons = list_values(table, "reasons").to_pylist()
    for i in np.flatnonzero(np.isnan(raw)).tolist():
        reasons[i] = reasons[i] or ZERO_BASE
    raw[[reason is not None for reason in reasons]] = np.nan
    n_targets = counts(table, "n_windows")
    reasons = [_named(reason, name) for reason in reasons]
    return PartScores(raw, qrelscore.rescale(raw, baseline), per_target, n_targets, reasons)


def _named(reason: str | None, family: str) -> str | None:
    if reason != EMPTY_TARGET:
        return reason
    return "empty_reference" if family.endswith("references") else "empty_context"


def _best_reference(lrm: PartScores, grg: PartScores) -> tuple[FloatArray, list[str | None]]:
    scores = qrelscore.combine(lrm.rescaled, grg.rescaled)
    best = best_over_references(scores, lrm.n_targets)
    reasons = [
        None if not np.isnan(value) else (NO_DEFINED_REFERENCE if n else NO_REFERENCES)
        for value, n in zip(best.tolist(), lrm.n_targets.tolist(), strict=True)
    ]
    return best, reasons


def _first_reason(first: list[str | None], second: list[str | None]) -> list[str | None]:
    return [a or b for a, b in zip(first, second, strict=True)]
