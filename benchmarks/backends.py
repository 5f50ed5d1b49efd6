"""Backends: sentence-transformers on ONNX Runtime and OpenVINO, beside which we are timed.

optimum, which they need, wants an older transformers than qaeval. So they run in an environment of
their own below ``build/``, made on first use: minutes, and 2 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "build" / "peer-backends"
PACKAGES = (
    "sentence-transformers[onnx,openvino]==5.7.0",
    "transformers==4.57.6",
    "optimum-intel==1.27.0",
    "optimum-onnx==0.1.0",
    "openvino==2026.4.1",
    "onnxruntime==1.31.1",
)


def python() -> Path:
    """Return the Python of the environment, made where it is not there."""
    made, mark = FOLDER / "bin" / "python", FOLDER / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if mark.is_file() and mark.read_text("utf-8") == wanted:
        return made
    print(f"making {FOLDER.relative_to(REPOSITORY)}: minutes", file=sys.stderr, flush=True)
    constraints = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    torch = next(line for line in constraints if line.startswith("torch=="))
    subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
    subprocess.run([made, "-m", "pip", "install", "--quiet", torch, *PACKAGES], check=True)
    mark.write_text(wanted, "utf-8")
    return made


class BackendPeer:
    """A model in a process of that environment; scores pairs of texts.

    Parameters
    ----------
    model_folder : Path
        As transformers saves it.
    kind : {"CrossEncoder", "SentenceTransformer"}
    backend : {"onnx", "openvino"}
    precision : {"fp32", "bf16"}
        bf16 is OpenVINO's hint.
    n_threads : int
    """

    def __init__(
        self, model_folder: Path, *, kind: str, backend: str, precision: str, n_threads: int
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        threads = {"OMP_NUM_THREADS": str(n_threads), "RAYON_NUM_THREADS": str(n_threads)}
        self._process = subprocess.Popen(
            [python(), Path(__file__).with_name("backend_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "QAEVAL_DEBUG" not in os.environ else None,
            text=True,
            env={**os.environ, **threads, "HF_HUB_OFFLINE": "1"},
        )
        self._ask(
            {
                "folder": str(model_folder),
                "kind": kind,
                "backend": backend,
                "precision": precision,
                "n_threads": n_threads,
            }
        )
        self._asked: dict[int, Path] = {}

    def __call__(self, candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Return the score of each pair, the reference before the candidate."""
        key = hash((tuple(candidates), tuple(references)))
        if key not in self._asked:  # Written once: what is timed is the model's work.
            self._asked[key] = Path(self._folder.name, f"{len(self._asked)}.json")
            pairs = list(zip(references, candidates, strict=True))
            self._asked[key].write_text(json.dumps(pairs), "utf-8")
        found = Path(self._folder.name, "scores.npy")
        self._ask([str(self._asked[key]), str(found)])
        scores: np.ndarray = np.load(found)
        return scores.astype(np.float32)

    def _ask(self, what: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError(f"a peer ended with {self._process.wait()}; QAEVAL_DEBUG=1 says why")

    def close(self) -> None:
        """End its process."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
