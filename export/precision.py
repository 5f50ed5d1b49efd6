"""Precision: an fp32 graph -> an fp16 graph, and how far each may be from torch fp32.

Weights and products become fp16. Kept in fp32 are the operations that overflow or that compare:
the mean of squares of RMS norms, the log-sum-exp over the vocabulary, softmax and argmax.

But: whether the result is good enough is decided by comparison (``export.parity``), not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from onnx import TensorProto
from onnx_ir import serde
from onnx_ir.passes import common
from onnxruntime.transformers import float16

__all__ = ["MIN_SPEARMAN", "TOLERANCES", "convert"]

# Ranks of the fixed pairs by their mean value; below this, metrics would order texts differently.
MIN_SPEARMAN = 0.999

# Largest allowed difference of one value, by graph and precision. Measured with the embedded
# models on the fixed pairs of ``export.texts``:
#   relevance_matching fp32: 3e-7.
#   token_logprobs fp32: 4e-5 nats on values down to -19.4, rounding of 30 layers; deeper models
#       round more. A wrong graph is off by whole nats.
#   relevance_matching fp16: 1e-3 where attention weighs (matching=weighted). Where it chooses one
#       token (attended), two nearly equal attentions can swap: 0.1 on 2 of 240 values, and then
#       the gate fails and fp32 is used.
#   relevance_matches: the same values before their mean is taken, fp32 1e-6.
#   token_logprobs fp16: 4e-2 nats at worst, 3e-3 at the median.
TOLERANCES: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("relevance_matching", "fp32"): 1e-4,
        ("token_logprobs", "fp32"): 5e-4,
        ("relevance_matching", "fp16"): 2e-2,
        ("token_logprobs", "fp16"): 1e-1,
        ("pair_score", "fp32"): 1e-4,
        ("pair_score", "fp16"): 2e-2,
        ("sentence_vector", "fp32"): 1e-5,
        ("sentence_vector", "fp16"): 2e-3,
        ("relevance_matches", "fp32"): 1e-4,
        ("relevance_matches", "fp16"): 1e-1,
        ("token_vectors", "fp32"): 1e-5,
        ("token_vectors", "fp16"): 5e-3,
        ("keyphrase_weights", "fp32"): 1e-5,
        ("keyphrase_weights", "fp16"): 1e-2,
    }
)

# Subtle: squares of hidden states overflow fp16 (SmolLM2 has values of 24,926). On a CPU this does
# not show: ONNX Runtime computes most fp16 operations there in fp32.
_FP32_OPERATIONS = (
    "ArgMax",
    "LogSoftmax",
    "Pow",
    "Reciprocal",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Softmax",
    "Sqrt",
)


def convert(proto: onnx.ModelProto, *, precision: str) -> onnx.ModelProto:
    """Return the graph in another precision; inputs and outputs keep their types."""
    if precision == "fp32":
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    converted = float16.convert_float_to_float16(
        copy,
        keep_io_types=True,
        disable_shape_infer=True,  # The exporter has written every shape.
        op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, *_FP32_OPERATIONS],
        node_block_list=_fp32_nodes(proto),
    )
    return _tidied(_without_idle_casts(converted))


def _fp32_nodes(proto: onnx.ModelProto) -> list[str]:
    """Return the nodes between fp32 operations: eps + mean of squares, and the logit's products."""
    producers = {name: node for node in proto.graph.node for name in node.output}
    wanted = {("Sqrt", "Add"), ("ReduceSum", "Mul"), ("Sub", "ReduceSum")}
    nodes = []
    for node in proto.graph.node:
        for name in node.input:
            producer = producers.get(name)
            if producer is not None and (node.op_type, producer.op_type) in wanted:
                nodes.append(producer.name)
    return nodes


def _without_idle_casts(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Drop casts the converter should not have added.

    It adds one for each fp32 reader of a value, all of one name; and between two fp32 operations
    it goes down to fp16 and up again, so a square that overflows fp16 would still be lost.
    """
    nodes = {tuple(node.output): node for node in reversed(proto.graph.node)}.values()
    narrowed = {n.output[0]: n.input[0] for n in nodes if _casts_to(n, TensorProto.FLOAT16)}
    widened = {
        n.output[0]: narrowed[n.input[0]]
        for n in nodes
        if _casts_to(n, TensorProto.FLOAT) and n.input[0] in narrowed
    }
    kept = onnx.ModelProto()
    kept.CopyFrom(proto)
    del kept.graph.node[:]
    kept.graph.node.extend(nodes)
    for node in kept.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = widened.get(name, name)
    return kept


def _casts_to(node: onnx.NodeProto, dtype: int) -> bool:
    return bool(node.op_type == "Cast" and node.attribute[0].i == dtype)


def _tidied(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Order the nodes by need, without the ones nothing reads any more."""
    model = serde.from_proto(proto)
    common.TopologicalSortPass()(model)
    common.RemoveUnusedNodesPass()(model)  # Subtle: it walks backwards and needs the order.
    return serde.to_proto(model)
