"""Low-rank adaptation: which weights are trained, and the adapter that holds them.

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

from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import nn

__all__ = ["add_lora", "load_merged", "save_adapter"]

_DROPOUT = 0.05
_LAYER = re.compile(r"\.\d+\.(?P<rest>.+)$")


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
    text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")


def load_merged(model: Any, folder: Path) -> Any:
    """Return a task model with an adapter's weights merged into it, in eval mode."""
    return PeftModel.from_pretrained(model, str(folder)).merge_and_unload().eval()
