"""Graph files: graphs to files and sessions, and what a record says of their inputs and outputs."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort

from qaeval_core.models.record import TensorRecord

# Protobuf ends at 2 GiB; the rest is room for the graph itself.
_MAX_ONE_FILE_BYTES = 1_800_000_000


def save_graph(proto: onnx.ModelProto, folder: Path) -> None:
    """Save a graph as ``model.onnx``, its weights beside it where they are large."""
    for file in ("model.onnx", "model.onnx.data"):
        (folder / file).unlink(missing_ok=True)
    n_bytes = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    if n_bytes < _MAX_ONE_FILE_BYTES:
        onnx.save(proto, folder / "model.onnx")
        return
    # Subtle: saving with external data empties the tensors of the proto it is given.
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    onnx.save(copy, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")


def open_graph(model: Path | bytes) -> ort.InferenceSession:
    """Open a graph, a file or its bytes, on the CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    given = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])


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
