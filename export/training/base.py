"""Base: an encoder's files -> a task model with a head, and its tokenizer.

Reads safetensors, never a pickle and never a model's own code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    set_seed,
)

from export.loading import ENCODER_TYPES, ROBERTA_TYPES
from qaeval_core.errors import ConfigError
from qaeval_core.models.registry import ModelSource

__all__ = [
    "SIGMOID",
    "check_base",
    "head_config",
    "load_task_model",
    "load_tokenizer",
    "save_config",
    "save_tokenizer",
]

# Where sentence-transformers, and qaeval after it, read what turns a logit into a score.
SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
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
}
_HEADS: dict[str, dict[str, Any]] = {
    "cross-encoder": {"num_labels": 1, "sentence_transformers": SIGMOID},
    "kpqa": {
        "id2label": {0: "OUTSIDE", 1: "ANSWER"},
        "label2id": {"OUTSIDE": 0, "ANSWER": 1},
    },
}


def check_base(source: ModelSource, *, max_tokens: int) -> None:
    """Raise if an encoder cannot be trained here, or is shorter than the asked pairs.

    Raises
    ------
    ConfigError
        If its type cannot be exported afterwards, or it has too few positions.
    """
    config = AutoConfig.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=False
    )
    if config.model_type not in ENCODER_TYPES:
        raise ConfigError(
            f"--base {source.name} is of type {config.model_type!r}; it must be one of "
            f"{', '.join(ENCODER_TYPES)}"
        )
    # These count positions from padding_idx + 1.
    from_padding = config.model_type in (*ROBERTA_TYPES, "mpnet")
    reserved = config.pad_token_id + 1 if from_padding else 0
    if max_tokens > config.max_position_embeddings - reserved:
        raise ConfigError(
            f"--max-tokens {max_tokens}: {source.name} has "
            f"{config.max_position_embeddings - reserved} positions"
        )


def head_config(source: ModelSource, kind: str) -> Any:
    """Return the configuration of the task model; it holds no path."""
    config = AutoConfig.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=False
    )
    config.update(_HEADS[kind])
    return config


def load_task_model(source: ModelSource, kind: str, *, seed: int) -> Any:
    """Load an encoder in fp32 with the head of a task; a new head is drawn from the seed.

    Parameters
    ----------
    kind : str
        ``"cross-encoder"`` or ``"kpqa"``.
    """
    set_seed(seed)
    model = _AUTO[kind].from_pretrained(
        source.folder,
        config=head_config(source, kind),
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # A base may bring the head of another task.
    )
    model.config.architectures = [type(model).__name__]
    return model


def load_tokenizer(source: ModelSource) -> Any:
    """Load the tokenizer without truncation and padding: stored ones lose text in silence."""
    tokenizer = AutoTokenizer.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=False
    )
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def save_config(config: Any, path: Path) -> None:
    """Write a task model's configuration, without the place it was loaded from."""
    fields = json.loads(config.to_json_string(use_diff=True))
    fields.pop("_name_or_path", None)
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


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
    kept = {key: value for key, value in fields.items() if key not in _TOKENIZER_LEFTOVERS}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")
