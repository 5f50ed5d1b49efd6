"""Precision: an fp32 graph -> an fp16 graph, and how far each may be from torch fp32."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from onnxruntime.transformers import float16

__all__ = ["MIN_SPEARMAN", "TOLERANCES", "convert"]

# Ranks of the fixed pairs by their mean value; below this, metrics would order texts differently.
MIN_SPEARMAN = 0.999

# Largest allowed difference of one value, by graph and precision.
TOLERANCES: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("relevance_matching", "fp32"): 1e-4,
        ("token_logprobs", "fp32"): 1e-4,
        ("relevance_matching", "fp16"): 2e-2,
        ("token_logprobs", "fp16"): 5e-2,
    }
)


def convert(proto: onnx.ModelProto, *, graph: str, precision: str) -> onnx.ModelProto:
    """Return the graph in another precision; inputs and outputs keep their types."""
    if precision == "fp32":
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return float16.convert_float_to_float16(copy, keep_io_types=True)
