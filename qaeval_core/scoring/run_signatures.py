"""Run signatures: readable ones of a run, of its settings, artifacts, files and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qaeval_core.families.model_family import ModelFamilyPlan, is_model
from qaeval_core.models.record import ModelRecord
from qaeval_core.pages.example_rows import main_by_instance
from qaeval_core.planning.job import Job
from qaeval_core.planning.run_plan import InstancePlan
from qaeval_core.readable_signature import N_HASH_CHARS, ReadableSignature, references_of
from qaeval_core.signature import hash_file, hash_text
from qaeval_core.stats.mean_interval import ONE_VALUE, SANDWICH, WILSON
from qaeval_core.storage.files import expanded

_METHODS = {SANDWICH: "sandwich", WILSON: "wilson", ONE_VALUE: "wilson"}
_NO_INTERVAL = "none"
_OF_VALUES = "values of "
_WEIGHTS = (".safetensors", ".gguf", ".onnx", ".onnx_data", ".onnx.data")


def readable_lines(job: Job, report: Mapping[str, Any]) -> dict[str, str]:
    """Return the readable signature of every instance; of its main column's rows and interval."""
    _, cluster = job.cluster
    main = main_by_instance(report)
    found = {}
    for plan in job.run.instances:
        own = report["columns"].get(main.get(plan.name), {})
        precisions = {
            family.family.model_role: family.artifact.record.precision for family in _models(plan)
        }
        signature = ReadableSignature.of(
            job.config, plan.name, hashes=hashes_of(job, plan), precisions=precisions
        )
        found[plan.name] = signature.line(
            refs=references_of(plan.metric),
            n=own.get("n", 0),
            interval=interval_name(own.get("interval_method"), cluster),
        )
    return found


def check_like(job: Job, signatures: Sequence[ReadableSignature]) -> None:
    """Raise ConfigError if a model or file of a signature is another one in a job."""
    plans = {plan.name: plan for plan in job.run.instances}
    for signature in signatures:
        signature.check_hashes(hashes_of(job, plans[signature.instance]))


def interval_name(method: str | None, cluster: str) -> str:
    """Return how an interval was made, and what rows share.

    Examples
    --------
    >>> interval_name("clusters, student", "contexts"), interval_name(None, "rows")
    ('sandwich/context', 'none')
    >>> interval_name("one value, wilson", "values of topic")
    'wilson/topic'
    """
    if method not in _METHODS:
        return _NO_INTERVAL
    if cluster.startswith(_OF_VALUES):
        return f"{_METHODS[method]}/{cluster.removeprefix(_OF_VALUES)}"
    return f"{_METHODS[method]}/{cluster.removesuffix('s')}"


def hashes_of(job: Job, plan: InstancePlan) -> dict[str, str]:
    """Return the first hex digits of hashes of an instance's models and files, by setting."""
    settings = job.config.metrics[plan.name]
    found = {
        family.family.model_role: weights_hash(family.artifact.record.model)
        for family in _models(plan)
        if family.family.model_role in type(settings).model_fields
    }
    for name in settings.files:
        path = getattr(settings, name)
        if isinstance(path, str) and expanded(path).is_file():
            found[name] = hash_file(expanded(path), n_chars=N_HASH_CHARS)
    return found


def weights_hash(model: ModelRecord) -> str:
    """Return the first hex digits of the SHA-256 of a model's weights; of its files, if several.

    Examples
    --------
    >>> files = {"model.safetensors": "53aa51172d142c89", "config.json": "953f9c0d463486b1"}
    >>> weights_hash(ModelRecord(name="m", kind="folder", revision=None, files=files))
    '53aa5117'
    """
    hashes = [model.files[name] for name in sorted(model.files) if name.endswith(_WEIGHTS)]
    if len(hashes) == 1:
        return hashes[0][:N_HASH_CHARS]
    return hash_text("\n".join(hashes), n_chars=N_HASH_CHARS)


def _models(plan: InstancePlan) -> Iterator[ModelFamilyPlan]:
    for family in plan.families.values():
        if is_model(family):
            yield family
