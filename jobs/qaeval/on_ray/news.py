"""News: what the coordinator of a pass says, asked for without waiting, and shown."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from qaeval.on_ray.worker_signs import Attendance
from qaeval_core.planning.shards import Piece
from qaeval_core.running.progress import Counts, ProgressPrinter

_ASK_EVERY_S = 0.5
# A coordinator that is killed is started again within seconds.
_SILENT_AFTER_S = 60.0
# A driver that was frozen has not waited all that time.
_MOST_BETWEEN_LOOKS_S = 5.0
_LAST_WORD_S = 5.0


class News:
    """The driver's line to the coordinator.

    Parameters
    ----------
    coordinator : actor handle
    printer : ProgressPrinter
    stop : threading.Event
        Set where the run is to stop.
    """

    def __init__(self, coordinator: Any, printer: ProgressPrinter, stop: threading.Event) -> None:
        self._coordinator, self._printer, self._stop = coordinator, printer, stop
        self._counts = Counts()
        self._asked: Any = None
        self._is_told_to_stop = False
        self._last_look_s = self._last_asked_s = time.monotonic()
        self._silent_s = 0.0

    @property
    def is_stopping(self) -> bool:
        """Whether workers are to stop."""
        return self._is_told_to_stop or self._stop.is_set()

    def look(self) -> Attendance | None:
        """Show progress and pass the wish to stop on; return how workers stand, if that is new."""
        now = time.monotonic()
        self._silent_s += min(now - self._last_look_s, _MOST_BETWEEN_LOOKS_S)
        self._last_look_s = now
        if self._asked is None and now - self._last_asked_s >= _ASK_EVERY_S:
            if self.is_stopping:  # Each time: who was started again has forgotten it.
                self._coordinator.stop.remote()
            self._asked, self._last_asked_s = self._coordinator.state.remote(), now
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            state: tuple[Counts, Attendance] = ray.get(self._asked)
            self._counts, standing = state
            self._asked, self._silent_s = None, 0.0
            self._printer.update(self._counts)
            return standing
        if self._silent_s > _SILENT_AFTER_S:
            return Attendance(n_at_work=0, n_started=1, idle_s=self._silent_s)
        return None

    def stop_workers(self) -> None:
        """Let all workers stop after their batch in hand."""
        self._is_told_to_stop = True
        self._coordinator.stop.remote()

    def begin_pipeline(self) -> None:
        """Let the coordinator forget the workers of the pipeline before."""
        self._asked, self._silent_s = None, 0.0
        self._coordinator.begin_pipeline.remote()

    def forget(self, pieces: Sequence[Piece]) -> None:
        """Let the coordinator forget the attempts of pieces that are done: they may be millions."""
        done = [(own.families[0], own.file_id, *rows) for own in pieces for rows in own.shards]
        if done:
            self._coordinator.forget.remote(done)

    def blind(self) -> dict[str, str]:
        """Return what nodes do not see, by node."""
        found: dict[str, str] = ray.get(self._coordinator.blind.remote())
        return found

    def show_last(self) -> None:
        """Show the last counts; those of before where the coordinator is lost."""
        with contextlib.suppress(GetTimeoutError, RayError):
            self._counts, _ = ray.get(self._coordinator.state.remote(), timeout=_LAST_WORD_S)
        self._printer.update(self._counts, is_last=True)
