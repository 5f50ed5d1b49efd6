"""Facts: what the record of an artifact says of its model, from the model's files alone.

Needs no torch: a graph that comes ready-made is described by the same functions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import onnx
from tokenizers import Tokenizer

from qaeval_core.errors import ExportError
from qaeval_core.models.record import ParityRecord, Precision, TemplateRecord
from qaeval_core.models.registry import ModelSource


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


def activation(config: Any) -> Literal["sigmoid", "identity"]:
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


def pooling(source: ModelSource) -> Literal["mean", "cls", "max"]:
    """Return how a sentence-transformers model pools; a plain encoder takes the mean.

    Raises
    ------
    ExportError
        If it has other modules than pooling and normalisation, or pools in another way.
    """
    kinds = [
        str(module["type"]).rpartition(".")[2] for module in _read_json(source, "modules.json")
    ]
    unknown = set(kinds) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise ExportError(f"{source.name} ends in {unknown.pop()}: not supported")
    given = dict(_read_json(source, "1_Pooling/config.json"))
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
        raise ExportError(f"{source.name} pools by {sorted(on)}: not supported")
    return found[0]


def max_tokens(source: ModelSource, config: Any) -> int:
    """Return where a sentence-transformers model cuts texts, special tokens included."""
    given = dict(_read_json(source, "sentence_bert_config.json")).get("max_seq_length")
    return int(given) if given else int(config.max_position_embeddings)


def _read_json(source: ModelSource, name: str) -> Any:
    path = source.folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def pair_template(source: ModelSource, tokenizer: Tokenizer) -> TemplateRecord:
    """Read the special tokens of a text pair off the tokenizer.

    Raises
    ------
    ExportError
        If a pair is not ``prefix X middle C suffix`` with a prefix of one token: the graph expects
        the candidate at position 1.
    """
    encoding = tokenizer.encode("a", "a")
    parts: list[list[int]] = [[], [], []]
    n_texts, last_text = 0, None
    for token_id, text in zip(encoding.ids, encoding.sequence_ids, strict=True):
        if text is None:
            parts[n_texts].append(token_id)
        elif text != last_text:
            n_texts, last_text = n_texts + 1, text
    prefix, middle, suffix = parts
    alone = tokenizer.encode("a")
    n_alone = sum(text is not None for text in alone.sequence_ids)
    if [*alone.ids[:1], *alone.ids[1 + n_alone :]] != [*prefix, *suffix]:
        raise ExportError(
            f"{source.name}: its tokenizer.json frames one text as {alone.tokens}, not with "
            "the ends of a pair"
        )
    if n_texts != 2 or len(prefix) != 1 or not middle or not suffix:
        raise ExportError(
            f"{source.name}: its tokenizer.json frames a pair as {encoding.tokens}, not as "
            "[CLS] a [SEP] a [SEP]"
        )
    return TemplateRecord(
        prefix_ids=tuple(prefix), middle_ids=tuple(middle), suffix_ids=tuple(suffix)
    )


@dataclass(frozen=True, slots=True)
class Made:
    """A graph that was saved, and what its record says."""

    proto: onnx.ModelProto
    facts: ModelFacts
    tokenizer: Tokenizer
    precision: Precision
    parity: ParityRecord | None
