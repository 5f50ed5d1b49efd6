"""Score columns: names, types and descriptions of what a run writes, and their values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import Column, ColumnKind, Values
from qaeval_core.planning.run_plan import CompiledRun, InstancePlan
from qaeval_core.schema import COLUMNS_METADATA, QUARANTINE_REASON

# Scores of words have 64 bits: they equal the peers' to the last digits that those print.
_TYPES: Mapping[ColumnKind, pa.DataType] = {
    "score": pa.float32(),
    "exact": pa.float64(),
    "count": pa.int32(),
    "word": pa.string(),
    "text": pa.string(),
    "detail": pa.string(),
}


def score_fields(run: CompiledRun, *, with_statistics: bool = False) -> list[pa.Field]:
    """Return the fields that the instances of a run write, in order."""
    return [
        field
        for plan in run.instances
        for field in _instance_fields(plan, with_statistics=with_statistics)
    ]


def _instance_fields(plan: InstancePlan, *, with_statistics: bool) -> list[pa.Field]:
    fields = [pa.field(plan.column(own.name), _TYPES[own.kind]) for own in plan.columns]
    if with_statistics and plan.metric.over_examples == "sum_of_statistics":
        fields.append(pa.field(plan.statistics_column, pa.list_(pa.float64())))
    return [*fields, pa.field(plan.reason_column, pa.string())]


def column_array(column: Column, values: Values) -> pa.Array:
    """Return the values of a column as it is written: NaN is null."""
    kind = _TYPES[column.kind]
    if not column.is_number:
        return pa.array(values, kind)
    dtype = {"exact": np.float64, "count": np.int32}.get(column.kind, np.float32)
    return pa.array(np.asarray(values).astype(dtype), kind, from_pandas=column.is_score)


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
        plan.column(own.name): _description(plan, own.name)
        for plan in run.instances
        for own in plan.columns
        if own.is_number
    }
    return {COLUMNS_METADATA: json.dumps(described, ensure_ascii=False).encode()}


def _description(plan: InstancePlan, output: str) -> dict[str, object]:
    metric = plan.metric
    # A sub-score has the range of its own; that of the metric is known.
    is_main = output == ""
    return {
        "metric": metric.name,
        "output": output,
        "settings": plan.settings.model_dump(mode="json"),
        "low": metric.low if is_main else None,
        "high": metric.high if is_main else None,
        "higher_is_better": metric.higher_is_better,
        "over_examples": metric.over_examples if is_main else "mean",
        "signature": str(plan.signature),
    }
