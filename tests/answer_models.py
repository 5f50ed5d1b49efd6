"""Small random models that judge answers, with artifacts made on demand in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from workshop import save_small

from export.build import build_artifact
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.metrics.spec import MetricSpec
from qaeval_core.scoring.compile import needed_requests

Row = dict[str, Any]

# Settings that name a model, and the kind of it.
KINDS = {
    "cross_encoder": "bert_pairs",
    "encoder": "bert",
    "keyphrase_classifier": "bert_tokens",
}
# For peers: where this says nothing, transformers splits texts by rules of its own and gives both
# texts of a pair one segment.
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 512,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")},
}


class AnswerModels:
    """One model of each role, as folders.

    Parameters
    ----------
    folder : Path
        Holds the models and their artifacts.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "artifacts"
        self.folders = {role: save_small(kind, folder / kind) for role, kind in KINDS.items()}
        # Training a vocabulary twice gives two of them; models that work together have one.
        tokenizer = (self.folders["encoder"] / "tokenizer.json").read_bytes()
        for own in self.folders.values():
            (own / "tokenizer.json").write_bytes(tokenizer)
            (own / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))

    def settings(self, metric: str, /, **given: object) -> dict[str, object]:
        """Return the settings of an instance, its models filled in."""
        roles = METRICS[metric].settings.model_fields.keys() & self.folders.keys()
        return {"metric": metric, **{role: str(self.folders[role]) for role in roles}, **given}

    def overrides(self, metrics: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
        """Return what a configuration needs to score instances; their artifacts are there then.

        Built here and not in a process of its own, which would import torch for 5 s more.
        """
        found: dict[str, object] = {"models.artifacts_path": str(self.root)}
        found |= {f"metrics.{name}": dict(settings) for name, settings in metrics.items()}
        for request in needed_requests(load_config(overrides=found), device="cpu"):
            build_artifact(request, self.root)
        return found

    def scorer(self, metrics: Mapping[str, Mapping[str, object]], **options: object) -> Scorer:
        """Return a scorer of instances; options are sections of a configuration."""
        config = load_config(overrides={**self.overrides(metrics), **options})
        return Scorer(metrics, config=config, n_threads=1)


def make_row(spec: MetricSpec, candidate: str, *others: str) -> Row:
    """Return a row of the metric that compares a text with others."""
    values = {
        "question": "What did Anna paint?",
        "candidate": candidate,
        "references": list(others),
        "context": " ".join(others),
    }
    return {role: values[role] for role in spec.roles}


def numbers(spec: MetricSpec, scores: pa.Table, instance: str = "m") -> dict[str, list[Any]]:
    """Return the scores and counts of an instance by output, and its reasons."""
    outputs = [output for output in spec.outputs if output not in spec.detail_outputs]
    names = {output: f"{instance}_{output}" if output else instance for output in outputs}
    names["reason"] = f"{instance}_reason"
    return {output: scores[name].to_pylist() for output, name in names.items()}


def scores_only(spec: MetricSpec, found: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave counts and reasons out."""
    return {o: v for o, v in found.items() if o in spec.outputs and o not in spec.count_outputs}
