"""Stop sign: whether a run is to stop, as whoever works for it looks at it."""

from __future__ import annotations

import threading
from multiprocessing.synchronize import Event as ProcessEvent

from qaeval_core.errors import RunStoppedError

_of_parent: list[ProcessEvent] = []


def hear(event: ProcessEvent) -> None:
    """Let signs of this process, which come from its parent, look at an event of it."""
    _of_parent[:] = [event]


class StopSign:
    """Whether a run is to stop, as workers of its own process and its children see it.

    Parameters
    ----------
    event : threading.Event, optional
    """

    def __init__(self, event: threading.Event | None = None) -> None:
        self._event = event

    def __reduce__(self) -> tuple[type[StopSign], tuple[()]]:
        return StopSign, ()

    def look(self) -> None:
        """Raise RunStoppedError if it is to stop."""
        if any(own.is_set() for own in (self._event, *_of_parent) if own is not None):
            raise RunStoppedError("stopped as asked; run the same command again to resume [QA0005]")
