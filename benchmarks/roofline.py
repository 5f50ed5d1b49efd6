"""Roofline: how fast one GPU could run each graph at best, from the graph alone.

``python -m benchmarks.roofline`` traces models of the shapes of BERT-base, MiniLM, GPT-2 and
SmolLM2 on random weights, converts them to fp16, and counts what each kernel must read, write and
compute::

    seconds of a kernel = max(bytes / 2.85 TB/s, FLOP / 600 TFLOP/s)

summed over kernels: an H100's memory and what its tensor cores reach on large products; in fp32,
which has none without TF32, 50 TFLOP/s. Needs neither a GPU nor a stand-in for one. It is a bound,
no measurement: launches, waves that do not fill the chip and caches that do not hold what they
should are left out, so 1.2 to 1.5 times as long is to be expected.

usage: python -m benchmarks.roofline [--precision P] [--graph G] [--model M] [--json FILE]

But: what ran where, and how long, is `benchmarks.gpu`'s matter, on a machine that has one.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import torch
import transformers
from onnx import helper

from benchmarks.measure import environment
from qaeval_core.models.record import ArtifactRequest, Precision
from qaeval_export.loading import LoadedModel
from qaeval_export.precision import convert
from qaeval_export.tracing import trace

BYTES_PER_S = 2.85e12  # of 3.35 TB/s
FLOP_PER_S = {2: 600e12, 4: 50e12}  # by bytes of a number: of 989 in fp16, of 67 in fp32
# FlashAttention-2 on an H100, heads of 64: 250 to 300.
ATTENTION_FLOP_PER_S = {2: 275e12, 4: 50e12}
_ITEM_BYTES: Mapping[Precision, int] = {"fp16": 2, "fp32": 4}

# Another view of the same memory: no kernel runs.
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# Shape arithmetic: a handful of integers, on the CPU.
_MAX_SHAPE_NUMBERS = 16

Dims = Mapping[str, int]


@dataclass(slots=True)
class Kernel:
    """What one launch reads, writes and computes."""

    name: str
    n_bytes: int
    flop: int
    flop_per_s: float

    @property
    def seconds(self) -> float:
        """The longer one of moving its bytes and of computing."""
        return max(self.n_bytes / BYTES_PER_S, self.flop / self.flop_per_s)


@dataclass(slots=True)
class Bound:
    """One batch of one graph."""

    kernels: list[Kernel]
    peak_flop_per_s: float
    more: dict[str, object] = field(default_factory=dict)

    @property
    def flop(self) -> int:
        return sum(kernel.flop for kernel in self.kernels)

    @property
    def n_bytes(self) -> int:
        return sum(kernel.n_bytes for kernel in self.kernels)

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    def content(self) -> dict[str, object]:
        """Return the numbers of a line of the table."""
        return {
            "tflop": self.flop / 1e12,
            "gb": self.n_bytes / 1e9,
            "ms": self.seconds * 1e3,
            "share": self.flop / self.seconds / self.peak_flop_per_s,
            "kernels": len(self.kernels),
        } | self.more


class Graph:
    """A graph whose axes have sizes: shapes of all values, and who makes and reads them.

    Parameters
    ----------
    proto : ModelProto
        With the shape of every value, as the exporter writes them.
    dims : mapping of str to int
        Sizes of the axes that vary, by name.
    """

    def __init__(self, proto: onnx.ModelProto, dims: Dims) -> None:
        graph = proto.graph
        self.nodes = list(graph.node)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[str, int] = {}  # bytes of one number
        for value in (*graph.value_info, *graph.input, *graph.output):
            tensor = value.type.tensor_type
            shape = (d.dim_param or d.dim_value for d in tensor.shape.dim)
            self._shapes[value.name] = tuple(size_of(axis, dims) for axis in shape)
            self._sizes[value.name] = _n_bytes(tensor.elem_type)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        for name, tensor in self.constants.items():
            self._shapes[name] = tuple(tensor.dims)
            self._sizes[name] = _n_bytes(tensor.data_type)
        self.outputs = {value.name for value in graph.output}
        # A view is what it is a view of.
        self._base: dict[str, str] = {}
        for node in self.nodes:
            if node.op_type in _VIEWS:
                self._base[node.output[0]] = self.base(node.input[0])
        self.maker = {
            name: node for node in self.nodes if node.op_type not in _VIEWS for name in node.output
        }
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            if node.op_type not in _VIEWS:
                for name in {self.base(name) for name in node.input if name}:
                    self.readers.setdefault(name, []).append(node)
        self._kept = {self.base(name) for name in self.outputs}

    def base(self, name: str) -> str:
        """Return the value whose memory a value is."""
        return self._base.get(name, name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a value's axes."""
        return self._shapes[name]

    def item_bytes(self, name: str) -> int:
        """Return the bytes of one of a value's numbers."""
        return self._sizes[name]

    def n_bytes(self, name: str) -> int:
        """Return the bytes of a value."""
        return prod(self._shapes[name]) * self._sizes[name]

    def is_constant(self, name: str, *, n_axes: int) -> bool:
        """Whether a value is a weight with so many axes, axes of size 1 in front left out."""
        return name in self.constants and len(_trimmed(self._shapes[name])) <= n_axes

    def made_for(self, name: str, kind: str) -> onnx.NodeProto | None:
        """Return the node of a kind that makes a value, if nothing but one node reads it."""
        node = self.maker.get(self.base(name))
        if node is None or node.op_type != kind or len(self.readers[self.base(name)]) > 1:
            return None
        return node

    def leaves(self, name: str, group: set[int]) -> bool:
        """Whether a value is read outside of a group of nodes."""
        readers = self.readers.get(name, [])
        return name in self._kept or any(id(node) not in group for node in readers)


def _trimmed(shape: Sequence[int]) -> tuple[int, ...]:
    n_ones = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return tuple(shape[n_ones:])


def _n_bytes(kind: int) -> int:
    return int(helper.tensor_dtype_to_np_dtype(kind).itemsize)


def size_of(axis: str | int, dims: Dims) -> int:
    """Return the size of an axis that the exporter wrote as a formula.

    Examples
    --------
    >>> size_of("2*n_cand", {"n_cand": 20})
    40
    """
    return axis if isinstance(axis, int) else _value(ast.parse(axis, mode="eval").body, dims)


def _value(tree: ast.expr, dims: Dims) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return dims[name]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, dims) * _value(right, dims)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, dims) + _value(right, dims)
        case ast.Call(func=ast.Name(id="Min"), args=parts):
            return min(_value(part, dims) for part in parts)
    raise ValueError(f"unknown formula of an axis: {ast.unparse(tree)}")


def bound(proto: onnx.ModelProto, dims: Dims, *, precision: Precision = "fp16") -> Bound:
    """Return the bound of one batch: kernels as ONNX Runtime fuses them, each at its best."""
    graph = Graph(proto, dims)
    peak = FLOP_PER_S[_ITEM_BYTES[precision]]
    return Bound([_kernel(graph, nodes) for nodes in _groups(graph)], peak)


def _groups(graph: Graph) -> Iterator[list[onnx.NodeProto]]:
    """Yield the nodes of each kernel."""
    taken: set[int] = set()
    groups = []
    # From the end, so that what is taken into a kernel is not the end of another one.
    for node in reversed(graph.nodes):
        if id(node) in taken or node.op_type in _VIEWS or _is_shape_arithmetic(graph, node):
            continue
        group = [node, *_fused_into(graph, node)]
        taken.update(id(own) for own in group)
        groups.append(group)
    yield from reversed(groups)


def _is_shape_arithmetic(graph: Graph, node: onnx.NodeProto) -> bool:
    is_small = prod(graph.shape(node.output[0])) <= _MAX_SHAPE_NUMBERS
    return node.op_type == "Shape" or (is_small and graph.item_bytes(node.output[0]) == 8)


def _fused_into(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return nodes that ONNX Runtime computes in the same kernel as a node, before it."""
    rule = _FUSIONS.get(node.op_type)
    return rule(graph, node) if rule else []


def _before_norm(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Skip connection, and the bias of the product that it is added to: SkipLayerNormalization.

    Not where the sum is read once more, as in models that norm first.
    """
    skip = graph.made_for(node.input[0], "Add") if node.op_type == "LayerNormalization" else None
    if skip is None or _is_bias(graph, skip):
        return []
    added = [graph.made_for(name, "Add") for name in skip.input]
    return [skip, *[add for add in added if add is not None and _is_bias(graph, add)][:1]]


def _before_gelu(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Bias: BiasGelu."""
    add = graph.made_for(node.input[0], "Add")
    return [add] if add is not None and _is_bias(graph, add) else []


def _before_softmax(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A mask: BiasSoftmax."""
    add = graph.made_for(node.input[0], "Add")
    return [add] if add is not None else []


def _before_product(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A scale, or the last two axes swapped: FusedMatMul."""
    found = []
    for name in node.input:
        scale = graph.made_for(name, "Mul")
        if scale is not None and any(graph.is_constant(own, n_axes=0) for own in scale.input):
            found.append(scale)
        swap = graph.made_for(name, "Transpose")
        if swap is not None:
            axes = list(next(own.ints for own in swap.attribute if own.name == "perm"))
            n_axes = len(axes)
            if axes == [*range(n_axes - 2), n_axes - 1, n_axes - 2]:
                found.append(swap)
    return found


def _before_mul(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """x sigmoid(x): QuickGelu."""
    for gate, other in (node.input, tuple(reversed(node.input))):
        sigmoid = graph.made_for(gate, "Sigmoid")
        if sigmoid is not None and graph.base(sigmoid.input[0]) == graph.base(other):
            return [sigmoid]
    return []


_FUSIONS: Mapping[str, Callable[[Graph, onnx.NodeProto], list[onnx.NodeProto]]] = {
    "LayerNormalization": _before_norm,
    "Gelu": _before_gelu,
    "Softmax": _before_softmax,
    "MatMul": _before_product,
    "Mul": _before_mul,
}


def _is_bias(graph: Graph, node: onnx.NodeProto) -> bool:
    return any(graph.is_constant(name, n_axes=1) for name in node.input)


def _kernel(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> Kernel:
    group = {id(node) for node in nodes}
    made = {name for node in nodes for name in node.output if name}
    read = {
        base: name
        for node in nodes
        for name in node.input
        if name and (base := graph.base(name)) not in made
    }
    n_bytes = sum(graph.n_bytes(name) for name in made if graph.leaves(name, group))
    if nodes[0].op_type in ("Gather", "GatherElements"):
        # Of a table the asked rows alone are read.
        read = {base: name for base, name in read.items() if name != nodes[0].input[0]}
        n_bytes *= 2
    n_bytes += sum(graph.n_bytes(name) for name in read.values())
    flop, rates = 0, FLOP_PER_S
    for node in nodes:
        if node.op_type in ("MatMul", "Gemm"):
            flop += 2 * prod(graph.shape(node.output[0])) * _n_inner(graph, node)
        elif node.op_type == "Attention":
            flop, rates = attention_flop(graph, node), ATTENTION_FLOP_PER_S
    item = graph.item_bytes(nodes[0].output[0])
    return Kernel(nodes[0].op_type, n_bytes, flop, rates.get(item, FLOP_PER_S[4]))


def _n_inner(graph: Graph, node: onnx.NodeProto) -> int:
    """Return how many products are summed for each number of a matrix product."""
    shape = graph.shape(node.input[0])
    is_turned = any(own.name == "transA" and own.i for own in node.attribute)
    return shape[-2] if is_turned else shape[-1]


def attention_flop(graph: Graph, node: onnx.NodeProto) -> int:
    """Return the work of both products; of causal attention the half that is not left out."""
    n_rows, n_queries, dim = graph.shape(node.input[0])
    n_tokens = graph.shape(node.input[1])[1]
    given = {own.name: own.i for own in node.attribute}
    pairs = n_queries * n_tokens
    if given.get("is_causal"):
        pairs = n_queries * (n_tokens + 1) // 2
    return 4 * n_rows * pairs * dim


# What an H100 is to be fed with: 16,384 tokens a batch.
BERT, MINILM = "BERT-base", "MiniLM"
_BERT_SHAPES: Mapping[str, Mapping[str, int]] = {
    BERT: {},
    MINILM: {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
}
_CASES: Sequence[tuple[str, str, Mapping[str, str], Sequence[Dims]]] = (
    ("pair_score", BERT, {}, [{"n_rows": 32, "n": 512}, {"n_rows": 512, "n": 32}]),
    ("relevance_matching", BERT, {}, [{"n_rows": 32, "n": 512}, {"n_rows": 82, "n": 200}]),
    ("relevance_matching", MINILM, {}, [{"n_rows": 82, "n": 200}]),
    ("sentence_vector", BERT, {}, [{"n_rows": 512, "n": 32}]),
    ("token_vectors", BERT, {}, [{"n_rows": 512, "n": 32}]),
    ("keyphrase_weights", BERT, {}, [{"n_rows": 256, "n": 64}]),
    ("answer_span", BERT, {}, [{"n_rows": 82, "n": 200}]),
    ("token_logprobs", "GPT-2", {}, [{"n_rows": 16, "n": 1024}, {"n_rows": 64, "n": 256}]),
    ("token_logprobs", "SmolLM2", {}, [{"n_rows": 80, "n": 204}]),
)
_N_CANDIDATE = 20  # tokens of a question


def axes(dims: Dims) -> dict[str, int]:
    """Return the sizes of all axes of a batch: rows of equal length, every token asked for."""
    n_rows, n_tokens = dims["n_rows"], dims["n"]
    return {
        "n_rows": n_rows,
        "n_pairs": n_rows,
        "n_windows": n_rows,
        "n_tokens_padded": n_tokens,
        "n_cand": _N_CANDIDATE,
        "n_asked": n_rows * (n_tokens - 1),
    }


def random_model(name: str, graph: str) -> LoadedModel:
    """Return a model of a known shape; what its weights are changes no byte and no FLOP."""
    torch.manual_seed(0)
    config: Any
    match name, graph:
        case "GPT-2", _:
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        case "SmolLM2", _:
            config = transformers.LlamaConfig(
                vocab_size=49_152,
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                max_position_embeddings=8192,
                tie_word_embeddings=True,
            )
            model = transformers.LlamaForCausalLM(config)
        case _:
            labels = {"pair_score": 1, "keyphrase_weights": 2}.get(graph, 2)
            config = transformers.BertConfig(num_labels=labels, **_BERT_SHAPES[name])
            kind = {
                "pair_score": transformers.BertForSequenceClassification,
                "keyphrase_weights": transformers.BertForTokenClassification,
                "answer_span": transformers.BertForQuestionAnswering,
            }.get(graph, transformers.BertModel)
            model = kind(config)
    source: Any = SimpleNamespace(name=name, folder=Path("/nowhere"))
    tokenizer: Any = None
    return LoadedModel(source, model.eval(), tokenizer, bos_id=0, eos_id=0)


def traced_graph(graph: str, name: str, options: Mapping[str, str]) -> onnx.ModelProto:
    """Return the fp32 graph of a model of random weights."""
    return trace(random_model(name, graph), ArtifactRequest(graph, name, "fp32", options))


def run(
    make: Callable[[str, str, Mapping[str, str]], onnx.ModelProto] = traced_graph,
    precisions: Sequence[Precision] = ("fp16",),
    *,
    graphs: Sequence[str] = (),
    models: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the bounds of all graphs, models and shapes, or of those that are named."""
    lines = []
    for graph, name, options, shapes in _CASES:
        if (graphs and graph not in graphs) or (models and name not in models):
            continue
        proto = make(graph, name, options)
        for precision in precisions:
            converted = convert(proto, precision=precision)
            for dims in shapes:
                lines.append(
                    {
                        "graph": graph,
                        "model": name,
                        "precision": precision,
                        "shape": f"{dims['n_rows']} x {dims['n']}",
                        **bound(converted, axes(dims), precision=precision).content(),
                    }
                )
    return lines


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines as a table of Markdown."""
    rows = [
        "| graph, model, tokens | TFLOP | GB | ms | share of 600 (fp32: 50) TFLOP/s | kernels |"
    ]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for line in lines:
        what = f"{line['graph']}, {line['model']} {line['precision']}, {line['shape']}"
        rows.append(
            f"| {what} | {line['tflop']:.2f} | {line['gb']:.1f} | {line['ms']:.1f} "
            f"| {line['share']:.0%} | {line['kernels']} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Bounds of one GPU, from the graphs alone.")
    parser.add_argument("--json", type=Path, help="write the lines here, too")
    parser.add_argument("--precision", choices=_ITEM_BYTES, action="append")
    parser.add_argument("--graph", action="append", help="this graph alone; may be repeated")
    parser.add_argument("--model", action="append", help="this model alone; may be repeated")
    given = parser.parse_args()
    lines = run(
        precisions=given.precision or ("fp16",), graphs=given.graph or (), models=given.model or ()
    )
    print("A bound, not a measurement; 1.2 to 1.5 times as long is to be expected.\n")
    print(table(lines))
    if given.json is not None:
        content = {"environment": environment(torch.get_num_threads()), "lines": lines}
        given.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
