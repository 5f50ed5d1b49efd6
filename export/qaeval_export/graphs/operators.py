"""Operators: the ONNX operators that stand for attention, RMS norm and rotary positions.

torch's exporter takes these three apart, and an engine that finds them in parts writes every
(tokens x tokens) matrix to memory: on a GPU more than half of a batch's bytes. Here each is one
node, for which ONNX Runtime has one kernel on CPUs and on GPUs.

Subtle: run in torch, these return zeros; their numbers exist in the exported graph alone, which
``qaeval_export.parity`` compares with torch's own model.

Source
------
ONNX operators, opset 24: Attention, RMSNormalization, RotaryEmbedding.
"""

from __future__ import annotations

import torch
from torch import Tensor

OPSET = 24


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    n_heads: int,
    n_kv_heads: int | None = None,
    n_tokens: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return what each token makes of the values it attends to; scaled by the root of a head's dim.

    Parameters
    ----------
    query : float Tensor of shape (n_rows, n_queries, n_heads * dim_head)
    key, value : float Tensor of shape (n_rows, n_tokens, n_kv_heads * dim_head)
    n_kv_heads : int, default n_heads
        A head of keys serves n_heads / n_kv_heads heads of queries; none is repeated in memory.
    n_tokens : int64 Tensor of shape (n_rows,), optional
        Real tokens of each right-padded row: those are attended to. Without it a token attends to
        itself and to what stands before it; both together ONNX Runtime computes in other ways on
        other devices.
    bias : float Tensor of shape (1, n_heads, n_queries, n_tokens), optional
        Added to the scaled products.

    Returns
    -------
    float Tensor of the shape of ``query``
    """
    n_kv_heads = n_kv_heads or n_heads
    dim_head = query.shape[2] // n_heads
    mixed: Tensor = torch.onnx.ops.symbolic(
        "::Attention",
        (query, key, value, bias, None, None, n_tokens),
        attrs={
            "is_causal": int(n_tokens is None),
            "q_num_heads": n_heads,
            "kv_num_heads": n_kv_heads,
            "scale": float(dim_head**-0.5),
        },
        dtype=query.dtype,
        shape=query.shape,
        version=OPSET,
    )
    return mixed


def rms_norm(hidden: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
    """Return tokens over the root of their mean square, weighted; the square is fp32 in fp16 too.

    Subtle: squares of hidden states overflow fp16 (SmolLM2 has values of 24,926).
    """
    normed: Tensor = torch.onnx.ops.symbolic(
        "::RMSNormalization",
        (hidden, weight),
        attrs={"axis": -1, "epsilon": epsilon, "stash_type": 1},
        dtype=hidden.dtype,
        shape=hidden.shape,
        version=OPSET,
    )
    return normed


def rotate(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, *, n_heads: int) -> Tensor:
    """Return heads turned by their position.

    Parameters
    ----------
    x : float Tensor of shape (n_rows, n_tokens, n_heads * dim_head)
    cos, sin : float Tensor of shape (n_positions, dim_head / 2)
    position : int64 Tensor of shape (n_rows, n_tokens)
    """
    rotated: Tensor = torch.onnx.ops.symbolic(
        "::RotaryEmbedding",
        (x, cos, sin, position),
        attrs={"num_heads": n_heads},
        dtype=x.dtype,
        shape=x.shape,
        version=OPSET,
    )
    return rotated
