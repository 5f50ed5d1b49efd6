"""fp16: what a GPU's rounding does to LRM, by what is kept in fp32, and to the causal LM.

``python -m benchmarks.fp16`` computes LRM of questions and contexts of SQuAD in fp32, and in fp16
where each value is rounded as on a GPU: all of it; with what decides the token in fp32; with the
residual stream in fp32; with both; and all of it where LRM weighs. Then the causal LM on the fixed
pairs of the parity gate. No GPU is needed; artifacts are built where they are missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from benchmarks.data import load_rows
from benchmarks.measure import environment
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.facts import ModelFacts
from qaeval_export.graph_files import open_graph
from qaeval_export.graphs import EXPORTS
from qaeval_export.graphs.base import GraphExport, GraphRows
from qaeval_export.parity import TextPairs, Values, parity_pairs
from qaeval_export.precision import convert, rounded

N_ROWS = 600
# A (row, layer) value is off by more where another token was taken: the parity gate's tolerance.
OFF = 2e-2

Names = Set[str]
# What the residual stream is made by, and what hands on values as it has read them.
_STREAM = ("Add", "LayerNormalization", "Concat", "Gather", "Reshape", "Unsqueeze")


def token_nodes(proto: onnx.ModelProto) -> Names:
    """Return the nodes that decide LRM's token: projections, their products, softmax, maximum."""
    return _behind(proto, "ArgMax", barred=stream_nodes(proto))


def stream_nodes(proto: onnx.ModelProto) -> Names:
    """Return the nodes of the residual stream: embeddings, the sums of all layers, their norms."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    barred = {
        node.name
        for node in proto.graph.node
        # What a layer adds to the stream ends with a bias, which is a weight.
        if node.op_type not in _STREAM or (node.op_type == "Add" and weights & set(node.input))
    }
    return _behind(proto, "LayerNormalization", barred=barred)


def _behind(proto: onnx.ModelProto, op_type: str, *, barred: Names) -> Names:
    """Return the names of all nodes of a type, and of what is behind them up to barred ones."""
    made = {name: node for node in proto.graph.node for name in node.output}
    waiting = [node for node in proto.graph.node if node.op_type == op_type]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name not in found | barred:
            found.add(node.name)
            waiting += [made[name] for name in node.input if name in made]
    return found


VARIANTS: dict[str, Callable[[onnx.ModelProto], Names]] = {
    "nothing": lambda proto: set(),
    "whatever decides the token: projections, products, softmax": token_nodes,
    "the residual stream": stream_nodes,
    "both": lambda proto: token_nodes(proto) | stream_nodes(proto),
}


@dataclass(frozen=True)
class Subject:
    """A graph in fp32, the rows that it is given, and their values."""

    graph: GraphExport
    proto: onnx.ModelProto
    rows: GraphRows
    values: list[Values]

    def rounded(self, fp32_nodes: Names = frozenset()) -> list[Values]:
        """Return the rows' values in fp16, as a GPU rounds; some nodes stay in fp32."""
        half = convert(self.proto, precision="fp16", fp32_nodes=fp32_nodes)
        return self.graph.run(open_graph(rounded(half).SerializeToString()), self.rows)


def subject(request: ArtifactRequest, pairs: TextPairs) -> Subject:
    """Return a request's graph, built where it is missing, and what it gives for pairs."""
    artifact = ensure_artifact(default_root(), request)
    record, graph = artifact.record, EXPORTS[request.graph]
    facts = ModelFacts(**{own.name: getattr(record, own.name) for own in fields(ModelFacts)})
    rows = graph.make_rows(Tokenizer.from_file(str(artifact.tokenizer_path)), facts, pairs)
    values = graph.run(open_graph(artifact.model_path), rows)
    return Subject(graph, onnx.load(artifact.model_path), rows, values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=N_ROWS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it here")
    given = parser.parse_args()
    measured = {"environment": environment(1), "lrm": _told(lrm(given.rows))}
    measured["causal_lm"] = causal_lm()
    print(json.dumps(measured["causal_lm"]))
    if given.json is not None:
        given.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def _told(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines; each is printed as it comes."""
    kept = []
    for line in lines:
        print(json.dumps(line), flush=True)
        kept.append(line)
    return kept


def lrm(n_rows: int) -> Iterator[dict[str, Any]]:
    """Yield how far MiniLM's LRM is from fp32: by what is kept in fp32, and where LRM weighs."""
    given = load_rows(n_rows)
    pairs = list(zip(given.questions, given.contexts, strict=True))
    for matching, variants in {"attended": list(VARIANTS), "weighted": ["nothing"]}.items():
        options = {"matching": matching}
        own = subject(ArtifactRequest("relevance_matching", "minilm", "fp32", options), pairs)
        for kept in variants:
            half, single = np.array(own.rounded(VARIANTS[kept](own.proto))), np.array(own.values)
            values = np.abs(half - single)  # (n_rows, n_layers)
            means = half.mean(axis=1), single.mean(axis=1)
            rows = np.abs(means[0] - means[1])
            yield {
                "matching": matching,
                "kept_in_fp32": kept,
                "rows": len(rows),
                "deviation": float(means[1].std()),
                "share_off": float((values > OFF).mean()),
                "value_max": float(values.max()),
                "row_mean": float(rows.mean()),
                "row_max": float(rows.max()),
                "spearman": float(spearmanr(*means).statistic),
            }


def causal_lm() -> dict[str, Any]:
    """Return how far SmolLM2's nats of the fixed pairs' tokens are from fp32."""
    own = subject(ArtifactRequest("token_logprobs", "smollm2-135m", "fp32"), parity_pairs())
    apart = [half - single for half, single in zip(own.rounded(), own.values, strict=True)]
    tokens = np.abs(np.concatenate(apart))
    rows = np.abs([row.mean() for row in apart])
    return {
        "rows": len(rows),
        "tokens": len(tokens),
        "max": float(tokens.max()),
        "99_percent_below": float(np.quantile(tokens, 0.99)),
        "median": float(np.median(tokens)),
        "row_mean": float(rows.mean()),
        "row_max": float(rows.max()),
    }


if __name__ == "__main__":
    main()
