"""train: train a model that a metric needs; ``python -m qaeval_export.training`` takes over.

Exit codes: 0 done, 1 stopped or failed (run again), 2 bad request.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from qaeval import command as options
from qaeval.last_words import hands_over
from qaeval_core.distribution import python_path, requirement

EPILOG = """Examples:

  qaeval train cross-encoder --pairs pairs.parquet --out sas-mine

  qaeval train kpqa --squad train-v1.1.json --out kpqa-mine

  qaeval train reader --squad train-v2.0.json --out reader-mine
"""

_NEEDED = ("torch", "peft", "spacy")


def train(words: Sequence[str]) -> None:
    """Train your own model for sas, kpqa or roundtrip."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        needed = ", ".join(missing)
        options.say_error(f"training needs {needed}: pip install {requirement('models')} [QA0004]")
        sys.exit(options.EXIT_BAD_REQUEST)
    # The process becomes the training: signals and the exit status need no passing on.
    hands_over()
    os.execve(
        sys.executable,
        [sys.executable, "-m", "qaeval_export.training", *words],
        {**os.environ, "PYTHONPATH": python_path()},
    )
