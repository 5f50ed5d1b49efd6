"""Precision: a traced graph in fp16, and what a GPU's rounding makes of one.

On a CPU ONNX Runtime computes most fp16 operations in fp32 and drops roundings between them: what
overflows, or adds up, does not show there. `rounded` puts every rounding back, so a graph can be
judged without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_ir import serde
from onnx_ir.passes import common
from onnxruntime.transformers import float16

# Sums over many tokens or entries. Softmax and norms are not here: their kernels take fp16 and sum
# in fp32, and casts around them would write each value to memory once more, in twice the bytes.
_FP32_OPERATIONS = ("ArgMax", "LogSoftmax", "ReduceLogSumExp", "ReduceMax", "ReduceSum")

# Whatever is made of these stays in fp32 to the end of the graph: it is one number for many logits.
_FP32_TAILS = ("LogSoftmax", "ReduceLogSumExp")

# What these return they have read: no rounding is theirs.
_MOVES = (
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Where",
)


def convert(
    proto: onnx.ModelProto, *, precision: str, fp32_nodes: Iterable[str] = ()
) -> onnx.ModelProto:
    """Return the graph in another precision; inputs, outputs and named nodes keep their types."""
    if precision == "fp32":
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    converted = float16.convert_float_to_float16(
        copy,
        keep_io_types=True,
        disable_shape_infer=True,  # The exporter has written every shape.
        op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, *_FP32_OPERATIONS],
        node_block_list=[*_fp32_nodes(proto), *fp32_nodes],
    )
    return _tidied(_without_idle_casts(converted))


def _fp32_nodes(proto: onnx.ModelProto) -> list[str]:
    """Return nodes beside fp32 operations: the products of a sum, and what is made of a tail.

    A log-sum-exp of thousands of logits is 10 nats and more, which fp16 rounds to 0.004; what is
    subtracted from it, and what that gives, is as large.
    """
    producers = {name: node for node in proto.graph.node for name in node.output}
    tail: set[str] = set()
    nodes = set()
    for node in proto.graph.node:
        made = [producers[name] for name in node.input if name in producers]
        if node.op_type in _FP32_TAILS or tail.intersection(node.input):
            tail.update(node.output)
            # A number of a token, which fp16 would round, too.
            nodes.update([node.name, *(own.name for own in made if own.op_type == "Cast")])
        if node.op_type == "ReduceSum":
            nodes.update(own.name for own in made if own.op_type == "Mul")
    return sorted(nodes)


def _without_idle_casts(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Drop casts the converter should not have added.

    It adds one for each fp32 reader of a value, all of one name; and between two fp32 operations
    it goes down to fp16 and up again, so a square that overflows fp16 would still be lost.
    """
    nodes = {tuple(node.output): node for node in reversed(proto.graph.node)}.values()
    narrowed = {
        n.output[0]: n.input[0]
        for n in nodes
        # The converter's own alone: of others the input may be no float.
        if _casts_to(n, TensorProto.FLOAT16) and n.name.endswith("_cast_to_fp16_node")
    }
    widened = {
        n.output[0]: narrowed[n.input[0]]
        for n in nodes
        if _casts_to(n, TensorProto.FLOAT) and n.input[0] in narrowed
    }
    outputs = {value.name for value in proto.graph.output}
    # What is widened to be an output is made under the output's name.
    named = {widened[name]: name for name in outputs & set(widened)}
    kept = onnx.ModelProto()
    kept.CopyFrom(proto)
    del kept.graph.node[:]
    kept.graph.node.extend(n for n in nodes if not (set(n.output) & outputs & set(widened)))
    for node in kept.graph.node:
        for i, name in enumerate(node.input):
            source = widened.get(name, name)
            node.input[i] = named.get(source, source)
        for i, name in enumerate(node.output):
            node.output[i] = named.get(name, name)
    return kept


def _casts_to(node: onnx.NodeProto, dtype: int) -> bool:
    return bool(node.op_type == "Cast" and node.attribute[0].i == dtype)


def _tidied(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Order the nodes by need, without the ones nothing reads any more."""
    model = serde.from_proto(proto)
    common.TopologicalSortPass()(model)
    common.RemoveUnusedNodesPass()(model)  # Subtle: it walks backwards and needs the order.
    return serde.to_proto(model)


def rounded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return an fp16 graph as fp32 that rounds to fp16 what the fp16 graph would keep in fp16.

    Each node computes in fp32 and its result is rounded, as the kernels of a GPU do. A little is
    left out: fused nodes round less often, and FlashAttention rounds its weights once more.
    """
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    halves = _halves(proto)
    for tensor in found.graph.initializer:
        _widen(tensor)
    nodes = []
    for node in found.graph.node:
        for attribute in node.attribute:
            _widen(attribute.t)
        nodes.append(node)
        if _casts_to(node, TensorProto.FLOAT16):
            node.attribute[0].i = TensorProto.FLOAT
        elif node.op_type in _MOVES:
            continue
        for i, name in enumerate(node.output):
            if name in halves:
                node.output[i] = f"{name}/unrounded"
                nodes += [
                    helper.make_node("Cast", [node.output[i]], [f"{name}/fp16"], to=10),
                    helper.make_node("Cast", [f"{name}/fp16"], [name], to=1),
                ]
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    for value in found.graph.value_info:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return found


def _halves(proto: onnx.ModelProto) -> set[str]:
    """Return the names of all values that are fp16."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # Casts that were dropped left some that are not true any more.
    inferred = onnx.shape_inference.infer_shapes(bare)
    return {
        value.name
        for value in inferred.graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16
    }


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        wide = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
