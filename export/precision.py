"""Precision: an fp32 graph -> an fp16 graph.

Weights and products become fp16. Kept in fp32 are the operations that overflow or that compare:
the mean of squares of RMS norms, the log-sum-exp over the vocabulary, softmax and argmax.

But: whether the result is good enough is decided by comparison (``export.parity``), not here.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto
from onnx_ir import serde
from onnx_ir.passes import common
from onnxruntime.transformers import float16

__all__ = ["convert"]

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
