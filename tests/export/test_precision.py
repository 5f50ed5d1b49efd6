"""fp16 graphs: what stays in fp32, what does not, and what a GPU's rounding makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qaeval_export.precision import convert, rounded

pytestmark = pytest.mark.slow


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the type of each value, as it follows from the nodes."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(bare).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    weights = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return weights | {value.name: value.type.tensor_type.elem_type for value in values}


def _typed(proto: onnx.ModelProto, kind: str, *, types: dict[str, int]) -> list[tuple[int, int]]:
    """Return what each node of a kind reads and returns."""
    nodes = [node for node in proto.graph.node if node.op_type == kind]
    return [(types[node.input[0]], types[node.output[0]]) for node in nodes]


_HALF = (TensorProto.FLOAT16, TensorProto.FLOAT16)
_FLOAT = (TensorProto.FLOAT, TensorProto.FLOAT)


@pytest.mark.parametrize(
    ("graph", "kind", "options", "operations"),
    [
        pytest.param(
            *("token_logprobs", "gpt2", {}, ("Gelu", "Attention", "LayerNormalization")),
            marks=pytest.mark.long,
        ),
        ("token_logprobs", "llama", {}, ("RMSNormalization", "RotaryEmbedding", "Attention")),
        pytest.param(
            *("pair_score", "bert_pairs", {}, ("Softmax", "Gelu", "Attention")),
            marks=pytest.mark.long,
        ),
        ("relevance_matching", "bert", {"matching": "weighted"}, ("Softmax", "Attention")),
    ],
)
def test_kernels_that_sum_in_fp32_take_fp16(
    workshop: Any, graph: str, kind: str, options: dict[str, str], operations: tuple[str, ...]
) -> None:
    """A cast on both sides writes every value to memory twice more, and hides fusions."""
    artifact = workshop.artifact(graph, kind, "fp16", **options)
    assert artifact.record.precision == "fp16"
    proto = onnx.load(artifact.model_path)
    onnx.checker.check_model(proto)
    types = _types(proto)
    for operation in operations:
        found = _typed(proto, operation, types=types)
        assert found and set(found) == {_HALF}, operation
    readers = {name for node in proto.graph.node for name in node.input}
    outputs = {value.name for value in proto.graph.output}
    assert all(set(node.output) & (readers | outputs) for node in proto.graph.node)


def test_squares_of_a_norm_never_pass_through_fp16(workshop: Any) -> None:
    """Hidden states of 24,926 (SmolLM2) squared are no fp16 numbers; a CPU run does not show it."""
    proto = onnx.load(workshop.artifact("token_logprobs", "llama", "fp16").model_path)
    assert not [node for node in proto.graph.node if node.op_type == "Pow"]
    norms = [node for node in proto.graph.node if node.op_type == "RMSNormalization"]
    assert len(norms) == 5
    for norm in norms:
        stash = next(own.i for own in norm.attribute if own.name == "stash_type")
        assert stash == TensorProto.FLOAT  # what the square is computed in


@pytest.mark.parametrize(
    ("graph", "kind"), [("token_logprobs", "gpt2"), ("answer_span", "bert_answers")]
)
def test_what_is_made_of_a_log_sum_exp_stays_in_fp32(workshop: Any, graph: str, kind: str) -> None:
    """Protects from 0.004 nats for each rounding of a normalizer of 10 nats: four of them."""
    proto = onnx.load(workshop.artifact(graph, kind, "fp16").model_path)
    types = _types(proto)
    tail: set[str] = set()
    n_nodes = 0
    for node in proto.graph.node:
        if node.op_type in ("LogSoftmax", "ReduceLogSumExp") or tail & set(node.input):
            tail |= set(node.output)
            n_nodes += 1
    assert n_nodes > 2
    assert {value.name for value in proto.graph.output} <= tail
    assert {types[name] for name in tail} == {TensorProto.FLOAT}


def test_named_nodes_stay_in_fp32(workshop: Any) -> None:
    """Protects from a benchmark of what fp32 would save that compares fp16 with itself."""
    proto = onnx.load(workshop.artifact("relevance_matching", "bert").model_path)
    first, *others = [node.name for node in proto.graph.node if node.op_type == "Softmax"]
    half = convert(proto, precision="fp16", fp32_nodes=[first])
    types = _types(half)
    kinds = {n.name: types[n.output[0]] for n in half.graph.node if n.op_type == "Softmax"}
    halved = dict.fromkeys(others, TensorProto.FLOAT16)
    assert others and kinds == {first: TensorProto.FLOAT, **halved}


def _square(name: str) -> onnx.ModelProto:
    """Return x + x * x in fp16 between casts."""
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["narrow", "narrow"], ["square"]),
        helper.make_node("Add", ["square", "one"], ["sum"]),
        helper.make_node("Cast", ["sum"], [name], to=TensorProto.FLOAT),
    ]
    values = [
        helper.make_tensor_value_info(own, TensorProto.FLOAT, ["n_rows"]) for own in ("x", name)
    ]
    one = helper.make_tensor("one", TensorProto.FLOAT16, [], [1.0])
    graph = helper.make_graph(nodes, "square", values[:1], values[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def _run(proto: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return np.asarray(found)


def test_rounded_rounds_every_value_that_fp16_would_hold() -> None:
    """Protects from a gate that a CPU passes and a GPU would not."""
    x = np.array([1.0004, 3.14159, 300.0], dtype=np.float32)
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float16)
        expected = (narrow * narrow + np.float16(1)).astype(np.float32)
    found = _run(rounded(_square("y")), x)
    np.testing.assert_array_equal(found, expected)
    assert np.isinf(found[2])  # 300 squared is beyond fp16.
    assert not np.array_equal(found[:2], (x * x + 1)[:2])


def test_the_fp16_gate_rounds_as_a_gpu_does(workshop: Any) -> None:
    """A CPU sums attention in fp16, and drops other roundings: neither is what a GPU gives."""
    record = workshop.artifact("token_logprobs", "gpt2", "fp16").record
    assert record.parity.against.endswith("each value rounded as on a GPU")
