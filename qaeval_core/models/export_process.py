"""Export process: an artifact built in a process of its own, which has limits, and one line to end.

A model of others may hold a loop without an end, or unpack into more memory than there is. Torch
never enters this process.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qaeval_core.distribution import python_path, requirement
from qaeval_core.errors import ArtifactMissingError, ExportError, with_code
from qaeval_core.models.record import GRAPHS, ArtifactRequest, export_arguments
from qaeval_core.terminal import say

_MAX_CHARS = 500
_ERROR = "error: "


@dataclass(frozen=True, slots=True)
class ExportLimits:
    """What one export may take.

    Attributes
    ----------
    max_s : float, default an hour
    max_memory_gb : float or None, default None
        None is by the size of the model's files.
    """

    max_s: float = 3600.0
    max_memory_gb: float | None = None


def run_export(request: ArtifactRequest, root: Path, *, missing: str, limits: ExportLimits) -> None:
    """Run the export of one artifact and wait for it.

    Parameters
    ----------
    missing : str
        Why it has to be built.

    Raises
    ------
    ArtifactMissingError
        If what builds it is not installed.
    ExportError
        If it fails, is killed or takes too long; one line says which.
    """
    needed = "onnx" if GRAPHS[request.graph].takes_onnx else "torch"
    if importlib.util.find_spec(needed) is None:
        raise ArtifactMissingError(
            f"{missing} (building needs {needed}: pip install {requirement('models')}) [QA0405]"
        )
    what = f"{request.graph} of {request.model} ({request.precision})"
    say(f"exporting {what}; this takes minutes once, then {root} keeps it")
    started = time.perf_counter()
    words = [*export_arguments(request, root)]
    if limits.max_memory_gb is not None:
        words += ["--max-memory-gb", f"{limits.max_memory_gb:g}"]
    failed = f"export of {request.folder_name} failed"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qaeval_export", *words],
            env=_environment(),
            stdin=subprocess.DEVNULL,  # What is asked there, nobody sees: nothing may answer.
            capture_output=True,
            text=True,
            check=False,
            timeout=limits.max_s,
        )
    except subprocess.TimeoutExpired:
        raise ExportError(
            f"{failed}: it did not end within {limits.max_s:g} s; "
            f"models.{request.role}.max_export_s allows more [QA0409]"
        ) from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise ExportError(
            f"{failed}: {name} ended it, often for lack of memory "
            f"(models.{request.role}.max_export_gb){_said(done.stderr)} [QA0409]"
        )
    if done.returncode:
        raise ExportError(
            with_code(f"{failed} (exit {done.returncode}){_said(done.stderr)}", "QA0409")
        )
    say(f"exported {what} in {time.perf_counter() - started:.0f} s")


def _said(text: str) -> str:
    r"""Return what a process said last, in one line: its error, if it could name one.

    Examples
    --------
    >>> _said("a note\nerror: config.json lacks a size:\n  'hidden_size'\n")
    ": error: config.json lacks a size: 'hidden_size'"
    >>> _said("Traceback (most recent call last):\n  File x\nMemoryError\n"), _said("")
    (': MemoryError', '')
    """
    lines = [line for line in text.splitlines() if line.strip()]
    shown: Sequence[str] = lines[-1:]
    errors = [i for i, line in enumerate(lines) if line.startswith(_ERROR)]
    if errors:
        shown = lines[errors[-1] :]
    told = " ".join(" ".join(shown).split())[:_MAX_CHARS]
    return f": {told}" if told else ""


def _environment() -> dict[str, str]:
    # Threads that wait must not spin: beside another process it took eight times the CPU seconds.
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": python_path()}
