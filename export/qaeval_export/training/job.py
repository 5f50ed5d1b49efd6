"""Job: options -> a trained model in OUT, whatever kills the process on the way.

Steps: check the input, write down what decides the result, train from the newest checkpoint, write
adapter, model, scores and card, say so. Each step can be repeated.
"""

from __future__ import annotations

import torch

from qaeval_core.models.registry import resolve_model
from qaeval_core.models.source import ModelSource
from qaeval_core.storage.path import check_lasting
from qaeval_core.terminal import say
from qaeval_export.training.cross_encoder import CrossEncoderTask
from qaeval_export.training.folder import OutFolder
from qaeval_export.training.loop import Task, train
from qaeval_export.training.model import add_lora, check_base, load_task_model
from qaeval_export.training.options import AnyOptions, KpqaOptions, ReaderOptions
from qaeval_export.training.reader import ReaderTask
from qaeval_export.training.results import make_record, write_results


def run_job(options: AnyOptions) -> None:
    """Train, or go on training, or say that it is done.

    Raises
    ------
    InputError, ConfigError, ModelUnavailableError
        If files, options or base are not as they must be.
    RunStoppedError
        If asked to stop; the checkpoint is written.
    """
    check_lasting(options.out, "--out")
    if options.threads:
        torch.set_num_threads(options.threads)
    source = resolve_model(options.base, role="encoder")
    check_base(source, max_tokens=options.max_tokens)
    task = make_task(options, source)
    for line in _plan_lines(task, options):
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
        history = train(task, model, options, out.checkpoints)
        write_results(
            task, model=model, adapter=adapter, source=source, options=options, out=out,
            history=history,
        )  # fmt: skip
        out.finish()
    say(f"done: {out.path}")


def make_task(options: AnyOptions, source: ModelSource) -> Task:
    """Return the task of the options, its files read and checked."""
    if isinstance(options, KpqaOptions):
        from qaeval_export.training.kpqa import KpqaTask  # Loads spaCy.

        return KpqaTask(options, source)
    if isinstance(options, ReaderOptions):
        return ReaderTask(options, source)
    return CrossEncoderTask(options, source)


def _plan_lines(task: Task, options: AnyOptions) -> list[str]:
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
