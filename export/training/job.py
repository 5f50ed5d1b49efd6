"""Job: options -> a trained model in OUT, whatever kills the process on the way.

Steps: check the input, write down what decides the result, train from the newest checkpoint, write
adapter, model, scores and card, say so. Each step can be repeated.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PrinterCallback

from export.training.base import check_base, load_task_model
from export.training.finish import write_results
from export.training.folder import OutFolder
from export.training.loop import (
    BEST_FILE,
    EpochEnd,
    Progress,
    ResumableMixin,
    dev_history,
    newest,
)
from export.training.lora import add_lora
from export.training.options import CrossEncoderOptions, KpqaOptions
from qaeval_core.errors import RunError, RunStoppedError
from qaeval_core.models.registry import ModelSource, file_sha256, resolve_model
from qaeval_core.terminal import say

__all__ = ["OutFolder", "Task", "make_record", "make_task", "run_job"]


class Task(Protocol):
    """What differs between the jobs."""

    kind: str
    files: dict[str, tuple[Path, ...]]
    settings: dict[str, Any]
    n_tokens: list[int]
    tokenizer: Any

    @property
    def n_train(self) -> int:
        """Training examples."""

    @property
    def n_dev(self) -> int:
        """Dev examples."""

    def trainer(self, model: Any, folder: Path) -> ResumableMixin:
        """Return a trainer of a task model with checkpoints in a folder."""

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return dev scores, ``loss`` among them."""


def run_job(options: CrossEncoderOptions | KpqaOptions) -> None:
    """Train, or go on training, or say that it is done.

    Raises
    ------
    InputError, ConfigError, ModelUnavailableError
        If files, options or base are not as they must be.
    RunStoppedError
        If asked to stop; the checkpoint is written.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    source = resolve_model(options.base, role="encoder")
    check_base(source, max_tokens=options.max_tokens)
    task = make_task(options, source)
    for line in plan_lines(task, options):
        say(line)
    if options.dry_run:
        return
    out = OutFolder(options.out)
    with out.locked():
        out.check_record(make_record(task, options, source))
        if out.is_finished:
            out.finish()  # Again: it may have been killed before its last checkpoints were gone.
            say(f"{out.path} is finished: nothing to do")
            return
        model = load_task_model(source, task.kind, seed=options.seed)
        adapter = add_lora(model, rank=options.rank) if options.rank else None
        history = _train(task, model, options, out)
        write_results(
            task, model=model, adapter=adapter, source=source, options=options, out=out,
            history=history,
        )  # fmt: skip
        out.finish()
    say(f"done: {out.path}")


def make_task(options: CrossEncoderOptions | KpqaOptions, source: ModelSource) -> Task:
    """Return the task of the options, its files read and checked."""
    if isinstance(options, KpqaOptions):
        from export.training.kpqa import KpqaTask

        return KpqaTask(options, source)
    from export.training.cross_encoder import CrossEncoderTask

    return CrossEncoderTask(options, source)


def plan_lines(task: Task, options: CrossEncoderOptions | KpqaOptions) -> list[str]:
    """Return what will be trained, in words and numbers."""
    n_steps = -(-task.n_train // options.batch_size)
    n_cut = sum(n > options.max_tokens for n in task.n_tokens)
    n_tokens = sum(min(n, options.max_tokens) for n in task.n_tokens)
    return [
        f"{task.kind} on {options.base}: {task.n_train:,} examples to train on, {task.n_dev:,} "
        "to judge by",
        f"{n_tokens:,} tokens an epoch (mean {n_tokens / task.n_train:.1f}, longest "
        f"{max(task.n_tokens)}); {n_cut:,} examples cut at {options.max_tokens}",
        f"{options.epochs} epochs of {n_steps:,} steps: {options.epochs * n_steps:,} steps of "
        f"{options.batch_size} examples",
    ]


def make_record(
    task: Task, options: CrossEncoderOptions | KpqaOptions, source: ModelSource
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
            **task.settings,
        },
        "data": {
            option: [{"name": path.name, "sha256": file_sha256(path)} for path in paths]
            for option, paths in task.files.items()
        },
        "base": {f"file {name} of --base": digest for name, digest in source.files.items()},
    }


def base_name(name: str, source: ModelSource) -> str:
    """Return what records call a base: the user's name, less the place of a folder."""
    return source.name if source.kind == "folder" else name


def _train(
    task: Task, model: Any, options: CrossEncoderOptions | KpqaOptions, out: OutFolder
) -> list[dict[str, Any]]:
    """Train to the end; the model holds the best weights afterwards. Returns dev scores."""
    trainer = task.trainer(model, out.checkpoints)
    out.checkpoints.mkdir(exist_ok=True)
    found = newest(out.checkpoints)
    n_steps = options.epochs * len(trainer.loader)
    log = found[1]["log_history"] if found else []
    if found:
        say(f"going on from step {found[1]['global_step']:,}")
    if not found or found[1]["global_step"] < n_steps:
        trainer.remove_callback(PrinterCallback)  # Prints dictionaries to standard output.
        trainer.add_callback(EpochEnd(lambda: task.evaluate(model), trainer, out.checkpoints))
        with Progress(n_rows=task.n_train) as progress:
            trainer.add_callback(progress)
            trainer.train(resume_from_checkpoint=str(found[0]) if found else None)
        if trainer.state.global_step < n_steps:
            raise RunStoppedError(
                f"stopped at step {trainer.state.global_step:,} of {n_steps:,}; the same command "
                "goes on from there"
            )
        log = trainer.state.log_history
    history = dev_history(log)
    if not all(math.isfinite(entry["dev"]["loss"]) for entry in history):
        raise RunError(f"the loss is no number: lower --learning-rate {options.learning_rate:g}")
    trainer.load_weights(out.checkpoints / BEST_FILE)
    return history
