"""Command line of training: ``python -m qaeval_export.training``, run by ``qaeval train``."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence

from qaeval_core.errors import ConfigError, InputError, ModelUnavailableError, QAEvalError
from qaeval_core.terminal import say
from qaeval_export.training.options import parse_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one training job; returns the exit status."""
    gc.disable()  # What is loaded for words stays: looking for cycles in it takes a tenth.
    options = parse_options(arguments)
    gc.enable()
    _be_quiet()
    from qaeval_export.training.job import (
        run_job,  # Loads torch: not for --help and not for a wrong word.
    )

    try:
        run_job(options)
    except (InputError, ConfigError, ModelUnavailableError) as error:
        say(f"error: {error}")
        return 2
    except (QAEvalError, OSError) as error:
        say(f"error: {error}")
        return 1
    return 0


def _be_quiet() -> None:
    """Keep other programs' progress bars and notes off the terminal; nothing of ours is hidden."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # Pairs of texts train on one GPU.
    warnings.filterwarnings("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
