"""A real chat model behind a real endpoint: ``transformers serve`` with the embedded SmolLM2.

Small enough for a test, and a server that nobody here wrote: what it accepts and answers is what
clients meet. Its replies are drawn, mostly wrong and often without the form that was asked for.

    with ServedModel(folder) as server:
        ... server.base_url, server.model ...
        print(server.n_calls())

Run as a program, it is the server's process: the command ``transformers``, ended with its parent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from qaeval_core.models.registry import resolve_model

# The server takes what a request does not say from here. Without do_sample it would always take
# the likeliest token, whatever the temperature, and top_k would be 50.
GENERATION = {"do_sample": True, "top_k": 0, "bos_token_id": 1, "eos_token_id": 2}
WEIGHTS = "model.safetensors"
START_S = 180


class ServedModel:
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
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServedModel:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["serve", self.model, "--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
        words += ["--default-seed", str(self._seed)]
        threads = str(self._n_threads)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: the tests' modules must not stand in for what the server imports.
                [sys.executable, "-P", __file__, *words],
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
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process, and what it may have started, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None
        process.stdin.close()
        # Half a gigabyte, which a folder of pytest's would hold for three more runs.
        (self.folder / WEIGHTS).unlink(missing_ok=True)

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self.port}/v1"

    def log(self) -> str:
        """Return what the server has said so far; there still after its end."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def n_calls(self) -> int:
        """Return how many chat completions were answered, errors included."""
        return len(re.findall(r'"POST /v1/chat/completions HTTP', self.log()))

    def _wait_for_port(self) -> int:
        """Return the port once the model is loaded: the server listens only then."""
        assert self._process is not None
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log()):
                return int(found[1])
            assert self._process.poll() is None, f"the server ended:\n{self.log()}"
            time.sleep(0.1)
        raise AssertionError(f"the server was not up after {START_S} s:\n{self.log()}")


def write_model(folder: Path) -> None:
    """Write the embedded model in the files that the server loads; GGUF it loads in part only."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = resolve_model("smollm2-135m", role="causal_lm")
    files = {"gguf_file": source.gguf_file}
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.float32, **files)
    # The weights are plain numbers now; with these two the model counts as quantised still.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.folder, **files).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION), encoding="utf-8")


def _end_with_parent() -> None:
    """End this process when its standard input ends, which it does when the parent dies."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    from transformers.cli.transformers import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    write_model(Path(sys.argv[2]))
    main()
