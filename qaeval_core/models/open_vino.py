"""OpenVINO: the engine of graphs in bfloat16, on CPUs that multiply matrices in it.

The graph is the one in fp32: OpenVINO rounds its weights, and what products read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.distribution import requirement
from qaeval_core.errors import DeviceError
from qaeval_core.models.cpu import BF16_FLAGS, bf16_flag, cpu_flags
from qaeval_core.models.engine import LoadedGraph, Ports

_TELEMETRY = "openvino_telemetry"
_PRECISION = "bf16"
_HINT = "INFERENCE_PRECISION_HINT"
# What it says when an allocation fails.
_MEMORY_SIGNS = ("bad_alloc", "could not allocate", "failed to allocate", "out of memory")


class OpenVino(LoadedGraph):
    """A graph as OpenVINO has compiled it, in bfloat16.

    Parameters
    ----------
    path : Path
        The graph.
    n_threads : int
        Threads of one batch.
    max_batch_s : float or None
        Seconds after which a batch is stopped.

    Raises
    ------
    DeviceError
        If OpenVINO is not installed, or this CPU lacks what bfloat16 needs: it would compute in
        fp32 and say nothing.
    """

    def __init__(self, path: Path, *, n_threads: int, max_batch_s: float | None) -> None:
        check_bf16()
        self._path = path
        self._max_batch_ms = None if max_batch_s is None else int(1000 * max_batch_s)
        self._options = {
            _HINT: _PRECISION,
            "INFERENCE_NUM_THREADS": n_threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Each process would take the same first CPUs: actors of a node would share them.
            "ENABLE_CPU_PINNING": False,
        }
        self._lock = threading.Lock()  # A request runs one batch at a time.
        self._load()

    def _load(self) -> None:
        openvino = load_openvino()
        compiled = openvino.Core().compile_model(str(self._path), "CPU", self._options)
        used = compiled.get_property(_HINT).to_string()
        if used != _PRECISION:
            raise DeviceError(
                f"OpenVINO would run {self._path.parent.name} in {used} here, not in {_PRECISION}; "
                "set models.<role>.precision=fp32 [QA0420]"
            )
        self._inputs, self._outputs = _ports(compiled.inputs), _ports(compiled.outputs)
        self._request = compiled.create_infer_request()

    @property
    def inputs(self) -> Ports:
        """Name and number of axes of each input."""
        return self._inputs

    @property
    def outputs(self) -> Ports:
        """Name and number of axes of each output."""
        return self._outputs

    def run(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Run one batch and return the only output."""
        with self._lock:
            try:
                return self._run(inputs)
            except BaseException:
                # Half of its operators know the shapes of this batch, the others of the one before:
                # it would refuse whatever came next.
                self._load()
                raise

    def _run(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        # What is not given would have what it had before.
        missing = {name for name, _ in self._inputs} - set(inputs)
        if missing:
            raise RuntimeError(f"inputs are missing: {', '.join(sorted(missing))}")
        is_stopped = False
        try:
            self._request.start_async(dict(inputs), share_inputs=True)
            if self._max_batch_ms is not None:
                is_stopped = not self._request.wait_for(self._max_batch_ms)
            if is_stopped:
                self._request.cancel()  # Before its next operator.
            self._request.wait()
        except RuntimeError as error:
            if is_stopped:
                raise TimeoutError from None
            # Above the last line is where in its source it was raised.
            said = str(error).strip().splitlines()[-1]
            if any(sign in str(error).lower() for sign in _MEMORY_SIGNS):
                raise MemoryError(said) from None
            raise RuntimeError(said) from None
        return np.array(self._request.get_output_tensor(0).data)


def _ports(found: Any) -> Ports:
    return [(port.get_any_name(), len(port.partial_shape)) for port in found]


class Bf16Engine(NamedTuple):
    """What computes in bfloat16; another version, or other instructions, may round elsewhere.

    Attributes
    ----------
    version : str
        Of OpenVINO.
    flag : str
        Of the CPU: which instructions multiply; "" where it has none.
    """

    version: str
    flag: str

    def __str__(self) -> str:
        return f"openvino-{self.version}-{self.flag}"


def bf16_engine() -> Bf16Engine:
    """Return what computes in bfloat16 here.

    Raises
    ------
    DeviceError
        If OpenVINO is not installed.
    """
    return Bf16Engine(openvino_version(), bf16_flag(cpu_flags()))


def missing_for_bf16(engine: Bf16Engine) -> str:
    """Return what this node lacks of the driver's engine, "" where it has all."""
    flag = bf16_flag(cpu_flags())
    if flag != engine.flag:
        return f"the driver's CPU flag {engine.flag}, for bf16 (it has {flag or 'none'})"
    found = _installed()
    if found != engine.version:
        return f"the driver's OpenVINO {engine.version} (it has {found or 'none'})"
    return ""


def check_bf16() -> None:
    """Raise DeviceError unless OpenVINO is here and this CPU multiplies matrices in bfloat16."""
    if not bf16_engine().flag:
        raise DeviceError(
            f"models.<role>.precision=bf16 needs a CPU with the flag {' or '.join(BF16_FLAGS)}, "
            "and this one has none; set fp32, which is what auto takes on a CPU [QA0420]"
        )


@cache
def _installed() -> str | None:
    try:
        return metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return None


def openvino_version() -> str:
    """Return which OpenVINO is installed here.

    Raises
    ------
    DeviceError
        If none is.
    """
    found = _installed()
    if found is None:
        raise DeviceError(
            f"models.<role>.precision=bf16 runs OpenVINO: pip install {requirement('openvino')} "
            "[QA0420]"
        )
    return found


def load_openvino() -> Any:
    """Return the engine's module, its telemetry left out.

    Its import counts itself at a server and keeps an id below HOME. Where the module that does so
    is missing, OpenVINO takes a stub of its own, so it is hidden meanwhile.

    Raises
    ------
    DeviceError
        If OpenVINO is not installed.
    """
    openvino_version()
    is_ours = _TELEMETRY not in sys.modules
    if is_ours and util.find_spec(_TELEMETRY) is not None:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        if is_ours:
            sys.modules.pop(_TELEMETRY, None)
    return openvino
