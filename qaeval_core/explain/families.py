"""Explain: which tokens the numbers of a family come from; one function per family.

A new family needs one entry in `EXPLAINERS`, or none: it is then shown by its statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from qaeval_core.errors import ArtifactMissingError
from qaeval_core.explain.answers import explain_kpqa_weights, explain_token_match
from qaeval_core.explain.parts import FamilyExplanation, Part, TargetParts
from qaeval_core.explain.qrelscore import explain_grg, explain_lrm
from qaeval_core.explain.recompute import FamilyRun, Sessions, instances_of
from qaeval_core.scoring.job import Job

# Yields the parts of each target of the row, in order.
Explainer: TypeAlias = Callable[[FamilyRun, Job, Sessions], Iterator[tuple[Part, ...]]]

EXPLAINERS: Mapping[str, Explainer] = MappingProxyType(
    {
        "lrm": explain_lrm,
        "lrm_references": explain_lrm,
        "grg": explain_grg,
        "grg_references": explain_grg,
        "token_match": explain_token_match,
        "token_match_context": explain_token_match,
        "kpqa_weights": explain_kpqa_weights,
    }
)


def explain_family(run: FamilyRun, job: Job, sessions: Sessions) -> FamilyExplanation:
    """Return which tokens a family's numbers come from, for each target of the row."""
    record = run.plan.artifact.record
    explain = EXPLAINERS.get(run.plan.family.name)
    reasons = run.texts("reasons")
    parts: list[tuple[Part, ...]] = [()] * len(reasons)
    note = None
    if explain is not None:
        try:
            parts = list(explain(run, job, sessions))
        except ArtifactMissingError as error:
            explain, note = None, f"which tokens its numbers come from is not shown: {error}"
    return FamilyExplanation(
        key=run.plan.key,
        family=run.plan.name,
        signature=str(run.plan.signature),
        model=record.model.name,
        artifact=run.plan.artifact.folder.name,
        instances=tuple(plan.name for plan in instances_of(run, job)),
        target_role=run.plan.family.target_role,
        targets=tuple(
            TargetParts(
                target=i,
                reason=reason,
                parts=parts[i],
                statistics=_statistics(run, i) if explain is None else {},
            )
            for i, reason in enumerate(reasons)
        ),
        note=note,
    )


def _statistics(run: FamilyRun, target: int) -> dict[str, float | None]:
    """Return the numbers that are stored once per target."""
    found: dict[str, float | None] = {}
    n_targets = len(run.targets)
    for name in run.statistics.column_names:
        kind = run.statistics.schema.field(name).type
        if not pa.types.is_list(kind) or not _is_number(kind.value_type):
            continue
        values = run.statistics.column(name)[0].as_py()
        if values is not None and len(values) == n_targets:
            found[name] = None if values[target] is None else float(values[target])
    return found


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )
