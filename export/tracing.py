"""Tracing: a loaded model -> the ONNX graph of a request, with every declared axis dynamic.

Knows which module belongs to which graph. But: the graphs themselves are in ``export.graphs``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from onnx_ir import serde
from onnx_ir.passes import common
from torch import Tensor, nn

from export.facts import first_position, in_span_label, pooling, wanted_layer
from export.graphs import answers, relevance_matching, token_logprobs
from export.loading import LoadedModel
from qaeval_core.errors import ExportError
from qaeval_core.models.record import ArtifactRequest, TensorRecord

__all__ = ["check_dynamic", "share_equal_weights", "tensor_records", "trace"]

# Logits of one slice are n_asked x vocab / 8 numbers: 25 MB for 1,000 tokens of 50,000 entries.
_N_SLICES = 8

# Smaller weights are left alone: nothing is gained, and empty ones are all equal.
_MIN_SHARED_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class _Plan:
    """A graph's module, example inputs and the names of its varying axes."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_axes: tuple[tuple[str | int, ...], ...]
    output_axes: tuple[tuple[str | int, ...], ...]


def trace(loaded: LoadedModel, request: ArtifactRequest) -> onnx.ModelProto:
    """Export the graph of a request.

    Raises
    ------
    ExportError
        If the exporter failed, or fixed an axis that has to vary.
    """
    plan = _plan(loaded, request)
    names = sorted({axis for axes in plan.input_axes for axis in axes if isinstance(axis, str)})
    dims = {name: torch.export.Dim(name, min=1) for name in names}
    shapes = tuple(
        {i: dims[axis] for i, axis in enumerate(axes) if isinstance(axis, str)}
        for axes in plan.input_axes
    )
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                plan.module.eval(),  # Subtle: eval() of the wrapper, or dropout is exported.
                plan.arguments,
                dynamo=True,
                input_names=list(plan.input_names),
                output_names=list(plan.output_names),
                dynamic_shapes=shapes,
                verbose=False,
            )
        except Exception as error:  # The exporter raises many kinds; each is one failed export.
            first = str(error).strip().splitlines() or [""]
            raise ExportError(
                f"{request.graph} of {request.model} could not be exported: "
                f"{type(error).__name__}: {first[0]}"
            ) from error
    # The tracer's notes hold file names of this machine: two machines would make two hashes.
    common.ClearMetadataAndDocStringPass()(program.model)
    proto = share_equal_weights(serde.to_proto(program.model))
    check_dynamic(proto, inputs=plan.input_axes, outputs=plan.output_axes)
    return proto


def share_equal_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with equal weights stored once: a tied weight arrives once per use."""
    shared = onnx.ModelProto()
    kept: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}
    shared.CopyFrom(proto)
    del shared.graph.initializer[:]
    for tensor in proto.graph.initializer:
        content = hashlib.sha256(tensor.raw_data).digest()
        key = (tensor.data_type, tuple(tensor.dims), content)
        if len(tensor.raw_data) >= _MIN_SHARED_BYTES and key in kept:
            renamed[tensor.name] = kept[key]
            continue
        kept[key] = tensor.name
        shared.graph.initializer.append(tensor)
    for node in shared.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
    return shared


def check_dynamic(
    proto: onnx.ModelProto,
    *,
    inputs: tuple[tuple[str | int, ...], ...],
    outputs: tuple[tuple[str | int, ...], ...],
) -> None:
    """Check that each axis declared by a name varies, and equal names are equal axes.

    Raises
    ------
    ExportError
        If the exporter fixed an axis, which it does in silence.
    """
    records = tensor_records(proto)
    for record, axes in zip((*records[0], *records[1]), (*inputs, *outputs), strict=True):
        if tuple(record.shape) != tuple(axes):
            raise ExportError(
                f"the exporter made {record.name} of shape {record.shape}, declared {axes}"
            )


def tensor_records(
    proto: onnx.ModelProto,
) -> tuple[tuple[TensorRecord, ...], tuple[TensorRecord, ...]]:
    """Return what the graph says of its inputs and outputs."""
    return (
        tuple(_tensor_record(value) for value in proto.graph.input),
        tuple(_tensor_record(value) for value in proto.graph.output),
    )


def _tensor_record(value: onnx.ValueInfoProto) -> TensorRecord:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    shape = tuple(d.dim_param if d.dim_param else d.dim_value for d in tensor.shape.dim)
    return TensorRecord(name=value.name, dtype=dtype, shape=shape)


def _plan(loaded: LoadedModel, request: ArtifactRequest) -> _Plan:
    if request.graph in ("relevance_matching", "relevance_matches"):
        return _plan_relevance_matching(loaded, request)
    if request.graph == "token_logprobs":
        return _plan_token_logprobs(loaded)
    return _plan_answers(loaded, request)


def _plan_answers(loaded: LoadedModel, request: ArtifactRequest) -> _Plan:
    model, first = loaded.model, first_position(loaded)
    # Three rows of different lengths; no two axes have equal size, or they would be tied.
    texts = (torch.ones(3, 24, dtype=torch.long), torch.tensor([24, 22, 20]))
    pairs = (*texts, torch.tensor([9, 7, 8]))
    asked = (torch.arange(30),)
    row: tuple[str | int, ...] = ("n_rows",)
    text_axes: tuple[tuple[str | int, ...], ...] = (("n_rows", "n_tokens_padded"), row)
    dim = int(loaded.config.hidden_size)
    if request.graph == "pair_score":
        module: nn.Module = answers.PairScore(model, first_position=first)
        return _Plan(module, pairs, answers.PAIR_INPUTS, ("logit",), (*text_axes, row), (row,))
    if request.graph == "sentence_vector":
        module = answers.SentenceVector(model, first_position=first, pooling=pooling(loaded))
        return _Plan(module, texts, answers.TEXT_INPUTS, ("vector",), text_axes, (("n_rows", dim),))
    if request.graph == "token_vectors":
        layer = wanted_layer(loaded, request)
        module = answers.TokenVectors(model, first_position=first, layer=layer)
        names = (*answers.TEXT_INPUTS, *answers.ASKED_INPUTS)
        axes = (*text_axes, ("n_asked",))
        return _Plan(module, (*texts, *asked), names, ("vectors",), axes, (("n_asked", dim),))
    label = in_span_label(loaded.config)
    module = answers.KeyphraseWeights(model, first_position=first, label=label)
    return _Plan(
        module,
        (*pairs, *asked),
        (*answers.PAIR_INPUTS, *answers.ASKED_INPUTS),
        ("weight",),
        (*text_axes, row, ("n_asked",)),
        (("n_asked",),),
    )


def _plan_relevance_matching(loaded: LoadedModel, request: ArtifactRequest) -> _Plan:
    keep_matches = request.graph == "relevance_matches"
    if loaded.model_type == "mpnet":
        raise ExportError("relevance_matching does not know MPNet's relative positions yet")
    module = relevance_matching.RelevanceMatching(
        loaded.model,
        matching=request.options["matching"],
        aggregate=request.options["aggregate"],
        first_position=first_position(loaded),
        keep_matches=keep_matches,
    )
    # Three rows of different lengths; no two axes have equal size, or they would be tied.
    arguments = (
        torch.ones(3, 24, dtype=torch.long),
        torch.tensor([24, 22, 20]),
        torch.tensor([7, 5, 6]),
        torch.tensor([9, 7, 8]),
        torch.tensor([14, 14, 11]),
        torch.arange(1, 8),
    )
    row = ("n_pairs",)
    names = relevance_matching.OUTPUT_NAMES
    of_pair: tuple[str | int, ...] = ("n_pairs", len(module.layers))
    if keep_matches:
        names, of_pair = relevance_matching.MATCHES_OUTPUT_NAMES, (*of_pair, "n_cand", 2)
    return _Plan(
        module=module,
        arguments=arguments,
        input_names=relevance_matching.INPUT_NAMES,
        output_names=names,
        input_axes=(("n_pairs", "n_tokens_padded"), row, row, row, row, ("n_cand",)),
        output_axes=(of_pair,),
    )


def _plan_token_logprobs(loaded: LoadedModel) -> _Plan:
    body = (
        token_logprobs.Gpt2Body(loaded.model)
        if loaded.model_type == "gpt2"
        else token_logprobs.LlamaBody(loaded.model)
    )
    head: Any = loaded.model.get_output_embeddings()
    module = token_logprobs.TokenLogprobs(body, head_weight=head.weight, n_slices=_N_SLICES)
    arguments = (
        torch.ones(3, 24, dtype=torch.long),
        torch.arange(30),
        torch.ones(30, dtype=torch.long),
    )
    return _Plan(
        module=module,
        arguments=arguments,
        input_names=token_logprobs.INPUT_NAMES,
        output_names=token_logprobs.OUTPUT_NAMES,
        input_axes=(("n_rows", "n_tokens_padded"), ("n_asked",), ("n_asked",)),
        output_axes=(("n_asked",),),
    )


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the exporter's progress and notes off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
