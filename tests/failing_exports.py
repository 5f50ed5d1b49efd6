"""An export that fails as it is told: processes of their own import it by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def export(folder: Path, family: str, is_random: bool) -> None:
    """Leave a file, refuse, or die, by the family's name."""
    if family == "refused":
        raise ImportError("no such library")
    if family == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"{family}-{is_random}").touch()
