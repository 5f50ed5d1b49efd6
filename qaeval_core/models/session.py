"""Session: run an artifact's graph on one device.

An artifact and arrays in, arrays out. This is the seam between scoring and what runs graphs: ONNX
Runtime, and OpenVINO for those in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import DeviceError, DeviceMemoryError, ModelError
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.engine import Device, LoadedGraph
from qaeval_core.models.onnx_runtime import OnnxRuntime
from qaeval_core.models.open_vino import OpenVino

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
        If the engine is not installed or too old, or would run elsewhere or in another precision
        than asked: engines fall back in silence.
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
        try:
            self._engine = self._load()
        except DeviceError:
            raise
        except Exception as error:  # Errors of engines have no common base but this one.
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
        self._check_graph()

    def _load(self) -> LoadedGraph:
        path, max_batch_s = self.artifact.model_path, self.max_batch_s
        if self.artifact.record.precision == "bf16":
            return OpenVino(path, n_threads=self.n_threads, max_batch_s=max_batch_s)
        return OnnxRuntime(
            path, device=self.device, n_threads=self.n_threads, max_batch_s=max_batch_s
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
        try:
            output = self._engine.run(inputs)
        except MemoryError as error:
            raise DeviceMemoryError(f"{error or 'out of memory'} [QA0413]") from None
        except TimeoutError:
            raise ModelError(
                f"{self.artifact.model_path} did not finish a batch of {_shapes(inputs)} "
                f"within {self.max_batch_s:g} s; raise models.<role>.max_batch_s if it may "
                "take longer [QA0414]"
            ) from None
        except Exception as error:  # Errors of engines have no common base but this one.
            raise ModelError(
                f"{self.artifact.model_path} failed on a batch of {_shapes(inputs)}: "
                f"{_first(error)} [QA0414]"
            ) from None
        self._check_output(output, inputs)
        return output

    def _check_graph(self) -> None:
        """Raise ModelError unless the graph reads and returns what the record says."""
        record = self.artifact.record
        for told, has in (
            (record.inputs, self._engine.inputs),
            (record.outputs, self._engine.outputs),
        ):
            said = [(tensor.name, len(tensor.shape)) for tensor in told]
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


def _shapes(inputs: Mapping[str, NDArray[np.int64]]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in inputs.items())


def _first(error: Exception) -> str:
    """Return the first line of what an engine says."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
