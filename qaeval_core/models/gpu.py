"""GPU facts: which device this process runs on, as its driver tells; for reports and benchmarks.

Stands alone: a session needs none of it, and where no driver answers there are few facts.
"""

from __future__ import annotations

import csv
import os
import subprocess
from importlib import metadata
from typing import Any

# Name in a report -> name of the driver's query.
_ASKED = {
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "sm_clock_mhz": "clocks.sm",
    "max_sm_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "mig": "mig.mode.current",
}
_NUMBERS = ("_mib", "_mhz", "_w")
# What Ray or the user gives a worker: its device, and its share of the CPUs.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "RAYON_NUM_THREADS", "OMP_NUM_THREADS")
_TIMEOUT_S = 20


def gpu_facts() -> dict[str, Any]:
    """Return what is known of the device that CUDA counts first here.

    Returns
    -------
    dict
        Name, driver, memory, clocks, power, versions of CUDA's libraries, and the variables of
        ``environment`` that name devices and threads; ``problem`` where nvidia-smi does not answer.
    """
    given = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {**_driver_facts(), "environment": given, "libraries": cuda_libraries()}


def _driver_facts() -> dict[str, Any]:
    """Return what nvidia-smi says of the first device, or why it says nothing."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED.values())}"]
    command += [f"--id={wanted}"] if wanted else []
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": f"nvidia-smi: {error}"}
    if done.returncode != 0:
        return {"problem": f"nvidia-smi: {done.stdout.strip() or done.stderr.strip()}"[:300]}
    return parse_facts(done.stdout)


def parse_facts(text: str) -> dict[str, Any]:
    """Return the facts of the first line that nvidia-smi prints; None for what it cannot tell.

    Examples
    --------
    >>> line = "NVIDIA T4, 580.65, 15360, 300, 1590, 405, 12.31, 70.00, [N/A]"
    >>> facts = parse_facts(line)
    >>> facts["name"], facts["memory_mib"], facts["power_w"], facts["mig"]
    ('NVIDIA T4', 15360.0, 12.31, None)
    """
    first = next(csv.reader(text.splitlines()), [])
    found = dict(zip(_ASKED, (value.strip() for value in first), strict=False))
    return {name: _value(name, value) for name, value in found.items()}


def _value(name: str, text: str) -> str | float | None:
    if text.startswith("[") or not text:
        return None
    if not name.endswith(_NUMBERS):
        return text
    try:
        return float(text)
    except ValueError:
        return None


def cuda_libraries() -> dict[str, str]:
    """Return the versions of NVIDIA's packages that are installed."""
    found = {}
    for package in metadata.distributions():
        name = package.metadata["Name"] or ""
        if name.startswith("nvidia-"):
            found[name] = package.version
    return dict(sorted(found.items()))
