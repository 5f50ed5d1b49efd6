"""Limits: what an export may take, and what a model's files must be before they are loaded."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from math import prod

import onnx
from onnx import helper

from qaeval_core.errors import ExportError
from qaeval_core.models.source import ModelSource

# Measured: an embedded model of 94 MB (quantized) takes 5.0 GB, one of 90 MB in fp32 1.5 GB.
_LEAST_BYTES = 8 << 30
_PER_FILE_BYTE = 16
# Tensors that are stored once and named often.
_MOST_PER_FILE_BYTE = 2


def limit_memory(source: ModelSource, max_memory_gb: float | None) -> None:
    """Let this process have no more memory than a model of this size needs, and leave no core."""
    most = _LEAST_BYTES + _PER_FILE_BYTE * source.n_bytes()
    if max_memory_gb is not None:
        most = int(max_memory_gb * 1e9)
    for kind, limit in ((resource.RLIMIT_DATA, most), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)  # noqa: PLW2901
        with contextlib.suppress(ValueError, OSError):  # A system that has no such limit.
            resource.setrlimit(kind, (limit, hard))


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors of a model: of its graph, of those inside it, and of its functions."""
    yield from _of_graph(proto.graph)
    for function in proto.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                yield from _of_graph(inner)


def check_sizes(proto: onnx.ModelProto, source: ModelSource) -> None:
    """Raise ExportError if tensors say that they are far larger than the files that hold them."""
    n_file_bytes = source.n_bytes(".onnx")
    n_bytes = sum(map(_n_bytes, tensors_of(proto)))
    if n_bytes > _MOST_PER_FILE_BYTE * n_file_bytes:
        raise ExportError(
            f"{source.onnx_file} of {source.name} declares tensors of {n_bytes / 1e9:,.1f} GB, and "
            f"its files have {n_file_bytes / 1e9:,.1f} GB [QA0411]"
        )


def _n_bytes(tensor: onnx.TensorProto) -> int:
    if not tensor.dims or any(own < 0 for own in tensor.dims):
        return 0
    try:
        width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError, TypeError):
        width = 1
    return prod(map(int, tensor.dims)) * int(width)
