"""GPU models: each family on its embedded model, or on a random one of a base model's shape.

Speed does not depend on what weights are: BERT-base and GPT-2 are not at hand, their shapes are.
Peers read the same models, from folders as transformers writes them. Nothing here is timed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import Rows
from qaeval_core.configure import load_config
from qaeval_core.families.model_family import ModelFamilyPlan
from qaeval_core.models.artifact import build_lock, default_root, ensure_artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.planning.compile import compile_run

_COLUMNS = {name: name for name in ("question", "candidate", "context", "references", "answer")}
_N_ANSWER_WORDS = 3
# Of BERT's positions. A tokenizer that is told nothing takes texts of any length.
_MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Subject:
    """How a family is asked for, and the shape of its random model."""

    metric: str
    setting: str  # of the metric: names the model
    role: str
    shape: str


FAMILIES = {
    "lrm": Subject("qrelscore", "encoder", "encoder", "bert"),
    "grg": Subject("qrelscore", "causal_lm", "causal_lm", "gpt2"),
    "sas": Subject("sas", "cross_encoder", "cross_encoder", "bert-classifier"),
    "bi_encoder": Subject("bi_encoder", "encoder", "encoder", "bert"),
    "token_match": Subject("bertscore", "encoder", "encoder", "bert"),
    "token_transport": Subject("moverscore", "encoder", "encoder", "bert"),
    "kpqa_weights": Subject("kpqa", "keyphrase_classifier", "keyphrase_classifier", "bert-tokens"),
    "answer_span": Subject("roundtrip", "reader", "reader", "bert-reader"),
}
ROLES = tuple(dict.fromkeys(subject.role for subject in FAMILIES.values()))


def compile_family(
    family: str,
    *,
    device: Device,
    folder: Path,
    is_random: bool = False,
    precision: str = "auto",
) -> ModelFamilyPlan:
    """Return a family of the embedded model, or of a random one that is kept in a folder."""
    subject = FAMILIES[family]
    given: dict[str, object] = {f"metrics.{subject.metric}.metric": subject.metric}
    given |= {f"models.{role}.precision": precision for role in ROLES}
    model = str(random_model(subject.shape, folder / subject.shape)) if is_random else None
    if model is not None:
        given[f"metrics.{subject.metric}.{subject.setting}"] = model
        # Ranks of random scores differ in fp16: the parity gate is for weights that mean much.
        given[f"models.{subject.role}.allow_lossy"] = True
    config = load_config(overrides=given)
    root = Path(config.models.artifacts_path or default_root())

    def resolve(request: ArtifactRequest) -> Any:
        # A metric may have a second family, of an embedded model: that one is kept.
        return ensure_artifact(folder / "artifacts" if request.model == model else root, request)

    run = compile_run(config, columns=_COLUMNS, device=device, resolve_artifact=resolve)
    (plan,) = (plan for plan in run.families if plan.name == family)
    assert isinstance(plan, ModelFamilyPlan)
    return plan


def roles_of(rows: Rows) -> dict[str, list[object]]:
    """Return rows as any family reads them: neighboring questions stand for other texts."""
    questions, n = rows.questions, len(rows)
    return {
        **rows.roles(),
        "references": [[questions[(i + 1) % n]] for i in range(n)],
        "question": [questions[(i + 2) % n] for i in range(n)],
        "answer": [" ".join(text.split()[:_N_ANSWER_WORDS]) for text in rows.contexts],
    }


def random_model(shape: str, folder: Path) -> Path:
    """Write a random model of a base model's shape, once."""
    with build_lock(folder):
        if not folder.is_dir():
            _make_random(shape, folder)
    return folder


def _make_random(shape: str, folder: Path) -> None:
    import torch
    import transformers as hf

    from benchmarks.peers import load_quietly

    torch.manual_seed(0)
    model = {
        "bert": lambda: hf.BertModel(hf.BertConfig()),
        "bert-classifier": lambda: hf.BertForSequenceClassification(hf.BertConfig(num_labels=1)),
        "bert-tokens": lambda: hf.BertForTokenClassification(hf.BertConfig(num_labels=2)),
        "bert-reader": lambda: hf.BertForQuestionAnswering(hf.BertConfig()),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(bos_token_id=0, eos_token_id=0)),
    }[shape]()
    # Of the embedded models' vocabularies, which fit.
    embedded, role = ("smollm2-135m", "causal_lm") if shape == "gpt2" else ("minilm", "encoder")
    _save(model, load_quietly(embedded, role=role).tokenizer, folder)


def model_folder(family: str, plan: ModelFamilyPlan, folder: Path, *, is_random: bool) -> Path:
    """Return a family's model as transformers reads it, its adapter merged; written once."""
    from benchmarks.peers import load_quietly

    subject, name = FAMILIES[family], plan.artifact.record.model.name
    if is_random:
        return random_model(subject.shape, folder / subject.shape)
    if not (folder / name).is_dir():
        loaded = load_quietly(name, role=subject.role)
        _save(loaded.model, loaded.tokenizer, folder / name)
    return folder / name


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    half = folder.with_name(f"{folder.name}.half")
    model.save_pretrained(half)
    tokenizer.save(str(half / "tokenizer.json"))
    # The ids of the model's config count, not the tokens that its type has by default.
    facts = {"bos_token": None, "eos_token": None, "model_max_length": _MAX_TOKENS}
    (half / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")
    return half.rename(folder)
