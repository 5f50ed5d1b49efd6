"""Facts: what a reader of a graph must know about its model: sizes, positions, special tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from transformers.pytorch_utils import Conv1D

from export.loading import ROBERTA_TYPES, LoadedModel
from qaeval_core.errors import ExportError
from qaeval_core.models.record import GRAPHS, ArtifactRequest, TemplateRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes of a model; the fields of ``ArtifactRecord`` of the same names."""

    max_positions: int
    n_layers: int
    dim: int
    vocab: int
    n_matmul_parameters: int
    n_head_parameters: int
    template: TemplateRecord | None
    bos_id: int | None
    eos_id: int | None
    activation: Literal["sigmoid", "identity"] | None = None
    pooling: Literal["mean", "cls", "max"] | None = None


def make_facts(loaded: LoadedModel, request: ArtifactRequest) -> ModelFacts:
    """Collect the facts of a loaded model that the graph of a request has.

    Raises
    ------
    ExportError
        If the model pools, or ends, in a way that is not supported.
    """
    config, needed = loaded.config, GRAPHS[request.graph].model_fields
    layer, is_causal = wanted_layer(loaded, request), request.role == "causal_lm"
    n_matmul = _count_matmul(loaded.model, is_causal=is_causal)
    max_positions = int(config.max_position_embeddings) - first_position(loaded)
    if "pooling" in needed:
        max_positions = min(max_positions, _max_tokens(loaded))
    return ModelFacts(
        max_positions=max_positions,
        n_layers=layer,
        dim=int(config.hidden_size),
        vocab=int(config.vocab_size),
        n_matmul_parameters=n_matmul * layer // int(config.num_hidden_layers),
        n_head_parameters=int(config.vocab_size * config.hidden_size) if is_causal else 0,
        template=pair_template(loaded) if "template" in needed else None,
        bos_id=loaded.bos_id,
        eos_id=loaded.eos_id,
        activation=_activation(config) if "activation" in needed else None,
        pooling=pooling(loaded) if "pooling" in needed else None,
    )


def wanted_layer(loaded: LoadedModel, request: ArtifactRequest) -> int:
    """Return the layer whose hidden states a graph reads; 0 is the embeddings.

    Raises
    ------
    ExportError
        If the model has fewer layers.
    """
    n_layers = int(loaded.config.num_hidden_layers)
    asked = request.options.get("layer", "last")
    layer = n_layers if asked == "last" else int(asked)
    if layer > n_layers:
        raise ExportError(f"{loaded.source.name} has {n_layers} layers, layer {layer} was asked")
    return layer


def _activation(config: Any) -> Literal["sigmoid", "identity"]:
    """Read off a cross-encoder's configuration what it does with its logit.

    sentence-transformers, whose format this is, takes a sigmoid for one output where the
    configuration names nothing.
    """
    own = getattr(config, "sentence_transformers", None) or {}
    named = own.get("activation_fn") or getattr(
        config, "sbert_ce_default_activation_function", None
    )
    last = str(named or "Sigmoid").rpartition(".")[2]
    if last not in ("Sigmoid", "Identity"):
        raise ExportError(f"activation {named} is not supported; Sigmoid or Identity is")
    return "sigmoid" if last == "Sigmoid" else "identity"


def in_span_label(config: Any) -> int:
    """Return which output of a keyphrase classifier is "in the answer span".

    Raises
    ------
    ExportError
        If the labels do not say it: two outputs, the second one; or one that is named ANSWER.
    """
    labels = {int(i): str(name) for i, name in config.id2label.items()}
    named = [i for i, name in labels.items() if name.upper() in ("ANSWER", "I-ANSWER", "KEYPHRASE")]
    if len(named) == 1:
        return named[0]
    if len(labels) == 2:
        return 1
    raise ExportError(f"none of the labels {list(labels.values())} is ANSWER")


def pooling(loaded: LoadedModel) -> Literal["mean", "cls", "max"]:
    """Return how a sentence-transformers model pools; a plain encoder takes the mean.

    Raises
    ------
    ExportError
        If it has other modules than pooling and normalisation, or pools in another way.
    """
    kinds = [
        str(module["type"]).rpartition(".")[2] for module in _read_json(loaded, "modules.json")
    ]
    unknown = set(kinds) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise ExportError(f"{loaded.source.name} ends in {unknown.pop()}: not supported")
    given = dict(_read_json(loaded, "1_Pooling/config.json"))
    if "pooling_mode" in given:  # newer files name it
        on = {str(given["pooling_mode"])}
    else:
        on = {key.removeprefix("pooling_mode_") for key, value in given.items() if value is True}
    names: dict[str, Literal["mean", "cls", "max"]] = {
        "mean_tokens": "mean",
        "mean": "mean",
        "mean_sqrt_len_tokens": "mean",  # the same direction
        "cls_token": "cls",
        "cls": "cls",
        "max_tokens": "max",
        "max": "max",
    }
    on -= {"include_prompt"}
    found = [names[key] for key in on if key in names]
    if not kinds and not given:
        return "mean"
    if len(on) != 1 or not found:
        raise ExportError(f"{loaded.source.name} pools by {sorted(on)}: not supported")
    return found[0]


def _max_tokens(loaded: LoadedModel) -> int:
    """Return where a sentence-transformers model cuts texts, special tokens included."""
    given = dict(_read_json(loaded, "sentence_bert_config.json")).get("max_seq_length")
    return int(given) if given else int(loaded.config.max_position_embeddings)


def _read_json(loaded: LoadedModel, name: str) -> Any:
    path = loaded.source.folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def first_position(loaded: LoadedModel) -> int:
    """Return the position id of the first token: padding_idx + 1 in the RoBERTa family, MPNet."""
    if loaded.model_type not in (*ROBERTA_TYPES, "mpnet"):
        return 0
    base: Any = loaded.model.base_model
    padding_idx: int = base.embeddings.padding_idx
    return padding_idx + 1


def pair_template(loaded: LoadedModel) -> TemplateRecord:
    """Read the special tokens of a text pair off the tokenizer.

    Raises
    ------
    ExportError
        If a pair is not ``prefix X middle C suffix`` with a prefix of one token: the graph expects
        the candidate at position 1.
    """
    encoding = loaded.tokenizer.encode("a", "a")
    parts: list[list[int]] = [[], [], []]
    n_texts, last_text = 0, None
    for token_id, text in zip(encoding.ids, encoding.sequence_ids, strict=True):
        if text is None:
            parts[n_texts].append(token_id)
        elif text != last_text:
            n_texts, last_text = n_texts + 1, text
    prefix, middle, suffix = parts
    alone = loaded.tokenizer.encode("a")
    n_alone = sum(text is not None for text in alone.sequence_ids)
    if [*alone.ids[:1], *alone.ids[1 + n_alone :]] != [*prefix, *suffix]:
        raise ExportError(
            f"{loaded.source.name}: its tokenizer.json frames one text as {alone.tokens}, not with "
            "the ends of a pair"
        )
    if n_texts != 2 or len(prefix) != 1 or not middle or not suffix:
        raise ExportError(
            f"{loaded.source.name}: its tokenizer.json frames a pair as {encoding.tokens}, not as "
            "[CLS] a [SEP] a [SEP]"
        )
    return TemplateRecord(
        prefix_ids=tuple(prefix), middle_ids=tuple(middle), suffix_ids=tuple(suffix)
    )


def _count_matmul(model: nn.Module, *, is_causal: bool) -> int:
    """Count the weights one token is multiplied with, without the output layer."""
    body: Any = model.base_model if is_causal else model.base_model.encoder
    modules = [m for m in body.modules() if isinstance(m, nn.Linear | Conv1D)]
    if isinstance(projection := getattr(model.base_model, "embeddings_project", None), nn.Linear):
        modules.append(projection)
    return sum(module.weight.numel() for module in modules)
