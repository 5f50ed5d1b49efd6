"""Card: what a shipped adapter says about itself, in Markdown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from export.training.options import TrainingOptions
from qaeval_core.models.registry import ModelSource, file_sha256

if TYPE_CHECKING:
    from export.training.job import Task

__all__ = ["card_text"]

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
}


def card_text(
    task: Task, *, source: ModelSource, options: TrainingOptions, metrics: dict[str, Any]
) -> str:
    """Return the model card of an adapter."""
    base = source.name if source.kind == "folder" else options.base
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
            f"| `{option}` | {path.name} | {file_sha256(path)} |"
            for option, paths in task.files.items()
            for path in paths
        ),
        "",
        f"{metrics['n_train']:,} examples to train on, {metrics['n_dev']:,} to judge epochs by.",
        "",
        "## Training",
        "",
        "```sh",
        _command(task, base=base, options=options),
        "```",
        "",
        "The weights are those of the epoch with the lowest dev loss:",
        "",
        *_table(metrics["epochs"], names=list(metrics["dev"])),
        "",
        f"Kept: epoch {metrics['best_epoch']}. As stored: {_scores(metrics['dev'])}.",
        "",
        "## Versions",
        "",
        ", ".join(f"{name} {version}" for name, version in metrics["versions"].items()),
        "",
    ]
    return "\n".join(lines)


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


def _scores(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _command(task: Task, *, base: str, options: TrainingOptions) -> str:
    words = ["qaeval", "train", task.kind]
    for option, paths in task.files.items():
        for path in paths:
            words += [option, path.name]
    for option, value in task.settings.items():
        if value != _USUAL[option]:
            flag, _, name = option.partition(" ")
            words += [flag, f"{name}={value}" if name else str(value)]
    if not task.files["--dev"]:
        words += ["--dev-share", f"{options.dev_share:g}"]
    words += ["--base", base, "--epochs", str(options.epochs)]
    words += ["--batch-size", str(options.batch_size)]
    words += ["--learning-rate", f"{options.learning_rate:g}", "--rank", str(options.rank)]
    words += ["--max-tokens", str(options.max_tokens), "--seed", str(options.seed)]
    words += ["--bf16"] if options.bf16 else []
    return shlex.join([*words, "--out", "OUT"])
