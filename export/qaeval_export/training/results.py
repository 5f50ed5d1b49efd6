"""Results: trained weights -> adapter, merged model, scores and card.

What is written is read back and judged again: the numbers in the card are those of the files.
"""

from __future__ import annotations

import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from qaeval_core.distribution import NAME
from qaeval_core.models.source import ModelSource, file_sha256
from qaeval_core.storage.files import write_json
from qaeval_core.terminal import say
from qaeval_export.training.folder import OutFolder
from qaeval_export.training.loop import Task, shown
from qaeval_export.training.model import (
    base_name,
    load_merged,
    load_task_model,
    save_adapter,
    save_config,
    save_tokenizer,
)
from qaeval_export.training.options import TrainingOptions

# Half the size must cost nothing that anybody could see.
_MAX_FP16_CHANGE = 1e-3
_PACKAGES = ("torch", "transformers", "peft", "tokenizers", NAME)

# What a command need not say.
_USUAL = {
    "--column text_a": "text_a",
    "--column text_b": "text_b",
    "--column score": "score",
    "--scale": 1.0,
    "--language": "en",
}
_WHAT = {
    "cross-encoder": "A cross-encoder: reads two texts at once and gives a logit; its sigmoid "
    "says how similar in meaning they are, in [0, 1].",
    "kpqa": "A keyphrase predictor: reads a question and a text and gives each token of the text "
    "the probability that it belongs to the answer.",
    "reader": "A reader: reads a question and a context and gives each token two logits, of being "
    "the first and the last one of the answer; those of its first token say that there is none.",
}


def make_record(
    task: Task, options: TrainingOptions, source: ModelSource
) -> dict[str, dict[str, Any]]:
    """Return what decides the result: options, hashes of the data, hashes of the base."""
    return {
        "options": {
            "kind": task.kind,
            "--base": base_name(options.base, source),
            "--epochs": options.epochs,
            "--batch-size": options.batch_size,
            "--learning-rate": options.learning_rate,
            "--rank": options.rank,
            "--max-tokens": options.max_tokens,
            "--dev-share": None if task.files["--dev"] else options.dev_share,
            "--seed": options.seed,
            "--bf16": options.bf16,
            # Null where it is not asked for: folders begun before the option was there go on.
            "--keep-last": options.keep_last or None,
            **task.settings,
        },
        "data": {
            option: [{"name": path.name, "sha256": file_sha256(path)} for path in paths]
            for option, paths in task.files.items()
        },
        "base": {f"file {name} of --base": digest for name, digest in source.files.items()},
    }


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
        Holds the weights to keep.
    adapter : PeftModel or None
        None if all weights were trained.
    history : list of dict
        Dev scores of each epoch.
    """
    trained = task.evaluate(model)
    best = history[-1] if options.keep_last else min(history, key=lambda own: own["dev"]["loss"])
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
                _card_text(task, source=source, options=options, metrics=metrics), "utf-8"
            )
    with out.result("model") as folder:
        _write_model(task, merged, folder)
        metrics["model_sha256"] = file_sha256(folder / "model.safetensors")
    write_json(out.path / "metrics.json", metrics)
    say(f"kept epoch {best['epoch']}: dev {shown(metrics['dev'])}")


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
    base = base_name(options.base, source)
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


def _card_text(
    task: Task, *, source: ModelSource, options: TrainingOptions, metrics: dict[str, Any]
) -> str:
    """Return the model card of an adapter, in Markdown."""
    record = make_record(task, options, source)
    base = record["options"]["--base"]
    lines = [
        f"# {task.kind} adapter of {base}",
        "",
        _WHAT[task.kind],
        "",
        f"Low-rank factors of rank {options.rank} for all linear layers of the encoder; "
        f"{' and '.join(metrics['whole_modules'])} whole; stored in {metrics['adapter_dtype']}. "
        f"Base: {source.revision or base}.",
        "",
        "## Data",
        "",
        "| option | file | SHA-256 |",
        "| --- | --- | --- |",
        *(
            f"| `{option}` | {file['name']} | {file['sha256']} |"
            for option, files in record["data"].items()
            for file in files
        ),
        "",
        f"{metrics['n_train']:,} examples to train on, {metrics['n_dev']:,} to judge epochs by.",
        "",
        "## Training",
        "",
        "```sh",
        _command(record),
        "```",
        "",
        f"The weights are those of the {_kept_epoch(options)}:",
        "",
        *_table(metrics["epochs"], names=list(metrics["dev"])),
        "",
        f"Kept: epoch {metrics['best_epoch']}. As stored: {shown(metrics['dev'])}.",
        "",
        "## Versions",
        "",
        ", ".join(f"{name} {version}" for name, version in metrics["versions"].items()),
        "",
    ]
    return "\n".join(lines)


def _kept_epoch(options: TrainingOptions) -> str:
    return "last epoch" if options.keep_last else "epoch with the lowest dev loss"


def _table(epochs: list[dict[str, Any]], *, names: list[str]) -> list[str]:
    return [
        f"| epoch | step | {' | '.join(names)} |",
        "| --- " * (len(names) + 2) + "|",
        *(
            f"| {entry['epoch']} | {entry['step']} | "
            + " | ".join(f"{entry['dev'][name]:.4f}" for name in names)
            + " |"
            for entry in epochs
        ),
    ]


def _command(record: dict[str, dict[str, Any]]) -> str:
    options = dict(record["options"])
    words = ["qaeval", "train", options.pop("kind")]
    for option, files in record["data"].items():
        for file in files:
            words += [option, file["name"]]
    for option, value in options.items():
        flag, _, name = option.partition(" ")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False and value != _USUAL.get(option):
            words += [flag, f"{name}={value}" if name else str(value)]
    return shlex.join([*words, "--out", "OUT"])
