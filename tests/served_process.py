"""A server as tests hold it: a process of its own that ends with the block, or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from types import TracebackType
from typing import Any, Self


class ServedProcess:
    """What servers of tests have in common: a session of their own, a port, and an end."""

    port: int
    process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process, and learn its port."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the process, and what it may have started, at once."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self.port}/v1"
