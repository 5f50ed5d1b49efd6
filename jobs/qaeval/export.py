"""export: export a model ahead of a run; ``python -m qaeval_export`` in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from qaeval import command as options
from qaeval_core.distribution import requirement

EPILOG = """Examples:

  qaeval export --graph relevance_matching --model minilm

  qaeval export --graph token_logprobs --model gpt2 --precision fp16
"""


def export(words: Sequence[str]) -> None:
    """Export a model to ONNX ahead of a run."""
    if importlib.util.find_spec("torch") is None:
        options.say_error(f"exporting needs torch: pip install {requirement('models')} [QA0004]")
        sys.exit(options.EXIT_BAD_REQUEST)
    done = subprocess.run(
        [sys.executable, "-m", "qaeval_export", *words],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    sys.exit(done.returncode)
