"""Finish: trained weights -> adapter, merged model, scores and card.

What is written is read back and judged again: the numbers in the card are those of the files.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from export.training.base import load_task_model, save_config, save_tokenizer
from export.training.card import card_text
from export.training.folder import OutFolder
from export.training.lora import load_merged, save_adapter
from export.training.options import TrainingOptions
from qaeval_core.models.registry import ModelSource, file_sha256
from qaeval_core.terminal import say

if TYPE_CHECKING:
    from export.training.job import Task

__all__ = ["write_results"]

# Half the size must cost nothing that anybody could see.
_MAX_FP16_CHANGE = 1e-3
_PACKAGES = ("torch", "transformers", "peft", "sentence-transformers", "tokenizers", "qaeval")


def write_results(
    task: Task,
    *,
    model: Any,
    adapter: Any | None,
    source: ModelSource,
    options: TrainingOptions,
    out: OutFolder,
    history: list[dict[str, Any]],
) -> None:
    """Write ``adapter/``, ``model/`` and ``metrics.json``.

    Parameters
    ----------
    model : PreTrainedModel
        Holds the best weights.
    adapter : PeftModel or None
        None if all weights were trained.
    history : list of dict
        Dev scores of each epoch.
    """
    trained = task.evaluate(model)
    best = min(history, key=lambda entry: entry["dev"]["loss"])
    metrics: dict[str, Any] = {
        "kind": task.kind,
        "n_train": task.n_train,
        "n_dev": task.n_dev,
        "n_steps": history[-1]["step"],
        "best_epoch": best["epoch"],
        "dev": trained,
        "epochs": history,
        "adapter_dtype": None,
        "whole_modules": sorted(adapter.peft_config["default"].modules_to_save) if adapter else [],
        "versions": {name: version(name) for name in _PACKAGES},
    }
    merged = model
    if adapter is not None:
        with out.result("adapter") as folder:
            merged, metrics["adapter_dtype"], metrics["dev"] = _write_adapter(
                task, adapter=adapter, source=source, options=options, trained=trained,
                folder=folder,
            )  # fmt: skip
            save_config(merged.config, folder / "config.json")
            (folder / "README.md").write_text(
                card_text(task, source=source, options=options, metrics=metrics), "utf-8"
            )
    with out.result("model") as folder:
        _write_model(task, merged, folder)
        metrics["model_sha256"] = file_sha256(folder / "model.safetensors")
    out.write_metrics(metrics)
    shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics["dev"].items())
    say(f"best epoch {best['epoch']}: dev {shown}")


def _write_adapter(
    task: Task,
    *,
    adapter: Any,
    source: ModelSource,
    options: TrainingOptions,
    trained: dict[str, float],
    folder: Path,
) -> tuple[Any, str, dict[str, float]]:
    """Write the adapter in fp16 if dev scores stay, else in fp32; return it merged and judged."""
    base = source.name if source.kind == "folder" else options.base
    for name, dtype in (("fp16", torch.float16), ("fp32", torch.float32)):
        save_adapter(adapter, folder, base=base, dtype=dtype)
        fresh = load_task_model(source, task.kind, seed=options.seed)
        merged = load_merged(fresh, folder)
        scores = task.evaluate(merged)
        change = max(abs(scores[key] - value) for key, value in trained.items())
        if change <= _MAX_FP16_CHANGE:
            break
        say(f"{name} changes dev scores by {change:.1e}")
    return merged, name, scores


def _write_model(task: Task, merged: Any, folder: Path) -> None:
    """Write a model folder that loads as any other: weights, configuration, tokenizer."""
    merged.save_pretrained(folder)
    save_config(merged.config, folder / "config.json")
    save_tokenizer(task.tokenizer, folder)
