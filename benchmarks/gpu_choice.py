"""GPU choice: what is measured on a device, and in how much time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_models import FAMILIES
from qaeval_core.models.session import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is measured; the command line says what each is."""

    device: Device = "cuda"
    rows: int = 4000
    budgets: Sequence[int] = (4096, 16384, 65536)
    families: Sequence[str] = tuple(FAMILIES)
    precision: str = "auto"
    repeats: int = 3
    seconds: float = 1.0
    random: bool = True
    peers: bool = True
    check: bool = True
    end_to_end: int = 1_000_000
    minutes: float = 6.0
    json: Path | None = None


class Clock:
    """The time that measuring may take; it stands still while something is made ready."""

    def __init__(self, seconds: float) -> None:
        self.ready_s = 0.0
        self._until_s = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._until_s

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
