"""The CUDA device that computes nothing (../shared/gpu_mock): built once, and its environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from helpers import REPOSITORY

SOURCE = REPOSITORY.parent / "shared" / "gpu_mock"
# A folder that is built already.
BUILT = "QAEVAL_GPU_MOCK"
_LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcurand.so.10",
    "libcudnn.so.9",
)


def why_not() -> str | None:
    """Return why there is no mock on this machine; None where there is one, or can be."""
    if BUILT in os.environ:
        return None
    if not SOURCE.is_dir():
        return f"no {SOURCE.name} in {SOURCE.parent.name}: a mock CUDA device is built from it"
    if shutil.which("g++") is None:
        return "no g++: the mock CUDA device is built with it"
    return None


def build(folder: Path) -> Path:
    """Build the mock in a folder unless one is named; return where it lies."""
    named = os.environ.get(BUILT)
    if named:
        return Path(named)
    done = subprocess.run(
        ["bash", SOURCE / "build.sh", folder, sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def environment(mock: Path, **given: str) -> dict[str, str]:
    """Return the environment of a process on the mock; ``FAKE_CAP_GIB`` limits its memory."""
    paths = [mock / "ort", REPOSITORY, REPOSITORY / "tests"]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
        "LD_LIBRARY_PATH": str(mock / "lib"),
        "LD_PRELOAD": " ".join(str(mock / "lib" / name) for name in _LIBRARIES),
        **given,
    }
