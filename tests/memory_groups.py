"""Groups of processes whose memory the kernel limits, and kills in earnest: version 1 and 2."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_LIMIT = 24 << 20
# Waits until it is in the group, then takes more than all may have; others are killed first.
_EATER = (
    "import time; open('/proc/self/oom_score_adj', 'w').write('-900'); input();"
    "held = [];"
    "[(held.append(bytearray(4 << 20)), time.sleep(.05)) for _ in range(40)]"
)


class MemoryGroup:
    """One group; made by ``memory_group``."""

    def __init__(self, folder: Path, *, is_first: bool) -> None:
        self._folder, self._is_first = folder, is_first

    def take(self, pid: int) -> None:
        """Let a process, and those that it will start, count here from now on."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def limit(self, n_bytes: int | None) -> None:
        """Set or end the limit."""
        if self._is_first:
            (self._folder / "memory.limit_in_bytes").write_text(str(n_bytes or -1))
        else:
            (self._folder / "memory.max").write_text(str(n_bytes or "max"))

    def n_kills(self) -> int:
        """Return how many processes the kernel has killed here."""
        name = "memory.oom_control" if self._is_first else "memory.events"
        lines = (self._folder / name).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def give_back(self) -> None:
        """Put all processes into the group above, and remove this one."""
        until = time.monotonic() + 30
        while True:
            for pid in (self._folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # It has ended.
                    (self._folder.parent / "cgroup.procs").write_text(pid)
            try:
                self._folder.rmdir()
            except OSError:  # Of processes that end this moment.
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """Make a group for a while.

    Raises
    ------
    OSError
        Where this process may not make one.
    """
    is_first = (_ROOT / "memory").is_dir()
    parent = _ROOT / "memory" if is_first else _ROOT
    if not is_first and "memory" not in (_ROOT / "cgroup.subtree_control").read_text():
        (_ROOT / "cgroup.subtree_control").write_text("+memory")
    folder = parent / name
    folder.mkdir()
    group = MemoryGroup(folder, is_first=is_first)
    try:
        yield group
    finally:
        group.limit(None)
        group.give_back()


def may_make_groups() -> bool:
    """Whether this process may make groups."""
    try:
        with memory_group(f"qaeval-may-{os.getpid()}"):
            return True
    except OSError:
        return False


def run_out_of_memory(name: str, processes: Sequence[psutil.Process]) -> int:
    """Let processes share too little memory with one that takes it; count those that are killed."""
    with memory_group(name) as group:
        for one in processes:
            with contextlib.suppress(OSError):  # It has ended.
                group.take(one.pid)
        eater = subprocess.Popen([sys.executable, "-c", _EATER], stdin=subprocess.PIPE)
        try:
            group.take(eater.pid)
            group.limit(_LIMIT)
            eater.communicate(b"\n", timeout=60)
        finally:
            eater.kill()
            eater.wait()
        return group.n_kills() - (eater.returncode == -signal.SIGKILL)
