"""An artifact of a few hundred bytes, made without torch: for what reads artifacts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

from qaeval_core.models.record import GRAPHS

VOCAB = ["[PAD]", "[CLS]", "[SEP]", "the", "mill", "barn", "red"]
_ATTEMPT = {
    "precision": "fp32",
    "max_abs_diff": 1e-6,
    "spearman": 1.0,
    "tolerance": 1e-4,
    "passed": True,
}
PARITY = {**_ATTEMPT, "n_values": 9, "against": "torch fp32", "attempts": [_ATTEMPT]}


def make_artifact(folder: Path, *, is_sealed: bool = True, **changes: Any) -> Path:
    """Write a cross-encoder whose logit is the sum of its token ids over ten; return its folder.

    ``changes`` are of its record, ``model`` and ``tokenizer`` of its files' bytes.
    """
    folder.mkdir(parents=True)
    contents = {
        "model.onnx": changes.pop("model", None) or sum_of_ids(),
        "tokenizer.json": changes.pop("tokenizer", None) or word_tokenizer(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    write_record(folder, {**_fields(files), **changes}, is_sealed=is_sealed)
    return folder


def make_cross_encoder(folder: Path) -> Path:
    """Write the same with all inputs of a cross-encoder, of which it reads the token ids alone."""
    proto = onnx.load_from_string(sum_of_ids())
    for name in ("n_tokens", "second_start"):
        proto.graph.input.append(
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n_pairs"])
        )
    inputs = [
        {"name": name, "dtype": "int64", "shape": ["n_pairs", "n_tokens"][:n_axes]}
        for name, n_axes in (("input_ids", 2), ("n_tokens", 1), ("second_start", 1))
    ]
    return make_artifact(folder, model=proto.SerializeToString(), inputs=inputs)


def write_record(folder: Path, fields: object, *, is_sealed: bool = True) -> None:
    """Write the record of an artifact, and its checksum."""
    content = json.dumps(fields, indent=2).encode()
    (folder / "artifact.json").write_bytes(content)
    if is_sealed:
        seal = f"{hashlib.sha256(content).hexdigest()}  artifact.json\n"
        (folder / "artifact.sha256").write_text(seal)


def sum_of_ids(*, axes: tuple[int, ...] = (1,), dim: str | int = "n_pairs") -> bytes:
    """Return a graph: token ids in, their sum over axes, divided by ten, out."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n_pairs", "n_tokens"])
    logit = helper.make_tensor_value_info("logit", TensorProto.FLOAT, [dim])
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes),
        helper.make_tensor("ten", TensorProto.FLOAT, [], [10.0]),
    ]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["wide", "axes"], ["sum"], keepdims=0),
        helper.make_node("Div", ["sum", "ten"], ["logit"]),
    ]
    return _model(helper.make_graph(nodes, "sum", [ids], [logit], constants))


def endless() -> bytes:
    """Return a graph whose loop never ends."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n_pairs", "n_tokens"])
    logit = helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["n_pairs"])
    turn = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["still_goes_on"]),
            helper.make_node("Neg", ["sum_before"], ["sum_after"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still_goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_after", TensorProto.FLOAT, None),
        ],
    )
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
    ]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["wide", "axes"], ["sum"], keepdims=0),
        helper.make_node("Loop", ["", "yes", "sum"], ["logit"], body=turn),
    ]
    return _model(helper.make_graph(nodes, "endless", [ids], [logit], constants))


def _model(graph: onnx.GraphProto) -> bytes:
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.ModelProto.SerializeToString(proto)


def word_tokenizer() -> bytes:
    """Return a tokenizer of whole words."""
    words = {word: i for i, word in enumerate(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str().encode()


def _fields(files: dict[str, str]) -> dict[str, Any]:
    return {
        "format_version": 1,
        "graph": "pair_score",
        "graph_version": GRAPHS["pair_score"].version,
        "options": {},
        "precision": "fp32",
        "requested_precision": "fp32",
        "lossy": False,
        "model": {"name": "gpt2", "kind": "hub", "revision": "607a30d", "files": {}},
        "files": files,
        "tokenizer_hash": files["tokenizer.json"],
        "inputs": [{"name": "input_ids", "dtype": "int64", "shape": ["n_pairs", "n_tokens"]}],
        "outputs": [{"name": "logit", "dtype": "float32", "shape": ["n_pairs"]}],
        "opset": 20,
        "versions": {},
        "max_positions": 512,
        "n_layers": 2,
        "dim": 32,
        "vocab": len(VOCAB),
        "n_matmul_parameters": 9,
        "n_head_parameters": 0,
        "template": {"prefix_ids": [1], "middle_ids": [2], "suffix_ids": [2]},
        "bos_id": None,
        "eos_id": None,
        "activation": "sigmoid",
        "parity": PARITY,
    }
