"""Graphs: two folders of artifacts side by side, as when graphs were exported anew.

``python -m benchmarks.graphs BEFORE AFTER`` takes each fp32 artifact that both have, and prints how
far their numbers are apart, how long each takes on one CPU thread, in turn, and how far fp16 with a
GPU's roundings is from fp32. Rows are questions and contexts of SQuAD, where it is at hand.

Artifacts of before come of `qaeval export` at an earlier revision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from benchmarks.data import load_rows
from benchmarks.measure import environment
from qaeval_core.models.artifact import read_record
from qaeval_core.models.record import ArtifactRecord
from qaeval_export.facts import ModelFacts
from qaeval_export.graphs import EXPORTS
from qaeval_export.parity import Values
from qaeval_export.precision import convert, rounded

# Rows x tokens that batches on a CPU have, and the longest row.
_SHAPES: Mapping[str, Sequence[tuple[int, int]]] = {
    "pair_score": ((16, 32), (4, 128), (1, 512)),
    "relevance_matching": ((2, 190), (1, 512)),
    "relevance_matches": ((2, 190),),
    "token_logprobs": ((3, 170), (1, 900)),
    "sentence_vector": ((16, 32),),
    "token_vectors": ((16, 32),),
    "keyphrase_weights": ((8, 64),),
    "answer_span": ((2, 190),),
}
_N_CANDIDATE = 20
_N_CAUSAL_ROWS = 24  # a causal LM of 135M takes as long for each as an encoder of 22M for ten


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all of it here")
    given = parser.parse_args()
    lines = []
    for after in sorted(given.after.glob("*-fp32")):
        before = given.before / after.name
        if (before / "artifact.json").is_file() and (after / "artifact.json").is_file():
            line = compare(before, after, n_rows=given.rows, n_repeats=given.repeats)
            print(json.dumps(line), flush=True)
            lines.append(line)
    if given.json is not None:
        content = {"environment": environment(1), "rows": given.rows, "graphs": lines}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def compare(before: Path, after: Path, *, n_rows: int, n_repeats: int) -> dict[str, Any]:
    """Return what two artifacts of one request differ in."""
    record = read_record(after)
    rows = real_rows(after, record, n_rows)
    graph = EXPORTS[record.graph]
    sessions = {
        "before": open_graph(before / "model.onnx"),
        "after": open_graph(after / "model.onnx"),
    }
    old, new = (graph.run(session, rows) for session in sessions.values())
    halved = rounded(convert(onnx.load(after / "model.onnx"), precision="fp16"))
    half = graph.run(open_graph(halved.SerializeToString()), rows)
    return {
        "graph": after.name.removesuffix("-fp32"),
        "rows": len(rows),
        "numbers": _apart(new, old),
        "fp16": _apart(half, new),
        "cpu": [_ratio(sessions, shape, n_repeats) for shape in _SHAPES[record.graph]],
    }


def real_rows(folder: Path, record: ArtifactRecord, n_rows: int) -> Sequence[Any]:
    """Return questions and contexts as the graph's model reads them."""
    facts = ModelFacts(**{own.name: getattr(record, own.name) for own in fields(ModelFacts)})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    n = min(n_rows, _N_CAUSAL_ROWS) if record.graph == "token_logprobs" else n_rows
    rows = load_rows(n)
    pairs = list(zip(rows.questions, rows.contexts, strict=True))
    return EXPORTS[record.graph].make_rows(tokenizer, facts, pairs)


def open_graph(model: Path | bytes) -> ort.InferenceSession:
    """Open a graph, a file or its bytes, on one thread of the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    given = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def _apart(found: Sequence[Values], expected: Sequence[Values]) -> dict[str, float]:
    """Return how far values, and the means of rows, are apart."""
    values = np.abs(np.concatenate([(a - b).ravel() for a, b in zip(found, expected, strict=True)]))
    means = [np.array([own.mean() for own in side]) for side in (found, expected)]
    rows = np.abs(means[0] - means[1])
    return {
        "value_max": float(values.max()),
        "value_median": float(np.median(values)),
        "row_mean": float(rows.mean()),
        "row_max": float(rows.max()),
        "spearman": float(spearmanr(*means).statistic),
    }


def _ratio(
    sessions: Mapping[str, ort.InferenceSession], shape: tuple[int, int], n_repeats: int
) -> dict[str, Any]:
    """Return the CPU time of both sides, in turn; the clock is the thread's own."""
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        session.run(None, feed(session, shape))
    for _ in range(n_repeats):
        for name, session in sessions.items():
            batch = feed(session, shape)
            started = time.thread_time()
            session.run(None, batch)
            seconds[name].append(time.thread_time() - started)
    ratios = [a / b for a, b in zip(seconds["before"], seconds["after"], strict=True)]
    return {
        "shape": f"{shape[0]} x {shape[1]}",
        "after_ms": 1e3 * statistics.median(seconds["after"]),
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
    }


def feed(session: ort.InferenceSession, shape: tuple[int, int]) -> dict[str, NDArray[np.int64]]:
    """Return a batch of rows of equal length, of random tokens."""
    n_rows, n_tokens = shape
    n_context = n_tokens - _N_CANDIDATE - 3

    def each(number: int) -> NDArray[np.int64]:
        return np.full(n_rows, number, dtype=np.int64)

    asked = (np.arange(n_rows)[:, None] * n_tokens + np.arange(n_tokens - 1)).ravel()
    draw = np.random.default_rng(0)
    known = {
        "input_ids": draw.integers(5, 1000, shape),
        "n_tokens": each(n_tokens),
        "second_start": each(_N_CANDIDATE + 2),
        "context_start": each(_N_CANDIDATE + 2),
        "n_candidate": each(_N_CANDIDATE),
        "n_context": each(n_context),
        "n_starts": each(n_context),
        "candidate_positions": np.arange(1, _N_CANDIDATE + 1),
        "prefix_rows": asked,
        "target_ids": draw.integers(5, 1000, len(asked)),
        "token_rows": asked,
    }
    return {given.name: known[given.name] for given in session.get_inputs()}


if __name__ == "__main__":
    main()
