"""Adopted: an ONNX file that somebody exported -> the graph of a request, as it is.

Files of optimum and of hub repositories read ids, a mask and segments, and return logits, or the
last hidden state. Nodes in front make mask and segments of what our graphs are told, nodes behind
squeeze or pool; the file's own nodes stay. Needs no torch, unless weights lie beside the file: then
both are compared.

But: where files come from is ``qaeval_core.models.registry``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

from qaeval_core.errors import ExportError
from qaeval_core.models.record import GRAPHS, ArtifactRequest, Precision
from qaeval_core.models.source import ModelSource
from qaeval_export.batch_mates import (
    FP16_LIMITS,
    FP32_LIMIT,
    difference_by_batch_mates,
    difference_of_two_runs,
)
from qaeval_export.facts import Made, ModelFacts, kind_of, pair_template, read_tokenizer
from qaeval_export.graph_files import open_graph, save_graph
from qaeval_export.limits import check_sizes, tensors_of
from qaeval_export.parity import ParityRow, Values, pair_rows, parity_pairs, text_rows
from qaeval_export.sentence_files import FROM_PADDING, SentenceFiles

_READS = ("input_ids", "attention_mask", "token_type_ids")
_HIDDEN = ("last_hidden_state", "token_embeddings")
# Operators of these are ONNX Runtime's own; others would be code of somebody's.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_MIN_OPSET = 13  # From here on axes of squeezing and summing are inputs.
_PREFIX = "qaeval_"


def adopt(source: ModelSource, request: ArtifactRequest, folder: Path) -> Made:
    """Save a model's ONNX file as the graph of a request.

    Raises
    ------
    ExportError
        If the graph of the request cannot be made of such a file, or the file reads or returns
        something else, holds operators of others, names data elsewhere, gives a row other values
        beside other rows, or differs from the weights beside it.
    """
    if not GRAPHS[request.graph].takes_onnx:
        raise ExportError(
            f"{request.graph} needs safetensors, and {source.name} has only {source.onnx_file} "
            "[QA0411]"
        )
    proto = _load(source)
    config = SimpleNamespace(**json.loads((source.folder / "config.json").read_text("utf-8")))
    tokenizer = read_tokenizer(source)
    kind = kind_of(GRAPHS[request.graph].model_fields)
    files = SentenceFiles(source, kind) if kind is not None else None
    if files is not None:
        tokenizer = files.with_case(tokenizer)
    facts = _facts(source, files, config, tokenizer, proto)
    wrapped = _wrapped(proto, source, request, facts, n_types=getattr(config, "type_vocab_size", 1))
    save_graph(wrapped, folder)
    precision = _precision(proto)
    make_rows = pair_rows if request.graph == "pair_score" else text_rows
    rows = make_rows(tokenizer, facts, parity_pairs())
    apart = _check_runs(
        folder / "model.onnx", source, request, rows, dim=facts.dim, precision=precision
    )
    parity = None
    if any(source.folder.glob("*.safetensors")):
        from qaeval_export.traced import compare_with_weights  # Loads torch.

        parity = compare_with_weights(
            source, request, precision=precision, path=folder / "model.onnx"
        )
    return Made(wrapped, facts, tokenizer, precision, parity, apart, request.one_row_batches)


def _load(source: ModelSource) -> onnx.ModelProto:
    """Return a file with all its weights inside.

    Raises
    ------
    ExportError
        If it is damaged, or has data in a file that is not one of the model's.
    """
    path = source.folder / str(source.onnx_file)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # Protobuf's errors have no common base.
        raise ExportError(f"{path} is not an ONNX file: {type(error).__name__} [QA0411]") from None
    for tensor in tensors_of(proto):
        for entry in tensor.external_data:
            inside = str(Path(str(source.onnx_file)).parent / entry.value)
            if entry.key == "location" and inside not in source.files:
                raise ExportError(
                    f"{path} keeps weights in {entry.value!r}, which is not one of its files "
                    "[QA0411]"
                )
    known = [proto, *proto.functions]
    foreign = {own.domain for one in known for own in one.opset_import} - set(_DOMAINS)
    if foreign:
        raise ExportError(
            f"{path} has custom operators of {min(foreign)!r}; qaeval runs none [QA0411]"
        )
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _MIN_OPSET:
        raise ExportError(f"{path} has opset {opset}; at least {_MIN_OPSET} is needed [QA0411]")
    check_sizes(proto, source)
    try:
        load_external_data_for_model(proto, str(path.parent))
    except Exception as error:  # onnx's have no common base.
        raise ExportError(f"{path}: {str(error).splitlines()[0]} [QA0411]") from None
    return proto


def _precision(proto: onnx.ModelProto) -> Precision:
    types = {tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) > 1}
    return "fp16" if TensorProto.FLOAT16 in types and TensorProto.FLOAT not in types else "fp32"


def _facts(
    source: ModelSource,
    files: SentenceFiles | None,
    config: Any,
    tokenizer: Tokenizer,
    proto: onnx.ModelProto,
) -> ModelFacts:
    """Return what the record says, of configuration and file.

    Raises
    ------
    ExportError
        If the configuration lacks a size, or the model is a classifier of several classes.
    """
    try:
        n_positions = int(config.max_position_embeddings)
        if config.model_type in FROM_PADDING:
            n_positions -= int(config.pad_token_id) + 1
        if files is not None:
            n_positions = min(n_positions, files.max_tokens(config))
        sizes = (int(config.num_hidden_layers), int(config.hidden_size), int(config.vocab_size))
    except (AttributeError, TypeError, ValueError) as error:
        raise ExportError(
            f"{source.name}: its config.json lacks a size: {error} [QA0411]"
        ) from None
    n_layers, dim, vocab = sizes
    read = {
        name
        for node in proto.graph.node
        if node.op_type in ("MatMul", "Gemm")
        for name in node.input
    }
    weights = [t for t in proto.graph.initializer if t.name in read and len(t.dims) == 2]
    return ModelFacts(
        max_positions=n_positions,
        n_layers=n_layers,
        dim=dim,
        vocab=vocab,
        n_matmul_parameters=sum(t.dims[0] * t.dims[1] for t in weights),
        n_head_parameters=0,
        template=pair_template(source, tokenizer),
        bos_id=None,
        eos_id=None,
        activation=files.activation(config) if files and files.is_cross else None,
        pooling=files.pooling() if files and not files.is_cross else None,
    )


def _wrapped(
    proto: onnx.ModelProto,
    source: ModelSource,
    request: ArtifactRequest,
    facts: ModelFacts,
    *,
    n_types: int,
) -> onnx.ModelProto:
    """Return the file's graph between the inputs and the output of the request's."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    reads = [own.name for own in proto.graph.input if own.name not in weights]
    unknown = [name for name in reads if name not in _READS]
    if unknown or "input_ids" not in reads:
        raise ExportError(
            f"{source.onnx_file} of {source.name} reads {', '.join(unknown or reads)}; qaeval "
            f"knows only {', '.join(_READS)} [QA0411]"
        )
    is_pair = request.graph == "pair_score"
    returned = [own.name for own in proto.graph.output]
    wanted = ("logits",) if is_pair else _HIDDEN
    output = next((name for name in wanted if name in returned), None)
    if output is None:
        raise ExportError(
            f"{source.onnx_file} of {source.name} returns {', '.join(returned)}; {request.graph} "
            f"needs {' or '.join(wanted)} [QA0411]"
        )
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    nodes, constants = _front(reads, is_pair=is_pair, n_types=n_types)
    ends, more = _squeeze(output) if is_pair else _pool(output, str(facts.pooling))
    graph.initializer.extend([*constants, *more])
    body = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *body, *ends])
    del graph.input[:]
    del graph.output[:]
    told = ("n_tokens", "second_start") if is_pair else ("n_tokens",)
    graph.input.append(_value("input_ids", TensorProto.INT64, ["n_rows", "n_tokens_padded"]))
    graph.input.extend(_value(name, TensorProto.INT64, ["n_rows"]) for name in told)
    axes: list[str | int] = ["n_rows"] if is_pair else ["n_rows", facts.dim]
    graph.output.append(_value("logit" if is_pair else "vector", TensorProto.FLOAT, axes))
    return made


def _value(name: str, kind: int, axes: Sequence[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, axes)


def _node(kind: str, reads: Sequence[str], makes: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, reads, [makes], name=f"{_PREFIX}{makes}", **attributes)


def _constant(name: str, value: Any, dtype: type = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), f"{_PREFIX}{name}")


_ONE = f"{_PREFIX}one"
_IS_TOKEN = f"{_PREFIX}is_token"
_TOLD = f"{_PREFIX}n_tokens"


def _front(
    reads: Sequence[str], *, is_pair: bool, n_types: int
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return what makes mask and segments of the lengths that a graph is told."""
    p = _PREFIX
    nodes = [
        _node("Shape", ["input_ids"], f"{p}shape"),
        _node("Gather", [f"{p}shape", f"{p}first"], f"{p}width", axis=0),
        _node("Range", [f"{p}zero", f"{p}width", f"{p}step"], f"{p}position"),
        _node("Unsqueeze", ["n_tokens", _ONE], _TOLD),
        _node("Less", [f"{p}position", _TOLD], _IS_TOKEN),
    ]
    constants = [
        _constant("first", 1),
        _constant("zero", 0),
        _constant("step", 1),
        _constant("one", [1]),
    ]
    if "attention_mask" in reads:
        nodes.append(_node("Cast", [_IS_TOKEN], "attention_mask", to=TensorProto.INT64))
    if is_pair:
        nodes += [
            _node("Unsqueeze", ["second_start", _ONE], f"{p}start"),
            _node("GreaterOrEqual", [f"{p}position", f"{p}start"], f"{p}is_second"),
            _node("Cast", [f"{p}is_second"], f"{p}segment", to=TensorProto.INT64),
        ]
    if "token_type_ids" in reads:
        if is_pair and n_types > 1:
            nodes.append(_node("Identity", [f"{p}segment"], "token_type_ids"))
        else:
            nodes.append(_node("Mul", ["input_ids", f"{p}zero"], "token_type_ids"))
    return nodes, constants


GraphNodes = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def _squeeze(output: str) -> GraphNodes:
    p = _PREFIX
    return [
        _node("Cast", [output], f"{p}scores", to=TensorProto.FLOAT),
        _node("Squeeze", [f"{p}scores", _ONE], "logit"),
    ], []


def _pool(output: str, how: str) -> GraphNodes:
    """Return what makes unit vectors of hidden states."""
    p = _PREFIX
    nodes = [_node("Cast", [output], f"{p}hidden", to=TensorProto.FLOAT)]
    constants: list[onnx.TensorProto] = []
    if how == "cls":
        nodes.append(_node("Gather", [f"{p}hidden", f"{p}zero"], f"{p}pooled", axis=1))
    elif how == "mean":
        nodes += [
            _node("Cast", [_IS_TOKEN], f"{p}weight", to=TensorProto.FLOAT),
            _node("Cast", [_TOLD], f"{p}length", to=TensorProto.FLOAT),
            _node("Div", [f"{p}weight", f"{p}length"], f"{p}share"),
            _node("Unsqueeze", [f"{p}share", f"{p}two"], f"{p}shares"),
            _node("Mul", [f"{p}hidden", f"{p}shares"], f"{p}shared"),
            _node("ReduceSum", [f"{p}shared", _ONE], f"{p}pooled", keepdims=0),
        ]
        constants.append(_constant("two", [2]))
    else:
        # The largest of a sorted column: axes of ReduceMax are told in another way in each opset.
        nodes += [
            _node("Unsqueeze", [_IS_TOKEN, f"{p}two"], f"{p}are_tokens"),
            _node("Where", [f"{p}are_tokens", f"{p}hidden", f"{p}least"], f"{p}masked"),
            helper.make_node(
                "TopK", [f"{p}masked", _ONE], [f"{p}largest", f"{p}where"], name=f"{p}topk", axis=1
            ),
            _node("Squeeze", [f"{p}largest", _ONE], f"{p}pooled"),
        ]
        constants += [_constant("two", [2]), _constant("least", -1e30, np.float32)]
    nodes += [
        _node("Mul", [f"{p}pooled", f"{p}pooled"], f"{p}square"),
        _node("ReduceSum", [f"{p}square", _ONE], f"{p}sum", keepdims=1),
        _node("Sqrt", [f"{p}sum"], f"{p}norm"),
        _node("Max", [f"{p}norm", f"{p}tiny"], f"{p}length_of"),
        _node("Div", [f"{p}pooled", f"{p}length_of"], "vector"),
    ]
    return nodes, [*constants, _constant("tiny", 1e-12, np.float32)]


def _check_runs(
    path: Path,
    source: ModelSource,
    request: ArtifactRequest,
    rows: Sequence[ParityRow],
    *,
    dim: int,
    precision: Precision,
) -> float:
    """Return how far a value is moved by the rows beside it, of fixed rows.

    Raises
    ------
    ExportError
        If the graph does not run, returns something else than it should, or moves values by more
        than it may: alone and twice where it is to run one row a batch.
    """
    is_pair = request.graph == "pair_score"
    opened: list[InferenceSession] = []

    def run(batch: Sequence[ParityRow]) -> list[Values]:
        (found,) = opened[0].run(None, _feed(batch, is_pair=is_pair))
        wanted = (len(batch),) if is_pair else (len(batch), dim)
        if found.shape != wanted or not np.isfinite(found).all():
            raise ExportError(
                f"{source.onnx_file} of {source.name} returns shape {found.shape} or a value that "
                f"is not finite; shape {wanted} is needed [QA0411]"
            )
        return list(found)

    try:
        opened.append(open_graph(path))
        apart = difference_by_batch_mates(run, rows)
        anew = difference_of_two_runs(run, rows) if request.one_row_batches else apart
    except ExportError:
        raise
    except Exception as error:  # ONNX Runtime's errors have no common base.
        first = next(iter(str(error).splitlines()), "")
        raise ExportError(
            f"{source.onnx_file} of {source.name} does not run: {first[:300]} [QA0411]"
        ) from None
    most = FP32_LIMIT if precision == "fp32" else FP16_LIMITS[request.graph]
    if anew <= most:
        return apart
    if request.one_row_batches:
        raise ExportError(
            f"{source.onnx_file} of {source.name} scores one row differently each time, by "
            f"{anew:.1e} (at most {most:g} is allowed) [QA0411]"
        )
    raise ExportError(
        f"{source.onnx_file} of {source.name} scores a row differently beside other rows, by "
        f"{anew:.1e} (at most {most:g} is allowed). Dynamic quantization does that. Use another "
        f"file, or --set models.{request.role}.one_row_batches=true, which is slower [QA0411]"
    )


def _feed(rows: Sequence[ParityRow], *, is_pair: bool) -> dict[str, Any]:
    n_longest = max(len(row.ids) for row in rows)
    ids = [row.ids + row.ids[-1:] * (n_longest - len(row.ids)) for row in rows]
    feed = {"input_ids": np.array(ids), "n_tokens": np.array([len(row.ids) for row in rows])}
    return (
        {**feed, "second_start": np.array([row.second_start for row in rows])} if is_pair else feed
    )
