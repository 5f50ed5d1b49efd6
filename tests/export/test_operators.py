"""What the exported graphs hold: attention as one node, and nothing of tokens x tokens."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

pytestmark = pytest.mark.slow

_TOKENS = "n_tokens_padded"
_ENCODERS = [
    ("pair_score", "bert_pairs", {}, 1),  # The last layer is the first token's alone.
    ("relevance_matching", "bert", {}, 1),
    ("relevance_matching", "bert", {"matching": "weighted"}, 2),
    ("sentence_vector", "electra", {}, 2),
    ("answer_span", "bert_answers", {}, 2),
    pytest.param("keyphrase_weights", "bert_tokens", {}, 2, marks=pytest.mark.long),
    pytest.param("token_vectors", "bert", {}, 2, marks=pytest.mark.long),
    pytest.param(
        "relevance_matching",
        "bert",
        {"matching": "weighted", "aggregate": "mover"},
        2,
        marks=pytest.mark.long,
    ),
]


def _load(workshop: Any, graph: str, kind: str, options: dict[str, str]) -> onnx.GraphProto:
    return onnx.load(workshop.artifact(graph, kind, **options).model_path).graph


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {own.name: onnx.helper.get_attribute_value(own) for own in node.attribute}


def _of_kind(graph: onnx.GraphProto, kind: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == kind]


def _squares(graph: onnx.GraphProto) -> list[str]:
    """Return the values that have two axes of tokens."""
    return [
        value.name
        for value in graph.value_info
        if [axis.dim_param for axis in value.type.tensor_type.shape.dim].count(_TOKENS) > 1
    ]


@pytest.mark.parametrize(("graph", "kind", "options", "n_nodes"), _ENCODERS)
def test_encoders_attend_by_length_and_hold_no_matrix_of_tokens(
    workshop: Any, graph: str, kind: str, options: dict[str, str], n_nodes: int
) -> None:
    """On a GPU such a matrix is more than half of a batch's bytes."""
    found = _load(workshop, graph, kind, options)
    nodes = _of_kind(found, "Attention")
    assert len(nodes) == n_nodes
    for node in nodes:
        assert [bool(name) for name in node.input] == [*[True] * 3, *[False] * 3, True]
        assert node.input[6] == "n_tokens"
        assert _attributes(node)["is_causal"] == 0  # Never with lengths: kernels differ then.
    assert _squares(found) == []


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_language_models_attend_to_what_came_before(workshop: Any, kind: str) -> None:
    """A mask of zeros and -1e4 is a matrix of tokens, too."""
    found = _load(workshop, "token_logprobs", kind, {})
    nodes = _of_kind(found, "Attention")
    assert len(nodes) == 2
    for node in nodes:
        assert len([name for name in node.input if name]) == 3
        assert _attributes(node)["is_causal"] == 1
    assert _squares(found) == []
    assert not _of_kind(found, "Softmax")


def test_relative_positions_are_the_only_matrix_of_tokens(workshop: Any) -> None:
    """MPNet adds a number for each distance: one matrix of heads x tokens x tokens, for no row."""
    found = _load(workshop, "pair_score", "mpnet_pairs", {})
    (node,) = _of_kind(found, "Attention")
    assert node.input[3] and node.input[6] == "n_tokens"
    shapes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in found.value_info
    }
    assert all("n_rows" not in shapes[name] for name in _squares(found))


def test_llama_types_norm_and_turn_in_one_node_and_split_in_equal_parts(workshop: Any) -> None:
    """Unequal parts cost CUDA eight copies to the device a layer; a norm in parts is six nodes."""
    found = _load(workshop, "token_logprobs", "llama", {})
    assert len(_of_kind(found, "RMSNormalization")) == 5
    assert len(_of_kind(found, "RotaryEmbedding")) == 4
    for node in _of_kind(found, "Split"):
        assert len(node.input) == 1 and _attributes(node)["num_outputs"] == 2
    for node in _of_kind(found, "Attention"):
        given = _attributes(node)
        assert (given["q_num_heads"], given["kv_num_heads"]) == (4, 2)  # None is repeated.
    assert not _of_kind(found, "Expand")[1:]  # That of positions.
