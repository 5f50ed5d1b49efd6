"""Configurations whose signatures, keys and columns are pinned, and how they are compiled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qaeval_core.configure import load_config
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.metrics.naco import complexity_key
from qaeval_core.metrics.qrelscore import baseline_key
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.record import GRAPHS, ArtifactRecord, ArtifactRequest, ModelRecord
from qaeval_core.planning.compile import compile_run, needed_requests, needed_roles, optional_roles
from qaeval_core.planning.run_plan import columns_metadata, score_fields
from qaeval_core.schema import ROLES

_ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
_NACO = {**_ENDPOINT, "expected_complexity": 2}
_JUDGE = {**_ENDPOINT, "prompt_file": "tests/pins/judge_prompt.txt"}
# What a run of a metric needs besides its defaults.
_REQUIRED: Mapping[str, Mapping[str, Any]] = {"naco": _NACO, "judge": _JUDGE}

# Of each metric that has options worth it: settings beside the defaults, which are pinned too.
OPTION_SETS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "qrelscore": (
        {"profile": "authors", "layers": "last", "max_window_tokens": 512},
        {"matching": "weighted", "aggregate": "average", "exponent": 2.0, "gain": "absolute"},
        {"baseline": {"lrm": 0.25, "grg": 0.5}, "encoder": "mpnet", "causal_lm": "gpt2"},
    ),
    "ref_qrelscore": ({"profile": "authors"}, {"baseline": {"lrm": 0.25}}),
    "exact_match": ({"tokenizer": "13a", "lowercase": False},),
    "f1": ({"language": "de"}, {"tokenizer": "treebank", "stemming": "porter"}),
    "top_n_accuracy": ({"n": 1},),
    "bleu_1": ({"smoothing": "coco", "over_references": "max"},),
    "bleu_4": ({"smoothing": "exponential"}, {"over_references": "max", "tokenizer": "coco"}),
    "rouge_l": ({"beta": 1.2, "cut_decimals": 16}, {"over_references": "max"}),
    "meteor": ({"synonyms": "none", "gamma": 0.6},),
    "cider": ({"sigma": 4.0, "over_references": "max"},),
    "q_bleu": ({"order": 2, "absent": "zero", "delta": 0.5},),
    "q_bleu_free": ({"smoothing": "none"},),
    "adapted_bleu_4": ({"alpha": 1.0, "over_references": "max"},),
    "adapted_rouge_l": ({"gamma": 2.0, "over_references": "max"},),
    "sas": ({"activation": "identity"}, {"cross_encoder": "cross-encoder/stsb-roberta-large"}),
    "bi_encoder": ({"encoder": "mpnet"},),
    "bertscore": ({"layer": 2, "idf": True}, {"special_tokens": "exclude"}),
    "bertscore_free": ({"layer": 0},),
    "moverscore": ({"idf": True},),
    "kpqa": (
        {"profile": "authors", "weights": "plain"},
        {"show_weights": True, "beta": 2.0, "layer": 1},
    ),
    "naco": (
        {**_NACO, "profile": "authors", "runs": 3, "one_shot": True},
        {**_NACO, "weights": {"naturalness": 2.0}, "expected_complexity": 3.5},
    ),
    "judge": ({**_JUDGE, "runs": 3, "scale": [0, 10], "read": "json:score"},),
    "roundtrip": ({"reader": "deepset/roberta-base-squad2"},),
}


def pinned() -> dict[str, Any]:
    """Return what is pinned, by metric and option set."""
    sets: dict[str, tuple[Mapping[str, Any], ...]] = {
        name: (_REQUIRED.get(name, {}), *OPTION_SETS.get(name, ())) for name in METRICS
    }
    return {
        f"{name} {number}": _pinned(name, given)
        for name, own in sets.items()
        for number, given in enumerate(own)
    }


def _pinned(metric: str, given: Mapping[str, Any]) -> dict[str, Any]:
    settings = {"metric": metric, **given}
    config = load_config(overrides={f"metrics.one.{key}": settings[key] for key in settings})
    columns = {role: f"the {role}" for role in ROLES}
    run, on_gpu = (
        compile_run(
            config, columns=columns, device=device, resolve_artifact=fake_artifact, corpus="c0ffee"
        )
        for device in ("cpu", "cuda")
    )
    (instance,) = run.instances
    described = columns_metadata(run)
    fields, all_fields = score_fields(run), score_fields(run, with_statistics=True)
    return {
        "roles": [*needed_roles(config), *optional_roles(config)],
        "requests": [
            request.folder_name
            for device in ("cpu", "cuda")
            for request in needed_requests(config, device=device)
        ],
        "families": [family.key for family in run.families],
        "families on a GPU": [family.key for family in on_gpu.families],
        "passes": [[family.key for family in families] for families in run.passes],
        "signatures": [str(plan.signature) for plan in run.instances],
        "columns": [f"{field.name}: {field.type}" for field in fields],
        "statistics": [field.name for field in all_fields if field not in fields],
        "calibration": _calibration_keys(instance),
        "metadata": {key.decode(): json.loads(value) for key, value in described.items()},
    }


def _calibration_keys(instance: Any) -> list[str]:
    """Return what in files of `qaeval calibrate` an instance's numbers are found by."""
    passes = {name: plan.facts for name, plan in instance.families.items()}
    if instance.settings.metric == "naco":
        prompt = str(passes["naco"].settings["prompt"])
        return [complexity_key(instance.settings, prompt=prompt)]
    if "qrelscore" not in instance.settings.metric:
        return []
    return [baseline_key(name, instance.settings, facts) for name, facts in passes.items()]


def fake_artifact(request: ArtifactRequest) -> Artifact:
    """Return an artifact that nobody built: what is compiled reads its record alone."""
    tokenizer = hashlib.sha256(b"one tokenizer").hexdigest()
    record = ArtifactRecord.model_construct(
        graph=request.graph,
        graph_version=GRAPHS[request.graph].version,
        source="torch",
        options=dict(request.options),
        precision=request.precision,
        requested_precision=request.precision,
        lossy=False,
        model=ModelRecord.model_construct(name=request.model, kind="hub", revision="", files={}),
        files={"model.onnx": hashlib.sha256(request.folder_name.encode()).hexdigest()},
        tokenizer_hash=tokenizer,
        max_positions=512,
        n_layers=6,
        activation="sigmoid",
    )
    return Artifact(Path("artifacts") / request.folder_name, record)
