"""GPU exports: all graphs that `make gpu` takes, made before a device is looked at.

Embedded models in both precisions, as the tests marked gpu want them, and random ones of base
shapes, several at a time, each on CPUs of its own. What is there already is checked and kept.

usage: python -m benchmarks.gpu_exports [--models FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

import psutil

from benchmarks.gpu_choice import Choice
from benchmarks.gpu_models import FAMILIES, compile_family
from qaeval_core.families.models import MODEL_FAMILIES
from qaeval_core.models.artifact import Artifact, default_root, ensure_artifact
from qaeval_core.models.record import ArtifactRequest

# An export uses little more than one CPU, and GPT-2's shape takes 3.5 GiB.
_CPUS_OF_ONE = 2
_BYTES_OF_ONE = 5 << 30
# One of each graph, for token_transport has token_match's; the longest first.
_GRAPHS = {MODEL_FAMILIES[family].graph: family for family in reversed(FAMILIES)}
_FAMILIES = sorted(_GRAPHS.values(), key="grg".__ne__)
# Of embedded models; other families have the default ones alone.
_OPTIONS: dict[str, tuple[dict[str, str], ...]] = {"lrm": ({}, {"matching": "weighted"})}
Task = tuple[str, bool]  # A family, and whether it is of its random model.
Export = Callable[[Path, str, bool], None]
_TASKS: list[Task] = [(family, is_random) for family in _FAMILIES for is_random in (True, False)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what is missing; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_exports")
    parser.add_argument("--models", type=Path, default=Choice().models,
                        help="of the random models; default %(default)s")  # fmt: skip
    folder = parser.parse_args(arguments).models
    started = time.monotonic()
    n_workers, failures = export_all(folder, _TASKS)
    print(f"exports     ready after {time.monotonic() - started:.0f} s, {n_workers} at a time")
    for (family, is_random), told in failures.items():
        print(f"failed: export of {family}{' (random model)' * is_random}: {told}", file=sys.stderr)
    return int(bool(failures))


def export_all(
    folder: Path, tasks: Sequence[Task], export: Export | None = None
) -> tuple[int, dict[Task, str]]:
    """Export families, of random models or embedded ones.

    Returns
    -------
    n_workers : int
        How many at a time.
    failures : dict
        What is told of those that failed: it keeps no other from being exported.
    """
    export = export or _export
    cpus = sorted(os.sched_getaffinity(0))
    by_memory = int(psutil.virtual_memory().available // _BYTES_OF_ONE)
    n_workers = max(1, min(len(cpus) // _CPUS_OF_ONE, by_memory, len(tasks)))
    context = get_context("spawn")
    shares: Queue[list[int]] = context.Queue()
    for i in range(n_workers):
        shares.put(cpus[i::n_workers])
    pool = ProcessPoolExecutor(
        n_workers, mp_context=context, initializer=_work_on, initargs=(shares,)
    )
    with pool:
        futures = {task: pool.submit(_told, export, folder, *task) for task in tasks}
    found: dict[Task, str | None] = {}
    for task, future in futures.items():
        try:
            found[task] = future.result()
        except BrokenProcessPool:
            # A process was killed, by lack of memory perhaps, and all that waited is lost with it.
            found[task] = _told_alone(export, folder, *task)
    return n_workers, {task: told for task, told in found.items() if told is not None}


def _told_alone(export: Export, folder: Path, family: str, is_random: bool) -> str | None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_told, export, folder, family, is_random).result()
        except BrokenProcessPool:
            return "its process ended before it did"


def _told(export: Export, folder: Path, family: str, is_random: bool) -> str | None:
    """Return what went wrong, as text: not every error comes back from another process."""
    try:
        export(folder, family, is_random)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1000]
    return None


def _work_on(shares: Queue[list[int]]) -> None:
    os.sched_setaffinity(0, shares.get())  # The export is a process of its own, and inherits it.


def _export(folder: Path, family: str, is_random: bool) -> None:
    plan = compile_family(family, device="cuda", folder=folder, is_random=is_random)
    record = plan.artifact.record
    if not is_random:
        for precision in ("fp32", "fp16"):
            for options in _OPTIONS.get(family, ({},)):
                artifact_in(default_root(), record.graph, record.model.name, precision, options)


def artifact_in(
    root: Path, graph: str, model: str, precision: str, options: Mapping[str, str]
) -> Artifact:
    """Return an artifact that has a precision whether or not its parity gate passes."""
    request = ArtifactRequest(graph, model, precision, options)
    own = ensure_artifact(root, request)
    if own.record.precision != precision:
        own = ensure_artifact(root, replace(request, allow_lossy=True))
    return own


if __name__ == "__main__":
    sys.exit(main())
