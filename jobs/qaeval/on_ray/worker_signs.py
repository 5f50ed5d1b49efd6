"""Worker signs: which workers of a pass are at work, as far as the coordinator has heard.

A worker that dies does not say so. While it has pieces in hand it gives a sign every few seconds,
from a thread of its own; one that is silent for a minute is dead, or frozen as the dead are.

But: a worker that hangs in a library gives signs. `models.max_batch_s` ends that.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SIGN_EVERY_S = 10.0
# Of a worker that had pieces in hand.
DEAD_AFTER_S = 60.0
# A worker between two pieces is not idle.
STILL_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Attendance:
    """What the coordinator knows of the workers of a pass at one moment.

    Attributes
    ----------
    n_at_work : int
        Workers that have pieces in hand.
    n_started : int
        Workers that have come up since the pipeline began.
    idle_s : float
        How long ago any worker was heard.
    """

    n_at_work: int
    n_started: int
    idle_s: float

    @property
    def is_still(self) -> bool:
        """Whether nobody is at work, nor between two pieces."""
        return self.n_at_work == 0 and self.idle_s > STILL_AFTER_S


class WorkerSigns:
    """Keeps the last sign of each worker.

    Parameters
    ----------
    clock : callable, optional
        Returns seconds, from any moment on.

    Examples
    --------
    >>> now = [0.0]
    >>> signs = WorkerSigns(lambda: now[0])
    >>> signs.take("a", 1)
    >>> now[0] = 30.0
    >>> signs.standing()
    Attendance(n_at_work=1, n_started=1, idle_s=30.0)
    >>> now[0] = 61.0
    >>> signs.standing().n_at_work
    0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Forget the workers of the pipeline before."""
        self._in_hand: dict[str, tuple[int, float]] = {}  # worker -> pieces, and when it said so
        self.heard()

    def heard(self) -> None:
        """Note that something happened."""
        self._last_s = self._clock()

    def take(self, worker: str, n_pieces: int) -> None:
        """Note how many pieces a worker has in hand."""
        self._in_hand[worker] = (n_pieces, self._clock())
        self.heard()

    def standing(self) -> Attendance:
        """Return how things stand."""
        now = self._clock()
        at_work = [n for n, since in self._in_hand.values() if n and now - since <= DEAD_AFTER_S]
        return Attendance(len(at_work), len(self._in_hand), now - self._last_s)


class PiecesInHand:
    """Tells the coordinator how many pieces this worker has in hand, as long as it has any.

    Parameters
    ----------
    coordinator : actor handle
    worker : str
    """

    def __init__(self, coordinator: Any, worker: str) -> None:
        self._coordinator, self._worker = coordinator, worker
        self._n_pieces = 0
        self._lock = threading.Lock()
        self._change(0)
        threading.Thread(target=self._keep_telling, name="signs", daemon=True).start()

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Have one more piece in hand."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:  # Signs arrive in the order in which they are sent.
            self._n_pieces += by
            self._coordinator.sign.remote(self._worker, self._n_pieces)

    def _keep_telling(self) -> None:
        while True:
            time.sleep(SIGN_EVERY_S)
            if self._n_pieces:
                self._change(0)
