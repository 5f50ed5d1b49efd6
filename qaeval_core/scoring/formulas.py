"""Formulas: raw statistics of families to the columns of an instance, at join time, no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.metrics import qrelscore
from qaeval_core.scoring.compile import InstancePlan
from qaeval_core.scoring.families.base import EMPTY_TARGET

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


def score_instance(
    plan: InstancePlan, statistics: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.Array], list[str | None]]:
    """Return the score columns of an instance, and the reason of each row with an undefined one.

    Parameters
    ----------
    plan : InstancePlan
    statistics : mapping of family key to table
        The same rows in the same order, quarantined ones left out.

    Returns
    -------
    (dict of column to array, list of str or None)
    """
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
    if plan.settings.metric == "ref_qrelscore":
        best, reference_reasons = _best_reference(parts["lrm_references"], parts["grg_references"])
        values = {"": (score + best) / 2, "context": score, "reference": best}  # eq. 10
        reasons = _first_reason(reasons, reference_reasons)
    return {plan.column(name): _column(values[name]) for name in plan.outputs}, reasons


def part_scores(plan: InstancePlan, name: str, table: pa.Table) -> PartScores:
    """Return raw and rescaled scores of one family of an instance, for every row target."""
    settings = plan.settings
    per_target = _flat(table, "n_windows").astype(np.int64)
    if name.startswith("lrm"):
        n_layers = plan.families[name].artifact.record.n_layers
        precision = _flat(table, "layer_precision").reshape(-1, n_layers)
        layers = qrelscore.layer_indices(settings.layers, n_layers=n_layers)
        per_window = qrelscore.lrm_per_window(precision, layers=layers, exponent=settings.exponent)
        baseline = plan.baseline.lrm
    else:
        unit = "probability" if settings.profile == "authors" else "nats"
        per_window = qrelscore.grg_per_window(
            _flat(table, f"base_{unit}"),
            _flat(table, f"prompted_{unit}"),
            profile=settings.profile,
            gain=settings.gain,
        )
        baseline = plan.baseline.grg
    raw = qrelscore.mean_over_windows(per_window, per_target)
    reasons = _column_values(table, "reasons").to_pylist()
    for i in np.flatnonzero(np.isnan(raw)).tolist():
        reasons[i] = reasons[i] or ZERO_BASE
    raw[[reason is not None for reason in reasons]] = np.nan
    n_targets = _counts(table, "n_windows")
    reasons = [_named(reason, name) for reason in reasons]
    return PartScores(raw, qrelscore.rescale(raw, baseline), per_target, n_targets, reasons)


def _named(reason: str | None, family: str) -> str | None:
    if reason != EMPTY_TARGET:
        return reason
    return "empty_reference" if family.endswith("references") else "empty_context"


def _best_reference(lrm: PartScores, grg: PartScores) -> tuple[FloatArray, list[str | None]]:
    scores = qrelscore.combine(lrm.rescaled, grg.rescaled)
    best = qrelscore.best_over_references(scores, lrm.n_targets)
    reasons = [
        None if not np.isnan(value) else (NO_DEFINED_REFERENCE if n else NO_REFERENCES)
        for value, n in zip(best.tolist(), lrm.n_targets.tolist(), strict=True)
    ]
    return best, reasons


def _first_reason(first: list[str | None], second: list[str | None]) -> list[str | None]:
    return [a or b for a, b in zip(first, second, strict=True)]


def _column_values(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks().flatten()


def _flat(table: pa.Table, name: str) -> FloatArray:
    values = _column_values(table, name).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def _counts(table: pa.Table, name: str) -> NDArray[np.int64]:
    column = table.column(name).combine_chunks()
    return np.asarray(np.diff(column.offsets.to_numpy()), dtype=np.int64)


def _column(values: FloatArray | NDArray[np.int64]) -> pa.Array:
    if values.dtype.kind == "i":
        return pa.array(values.astype(np.int32))
    return pa.array(values.astype(np.float32), from_pandas=True)
