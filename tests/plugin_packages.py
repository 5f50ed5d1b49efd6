"""Packages with entry points, written where Python finds them: nothing is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from helpers import REPOSITORY


def write_package(
    folder: Path, name: str, version: str, entries: Mapping[str, Mapping[str, str]], **modules: str
) -> Path:
    """Write modules and the metadata of their package; return the folder.

    ``entries`` are names and objects by group.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, own in entries.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in own.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def python(code: str, *folders: Path, cwd: Path | None = None) -> str:
    """Run code in a process that finds packages in folders; return what it printed, or its error.

    The error of qaeval's that ends it stands alone, behind its class.
    """
    wrapped = (
        "from qaeval_core.errors import QAEvalError\n"
        f"try:\n    exec({json.dumps(code)})\n"
        "except QAEvalError as error:\n    print(type(error).__name__, str(error))\n"
    )
    return run("-c", wrapped, folders=folders, cwd=cwd)


def run(
    *words: str | Path, folders: tuple[Path, ...] = (), cwd: Path | None = None, expect: int = 0
) -> str:
    """Run Python with folders among those that it looks in; return what it printed."""
    paths = [
        str(path) for path in (*folders, REPOSITORY, REPOSITORY / "jobs", REPOSITORY / "export")
    ]
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr
