"""Counts: what one run of a graph costs on the device, by ONNX Runtime's own deeds on the mock.

usage, in the environment of the mock: python tests/gpu_counts.py [ROWSxTOKENS] FOLDER[=FILE] ...
FOLDER is of an artifact, FILE another graph of its inputs. Prints one JSON object: name of the
folder -> counts.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from qaeval_core.models.artifact import Artifact, load_artifact
from qaeval_core.models.onnx_runtime import _providers, _session_options

N_ROWS, N_TOKENS = 4, 64
_STATS = [
    *("launches", "gemms", "flops", "lt", "h2d", "h2d_bytes", "d2h", "d2h_bytes"),
    *("d2d", "d2d_bytes", "syncs", "mallocs", "malloc_bytes", "frees", "live", "peak"),
    *("memsets", "hostallocs", "events", "gemm_bytes"),
]
# Of inputs of one number a row; any other is 1.
_GIVEN = {"n_candidate": 8, "context_start": 10, "n_context": 40}
_GIVEN |= {"second_start": 20, "n_second": 40, "n_first": 8}
# Inputs that are places in the batch, one after another.
_PLACES = {"token_rows", "prefix_rows"}


def stats(runtime: ctypes.CDLL) -> dict[str, float]:
    """Return the mock's counters."""
    values = (ctypes.c_double * len(_STATS))()
    runtime.fake_stats(values)
    return dict(zip(_STATS, values, strict=True))


def feed(
    artifact: Artifact, n_rows: int = N_ROWS, n_tokens: int = N_TOKENS
) -> dict[str, np.ndarray]:
    """Return a batch that every graph takes."""
    given = {}
    for tensor in artifact.record.inputs:
        if len(tensor.shape) == 2:
            given[tensor.name] = np.ones((n_rows, n_tokens), dtype=np.int64)
        elif tensor.name == "candidate_positions":  # of any row
            given[tensor.name] = np.arange(1, _GIVEN["n_candidate"] + 1, dtype=np.int64)
        elif tensor.name in _PLACES:
            given[tensor.name] = np.arange(1, 8 * n_rows + 1, dtype=np.int64)
        elif tensor.name == "target_ids":
            given[tensor.name] = np.ones(8 * n_rows, dtype=np.int64)
        else:
            value = n_tokens if tensor.name == "n_tokens" else _GIVEN.get(tensor.name, 1)
            given[tensor.name] = np.full(n_rows, value, dtype=np.int64)
    return given


def count(
    artifact: Artifact,
    graph: Path,
    n_rows: int = N_ROWS,
    n_tokens: int = N_TOKENS,
    *,
    runtime: Any = None,
) -> dict[str, Any]:
    """Return placement, launches, copies and memory of one graph.

    A real device's runtime has no counters: of what a stand-in for it counts, all but placement.
    """
    runtime = runtime or ctypes.CDLL("libcudart.so.13")
    options = _session_options(ort, device="cuda", n_threads=1)
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(tempfile.mkdtemp(), "profile"))
    before = stats(runtime)["live"]
    session = ort.InferenceSession(str(graph), options, providers=_providers("cuda"))
    inputs = feed(artifact, n_rows, n_tokens)
    session.run(None, inputs)
    runtime.fake_reset()
    session.run(None, inputs)
    after = stats(runtime)
    return {
        **placement(session),
        "launches": int(after["launches"] + after["gemms"]),
        "h2d": int(after["h2d"]),
        "d2h": int(after["d2h"]),
        "syncs": int(after["syncs"]),
        "arena_mib": round((after["live"] - before) / 2**20),
    }


def placement(session: ort.InferenceSession) -> dict[str, Any]:
    """Return which nodes ran where, by the session's profile, which ends."""
    nodes = {
        (event["name"], event["args"].get("provider"), event["args"].get("op_name"))
        for event in json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    }
    on_cpu = Counter(op for _, provider, op in nodes if provider == "CPUExecutionProvider")
    return {
        "on_cuda": len(nodes) - on_cpu.total(),
        "on_cpu": dict(sorted(on_cpu.items())),
        # The output is fetched by no node.
        "to_host": sorted(name for name, _, op in nodes if op == "MemcpyToHost"),
    }


def main(words: list[str]) -> None:
    """Print the counts of every folder."""
    batch = (N_ROWS, N_TOKENS)
    if "/" not in words[0] and "x" in words[0]:
        n_rows, _, n_tokens = words.pop(0).partition("x")
        batch = (int(n_rows), int(n_tokens))
    found = {}
    for word in words:
        folder, _, graph = word.partition("=")
        artifact = load_artifact(folder)
        path = Path(graph) if graph else artifact.model_path
        found[artifact.folder.name] = count(artifact, path, *batch)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
