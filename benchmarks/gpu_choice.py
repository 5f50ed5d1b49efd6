"""GPU choice: what is measured on a device, and in how much time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_models import FAMILIES
from qaeval_core.models.engine import Device

NO_TIME = "no time is left for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is measured; the command line says what each is."""

    device: Device = "cuda"
    rows: int = 2000  # As many as peers take.
    budgets: Sequence[int] = (4096, 16384, 65536)
    families: Sequence[str] = tuple(FAMILIES)
    precision: str = "auto"
    repeats: int = 3
    seconds: float = 1.0
    random: bool = True
    peers: bool = True
    check: bool = True
    look: bool = False
    end_to_end: int = 1_000_000
    minutes: float = 8.0
    until: float | None = None
    models: Path = Path("build/gpu")
    json: Path | None = None

    def clock(self) -> Clock:
        """Return a clock that begins now; a quarter of it is kept for the rows end to end."""
        seconds = 60 * self.minutes if self.until is None else self.until - time.time()
        return Clock(seconds, kept_s=seconds / 4 if self.end_to_end else 0.0)


class Clock:
    """The time that measuring may take; it stands still while something is made ready.

    Parameters
    ----------
    seconds : float
    kept_s : float, default 0
        How much of it is kept for what comes last.
    """

    def __init__(self, seconds: float, *, kept_s: float = 0.0) -> None:
        self.ready_s = 0.0
        self._kept_s = kept_s
        self._until_s = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether no time is left but for what comes last."""
        return self.left_s() <= self._kept_s

    def left_s(self) -> float:
        """Return the seconds that are left in all; less than 0 where it ran over."""
        return self._until_s - time.monotonic()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count what happens meanwhile."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - began_s
            self.ready_s += took_s
            self._until_s += took_s
