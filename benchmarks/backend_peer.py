"""Backend peer: a model of sentence-transformers on one of its backends, asked over a pipe.

Runs in the environment that `benchmarks.backends` makes, whose packages need other pins; imports
nothing of this repository. The first line of its input is what to load, as JSON; each other line is
a pair of files: pairs of texts to read, scores to write.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

_BATCH = 32  # sentence-transformers' own default


def load(folder: str, kind: str, backend: str, precision: str, n_threads: int) -> Any:
    """Return the model, which computes with so many threads."""
    import sentence_transformers

    made = getattr(sentence_transformers, kind)
    if backend == "onnx":
        from onnxruntime import SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = n_threads
        given = {"provider": "CPUExecutionProvider", "session_options": options}
    else:
        hint = {"fp32": "f32", "bf16": "bf16"}[precision]
        given = {
            "ov_config": {
                "INFERENCE_PRECISION_HINT": hint,
                "INFERENCE_NUM_THREADS": n_threads,
                "NUM_STREAMS": 1,
                # What a latency hint would choose by itself.
                "PERFORMANCE_HINT": "LATENCY",
            }
        }
    return made(folder, device="cpu", backend=backend, model_kwargs=given)


def score(model: Any, kind: str, pairs: list[list[str]]) -> np.ndarray:
    """Return the score of each pair."""
    if kind == "CrossEncoder":
        return np.asarray(model.predict(pairs, batch_size=_BATCH, show_progress_bar=False))
    sides = [
        model.encode(
            list(own), batch_size=_BATCH, show_progress_bar=False, normalize_embeddings=True
        )
        for own in zip(*pairs, strict=True)
    ]
    return np.asarray((sides[0] * sides[1]).sum(axis=1))


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Libraries print what they please.
    what = json.loads(sys.stdin.readline())
    model = load(**what)
    print("loaded", file=answers, flush=True)
    read: dict[str, list[list[str]]] = {}
    for line in sys.stdin:
        given, wanted = json.loads(line)
        if given not in read:
            with open(given, encoding="utf-8") as file:
                read = {given: json.load(file)}
        np.save(wanted, score(model, what["kind"], read[given]))
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
