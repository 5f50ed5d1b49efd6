"""Shapes: what one batch of base models asks of the CUDA provider, by its own deeds on the mock.

usage: PYTHONPATH=. python tests/gpu_shapes.py [--graph GRAPH] [--model MODEL] [--json FILE]

Placement, launches, copies and the arena's peak for random models of the shapes of BERT-base, GPT-2
and SmolLM2, with ONNX Runtime's default options; LRM's peak by the options that sessions here take,
too. Lines of FILE of the same graph, precision and shape are replaced, others are kept. The mock is
built where none is named; all of it takes minutes. What differs from FILE is said.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import mock_gpu
from benchmarks.measure import environment
from benchmarks.roofline import BERT, axes, size_of, traced_graph
from gpu_counts import placement, stats
from qaeval_core.models.session import _providers
from qaeval_export.precision import convert

# Graph, model, precision, rows, tokens; in the page's order.
CASES = (
    ("pair_score", BERT, "fp16", 32, 512),
    ("relevance_matching", BERT, "fp16", 82, 200),
    ("relevance_matching", BERT, "fp32", 82, 200),
    ("sentence_vector", BERT, "fp16", 512, 32),
    ("token_vectors", BERT, "fp16", 512, 32),
    ("keyphrase_weights", BERT, "fp16", 256, 64),
    ("answer_span", BERT, "fp16", 82, 200),
    ("token_logprobs", "GPT-2", "fp16", 64, 256),
    ("token_logprobs", "SmolLM2", "fp16", 80, 204),
    ("token_logprobs", "GPT-2", "fp16", 16, 1024),
)
# Of LRM, for its memory.
MEMORY_CASES = (("fp32", 32, 512), ("fp32", 82, 200), ("fp16", 82, 200))
# What the record has of both.
RECORDS = ("cuda_provider_on_a_stand_in", "lrm_memory_by_session_options")
# Whether patterns of allocation are kept, and whether the order is by priority.
OPTIONS = {
    "default": (True, False),
    "no patterns": (False, False),
    "by priority": (True, True),
    "both": (False, True),
}
_ORDERS = {True: ort.ExecutionOrder.PRIORITY_BASED, False: ort.ExecutionOrder.DEFAULT}


def measure(
    graph: Path, sizes: Mapping[str, int], *, options: str = "default", runtime: ctypes.CDLL
) -> dict[str, Any]:
    """Return what one batch costs, after one of the same shape."""
    given = ort.SessionOptions()
    given.enable_mem_pattern, is_by_priority = OPTIONS[options]
    given.execution_order = _ORDERS[is_by_priority]
    given.intra_op_num_threads, given.log_severity_level = 1, 3
    given.enable_profiling = True
    given.profile_file_prefix = str(Path(tempfile.mkdtemp(dir=graph.parent), "profile"))
    session = ort.InferenceSession(str(graph), given, providers=_providers("cuda"))
    batch = {
        own.name: np.ones([size_of(axis, sizes) for axis in own.shape], dtype=np.int64)
        for own in session.get_inputs()
    }
    session.run(None, batch)
    runtime.fake_reset()
    session.run(None, batch)
    after = stats(runtime)
    found = placement(session)
    return {
        "on_cuda": found["on_cuda"],
        "on_cpu": sum(found["on_cpu"].values()),
        "cpu": found["on_cpu"],
        "launches": int(after["launches"] + after["gemms"]),
        "kernels": int(after["launches"]),
        **{key: int(after[key]) for key in ("gemms", "h2d", "d2h", "syncs")},
        "peak_gib": after["peak"] / 2**30,
    }


class Graphs:
    """Graphs in a folder, each traced once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._traced: dict[tuple[str, str], onnx.ModelProto] = {}

    def path(self, graph: str, model: str, precision: str) -> Path:
        """Return the file of a graph in a precision."""
        path = self._folder / f"{graph}-{model}-{precision}.onnx"
        if not path.exists():
            if (graph, model) not in self._traced:
                self._traced[graph, model] = traced_graph(graph, model, {})
            onnx.save(convert(self._traced[graph, model], precision=precision), path)
        return path


def counted(graphs: Graphs, graph: str, model: str) -> Iterator[dict[str, Any]]:
    """Yield what batches cost, of the cases that are named; an empty name is any."""
    runtime = ctypes.CDLL("libcudart.so.13")
    for case in CASES:
        own_graph, own_model, precision, n_rows, n = case
        if graph in ("", own_graph) and model in ("", own_model):
            path, sizes = graphs.path(*case[:3]), axes({"n_rows": n_rows, "n": n})
            told = {"path": f"{own_graph}-{own_model}.onnx", "shape": f"{n_rows}x{n}"}
            told |= {"precision": precision} if precision == "fp32" else {}
            yield measure(path, sizes, runtime=runtime) | told


def memory(graphs: Graphs) -> Iterator[dict[str, Any]]:
    """Yield LRM's peak by the options of a session."""
    runtime = ctypes.CDLL("libcudart.so.13")
    for precision, n_rows, n in MEMORY_CASES:
        path = graphs.path("relevance_matching", BERT, precision)
        sizes = axes({"n_rows": n_rows, "n": n})
        peaks = {
            name: measure(path, sizes, options=name, runtime=runtime)["peak_gib"]
            for name in OPTIONS
        }
        told = {"graphs": "after", "precision": precision, "shape": f"{n_rows}x{n}"}
        yield told | {"peak_gib": peaks}


def _replaced(lines: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines, those that were found anew in place of their like; say what is another."""
    news = {_key(own): own for own in found}
    for own in lines:
        new = news.get(_key(own), {})
        for key in own.keys() & new.keys() - {"revision"}:
            if own[key] != new[key]:
                print(f"{_key(own)}: {key} was {own[key]}, is {new[key]}")
    kept = [news.pop(_key(own), own) for own in lines]
    return [*kept, *news.values()]


def _key(line: Mapping[str, Any]) -> str:
    names = ("graphs", "path", "precision", "shape")
    return " ".join(line[name] for name in names if name in line)


def main() -> int:
    """Count, on the mock; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--graph", default="", help="this graph alone")
    parser.add_argument("--model", default="", help="this model alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record to write them into")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not hasattr(ctypes.CDLL(None), "fake_stats"):
            mock = mock_gpu.build(Path(folder))
            words = [sys.executable, *sys.argv]
            return subprocess.run(words, env=mock_gpu.environment(mock), check=False).returncode
        graphs, revision = Graphs(Path(folder)), environment(1)["revision"]
        lines = []
        for line in counted(graphs, given.graph, given.model):
            print(json.dumps(line), flush=True)
            lines.append(line | {"revision": revision})
        rows = []
        if given.graph in ("", "relevance_matching") and given.model in ("", BERT):
            for line in memory(graphs):
                print(json.dumps(line), flush=True)
                rows.append(line | {"revision": revision})
    if given.json is not None:
        record = json.loads(given.json.read_text(encoding="utf-8"))
        provider, options = (record[key] for key in RECORDS)
        provider["after"] = _replaced(provider["after"], lines)
        options["rows"] = _replaced(options["rows"], rows)
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
