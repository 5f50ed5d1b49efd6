"""BERT-large's graph of a request, in seconds: all its layers, one layer's bytes on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data
from transformers import BertConfig, BertModel

from benchmarks.peers import load_quietly
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.tracing import trace

N_LAYERS = 24
_SHAPE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
# Smaller ones are the same for all layers: they are nothing beside those of products.
_MIN_BYTES = 2**16


def save_large(request: ArtifactRequest, folder: Path) -> Path:
    """Save the graph, of random weights, in a folder; return its file.

    All layers are traced with the weights of one, and 1.2 GiB of others are never made. No two read
    the same weight in what is saved: a device holds as much as of a model whose layers differ.
    """
    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=1, **_SHAPE)).eval()
    model.encoder.layer = torch.nn.ModuleList([*model.encoder.layer] * N_LAYERS)
    loaded = replace(load_quietly("minilm", role="encoder"), model=model)
    return _save_apart(trace(loaded, request), folder / "model.onnx")


def _save_apart(proto: onnx.ModelProto, path: Path) -> Path:
    """Save a graph each of whose readers of a weight has one of its own, of the same bytes."""
    graph = proto.graph
    large = {own.name: own for own in graph.initializer if len(own.raw_data) >= _MIN_BYTES}
    # What turns a weight of all layers stands there once, too. ONNX Runtime leaves none of these.
    turning = [n for n in graph.node if n.op_type == "Transpose" and n.input[0] in large]
    for node in turning:
        turned = numpy_helper.to_array(large[node.input[0]]).T
        large[node.output[0]] = numpy_helper.from_array(np.ascontiguousarray(turned))
        graph.node.remove(node)
    small = [own for own in graph.initializer if own.name not in large]
    starts = {}
    with path.with_name("weights").open("wb") as file:
        for name, weight in large.items():
            starts[name] = file.tell()
            file.write(weight.raw_data)
    copies = []
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in large:
                node.input[i] = f"{name}/{len(copies)}"
                copies.append(_elsewhere(large[name], node.input[i], starts[name]))
    del graph.initializer[:]
    graph.initializer.extend([*small, *copies])
    path.write_bytes(proto.SerializeToString())
    return path


def _elsewhere(weight: onnx.TensorProto, name: str, start: int) -> onnx.TensorProto:
    """Return a weight of another name whose bytes lie in the file ``weights``."""
    own = onnx.TensorProto(name=name, dims=weight.dims, data_type=weight.data_type, raw_data=b"")
    set_external_data(own, "weights", offset=start, length=len(weight.raw_data))
    own.ClearField("raw_data")
    return own
