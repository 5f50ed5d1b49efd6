"""GPU arena: what ONNX Runtime's arena takes of a device, by its own log.

Its Python interface tells nothing of arenas; at the level of notes its log has each extension, and
an arena gives nothing back before its session ends, so that the sum is the peak. But: nothing is to
be timed while the log is written, and what a library takes past the arena is not in it (cuBLAS, the
context): nvidia-smi's figure has that.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from qaeval_core.models.engine import Device
from qaeval_core.models.onnx_runtime import load_onnxruntime

_NOTES, _WARNINGS = 1, 2  # ONNX Runtime's levels; the second is its default.
_NOTE = "[I:onnxruntime:"
_NAMES: dict[Device, str] = {"cpu": "Cpu", "cuda": "Cuda"}
_ASKED = re.compile(r"Extending BFCArena for (\w+)")
_GIVEN = re.compile(r"Extended allocation by (\d+) bytes")
# Past the arena's bins, but counted by it: weights that a CPU packs anew.
_RESERVED = re.compile(r"Reserving memory in BFCArena for (\w+) size: (\d+)")


@contextmanager
def arena_log(device: Device) -> Iterator[dict[str, float]]:
    """Read the arena's log; the dict is filled at the end, and empty where no arena is told of.

    A session must be made and run inside. What else is written to the process's stderr meanwhile
    comes after it; if the process dies there, it is in the file ``qaeval-arena-*`` of the folder
    for temporary files.
    """
    found: dict[str, float] = {}
    engine = load_onnxruntime()
    with tempfile.NamedTemporaryFile("w+", prefix="qaeval-arena-", errors="replace") as file:
        sys.stderr.flush()
        own = os.dup(2)
        os.dup2(file.fileno(), 2)
        engine.set_default_logger_severity(_NOTES)
        try:
            yield found
        finally:
            engine.set_default_logger_severity(_WARNINGS)
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)
            file.seek(0)
            lines = file.readlines()
            sys.stderr.writelines(line for line in lines if _NOTE not in line)
    n_bytes = taken(lines, name=_NAMES[device])
    if n_bytes:
        found["arena_peak_mib"] = n_bytes / 2**20


def taken(lines: Iterable[str], *, name: str) -> int:
    """Return the bytes that an arena took; an extension that was refused has no second line.

    Examples
    --------
    >>> log = '''Extending BFCArena for Cuda. bin_num:2 (requested) num_bytes: 1500
    ... Extended allocation by 1536 bytes.
    ... Extending BFCArena for Cpu. bin_num:2 (requested) num_bytes: 256
    ... Extended allocation by 1048576 bytes.
    ... Extending BFCArena for Cuda. bin_num:20 (requested) num_bytes: 999999999999
    ... Reserving memory in BFCArena for Cuda size: 64'''
    >>> taken(log.splitlines(), name="Cuda")
    1600
    """
    n_bytes, asked = 0, ""
    for line in lines:
        if extending := _ASKED.search(line):
            asked = extending[1]
        elif extended := _GIVEN.search(line):
            n_bytes += int(extended[1]) * (asked == name)
        elif (reserved := _RESERVED.search(line)) and reserved[1] == name:
            n_bytes += int(reserved[2])
    return n_bytes
