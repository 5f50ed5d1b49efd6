"""Model: an encoder's files -> a task model with a head, low-rank factors in it, and its files.

Reads safetensors, never a pickle and never a model's own code.

Source
------
Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen. LoRA: Low-Rank Adaptation of Large Language
Models. ICLR 2022, arXiv:2106.09685, section 4.1. W x becomes W x + (alpha / r) B A x.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    set_seed,
)

from qaeval_core.errors import ConfigError
from qaeval_core.models.source import ModelSource
from qaeval_export.loading import ENCODER_TYPES, ROBERTA_TYPES

# Where sentence-transformers, and qaeval after it, read what turns a logit into a score.
_SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
# How the base's own tokenizer was last loaded and cut; not what it is.
_TOKENIZER_LEFTOVERS = (
    "is_local",
    "local_files_only",
    "max_length",
    "pad_to_multiple_of",
    "stride",
)
_AUTO = {
    "cross-encoder": AutoModelForSequenceClassification,
    "kpqa": AutoModelForTokenClassification,
    "reader": AutoModelForQuestionAnswering,
}
_HEADS: dict[str, dict[str, Any]] = {
    "cross-encoder": {"num_labels": 1, "sentence_transformers": _SIGMOID},
    "kpqa": {
        "id2label": {0: "OUTSIDE", 1: "ANSWER"},
        "label2id": {"OUTSIDE": 0, "ANSWER": 1},
    },
    "reader": {"num_labels": 2},
}


_DROPOUT = 0.05
_LAYER = re.compile(r"\.\d+\.(?P<rest>.+)$")


def base_name(name: str, source: ModelSource) -> str:
    """Return what records call a base: the user's name, less the place of a folder."""
    return source.name if source.kind == "folder" else name


def check_base(source: ModelSource, *, max_tokens: int) -> None:
    """Raise if an encoder cannot be trained here, or is shorter than the asked pairs.

    Raises
    ------
    ConfigError
        If its type cannot be exported afterwards, or it has too few positions.
    """
    config = _load(AutoConfig, source)
    if config.model_type not in ENCODER_TYPES:
        raise ConfigError(
            f"--base {source.name} is of type {config.model_type!r}; it must be one of "
            f"{', '.join(ENCODER_TYPES)} [QA0408]"
        )
    # These count positions from padding_idx + 1.
    from_padding = config.model_type in (*ROBERTA_TYPES, "mpnet")
    reserved = config.pad_token_id + 1 if from_padding else 0
    if max_tokens > config.max_position_embeddings - reserved:
        raise ConfigError(
            f"--max-tokens {max_tokens} is too many: {source.name} has "
            f"{config.max_position_embeddings - reserved} positions [QA0902]"
        )


def load_task_model(source: ModelSource, kind: str, *, seed: int) -> Any:
    """Load an encoder in fp32 with the head of a task; a new head is drawn from the seed.

    Parameters
    ----------
    kind : str
        ``"cross-encoder"``, ``"kpqa"`` or ``"reader"``.
    """
    set_seed(seed)
    config = _load(AutoConfig, source)
    config.update(_HEADS[kind])
    model = _load(
        _AUTO[kind],
        source,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # A base may bring the head of another task.
    )
    model.config.architectures = [type(model).__name__]
    return model


def load_tokenizer(source: ModelSource) -> Any:
    """Load the tokenizer without truncation and padding: stored ones lose text in silence."""
    tokenizer = _load(AutoTokenizer, source)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _load(kind: Any, source: ModelSource, **options: Any) -> Any:
    """Load one of transformers' classes from a folder, and nothing from a hub."""
    return kind.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=False, **options
    )


def _write_fields(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def save_config(config: Any, path: Path) -> None:
    """Write a task model's configuration, without the place it was loaded from."""
    fields = json.loads(config.to_json_string(use_diff=True))
    fields.pop("_name_or_path", None)
    _write_fields(path, fields)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write ``tokenizer.json`` without truncation and padding, and its special tokens' names."""
    tokenizer.save_pretrained(folder)
    # Subtle: encoding a batch has switched truncation and padding on.
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    _write_fields(path, {k: v for k, v in fields.items() if k not in _TOKENIZER_LEFTOVERS})


def add_lora(model: Any, *, rank: int) -> PeftModel:
    """Add low-rank factors to all linear layers of the encoder, in place.

    The head and the pooler are small and new to the task: they are trained whole, and kept in the
    adapter.

    Parameters
    ----------
    model : PreTrainedModel
        Keeps its class; what is not adapted is frozen.
    rank : int
        At least 1. alpha = 2 r.

    Returns
    -------
    PeftModel
        Shares its modules with ``model``.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=_DROPOUT,
        target_modules=_linear_suffixes(model),
        modules_to_save=_head_names(model),
    )
    return get_peft_model(model, config)


def _linear_suffixes(model: Any) -> list[str]:
    """Return names of linear layers below the layer number, such as ``attention.self.query``."""
    found = {
        match["rest"]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and (match := _LAYER.search(name))
    }
    return sorted(found)


def _head_names(model: Any) -> list[str]:
    """Return names of modules outside the encoder's layers that belong to the task."""
    heads = [
        name
        for name, module in model.named_children()
        if name != model.base_model_prefix and any(True for _ in module.parameters())
    ]
    pooler = getattr(model.base_model, "pooler", None)
    return [*heads, "pooler"] if pooler is not None else heads


def save_adapter(adapter: PeftModel, folder: Path, *, base: str, dtype: Any) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``.

    Parameters
    ----------
    base : str
        What the configuration calls the base; a name, not a place on this machine.
    dtype : torch.dtype
        Of the stored weights.
    """
    # Embeddings are never adapted; asked whether they are, peft would look the base up in a hub.
    trained = get_peft_model_state_dict(adapter, save_embedding_layers=False)
    weights = {
        name: weight.detach().to("cpu", dtype).contiguous() for name, weight in trained.items()
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    usual = LoraConfig().to_dict()
    chosen = adapter.peft_config["default"].to_dict().items()
    fields = {key: value for key, value in chosen if value != usual.get(key)}
    fields |= {"peft_type": "LORA", "base_model_name_or_path": base, "inference_mode": True}
    fields["target_modules"] = sorted(fields["target_modules"])
    _write_fields(folder / "adapter_config.json", fields)


def load_merged(model: Any, folder: Path) -> Any:
    """Return a task model with an adapter's weights merged into it, in eval mode."""
    return PeftModel.from_pretrained(model, str(folder)).merge_and_unload().eval()
