"""Tasks: ranges of rows worked on by stateless Ray tasks, results in order, some at a time."""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray

from qaeval.on_ray.nodes import Nodes
from qaeval_core.errors import QAEvalError
from qaeval_core.running.visibility import Sight
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.store import Mark

T = TypeVar("T")
R = TypeVar("R")

# Tasks that wait beside each that runs, so that no core does.
_AHEAD = 2
# How long tasks that are told to stop may take.
_SETTLE_S = 60.0
_LOOK_S = 0.5


class RayTasks:
    """Works on the connected cluster.

    Parameters
    ----------
    tell : callable
        Gets the label, the rows done and all rows after each item.
    nodes : Nodes
        Those that may be used; a run that has begun on them need not begin again.
    look : callable, optional
        Called while it waits; raises to end the work.
    """

    def __init__(
        self,
        tell: Callable[[str, int, int], None],
        nodes: Nodes,
        *,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._tell = tell
        self._look = look or (lambda: None)
        self._nodes = nodes
        self._waiting: deque[Any] = deque()

    def begin(self, folder: StoragePath | None, inputs: Sequence[str]) -> None:
        """Look whether every node sees a folder, if there is one, and some files.

        Raises
        ------
        BlindNodeError
            If one does not; it names node and path.
        """
        mark = Mark(f".{uuid.uuid4().hex}.mark")
        folders = () if folder is None else (str(folder),)
        if folder is not None:
            (folder / mark.name).put(b"")
        self._nodes.begin(Sight(mark, folders, inputs=tuple(inputs)))

    def map(
        self, function: Callable[[T], R], items: Sequence[T], *, label: str, n_rows: Sequence[int]
    ) -> Iterator[R]:
        """Yield what a function returns of each item, in their order.

        Raises
        ------
        QAEvalError
            The first, in their order, that an item raised.
        """
        most = max(int(ray.cluster_resources().get("CPU", 1)), 1) * _AHEAD
        waiting = self._waiting = deque[Any]()
        shared = ray.put(function)
        n_done, n_started, total = 0, 0, sum(n_rows)
        self._tell(label, 0, total)
        self._nodes.look_around()
        task = _call.options(name=f"qaeval {label}".strip(), **self._nodes.ray_options())
        for n in n_rows:
            while n_started < len(items) and len(waiting) < most:
                waiting.append(task.remote(shared, items[n_started]))
                n_started += 1
            while not ray.wait([waiting[0]], timeout=_LOOK_S)[0]:  # Until then: one to settle.
                self._look()
            result, error = ray.get(waiting.popleft())
            if error is not None:
                raise error
            n_done += n
            self._tell(label, n_done, total)
            yield result

    def settle(self) -> None:
        """Give up what has not begun, stop the rest where it stands, and wait for it."""
        left, self._waiting = list(self._waiting), deque()
        # A cluster that is lost ends its tasks, and the error of that is on its way already.
        with contextlib.suppress(ray.exceptions.RayError):
            for task in left:
                ray.cancel(task)
            if left:
                ray.wait(left, num_returns=len(left), timeout=_SETTLE_S)


@ray.remote(num_cpus=1, max_retries=3)  # type: ignore[untyped-decorator]
def _call(function: Callable[[Any], Any], item: Any) -> tuple[Any, QAEvalError | None]:
    """Return a result, or an error that a user understands: Ray would wrap it into a trace."""
    try:
        return function(item), None
    except QAEvalError as error:
        return None, error
