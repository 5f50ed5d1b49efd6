"""Benchmark of QRelScore: rows/s against a per-row loop, and memory.

Prints numbers with their environment and never judges one. Sides are timed in turn; rates are
medians. Run ``python -m benchmarks.qrelscore --only lrm,memory --json numbers.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.common import Settings
from benchmarks.measure import environment, gemm_peak
from qaeval_core.models.cpu import available_cpus

# Section -> where it is.
SECTIONS = {
    "lrm": "benchmarks.against_loop:run_lrm",
    "grg": "benchmarks.against_loop:run_grg",
    "memory": "benchmarks.memory:run_memory",
    "gpu": "benchmarks.gpu:run_gpu",
}
# Above this many waiting processes the times say more about the machine than about the code.
_CALM_LOAD = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections."""
    chosen = _parser().parse_args(arguments)
    found = environment(chosen.threads)
    peaks = gemm_peak(chosen.threads, chosen.precision)
    found["gemm_gflops"] = peaks
    _show_environment(found)
    settings = Settings(
        n_rows=chosen.rows,
        n_grg_rows=chosen.grg_rows,
        n_peer_rows=chosen.peer_rows,
        n_repeats=chosen.repeats,
        n_threads=chosen.threads,
        peak_tflops=chosen.peak_tflops,
        peak_gflops=max(peaks.values()),
        precision=chosen.precision,
        peer_precision=chosen.peer_precision,
    )
    sections = {}
    for name in chosen.only:
        started, load = time.perf_counter(), os.getloadavg()[0]
        print(f"\n== {name} ==", flush=True)
        result = _section(name)(settings)
        wall_s = time.perf_counter() - started
        print(f"  [{wall_s:.0f} s; load average {load:.2f} before]", flush=True)
        sections[name] = {**result, "wall_s": wall_s, "load_average_before": load}
    if chosen.json:
        text = json.dumps({"environment": found, "sections": sections}, indent=2)
        chosen.json.write_text(text + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qrelscore")
    parser.add_argument(
        "--only",
        type=_section_names,
        default=list(SECTIONS),
        help=f"comma-separated sections of {', '.join(SECTIONS)}; default all",
    )
    parser.add_argument("--rows", type=int, default=200, help="rows of LRM; default %(default)s")
    parser.add_argument(
        "--grg-rows",
        type=int,
        default=200,
        help="rows of GRG; default %(default)s: 5 passes take 15 minutes on 2 cores",
    )
    parser.add_argument(
        "--peer-rows", type=int, help="the loops run on the first N rows alone; default all"
    )
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="of qaeval on CPUs"
    )
    parser.add_argument(
        "--peer-precision", choices=("fp32", "bf16"), default="fp32", help="of the loops"
    )
    parser.add_argument("--repeats", type=int, default=5, help="timed passes; default %(default)s")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of every side")
    parser.add_argument("--peak-tflops", type=float, help="fp16 peak of the GPU; default measured")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    return parser


def _section_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown section {unknown[0]!r}; sections: {', '.join(SECTIONS)}"
        )
    return names


def _section(name: str) -> Callable[[Settings], dict[str, object]]:
    # Imported when it runs: a run without the loops needs neither torch nor transformers.
    module, _, function = SECTIONS[name].partition(":")
    run: Callable[[Settings], dict[str, object]] = getattr(import_module(module), function)
    return run


def _show_environment(found: dict[str, object]) -> None:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    loads = " ".join(f"{load:.2f}" for load in found["load_average"])
    print(f"cpu         {found['cpu']}, {found['cores']} cores, {found['threads']} threads used")
    print(f"versions    python {found['python']}, {versions}")
    print(f"revision    {found['revision']}")
    print(f"load        {loads}" + ("  NOT CALM" if found["load_average"][0] > _CALM_LOAD else ""))
    for shape, gflops in found["gemm_gflops"].items():
        print(f"GEMM        {shape}: {gflops:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
