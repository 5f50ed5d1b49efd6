"""Build an artifact in a process of its own, once, however many processes ask.

Starts ``python -m export``; torch never enters the calling process. But: what is exported, and
how, is decided there.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qaeval_core.errors import ArtifactMissingError, ExportError
from qaeval_core.files import make_folder, open_lock
from qaeval_core.models.record import ArtifactRequest, export_arguments
from qaeval_core.terminal import say

__all__ = ["build_lock", "run_export"]

_N_SHOWN_LINES = 5


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Hold the right to write an artifact folder; a second process waits here.

    The lock belongs to the process and ends with it, so a killed export blocks nobody.

    Raises
    ------
    ExportError
        If the file to lock is a link, a pipe or another user's.
    """
    make_folder(folder.parent, is_private=True)
    path = folder.parent / f".{folder.name}.lock"
    try:
        file = open_lock(path)
    except OSError as error:
        raise ExportError(f"cannot lock {folder}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def run_export(request: ArtifactRequest, root: Path, *, missing: str) -> None:
    """Run the export of one artifact and wait for it.

    Parameters
    ----------
    request : ArtifactRequest
        What to build.
    root : Path
        Where artifacts lie.
    missing : str
        Why it has to be built, for the message if it cannot be.

    Raises
    ------
    ArtifactMissingError
        If torch is not installed.
    ExportError
        If the export failed.
    """
    if importlib.util.find_spec("torch") is None:
        raise ArtifactMissingError(
            f"{missing} (building needs torch: pip install 'qaeval[export]')"
        )
    what = f"{request.graph} of {request.model} ({request.precision})"
    say(f"exporting {what}: once, then it is kept in {root}; up to some minutes")
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "export", *export_arguments(request, root)],
        env=_environment(),
        stdin=subprocess.DEVNULL,  # What is asked there, nobody sees: nothing may answer.
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-_N_SHOWN_LINES:]
        raise ExportError(
            f"export of {request.folder_name} failed (exit {done.returncode}): " + "\n".join(lines)
        )
    say(f"exported {what} in {time.perf_counter() - started:.0f} s")


def _environment() -> dict[str, str]:
    """Return this process's environment with the folder that holds ``export`` importable."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
