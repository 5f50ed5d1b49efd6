"""Describe metrics: the catalog for people: a list, and one metric with its options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pydantic.fields import FieldInfo

from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, QAEvalError, UnknownMetricError, nearest
from qaeval_core.metrics.advice import advice_for
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.planning.compile import compile_run
from qaeval_core.schema import ROLES

NO_ADVICE = "not judged: no set at hand has people's verdicts and what it reads"
_REDUCTIONS = {
    "mean": "mean of rows",
    "sum_of_statistics": "from statistics summed over rows, and mean of rows",
}


def metric_records() -> list[dict[str, str]]:
    """Return name, range, direction, roles, title and source of every metric."""
    return [
        {
            "metric": spec.name,
            "range": _range(spec),
            "better": _direction(spec),
            "reads": ", ".join([*spec.roles, *(f"[{role}]" for role in spec.optional_roles)]),
            "what": spec.title,
            "source": spec.source,
        }
        for spec in METRICS.values()
    ]


def metric_lines(name: str) -> Iterator[str]:
    """Yield what a person wants to know of one metric: definition, options and signature.

    Raises
    ------
    ConfigError
        If there is no such metric; names the nearest.
    """
    if name not in METRICS:
        raise UnknownMetricError(f"unknown metric {name!r}{nearest(name, METRICS)} [QA0204]", name)
    return _lines(METRICS[name])


def _lines(spec: AnyMetric) -> Iterator[str]:
    yield f"{spec.name}: {spec.title}"
    yield ""
    yield f"  source      {spec.source}"
    yield f"  range       {_range(spec)}, {_direction(spec)} is better"
    yield f"  symmetric   {'yes' if spec.is_symmetric else 'no'}"
    yield f"  references  {spec.over_references}"
    yield f"  corpus      {_REDUCTIONS[spec.over_examples]}"
    for line in advice_for(spec.name) or (NO_ADVICE,):
        yield f"  worth       {line}"
    yield "  reads"
    for role in spec.roles:
        yield f"    {role:<20} {ROLES[role]}"
    for role in spec.optional_roles:
        yield f"    {role:<20} {ROLES[role]} (optional)"
    yield "  writes"
    for column in spec.columns:
        yield f"    {spec.name}_{column.name}" if column.name else f"    {spec.name}"
    yield f"    {spec.name}_reason"
    yield ""
    yield "Options"
    for key, field in spec.settings.model_fields.items():
        if key != "metric":
            yield from _option_lines(spec.name, key, field)
    yield ""
    yield "Definition"
    yield from (f"  {line}".rstrip() for line in spec.definition.split("\n"))
    yield ""
    yield f"Signature  {_signature(spec)}"


def _option_lines(name: str, key: str, field: FieldInfo) -> Iterator[str]:
    allowed = getattr(field.annotation, "__args__", ())
    words = [str(item) for item in allowed if isinstance(item, str)]
    choice = f"; {', '.join(words)}" if len(words) > 1 else ""
    default = "null" if field.default is None else str(field.default)
    yield f"  {name}.{key}={default}"
    yield f"      {field.description or ''}{choice}"


def _signature(spec: AnyMetric) -> str:
    """Return the signature under default settings, with roles read from columns of their names."""
    config = load_config(overrides={f"metrics.{spec.name}": {}})
    columns: Mapping[str, str] = {role: role for role in spec.roles}
    try:
        run = compile_run(
            config,
            columns=columns,
            device="cpu",
            resolve_artifact=lambda request: ensure_artifact(default_root(), request, build=False),
        )
    except ConfigError as error:
        return f"not known without its settings: {error}"
    except QAEvalError:
        return "not known before the models are exported; `qaeval score` writes it to report.json"
    return str(run.instances[0].signature)


def _range(spec: AnyMetric) -> str:
    return f"{spec.low:g} to {spec.high:g}" if math.isfinite(spec.high) else "any number"


def _direction(spec: AnyMetric) -> str:
    return "higher" if spec.higher_is_better else "lower"
