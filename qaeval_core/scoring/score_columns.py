"""Score columns: names, types and descriptions of what a run writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.schema import COLUMNS_METADATA, QUARANTINE_REASON
from qaeval_core.scoring.plans import CompiledRun, InstancePlan


def score_fields(run: CompiledRun, *, with_statistics: bool = False) -> list[pa.Field]:
    """Return the fields that the instances of a run write, in order."""
    return [
        field
        for plan in run.instances
        for field in _instance_fields(plan, with_statistics=with_statistics)
    ]


def _instance_fields(plan: InstancePlan, *, with_statistics: bool) -> list[pa.Field]:
    spec = METRICS[plan.settings.metric]
    kinds = {
        **dict.fromkeys(spec.count_outputs, pa.int32()),
        **dict.fromkeys(spec.undescribed_outputs, pa.string()),
    }
    is_exact = spec.needs == ("words",)
    score = pa.float64() if is_exact else pa.float32()
    fields = [pa.field(plan.column(output), kinds.get(output, score)) for output in plan.outputs]
    if with_statistics and spec.over_examples == "sum_of_statistics":
        fields.append(pa.field(plan.statistics_column, pa.list_(pa.float64())))
    return [*fields, pa.field(plan.reason_column, pa.string())]


def check_output_names(run: CompiledRun, *, carry: Sequence[str] = ()) -> None:
    """Raise ConfigError if two columns of the scores would have one name."""
    if "id" in carry:
        raise ConfigError("id is always copied: leave it out of --carry")
    names = [field.name for field in score_fields(run, with_statistics=True)]
    counts = Counter([*carry, "id", *names, QUARANTINE_REASON])
    for name, count in counts.items():
        if count > 1:
            raise ConfigError(f"two output columns would be named {name!r}")


def columns_metadata(run: CompiledRun) -> dict[bytes, bytes]:
    """Return the schema metadata of a score file: what each score column is, as JSON."""
    described = {
        plan.column(output): _description(plan, output)
        for plan in run.instances
        for output in plan.outputs
        if output not in METRICS[plan.settings.metric].undescribed_outputs
    }
    return {COLUMNS_METADATA: json.dumps(described, ensure_ascii=False).encode()}


def _description(plan: InstancePlan, output: str) -> dict[str, object]:
    spec = METRICS[plan.settings.metric]
    # A sub-score has the range of its own; that of the metric is known.
    is_main = output == ""
    return {
        "metric": spec.name,
        "output": output,
        "settings": plan.settings.model_dump(mode="json"),
        "low": spec.low if is_main else None,
        "high": spec.high if is_main else None,
        "higher_is_better": spec.higher_is_better,
        "over_examples": spec.over_examples if is_main else "mean",
        "signature": str(plan.signature),
    }
