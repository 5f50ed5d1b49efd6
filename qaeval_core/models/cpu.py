"""CPUs of this node: how many a process may use, and what they can do, as the kernel tells."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

# Products of matrices in bfloat16, by tiles or by vectors: engines take the first that a CPU has.
# Without any they compute them slowly, or in fp32 and say nothing.
BF16_FLAGS = ("amx_bf16", "avx512_bf16")

_CPUINFO = Path("/proc/cpuinfo")


def cpu_flags() -> frozenset[str]:
    """Return the flags of this node's CPU; none where its kernel lists none."""
    if not _CPUINFO.is_file():
        return frozenset()
    return flags_in(_CPUINFO.read_text(encoding="utf-8", errors="replace"))


def flags_in(cpuinfo: str) -> frozenset[str]:
    r"""Return the flags of the first CPU that the kernel lists.

    Examples
    --------
    >>> sorted(flags_in("processor : 0\nflags : fpu amx_bf16\n\nprocessor : 1\nflags : fpu"))
    ['amx_bf16', 'fpu']
    >>> flags_in("processor : 0\n")
    frozenset()
    """
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    listed = (flags for name, _, flags in lines if name.strip() == "flags")
    return frozenset(next(listed, "").split())


def bf16_flag(flags: Collection[str]) -> str:
    """Return by which of its flags a CPU multiplies matrices in bfloat16, "" if by none."""
    return next((flag for flag in BF16_FLAGS if flag in flags), "")


def available_cpus() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
