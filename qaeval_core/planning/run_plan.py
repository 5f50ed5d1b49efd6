"""Run plan: what a compiled run computes: instances, families, and passes over the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from qaeval_core.errors import ConfigError
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.metrics.base import AnyMetric, Column, ColumnKind, Settings, Values
from qaeval_core.schema import COLUMNS_METADATA, QUARANTINE_REASON
from qaeval_core.signature import Signature


def pass_title(families: Sequence[FamilyPlan]) -> str:
    """Return what a progress line shows of the families of one pass."""
    return families[0].title if len(families) == 1 else families[0].name


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One metric instance of a run and the families its formula reads."""

    name: str
    metric: AnyMetric
    settings: Settings  # resolved
    families: Mapping[str, FamilyPlan]  # by the name that the metric reads them by
    signature: Signature

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that it writes, in order."""
        return self.metric.shown_columns(self.settings)

    def column(self, output: str) -> str:
        """Return the name of a column in the scores."""
        return f"{self.name}_{output}" if output else self.name

    def is_share(self, output: str) -> bool:
        """Return whether a column lies between 0, or -1, and 1."""
        own = next(column for column in self.columns if column.name == output)
        return own.is_share and self.metric.low >= -1 and self.metric.high <= 1

    @property
    def reason_column(self) -> str:
        """Column that says why a score is undefined."""
        return f"{self.name}_reason"

    @property
    def statistics_column(self) -> str:
        """Column of the statistics that corpus scores are summed from."""
        return f"{self.name}_statistics"


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """All families (each once) and instances of a run."""

    families: tuple[FamilyPlan, ...]
    instances: tuple[InstancePlan, ...]

    @property
    def passes(self) -> tuple[tuple[FamilyPlan, ...], ...]:
        """Families by pass over the rows: those of words together, each other one alone."""
        alone = [(plan,) for plan in self.families if plan.resources != "words"]
        sharing = [plan for plan in self.families if plan.resources == "words"]
        first = tuple(plan for plan in sharing if not plan.after)
        second = tuple(plan for plan in sharing if plan.after)
        return (*(group for group in (first, second) if group), *alone)


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
        raise ConfigError("id is always copied; leave it out of --carry [QA0106]")
    names = [field.name for field in score_fields(run, with_statistics=True)]
    counts = Counter([*carry, "id", *names, QUARANTINE_REASON])
    for name, count in counts.items():
        if count > 1:
            raise ConfigError(f"two output columns would be named {name!r} [QA0208]")


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
