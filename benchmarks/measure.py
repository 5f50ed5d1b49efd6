"""Measure: the environment, the GEMM peak, interleaved times, and the work a model pass is.

No time is judged here: numbers go out, with what they were measured on.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.families.grg import GrgUnits
from qaeval_core.families.model_units import Units
from qaeval_core.models.engine import Device, LoadedGraph
from qaeval_core.models.onnx_runtime import OnnxRuntime
from qaeval_core.models.open_vino import OpenVino
from qaeval_core.models.record import ArtifactRecord

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "torch", "transformers", "numpy", "ray")
# Rows x inner x columns: the feed-forward of a base encoder, and of the 135M causal LM.
GEMM_SHAPES = ((2048, 768, 3072), (512, 576, 1536))
_GEMM_S = 1.5
# Threads of the side before may still wait by spinning, and take the CPUs of the next.
_SETTLE_S = 0.3


def environment(n_threads: int) -> dict[str, object]:
    """Return what the numbers depend on: machine, versions, revision, load."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": n_threads,
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        # With a plus where the working tree differs from it.
        "revision": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "-s") else ""),
        "load_average": list(os.getloadavg()),
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def gemm_peak(n_threads: int, precision: str = "fp32") -> dict[str, float]:
    """Return the best GFLOP/s of each shape; weights are constant, as a graph's are."""
    return {
        "x".join(map(str, shape)): _gemm_gflops(*shape, n_threads, precision)
        for shape in GEMM_SHAPES
    }


def _gemm_gflops(
    n_rows: int, n_inner: int, n_columns: int, n_threads: int, precision: str
) -> float:
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    weight = draw.standard_normal((n_inner, n_columns), dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "gemm",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [n_rows, n_inner])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [n_rows, n_columns])],
        [numpy_helper.from_array(weight, "b")],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        engine: LoadedGraph
        if precision == "bf16":
            engine = OpenVino(path, n_threads=n_threads, max_batch_s=None)
        else:
            engine = OnnxRuntime(path, device="cpu", n_threads=n_threads, max_batch_s=None)
    inputs: dict[str, Any] = {"a": draw.standard_normal((n_rows, n_inner), dtype=np.float32)}
    best_s, until = float("inf"), time.perf_counter() + _GEMM_S
    while time.perf_counter() < until:
        started = time.perf_counter()
        engine.run(inputs)
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * n_rows * n_inner * n_columns / best_s / 1e9


def interleave(
    sides: Mapping[str, Callable[[], object]], *, n_repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of every side, timed in turn: a, b, a, b, ..."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(n_repeats):
        for name, run in sides.items():
            time.sleep(_SETTLE_S)
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return ours / theirs of two lists of rates: of the medians, and the range of pairs.

    Examples
    --------
    >>> ratio([4.0, 6.0, 5.0], [2.0, 2.0, 2.0])
    {'of_medians': 2.5, 'lowest_pair': 2.0, 'highest_pair': 3.0}
    """
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "of_medians": statistics.median(ours) / statistics.median(theirs),
        "lowest_pair": min(pairs),
        "highest_pair": max(pairs),
    }


def model_flops(record: ArtifactRecord, lengths: NDArray[np.int64], *, n_scored: int) -> float:
    """Return the operations of a whole model on sequences of these lengths, padding left out.

    2 x matmul weights x tokens + attention + 2 x head weights x scored tokens. Attention is
    q k^T and the mix of values: 2 x 2 x dim x n^2 for each layer of a sequence of n tokens. A
    causal LM's upper triangle counts too.
    """
    body = 2.0 * record.n_matmul_parameters * float(lengths.sum())
    head = 2.0 * record.n_head_parameters * n_scored
    return body + _attention_flops(record, lengths) + head


def _attention_flops(record: ArtifactRecord, lengths: NDArray[np.int64]) -> float:
    return 4.0 * record.n_layers * record.dim * float((lengths.astype(np.float64) ** 2).sum())


def work_flops(
    record: ArtifactRecord, units: Units, *, device: Device = "cpu"
) -> tuple[float, float]:
    """Return the operations of a whole model on all units, and of what its graph computes of it.

    A GPU's fused attention leaves the upper triangle of an LM out; a CPU's computes it.
    """
    whole = done = model_flops(record, units.lengths, n_scored=_n_scored(units))
    if "n_candidate" in units.facts:
        done -= skipped_flops(record, units.lengths, units.facts["n_candidate"])
    if device == "cuda" and isinstance(units, GrgUnits):
        done -= _attention_flops(record, units.lengths) / 2
    return whole, done


def _n_scored(units: Units) -> int:
    """Return the tokens whose probability is asked for; encoders have none."""
    return int(units.n_scored.sum()) if isinstance(units, GrgUnits) else 0


def skipped_flops(
    record: ArtifactRecord, lengths: NDArray[np.int64], n_candidate: NDArray[np.int64]
) -> float:
    """Return what of `model_flops` the graph ``relevance_matching`` (attended) does not do.

    Its last layer computes keys and values (2 dim^2 weights) of every token, all the rest for
    2 x n_candidate tokens alone.
    """
    n_left_out = (lengths - 2 * n_candidate).clip(min=0).astype(np.float64)
    weights = record.n_matmul_parameters / record.n_layers - 2 * record.dim**2
    return float((n_left_out * (2.0 * weights + 4.0 * record.dim * lengths)).sum())
