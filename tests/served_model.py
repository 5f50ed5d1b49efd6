"""A real chat model behind a real endpoint: ``transformers serve`` with the embedded SmolLM2.

Small enough for a test, and a server that nobody here wrote: what it accepts and answers is what
clients meet. Its replies are drawn, mostly wrong and often without the form that was asked for.

    with ServedModel(folder) as server:
        ... server.base_url, server.model ...
        print(server.n_calls())
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from served_process import ServedProcess

WEIGHTS = "model.safetensors"
START_S = 180
PROGRAM = Path(__file__).with_name("serve_smollm2.py")


class ServedModel(ServedProcess):
    """The server as tests hold it: a process that ends with the block.

    Parameters
    ----------
    folder : Path
        Empty or not there; gets the model, for as long as the block lasts, and the server's log.
    n_threads : int, default 1
        Cores that the model may use.
    seed : int, default 0
        The same calls in the same order get the same replies.
    """

    def __init__(self, folder: Path, *, n_threads: int = 1, seed: int = 0) -> None:
        self.folder = folder
        self.log_path = folder / "serve.log"
        self.model = str(folder.resolve())
        self.port = 0
        self._n_threads = n_threads
        self._seed = seed

    def start(self) -> None:
        """Start the process, and wait until the model is loaded."""
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["serve", self.model, "--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
        words += ["--default-seed", str(self._seed)]
        threads = str(self._n_threads)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                # -P: the tests' modules must not stand in for what the server imports.
                [sys.executable, "-P", PROGRAM, *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "HF_HUB_OFFLINE": "1",
                    "OMP_NUM_THREADS": threads,
                    "MKL_NUM_THREADS": threads,
                    "PYTHONUNBUFFERED": "1",
                },
                start_new_session=True,
            )
        try:
            self.port = self._wait_for_port()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process at once, and delete the weights."""
        super().kill()
        # Half a gigabyte, which a folder of pytest's would hold for three more runs.
        (self.folder / WEIGHTS).unlink(missing_ok=True)

    def log(self) -> str:
        """Return what the server has said so far; there still after its end."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def n_calls(self) -> int:
        """Return how many chat completions were answered, errors included."""
        return len(re.findall(r'"POST /v1/chat/completions HTTP', self.log()))

    def _wait_for_port(self) -> int:
        """Return the port once the model is loaded: the server listens only then."""
        assert self.process is not None
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log()):
                return int(found[1])
            assert self.process.poll() is None, f"the server ended:\n{self.log()}"
            time.sleep(0.1)
        raise AssertionError(f"the server was not up after {START_S} s:\n{self.log()}")
