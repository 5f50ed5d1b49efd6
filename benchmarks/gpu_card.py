"""GPU card: what it reaches in a matrix product, and what nvidia-smi tells while something runs.

Stands alone: it knows nothing of families, and its tests need no device.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from qaeval_core.models.onnx_runtime import load_onnxruntime

_GEMM_SIZE = 8192
_N_GEMMS = 20
_SAMPLE_MS = 200
_FIRST_SAMPLE_S = 15


def cuda_starts() -> bool:
    """Whether a session gets the CUDA provider: without a driver it falls back to the CPU."""
    from onnx import TensorProto, helper

    own, same = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("own", "same"))
    node = helper.make_node("Identity", ["own"], ["same"])
    graph = helper.make_graph([node], "same", [own], [same])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    try:
        engine = load_onnxruntime("cuda")
        engine.preload_dlls()  # Those that packages bring are on no path.
        session = engine.InferenceSession(model.SerializeToString(), providers=providers)
    except Exception as error:  # ONNX Runtime's errors have no common base but this one.
        print(error, file=sys.stderr)
        return False
    return session.get_providers()[0] == providers[0]


def measured_peak() -> float | None:
    """Return the best fp16 FLOP/s of a large product; None where torch has no CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    left = torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda", dtype=torch.float16)
    best_s = float("inf")
    for _ in range(_N_GEMMS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        left @ left
        torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * _GEMM_SIZE**3 / best_s


def _nvidia_smi(*asked: str) -> list[str]:
    # CUDA's first device; nvidia-smi knows nothing of the variable.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"]
    return [*command, f"--id={first}"]


def memory_used() -> float | None:
    """Return the device memory in use now, in MiB; None where nvidia-smi does not tell."""
    try:
        done = subprocess.run(
            _nvidia_smi("memory.used"), capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return _number(done.stdout) if done.returncode == 0 else None


@contextmanager
def nvidia_smi() -> Iterator[dict[str, float]]:
    """Sample busy share and memory; the dict is filled at the end, and empty without the tool."""
    found: dict[str, float] = {}
    asked = ("utilization.gpu", "memory.used", "power.draw", "clocks.sm")
    command = [*_nvidia_smi(*asked), f"--loop-ms={_SAMPLE_MS}"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError:
        yield found
        return
    lines: list[str] = []
    has_begun = threading.Event()

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            has_begun.set()
        has_begun.set()

    reader = threading.Thread(target=read, daemon=True)
    with process:
        reader.start()
        # Its start takes longer than many a pass.
        has_begun.wait(_FIRST_SAMPLE_S)
        lines.clear()
        try:
            yield found
        finally:
            process.terminate()
            reader.join()
    found |= summarize(lines)


def summarize(lines: Sequence[str]) -> dict[str, float]:
    """Return what samples say together; nothing of what the card does not tell.

    Examples
    --------
    >>> summarize(["50, 2000, 300.5, 1980", "100, 2600, [N/A], 1755"])
    {'busy': 0.75, 'memory_mib': 2600.0, 'power_w': 300.5, 'sm_clock_mhz': 1755.0}
    >>> summarize(["[N/A], 2000, [N/A], [N/A]"])
    {'memory_mib': 2000.0}
    """
    ways: dict[str, Callable[[list[float]], float]] = {
        "busy": lambda own: statistics.mean(own) / 100,
        "memory_mib": max,
        "power_w": max,
        "sm_clock_mhz": min,
    }
    rows = [line.split(",") for line in lines if line.count(",") == len(ways) - 1]
    columns = zip(*rows, strict=True) if rows else [()] * len(ways)
    found = {}
    for (name, together), column in zip(ways.items(), columns, strict=True):
        own = [value for value in map(_number, column) if value is not None]
        if own:
            found[name] = together(own)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
