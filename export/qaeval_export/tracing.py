"""Tracing: a loaded model -> the ONNX graph of a request, with every declared axis dynamic.

But: the graphs themselves are in ``qaeval_export.graphs``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from typing import Any

import onnx
import torch
from onnx_ir import serde
from onnx_ir.passes import common

from qaeval_core.errors import ExportError
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.graph_files import tensor_records
from qaeval_export.graphs import graph_export
from qaeval_export.graphs.operators import OPSET
from qaeval_export.loading import LoadedModel

# Smaller weights are left alone: nothing is gained, and empty ones are all equal.
_MIN_SHARED_BYTES = 2**16


def trace(loaded: LoadedModel, request: ArtifactRequest) -> onnx.ModelProto:
    """Export the graph of a request.

    Raises
    ------
    ExportError
        If the exporter failed, or fixed an axis that has to vary.
    """
    graph = graph_export(request.graph)
    module, output_axes = graph.make(loaded, request)
    axes = tuple(given.axes for given in graph.inputs.values())
    names = sorted({axis for own in axes for axis in own if isinstance(axis, str)})
    dims = {name: torch.export.Dim(name, min=1) for name in names}
    shapes = tuple(
        {i: dims[axis] for i, axis in enumerate(own) if isinstance(axis, str)} for own in axes
    )
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                module.eval(),  # Subtle: eval() of the wrapper, or dropout is exported.
                tuple(given.example for given in graph.inputs.values()),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(graph.inputs),
                output_names=[graph.output],
                dynamic_shapes=shapes,
                verbose=False,
            )
        except Exception as error:  # The exporter raises many kinds; each is one failed export.
            first = str(error).strip().splitlines() or [""]
            raise ExportError(
                f"{request.graph} of {request.model} could not be exported: "
                f"{type(error).__name__}: {first[0]} [QA0409]"
            ) from error
    # The tracer's notes hold file names of this machine: two machines would make two hashes.
    common.ClearMetadataAndDocStringPass()(program.model)
    proto = share_equal_weights(serde.to_proto(program.model))
    check_dynamic(proto, inputs=axes, outputs=(output_axes,))
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
                f"the exporter made {record.name} with shape {record.shape}; the graph declares "
                f"{axes} [QA0409]"
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
