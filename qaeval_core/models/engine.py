"""Engine: what a session needs of the library that runs its graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Device = Literal["cpu", "cuda"]

# Name and number of axes of each input or output, in the order of the graph.
Ports = list[tuple[str, int]]


class LoadedGraph(ABC):
    """A graph that a library has loaded."""

    @property
    @abstractmethod
    def inputs(self) -> Ports:
        """What the graph reads."""

    @property
    @abstractmethod
    def outputs(self) -> Ports:
        """What the graph returns."""

    @abstractmethod
    def run(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Run one batch and return the graph's only output.

        Raises
        ------
        MemoryError
            If the device cannot hold the batch; the engine stays usable.
        TimeoutError
            If it took longer than a batch may.
        Exception
            Whatever the library raises where the graph fails.
        """
