"""Loop: a task and a model -> trained weights, whatever kills the process on the way.

A checkpoint holds the trained weights, the optimizer, the random state and the step; a mark
written last says that it is whole. Dev scores are computed when an epoch ends, and the weights of
the lowest dev loss, or of the last epoch where that is asked for, are kept beside the checkpoints.
Batches hold rows of like length, in an order that the seed and the epoch's number decide: a resumed
epoch meets the same batches.
"""

from __future__ import annotations

import json
import math
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from qaeval_core.errors import RunError, RunStoppedError
from qaeval_core.storage import files
from qaeval_core.terminal import duration, say
from qaeval_export.training.folder import flush
from qaeval_export.training.options import TrainingOptions

_KEPT_FILE = "best.safetensors"
_COMPLETE = "_COMPLETE"
# Sorted this many batches at a time: padding is low and neighbors still change between epochs.
_N_BATCHES_SORTED = 50
_DEV_BATCH = 64


class Task(ABC):
    """What a job learns from and how it judges: all that differs between the jobs.

    Attributes
    ----------
    kind : str
        As the command line calls it.
    files : dict of option to sequence of Path
    settings : dict of option to value
        The job's own options that decide the result.
    tokenizer : PreTrainedTokenizerBase
    n_tokens : list of int
        Of each training example, special tokens included, uncut.
    n_dev : int
        Dev examples.
    """

    kind: ClassVar[str]
    files: dict[str, Sequence[Path]]
    settings: dict[str, Any]
    tokenizer: Any
    n_tokens: list[int]
    n_dev: int

    @property
    def n_train(self) -> int:
        """Training examples."""
        return len(self.n_tokens)

    @abstractmethod
    def collate(self, items: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        """Return the model's inputs and ``labels`` for a list of (row, epoch)."""

    def logits(self, output: Any) -> torch.Tensor:
        """Return the logits of a model's output."""
        return output.logits

    @abstractmethod
    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def evaluate(self, model: Any) -> dict[str, float]:
        """Return dev scores, ``loss`` among them."""


def dev_batches(model: Any, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield rows of like length, for a model in eval mode."""
    model.eval()
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for start in range(0, len(order), _DEV_BATCH):
        yield order[start : start + _DEV_BATCH]


def train(task: Task, model: Any, options: TrainingOptions, folder: Path) -> list[dict[str, Any]]:
    """Train to the end, from the newest checkpoint if there is one.

    Parameters
    ----------
    model : PreTrainedModel
        Holds the weights to keep afterwards: the best ones, or the last.
    folder : Path
        Of the checkpoints.

    Returns
    -------
    list of dict
        ``epoch``, ``step`` and ``dev`` scores of each epoch.

    Raises
    ------
    RunStoppedError
        If asked to stop; the checkpoint is written.
    RunError
        If the loss became no number.
    """
    folder.mkdir(exist_ok=True)
    trainer = _TaskTrainer(task, model, options, folder)
    found = newest(folder)
    n_steps = options.epochs * len(trainer.loader)
    log = found[1]["log_history"] if found else []
    if found:
        say(f"going on from step {found[1]['global_step']:,}")
    if not found or found[1]["global_step"] < n_steps:
        with _Progress(n_rows=task.n_train) as progress:
            trainer.add_callback(progress)
            trainer.add_callback(_Checkpoints(trainer, lambda: task.evaluate(model), options))
            trainer.train(resume_from_checkpoint=str(found[0]) if found else None)
        if trainer.state.global_step < n_steps:
            raise RunStoppedError(
                f"stopped at step {trainer.state.global_step:,} of {n_steps:,}; the same command "
                "resumes there [QA0005]"
            )
        log = trainer.state.log_history
    history = _dev_history(log)
    if not all(math.isfinite(entry["dev"]["loss"]) for entry in history):
        raise RunError(
            f"the loss is not a number; lower --learning-rate {options.learning_rate:g} [QA0903]"
        )
    trainer.model.load_state_dict(load_file(folder / _KEPT_FILE))
    return history


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest whole checkpoint and its state, or None."""
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{_COMPLETE}")]
    if not whole:
        return None
    checkpoint = max(whole, key=lambda path: int(path.name.rpartition("-")[2]))
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return checkpoint, state


def _dev_history(log_history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in log_history if "dev" in entry]


def shown(scores: dict[str, float]) -> str:
    """Return scores for people.

    >>> shown({"loss": 0.5, "pearson": 0.25})
    'loss 0.5000, pearson 0.2500'
    """
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


class LengthGroupedBatches(Sampler):  # type: ignore[misc]
    """Yields batches of (row, epoch).

    Parameters
    ----------
    n_tokens : sequence of int
        Of each row.
    batch_size : int
    seed : int

    Examples
    --------
    >>> batches = LengthGroupedBatches([3, 9, 3, 9], batch_size=2, seed=0)
    >>> sorted(sorted(batch) for batch in batches)
    [[(0, 0), (2, 0)], [(1, 0), (3, 0)]]
    """

    def __init__(self, n_tokens: Sequence[int], *, batch_size: int, seed: int) -> None:
        self._n_tokens = np.asarray(n_tokens)
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to yield, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self._n_tokens) / self._batch_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        draw = np.random.default_rng([self._seed, self._epoch])
        order = draw.permutation(len(self._n_tokens))
        n_sorted = self._batch_size * _N_BATCHES_SORTED
        batches = []
        for start in range(0, len(order), n_sorted):
            rows = order[start : start + n_sorted]
            rows = rows[np.argsort(-self._n_tokens[rows], kind="stable")]
            cuts = range(self._batch_size, len(rows), self._batch_size)
            batches.extend(np.split(rows, list(cuts)))
        for index in draw.permutation(len(batches)):
            yield [(int(row), self._epoch) for row in batches[index]]


class _Rows:
    """Stands for the rows; ``collate`` makes inputs of them, a batch at a time."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, int]:
        return item


class _EpochLoader(DataLoader):  # type: ignore[misc]
    """Loads length-grouped batches; the trainer tells it the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)


class _TaskLoss(nn.Module):  # type: ignore[misc]
    """A task model and its loss; what is stored of it are the trained weights alone.

    The model itself stays untouched by mixed precision.
    """

    def __init__(self, model: Any, task: Task) -> None:
        super().__init__()
        self.model = model
        self._task = task
        self.register_state_dict_post_hook(_leave_out_frozen)
        self.register_load_state_dict_post_hook(_miss_no_frozen)

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self._task.loss(self._task.logits(self.model(**inputs)), labels)}


def _trained_names(module: nn.Module) -> set[str]:
    return {name for name, weight in module.named_parameters() if weight.requires_grad}


def _leave_out_frozen(module: nn.Module, state: dict[str, Any], *_: object) -> None:
    for name in set(state) - _trained_names(module):
        del state[name]


def _miss_no_frozen(module: nn.Module, incompatible: Any) -> None:
    trained = _trained_names(module)
    incompatible.missing_keys[:] = [name for name in incompatible.missing_keys if name in trained]


class _TaskTrainer(Trainer):  # type: ignore[misc]
    """transformers' trainer of a task, with batches of like length; reports to nobody."""

    def __init__(self, task: Task, model: Any, options: TrainingOptions, folder: Path) -> None:
        arguments = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=0.1,
            weight_decay=0.01,
            bf16=options.bf16,
            use_cpu=not torch.cuda.is_available(),
            seed=options.seed,
            save_strategy="no",  # _Checkpoints says when.
            save_total_limit=2,  # One may be half written; the other one is whole.
            logging_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        super().__init__(model=_TaskLoss(model, task), args=arguments)
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)  # Prints dictionaries to standard output.
        batches = LengthGroupedBatches(
            task.n_tokens, batch_size=options.batch_size, seed=options.seed
        )
        self.loader = _EpochLoader(
            _Rows(task.n_train), batch_sampler=batches, collate_fn=task.collate
        )

    def get_train_dataloader(self) -> _EpochLoader:
        return self.loader


class _Checkpoints(TrainerCallback):  # type: ignore[misc]
    """Says when a checkpoint is due, marks whole ones, judges epochs and keeps weights.

    Each checkpoint is written once: what is whole is not written over.
    """

    def __init__(
        self,
        trainer: _TaskTrainer,
        evaluate: Callable[[], dict[str, float]],
        options: TrainingOptions,
    ) -> None:
        self._model = trainer.model
        self._steps_per_epoch = len(trainer.loader)
        self._evaluate = evaluate
        self._interval = options.checkpoint_steps
        self._keeps_last = options.keep_last

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Checkpoint where it is due, or the last one; an epoch's end brings its own."""
        is_due = state.global_step % self._interval == 0 or control.should_training_stop
        if is_due and state.global_step % self._steps_per_epoch:
            control.should_save = True
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Evaluate, keep, checkpoint."""
        if state.global_step % self._steps_per_epoch:  # Stopped within an epoch.
            return control
        scores = self._evaluate()
        epoch = state.global_step // self._steps_per_epoch
        earlier = [entry["dev"]["loss"] for entry in _dev_history(state.log_history)]
        if self._keeps_last or all(scores["loss"] < loss for loss in earlier):
            # Readers see the old file or the whole new one.
            files.write(Path(args.output_dir) / _KEPT_FILE, save(self._model.state_dict()))
        state.log_history.append({"epoch": epoch, "step": state.global_step, "dev": scores})
        say(f"epoch {epoch}/{args.num_train_epochs:g}: dev {shown(scores)}")
        control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint once its files are on the disk."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        flush(folder)
        (folder / _COMPLETE).touch()


class _Progress(TrainerCallback):  # type: ignore[misc]
    """Prints a line every few seconds, and turns SIGTERM and Ctrl-C into an end.

    A context manager: outside it signals do what they did before.
    """

    def __init__(self, *, n_rows: int, interval_s: float = 5.0) -> None:
        self._n_rows = n_rows
        self._interval_s = interval_s
        self._before: dict[signal.Signals, Any] = {}
        self._is_stopped = False

    def __enter__(self) -> _Progress:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, *_: Any) -> None:
        self._is_stopped = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self._started = self._last = time.monotonic()
        self._first_step = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask for a log where it is time, and for the end where it was asked for."""
        now = time.monotonic()
        if now - self._last >= self._interval_s or state.global_step == state.max_steps:
            self._last = now
            control.should_log = True
        if self._is_stopped:
            control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the line; the trainer gives the mean loss since the last one."""
        if "loss" not in (logs or {}):
            return
        line = step_line(
            step=state.global_step,
            n_steps=state.max_steps,
            loss=logs["loss"],
            n_done=state.global_step - self._first_step,
            rows_per_step=self._n_rows * args.num_train_epochs / state.max_steps,
            elapsed_s=time.monotonic() - self._started,
        )
        say(line)


def step_line(
    *,
    step: int,
    n_steps: int,
    loss: float,
    n_done: int,
    rows_per_step: float,
    elapsed_s: float,
) -> str:
    """Return one line of progress.

    Parameters
    ----------
    n_done : int
        Steps of this process; a resumed run's earlier ones have no time here.

    Examples
    --------
    >>> step_line(step=30, n_steps=90, loss=0.5, n_done=10, rows_per_step=32.0, elapsed_s=4.0)
    'step 30/90 (33 %), loss 0.5000, 80.0 examples/s, ETA 24s'
    """
    steps_per_s = n_done / max(elapsed_s, 1e-9)
    left_s = (n_steps - step) / max(steps_per_s, 1e-9)
    return (
        f"step {step:,}/{n_steps:,} ({100 * step / n_steps:.0f} %), loss {loss:.4f}, "
        f"{steps_per_s * rows_per_step:,.1f} examples/s, ETA {duration(left_s)}"
    )
