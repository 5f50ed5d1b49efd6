"""Stream: the results of a pipeline, taken in a thread of its own, so that they can be left.

Ray Data's iterator returns when a result comes. Where none comes any more, a run that waits for it
could not be stopped, and would stand still for ever.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import ray

# How long a pipeline may take to end its actors.
_LEAVE_S = 20.0


class StreamOver(Exception):  # noqa: N818
    """All results were taken."""


class Stream:
    """Runs a pipeline and keeps its results until they are asked for.

    Parameters
    ----------
    dataset : ray.data.Dataset
    """

    def __init__(self, dataset: ray.data.Dataset) -> None:
        self._dataset = dataset
        self._results: queue.SimpleQueue[list[dict[str, Any]] | BaseException] = queue.SimpleQueue()
        self._executors: list[Any] = []
        # Ray Data shows a dataset's executor with its first result alone, which may never come.
        create = dataset._create_executor

        def create_executor() -> Any:
            self._executors.append(create())
            return self._executors[-1]

        dataset._create_executor = create_executor
        self._thread = threading.Thread(target=self._take, name="results", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            for batch in self._dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                self._results.put(batch.to_pylist())
            self._results.put(StreamOver())
        except BaseException as error:
            self._results.put(error)

    def next(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the rows of the next result; none if there is none in time.

        Raises
        ------
        StreamOver
            After the last one.
        Exception
            What the pipeline raised.
        """
        try:
            found = self._results.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if isinstance(found, BaseException):
            self._results.put(found)  # For whoever asks again.
            raise found
        return found

    def leave(self) -> None:
        """End the pipeline and its actors, whatever they do, unless it is over."""
        for executor in self._executors:
            # In a thread: it waits for Ray, which may be why the pipeline is left.
            ender = threading.Thread(target=executor.shutdown, args=(True,), daemon=True)
            ender.start()
            ender.join(_LEAVE_S)
        self._thread.join(_LEAVE_S)
