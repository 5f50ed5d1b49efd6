"""Session: run an artifact's graph on one device.

An artifact and arrays in, arrays out. This is the seam between scoring and the inference engine:
ONNX Runtime stands behind it, another engine may stand beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import DeviceError, DeviceMemoryError
from qaeval_core.models.artifact import Artifact

Device = Literal["cpu", "cuda"]

# What ONNX Runtime says when an allocation fails: its arena, the C++ runtime, CUDA.
_MEMORY_SIGNS = ("failed to allocate memory", "bad_alloc", "out of memory", "allocation failed")


class Session:
    """A loaded graph, ready to run.

    Parameters
    ----------
    artifact : Artifact
        The exported folder, already verified.
    device : {"cpu", "cuda"}
        Where the graph runs.
    n_threads : int or None, default None
        Threads inside one operator on the CPU; None takes the CPUs this process may use.

    Raises
    ------
    DeviceError
        If ``cuda`` is asked for and ONNX Runtime would run elsewhere: it falls back in silence.
    """

    def __init__(
        self, artifact: Artifact, *, device: Device = "cpu", n_threads: int | None = None
    ) -> None:
        self.artifact = artifact
        self.device = device
        self.n_threads = n_threads or available_cpus()
        ort = load_onnxruntime()
        options = ort.SessionOptions()
        # ONNX Runtime ignores OMP_NUM_THREADS; without this every actor takes every core.
        options.intra_op_num_threads = self.n_threads
        options.inter_op_num_threads = 1
        # The arena keeps what the largest batch needed; with batches this small that is little
        # (peak 415 MB against 409 MB for MiniLM) and saves 8 % of the time in page faults.
        options.enable_cpu_mem_arena = True
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            str(artifact.model_path), options, providers=_providers(device)
        )
        used = self._session.get_providers()[0]
        if device == "cuda" and used != "CUDAExecutionProvider":
            raise DeviceError(
                f"CUDA was asked for, but ONNX Runtime would run {artifact.folder.name} on {used}: "
                "install qaeval[gpu] (onnxruntime-gpu, never beside onnxruntime) and check the "
                "driver, or set cluster.device=cpu"
            )

    def run(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Run one batch and return the graph's only output.

        Raises
        ------
        DeviceMemoryError
            If the device cannot hold the batch; the session stays usable.
        """
        try:
            (output,) = self._session.run(None, dict(inputs))
        except MemoryError as error:
            raise DeviceMemoryError(str(error) or "out of memory") from None
        except Exception as error:  # ONNX Runtime has no exception type for lack of memory.
            if _is_lack_of_memory(error):
                raise DeviceMemoryError(str(error)) from None
            raise
        return np.asarray(output)


def _is_lack_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return any(sign in message for sign in _MEMORY_SIGNS)


def _providers(device: Device) -> list[Any]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    ort = load_onnxruntime()
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise DeviceError(
            "CUDA was asked for, but this onnxruntime has no CUDA provider: install qaeval[gpu] "
            "in place of qaeval[cpu], or set cluster.device=cpu"
        )
    ort.preload_dlls()
    # TF32 keeps 10 bits of mantissa: an fp32 score would no longer be independent of its batch.
    cuda = ("CUDAExecutionProvider", {"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"})
    return [cuda, "CPUExecutionProvider"]


def load_onnxruntime() -> Any:
    """Return the engine's module; metrics of words need none, so none is loaded for them.

    Raises
    ------
    DeviceError
        If it is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise DeviceError(
            "this metric runs a model: pip install 'qaeval[cpu]', or 'qaeval[gpu]' on a GPU"
        ) from None
    return onnxruntime


def available_cpus() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
