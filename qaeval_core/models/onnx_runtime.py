"""ONNX Runtime: the engine of graphs in fp32 and fp16, on CPUs and on GPUs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.distribution import requirement
from qaeval_core.errors import DeviceError
from qaeval_core.models.engine import Device, LoadedGraph, Ports

# The first release whose CPU kernels read the lengths of rows: 1.24 takes the same graphs, attends
# to padding, and says nothing. CUDA's kernels went on changing (ONNX Runtime's pull requests 27542
# and 28849, issue 28904): there no release before this one was looked at.
MIN_ONNXRUNTIME: Mapping[Device, tuple[int, int]] = {"cpu": (1, 25), "cuda": (1, 31)}

# What ONNX Runtime says when an allocation fails: its arena, the C++ runtime, CUDA.
_MEMORY_SIGNS = (
    "failed to allocate memory",
    "is smaller than requested bytes",  # its arena at a limit of its own
    "bad_alloc",
    "out of memory",
    "allocation failed",
)


class OnnxRuntime(LoadedGraph):
    """A graph as ONNX Runtime has loaded it.

    Parameters
    ----------
    path : Path
        The graph.
    device : {"cpu", "cuda"}
    n_threads : int
        Threads inside one operator.
    max_batch_s : float or None
        Seconds after which a batch is stopped.

    Raises
    ------
    DeviceError
        If ONNX Runtime is not installed, too old, or would run elsewhere than asked: it falls
        back in silence.
    """

    def __init__(
        self, path: Path, *, device: Device, n_threads: int, max_batch_s: float | None
    ) -> None:
        ort = load_onnxruntime(device)
        self._make_run_options = ort.RunOptions
        self._limit = _BatchLimit(max_batch_s) if max_batch_s is not None else None
        options = _session_options(ort, device=device, n_threads=n_threads)
        self._session = ort.InferenceSession(str(path), options, providers=_providers(device))
        used = self._session.get_providers()[0]
        if device == "cuda" and used != "CUDAExecutionProvider":
            raise DeviceError(
                f"CUDA was asked for, but ONNX Runtime would run {path.parent.name} on {used}: "
                f"install {requirement('gpu')} (never beside onnxruntime) and check the driver, or "
                "set cluster.device=cpu [QA0412]"
            )

    @property
    def inputs(self) -> Ports:
        """Name and number of axes of each input."""
        return [(port.name, len(port.shape)) for port in self._session.get_inputs()]

    @property
    def outputs(self) -> Ports:
        """Name and number of axes of each output."""
        return [(port.name, len(port.shape)) for port in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Run one batch and return the only output."""
        options = self._make_run_options()
        try:
            with self._stopped_in_time(options):
                (output,) = self._session.run(None, dict(inputs), options)
        except Exception as error:  # ONNX Runtime has no exception type for lack of memory.
            if _is_lack_of_memory(error):
                raise MemoryError(str(error)) from None
            if options.terminate:
                raise TimeoutError from None
            raise
        return np.asarray(output)

    def _stopped_in_time(self, options: Any) -> AbstractContextManager[None]:
        return nullcontext() if self._limit is None else self._limit.over(options)


def _session_options(ort: Any, *, device: Device, n_threads: int) -> Any:
    """Return how ONNX Runtime runs a graph here."""
    options = ort.SessionOptions()
    # ONNX Runtime ignores OMP_NUM_THREADS; without this every actor takes every core.
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    # The arena keeps what the largest batch needed; with batches this small that is little
    # (peak 415 MB against 409 MB for MiniLM) and saves 8 % of the time in page faults.
    options.enable_cpu_mem_arena = True
    # Patterns of allocation are kept for each shape, and shapes hardly come again.
    options.enable_mem_pattern = False
    # By default all layers run before what branches off them, and each layer's scores wait for it.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    if device == "cuda":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return options


def _is_lack_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return any(sign in message for sign in _MEMORY_SIGNS)


def _providers(device: Device) -> list[Any]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    ort = load_onnxruntime()
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise DeviceError(
            "CUDA was asked for, but this onnxruntime has no CUDA provider: pip uninstall "
            f"onnxruntime && pip install {requirement('gpu')}, or set cluster.device=cpu [QA0412]"
        )
    ort.preload_dlls()
    # TF32 keeps 10 bits of mantissa: an fp32 score would no longer be independent of its batch.
    cuda = ("CUDAExecutionProvider", {"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"})
    return [cuda, "CPUExecutionProvider"]


def load_onnxruntime(device: Device = "cpu") -> Any:
    """Return the engine's module; lexical metrics need none, so none is loaded for them.

    Raises
    ------
    DeviceError
        If it is not installed, or too old for a device.
    """
    try:
        import onnxruntime
    except ImportError:
        raise DeviceError(
            f"this metric runs a model: pip install {requirement('models')}, or "
            f"{requirement('gpu')} on a GPU [QA0412]"
        ) from None
    if os.environ.get("ORT_DISABLE_TELEMETRY") == "1":
        # Where a program has loaded the engine before this library, the variable came too late.
        onnxruntime.disable_telemetry_events()
    found = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if found < MIN_ONNXRUNTIME[device]:
        needed = ".".join(map(str, MIN_ONNXRUNTIME[device]))
        why = "attends to padding in these graphs"
        if found >= MIN_ONNXRUNTIME["cpu"]:
            why = "was never tried with these graphs on a GPU"
        raise DeviceError(
            f"onnxruntime {onnxruntime.__version__} {why}; install {needed} or newer [QA0412]"
        )
    return onnxruntime


class _BatchLimit:
    """Stops a run of ONNX Runtime before its next operator, if it takes longer.

    One thread looks, when the oldest run would have to end: a timer for each batch starts a thread
    for each, and the batch waits for it to be there.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._running: list[tuple[float, Any]] = []
        self._is_watched = False

    @contextmanager
    def over(self, options: Any) -> Iterator[None]:
        """Limit what runs inside."""
        run = (time.monotonic() + self._seconds, options)
        with self._lock:
            self._running.append(run)
            is_watched, self._is_watched = self._is_watched, True
        if not is_watched:
            threading.Thread(target=self._watch, name="batch-limit", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(run)

    def _watch(self) -> None:
        """Look until nothing runs; what begins meanwhile ends after the next look."""
        wait = self._seconds
        while True:
            time.sleep(wait)
            with self._lock:
                now = time.monotonic()
                for until, options in self._running:
                    options.terminate = options.terminate or until <= now
                if not self._running:
                    self._is_watched = False
                    return
                ends = (until for until, _ in self._running if until > now)
                wait = min(ends, default=now + self._seconds) - now
