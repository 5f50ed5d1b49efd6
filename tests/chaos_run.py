"""A run on a cluster of tests: the command as users start it, its processes, and what it says."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chaos_cluster import Cluster
from helpers import REPOSITORY


def send(processes: Sequence[psutil.Process], number: int) -> int:
    """Send a signal to processes that may have ended; return how many were given."""
    for one in processes:
        with contextlib.suppress(psutil.Error):
            one.send_signal(number)
    return len(processes)


@dataclass(kw_only=True)
class Run:
    """One run: started, watched, killed and started again."""

    cluster: Cluster
    words: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    drawn: random.Random
    driver: subprocess.Popen[bytes] | None = None
    is_killed: bool = False
    notes: list[str] = field(default_factory=list)

    def start(self, *more: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the command; its output is added to a log."""
        self.is_killed = log is not None and self.is_killed
        with (log or self.log).open("ab") as said:
            said.write(b"--- start\n")
            said.flush()
            return subprocess.Popen(
                [sys.executable, "-m", "qaeval", *self.words, *more,
                 "--address", self.cluster.address],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=REPOSITORY,
                env={**self.cluster.environment, **self.environment}, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """Return the driver and its parent, which passes signals on."""
        assert self.driver is not None
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.driver.pid)
            return [own, *own.children(recursive=True)]
        return []

    def is_alive(self) -> bool:
        """Whether the run goes on."""
        return self.driver is not None and self.driver.poll() is None

    def said(self) -> str:
        """Return what the last start has printed."""
        return self.log.read_text(errors="replace").rpartition("--- start")[2]

    def is_told(self) -> bool:
        """Whether the last start ended with a line that says why."""
        lines = [line for line in self.said().splitlines() if line.strip()]
        words = ("error: ", "incomplete: ")
        is_one = any(line.startswith(words) for line in lines[-8:])
        return is_one and "Traceback" not in self.said()

    def until_work(self, timeout_s: float) -> bool:
        """Wait for workers, and a moment by chance; False where the run ended before.

        By chance it waits for workers that score, or for tasks that count n-grams or join scores.
        """
        until = time.monotonic() + timeout_s
        stage = self.drawn.choice(["", "", "document frequencies", "join"])
        while self.is_alive() and time.monotonic() < until:
            if stage and self.cluster.titled(stage):
                self.notes.append(f"at {stage}")
                time.sleep(self.drawn.uniform(0.0, 0.5))
                return self.is_alive()
            if not stage and "rows (" in self.said() and self.cluster.workers():
                time.sleep(self.drawn.uniform(0.0, 4.0))
                return self.is_alive()
            time.sleep(0.05 if stage else 0.3)
        self.notes.append("no work seen")
        return False

    def kill(self) -> None:
        """Kill the driver and its parent, who can say nothing."""
        self.is_killed = self.is_alive()
        send(self.processes(), signal.SIGKILL)
        if self.driver is not None:
            self.driver.wait()
