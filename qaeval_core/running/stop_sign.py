"""Stop sign: whether a run is to stop, as whoever works for it looks at it."""

from __future__ import annotations

import threading

from qaeval_core.errors import RunStoppedError


class StopSign:
    """Whether a run is to stop, as workers of its own process see it; others are not told.

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
        if self._event is not None and self._event.is_set():
            raise RunStoppedError("stopped as asked; run the same command again to resume [QA0005]")
