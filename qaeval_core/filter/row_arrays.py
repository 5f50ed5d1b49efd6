"""Row arrays: what is known of all rows, in memory where that is little, else in mapped files.

The kernel writes pages of such a file to disk where memory is short. The file has no name, so its
room is free again at any end of the process, also after a kill. Its room is reserved at once: a
write to a page that the disk has no room for would end the process.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from qaeval_core.errors import ConfigError, RunError
from qaeval_core.storage.path import StoragePath

# What all rows take in memory at most, and which share of what is free.
_MAX_HELD_BYTES = 1 << 30
_MAX_HELD_SHARE = 0.25
_MAX_MEMORY_SHARE = 0.8
_IN_MEMORY = ("tmpfs", "ramfs")
# The limit and the use of a container's memory, of which inactive pages of files can be had again:
# in cgroups of version 2 and of version 1.
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def are_mapped(n_bytes: int) -> bool:
    """Return whether arrays of so many bytes lie on disk: above 1 GiB, or a quarter of memory."""
    return n_bytes > min(_free_memory() * _MAX_HELD_SHARE, _MAX_HELD_BYTES)


def row_zeros(n_rows: int, kind: DTypeLike, *, folder: Path | None) -> NDArray[Any]:
    """Return an array of zeros, one a row.

    Parameters
    ----------
    kind : dtype
    folder : Path, optional
        On the disk that holds the array; default memory.

    Raises
    ------
    RunError
        If the disk has no room for it, as another program may have taken what was free.

    Examples
    --------
    >>> row_zeros(3, np.uint8, folder=Path(tempfile.gettempdir())).tolist()
    [0, 0, 0]
    """
    n_bytes = n_rows * np.dtype(kind).itemsize
    if folder is None or not n_bytes:
        return np.zeros(n_rows, kind)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
            pages = mmap.mmap(file.fileno(), n_bytes)
    except OSError as error:
        raise RunError(
            f"{n_rows:,} rows need {n_bytes / 1e9:.1f} GB more of disk in {folder}: "
            f"{error.strerror} [QA0705]"
        ) from None
    return np.frombuffer(pages, kind)


def local_folder(folder: StoragePath) -> Path:
    """Return a folder on a disk of this machine: itself, or that of temporary files."""
    return folder.local or Path(tempfile.gettempdir())


def check_room(n_rows: int, n_bytes: int, folder: StoragePath) -> None:
    """Raise ConfigError if mapped arrays of all rows do not fit on the disk of a folder.

    Parameters
    ----------
    folder : StoragePath
        It may be missing.
    """
    place = local_folder(folder).absolute()
    there = next(own for own in (place, *place.parents) if own.exists())
    free = shutil.disk_usage(there).free
    if _is_in_memory(there):
        free = min(free, int(_free_memory() * _MAX_MEMORY_SHARE))
    if n_bytes > free:
        way_out = "write --to a larger disk" if folder.local else "set TMPDIR to a larger disk"
        raise ConfigError(
            f"{n_rows:,} rows need {n_bytes / 1e9:.1f} GB of disk in {place}, and "
            f"{free / 1e9:.1f} GB are free; {way_out}, or filter parts [QA0705]"
        )


def _is_in_memory(path: Path) -> bool:
    """Return whether what a folder holds takes memory."""
    kinds = {own.mountpoint: own.fstype for own in psutil.disk_partitions(all=True)}
    real = path.resolve()
    return next((kinds[str(own)] for own in (real, *real.parents) if str(own) in kinds), "") in (
        _IN_MEMORY
    )


def _free_memory() -> float:
    return min(psutil.virtual_memory().available, free_in_container())


def free_in_container(cgroups: Path = _CGROUPS) -> float:
    """Return the bytes that this process's container may still take; inf without a limit.

    Beyond it the kernel kills, whatever the machine has free.
    """
    for limit, use, stat, name in _CGROUP_FILES:
        try:
            of_limit, of_use, of_stat = (
                (cgroups / path).read_text(encoding="ascii") for path in (limit, use, stat)
            )
        except OSError:
            continue
        if of_limit.strip() == "max":
            return math.inf
        facts = dict(line.split() for line in of_stat.splitlines())
        return max(int(of_limit) - int(of_use) + int(facts.get(name, 0)), 0)
    return math.inf
