"""Facts: what a reader of a graph must know about its model: sizes, positions, special tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers.pytorch_utils import Conv1D

from export.loading import ROBERTA_TYPES, LoadedModel
from qaeval_core.errors import ExportError
from qaeval_core.models.record import TemplateRecord

__all__ = ["ModelFacts", "first_position", "make_facts", "pair_template"]


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


def make_facts(loaded: LoadedModel, *, role: str) -> ModelFacts:
    """Collect the facts of a loaded model."""
    config = loaded.config
    is_encoder = role == "encoder"
    return ModelFacts(
        max_positions=int(config.max_position_embeddings) - first_position(loaded),
        n_layers=int(config.num_hidden_layers),
        dim=int(config.hidden_size),
        vocab=int(config.vocab_size),
        n_matmul_parameters=_count_matmul(loaded.model, role=role),
        n_head_parameters=0 if is_encoder else int(config.vocab_size * config.hidden_size),
        template=pair_template(loaded) if is_encoder else None,
        bos_id=loaded.bos_id,
        eos_id=loaded.eos_id,
    )


def first_position(loaded: LoadedModel) -> int:
    """Return the position id of the first token: padding_idx + 1 in the RoBERTa family."""
    if loaded.model_type not in ROBERTA_TYPES:
        return 0
    padding_idx: int = loaded.model.embeddings.padding_idx
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
    if n_texts != 2 or len(prefix) != 1 or not middle or not suffix:
        raise ExportError(
            f"{loaded.source.name}: its tokenizer.json frames a pair as {encoding.tokens}, not as "
            "[CLS] a [SEP] a [SEP]"
        )
    return TemplateRecord(
        prefix_ids=tuple(prefix), middle_ids=tuple(middle), suffix_ids=tuple(suffix)
    )


def _count_matmul(model: nn.Module, *, role: str) -> int:
    """Count the weights one token is multiplied with, without the output layer."""
    body = model.encoder if role == "encoder" else model.base_model
    modules = [m for m in body.modules() if isinstance(m, nn.Linear | Conv1D)]
    if isinstance(projection := getattr(model, "embeddings_project", None), nn.Linear):
        modules.append(projection)
    return sum(module.weight.numel() for module in modules)
