"""Session: run an artifact's graph on one device.

An artifact and arrays in, arrays out. This is the seam between scoring and the inference engine:
ONNX Runtime stands behind it, another engine may stand beside it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qaeval_core.distribution import requirement
from qaeval_core.errors import DeviceError, DeviceMemoryError, ModelError
from qaeval_core.models.artifact import Artifact

Device = Literal["cpu", "cuda"]

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

# A device computes; this process's threads hand it work and do the few sums of shapes.
_THREADS_BESIDE_A_GPU = 2


class Session:
    """A loaded graph, ready to run.

    Parameters
    ----------
    artifact : Artifact
        The exported folder, already verified.
    device : {"cpu", "cuda"}
        Where the graph runs.
    n_threads : int or None, default None
        Threads inside one operator on the CPU; None takes the CPUs this process may use. Two at
        most beside a GPU, and they do not spin: there they take time from who tokenizes.
    max_batch_s : float or None, default None
        Seconds after which a batch is stopped: a graph may hold a loop without an end.

    Raises
    ------
    DeviceError
        If ``cuda`` is asked for and ONNX Runtime would run elsewhere: it falls back in silence.
    ModelError
        If the graph cannot be loaded, or has other inputs and outputs than its record.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        device: Device = "cpu",
        n_threads: int | None = None,
        max_batch_s: float | None = None,
    ) -> None:
        self.artifact = artifact
        self.device = device
        self.n_threads = n_threads or available_cpus()
        if device == "cuda":
            self.n_threads = min(self.n_threads, _THREADS_BESIDE_A_GPU)
        self.max_batch_s = max_batch_s
        ort = load_onnxruntime(device)
        self._make_run_options = ort.RunOptions
        options = _session_options(ort, device=device, n_threads=self.n_threads)
        providers = _providers(device)
        try:
            self._session = ort.InferenceSession(
                str(artifact.model_path), options, providers=providers
            )
        except Exception as error:  # ONNX Runtime's errors have no common base but this one.
            raise ModelError(
                f"{artifact.model_path} cannot be loaded: {_first(error)} [QA0414]"
            ) from None
        # Where inputs say how long an axis is.
        self._axes = {
            axis: (tensor.name, place)
            for tensor in artifact.record.inputs
            for place, axis in enumerate(tensor.shape)
            if isinstance(axis, str)
        }
        self._limit = _BatchLimit(max_batch_s) if max_batch_s is not None else None
        self._check_graph()
        used = self._session.get_providers()[0]
        if device == "cuda" and used != "CUDAExecutionProvider":
            raise DeviceError(
                f"CUDA was asked for, but ONNX Runtime would run {artifact.folder.name} on {used}: "
                f"install {requirement('gpu')} (never beside onnxruntime) and check the driver, or "
                "set cluster.device=cpu [QA0412]"
            )

    def run(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Run one batch and return the graph's only output.

        Raises
        ------
        DeviceMemoryError
            If the device cannot hold the batch; the session stays usable.
        ModelError
            If the graph refuses the batch, returns another shape than its record says, or has not
            ended after ``max_batch_s``.
        """
        self._check_ids(inputs)
        options = self._make_run_options()
        try:
            with self._stopped_in_time(options):
                (output,) = self._session.run(None, dict(inputs), options)
        except MemoryError as error:
            raise DeviceMemoryError(f"{error or 'out of memory'} [QA0413]") from None
        except Exception as error:  # ONNX Runtime has no exception type for lack of memory.
            if _is_lack_of_memory(error):
                raise DeviceMemoryError(f"{error} [QA0413]") from None
            if options.terminate:
                raise ModelError(
                    f"{self.artifact.model_path} did not finish a batch of {_shapes(inputs)} "
                    f"within {self.max_batch_s:g} s; raise models.<role>.max_batch_s if it may "
                    "take longer [QA0414]"
                ) from None
            raise ModelError(
                f"{self.artifact.model_path} failed on a batch of {_shapes(inputs)}: "
                f"{_first(error)} [QA0414]"
            ) from None
        self._check_output(np.asarray(output), inputs)
        return np.asarray(output)

    def _stopped_in_time(self, options: Any) -> AbstractContextManager[None]:
        return nullcontext() if self._limit is None else self._limit.over(options)

    def _check_graph(self) -> None:
        """Raise ModelError unless the graph reads and returns what the record says."""
        record = self.artifact.record
        for told, found in (
            (record.inputs, self._session.get_inputs()),
            (record.outputs, self._session.get_outputs()),
        ):
            said = [(tensor.name, len(tensor.shape)) for tensor in told]
            has = [(tensor.name, len(tensor.shape)) for tensor in found]
            if said != has:
                raise ModelError(
                    f"{self.artifact.model_path} has {has} (names, axes), and its record has "
                    f"{said} [QA0415]"
                )
        if len(record.outputs) != 1:
            raise ModelError(
                f"{self.artifact.model_path} has {len(record.outputs)} outputs, and must have one "
                "[QA0415]"
            )

    def _check_ids(self, inputs: Mapping[str, NDArray[np.int64]]) -> None:
        # On a GPU a lookup beyond the table is no error: it returns zeros.
        ids = inputs.get("input_ids")
        if ids is None or not ids.size:
            return
        vocab = self.artifact.record.vocab
        # Of one look: negative ones are the largest.
        if int(ids.view(np.uint64).max()) >= vocab:
            raise ModelError(
                f"{self.artifact.tokenizer_path} gives the token id {ids.max()}, and the model has "
                f"{vocab} tokens: they do not belong together [QA0415]"
            )

    def _check_output(
        self, output: NDArray[np.float32], inputs: Mapping[str, NDArray[np.int64]]
    ) -> None:
        shape = self.artifact.record.outputs[0].shape
        is_right = len(shape) == output.ndim
        for axis, found in zip(shape, output.shape, strict=False):
            name, place = self._axes.get(axis, ("", 0)) if isinstance(axis, str) else ("", 0)
            wanted = inputs[name].shape[place] if name in inputs else axis
            is_right = is_right and (isinstance(wanted, str) or wanted == found)
        if not is_right:
            raise ModelError(
                f"{self.artifact.model_path} returned {output.shape}, and its record says {shape} "
                f"for {_shapes(inputs)} [QA0414]"
            )


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


def _shapes(inputs: Mapping[str, NDArray[np.int64]]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in inputs.items())


def _first(error: Exception) -> str:
    """Return the first line of what ONNX Runtime says."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


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


def available_cpus() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
