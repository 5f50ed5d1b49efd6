"""Loop: what both trainers share: small checkpoints, the best dev weights, progress, stopping.

A checkpoint holds the trained weights, the optimizer, the random state and the step; a mark
written last says that it is whole. Dev scores are computed when an epoch ends, and the weights of
the lowest dev loss are kept beside the checkpoints.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from transformers import Trainer, TrainerCallback, TrainingArguments

from export.training.batches import EpochLoader
from export.training.folder import flush
from export.training.options import TrainingOptions
from export.training.progress import step_line
from qaeval_core import files
from qaeval_core.terminal import say

__all__ = ["BEST_FILE", "EpochEnd", "Progress", "ResumableMixin", "arguments_of", "newest"]

WEIGHTS_FILE = "trained.safetensors"
BEST_FILE = "best.safetensors"
_WHOLE = "_WHOLE"


def arguments_of(
    options: TrainingOptions, folder: Path, *, kind: type[TrainingArguments] = TrainingArguments
) -> Any:
    """Return the trainer's arguments; nothing is reported to anybody."""
    return kind(
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
        save_strategy="steps",
        save_steps=options.checkpoint_steps,
        save_total_limit=2,  # One may be half written; the other one is whole.
        logging_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


class ResumableMixin(Trainer):  # type: ignore[misc]
    """Trains on a given loader; saves and loads the trained weights alone."""

    loader: EpochLoader

    def get_train_dataloader(self) -> EpochLoader:
        """Return the loader, which knows epochs."""
        return self.loader

    def trained_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights that are trained, by name."""
        return {
            name: weight.detach()
            for name, weight in self.model.named_parameters()
            if weight.requires_grad
        }

    def load_weights(self, path: Path) -> None:
        """Put stored weights in place."""
        stored = load_file(path)
        with torch.no_grad():
            for name, weight in self.trained_weights().items():
                weight.copy_(stored[name])

    def add_model_card_callback(self, *_: Any, **__: Any) -> None:
        """Leave out the library's card; ours is written at the end."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.trained_weights(), folder / WEIGHTS_FILE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.load_weights(Path(resume_from_checkpoint) / WEIGHTS_FILE)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        mark = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}" / _WHOLE
        mark.unlink(missing_ok=True)
        super()._save_checkpoint(model, trial)
        flush(mark.parent)
        mark.touch()


def save_weights(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Write weights so that readers see the old file or the whole new one."""
    files.write(path, save({name: weight.cpu().contiguous() for name, weight in weights.items()}))


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest whole checkpoint and its state, or None."""
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{_WHOLE}")]
    if not whole:
        return None
    checkpoint = max(whole, key=lambda path: int(path.name.rpartition("-")[2]))
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return checkpoint, state


class EpochEnd(TrainerCallback):  # type: ignore[misc]
    """Computes dev scores when an epoch is whole, and keeps the weights of the lowest loss.

    Parameters
    ----------
    evaluate : callable
        Returns dev scores, ``loss`` among them.
    trainer : ResumableMixin
    folder : Path
        Of the kept weights.
    """

    def __init__(
        self, evaluate: Callable[[], dict[str, float]], trainer: ResumableMixin, folder: Path
    ) -> None:
        self._evaluate = evaluate
        self._trainer = trainer
        self._folder = folder

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Evaluate, keep, checkpoint."""
        steps = len(self._trainer.loader)
        if state.global_step % steps:  # Stopped within an epoch.
            return control
        scores = self._evaluate()
        epoch = state.global_step // steps
        earlier = [entry["dev"]["loss"] for entry in dev_history(state.log_history)]
        if all(scores["loss"] < loss for loss in earlier):
            save_weights(self._trainer.trained_weights(), self._folder / BEST_FILE)
        state.log_history.append({"epoch": epoch, "step": state.global_step, "dev": scores})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        say(f"epoch {epoch}/{args.num_train_epochs:g}: dev {shown}")
        control.should_save = True
        return control


def dev_history(log_history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the epochs' entries of a trainer's log."""
    return [entry for entry in log_history if "dev" in entry]


class Progress(TrainerCallback):  # type: ignore[misc]
    """Prints a line every few seconds, and turns SIGTERM and Ctrl-C into a checkpoint and an end.

    A context manager: outside it signals do what they did before.
    """

    def __init__(self, *, n_rows: int, interval_s: float = 5.0) -> None:
        self._n_rows = n_rows
        self._interval_s = interval_s
        self._before: dict[signal.Signals, Any] = {}
        self.stopped = False

    def __enter__(self) -> Progress:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, *_: Any) -> None:
        self.stopped = True

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
        if self.stopped:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the line; the trainer gives the mean loss since the last one."""
        if "loss" not in (logs or {}):
            return
        n_steps = state.global_step - self._first_step
        rows_per_step = self._n_rows * args.num_train_epochs / state.max_steps
        say(
            step_line(
                step=state.global_step,
                n_steps=state.max_steps,
                loss=logs["loss"],
                n_done=n_steps,
                rows_per_step=rows_per_step,
                elapsed_s=time.monotonic() - self._started,
            )
        )
