"""Small random models that judge answers, artifacts made on demand, and what transformers says."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModel

from helpers import build_needed
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS
from workshop import save_small

Row = dict[str, Any]

# Settings that name a model, and the kind of it.
KINDS = {
    "cross_encoder": "bert_pairs",
    "encoder": "bert",
    "keyphrase_classifier": "bert_tokens",
    "reader": "bert_answers",
    "causal_lm": "gpt2",
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
    """One model of each role, as folders; the processes of a session share them.

    Parameters
    ----------
    folder : Path
        Holds the models and their artifacts.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "artifacts"
        self.folders = {role: folder / kind for role, kind in KINDS.items()}
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "made").exists():
                self._make()
                (folder / "made").touch()

    def _make(self) -> None:
        for role, own in self.folders.items():
            save_small(KINDS[role], own)
        # Training a vocabulary twice gives two of them; models that work together have one.
        tokenizer = (self.folders["encoder"] / "tokenizer.json").read_bytes()
        for role, own in self.folders.items():
            if role == "causal_lm":  # It has texts of its own to read: no other model reads them.
                continue
            (own / "tokenizer.json").write_bytes(tokenizer)
            (own / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))

    def settings(self, metric: str, /, **given: object) -> dict[str, object]:
        """Return the settings of an instance, its models filled in."""
        roles = METRICS[metric].settings.model_fields.keys() & self.folders.keys()
        return {"metric": metric, **{role: str(self.folders[role]) for role in roles}, **given}

    def overrides(self, metrics: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
        """Return what a configuration needs to score instances; their artifacts are there then."""
        found: dict[str, object] = {"models.artifacts_path": str(self.root)}
        found |= {f"metrics.{name}": dict(settings) for name, settings in metrics.items()}
        build_needed(load_config(overrides=found))
        return found

    def scorer(self, metrics: Mapping[str, Mapping[str, object]], **options: object) -> Scorer:
        """Return a scorer of instances; options are sections of a configuration."""
        config = load_config(overrides={**self.overrides(metrics), **options})
        return Scorer(metrics, config=config, n_threads=1)


def plain_tokenizer(folder: Path) -> Tokenizer:
    """Return a model's tokenizer without the truncation and padding that its file carries."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class EncoderOracle:
    """Unit vectors of one text's tokens, from transformers, one window at a time.

    Long texts are read in equal windows, the first of which keeps [CLS] and the last [SEP].
    """

    def __init__(self, folder: Path, *, n_positions: int = 512) -> None:
        self._model = AutoModel.from_pretrained(folder).eval()
        self._tokenizer = plain_tokenizer(folder)
        self._room = n_positions - 2

    def vectors(self, text: str) -> NDArray[np.float64]:
        """Return an array of shape (1 + n_tokens + 1, dim)."""
        first, *ids, last = self._tokenizer.encode(text).ids
        parts = np.array_split(ids, -(-len(ids) // self._room))
        found = []
        for i, part in enumerate(parts):
            with torch.inference_mode():
                states = self._model(torch.tensor([[first, *part, last]])).last_hidden_state[0]
            kept = slice(0 if i == 0 else 1, None if i == len(parts) - 1 else -1)
            found.append(states[kept].double().numpy())
        stacked = np.concatenate(found)
        unit: NDArray[np.float64] = stacked / np.linalg.norm(stacked, axis=1, keepdims=True)
        return unit


def make_row(spec: AnyMetric, candidate: str, *others: str) -> Row:
    """Return a row of the metric that compares a text with others."""
    values = {
        "question": "What did Anna paint?",
        "candidate": candidate,
        "references": list(others),
        "context": " ".join(others),
        "answer": "the sea",
    }
    return {role: values[role] for role in spec.roles}


def numbers(spec: AnyMetric, scores: pa.Table, instance: str = "m") -> dict[str, list[Any]]:
    """Return the scores and counts of an instance by output, and its reasons."""
    outputs = [column.name for column in spec.columns if column.kind != "detail"]
    names = {output: f"{instance}_{output}" if output else instance for output in outputs}
    names["reason"] = f"{instance}_reason"
    return {output: scores[name].to_pylist() for output, name in names.items()}


def scores_only(spec: AnyMetric, found: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave counts and reasons out."""
    scores = [column.name for column in spec.columns if column.is_score]
    return {name: found[name] for name in scores if name in found}


# Metrics by models, and those of them that judge answers: they make pairs of texts.
MODEL_METRICS = [
    metric for metric in METRICS.values() if {"words", "endpoint"}.isdisjoint(metric.needs)
]
ANSWER_METRICS = [metric for metric in MODEL_METRICS if "causal_lm" not in metric.needs]
