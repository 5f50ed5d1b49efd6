"""Token log-probabilities of a causal LM: one number per asked token.

Token ids in, log p(token | tokens before it) out. The vocabulary is reduced in slices inside the
graph and only at the asked positions, so no [tokens x vocabulary] array exists, not even inside.
It knows GPT-2 and Llama-type models (Llama, SmolLM2, Mistral and Qwen2 without sliding windows).

Source
------
Wang et al. QRelScore. EMNLP 2022, arXiv:2204.13921, section 2.2, eq. 6-8. With z_v the logit of
vocabulary entry v after the prefix::

    log p(s_t | s_<t) = z_{s_t} - log sum_v exp(z_v)

Differs from the authors' code
------------------------------
Theirs materializes all logits of one text; here z_{s_t} is one dot product per token and the
normalizer a log-sum-exp over vocabulary slices.

But: which tokens count, sums and gain ratios are not here (``qaeval_core.metrics.qrelscore``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.graphs.base import (
    TEXTS,
    Axes,
    GraphExport,
    GraphRows,
    Input,
    asked_rows,
    asked_values,
)
from qaeval_export.graphs.encoder import positions
from qaeval_export.graphs.operators import attention, rms_norm, rotate
from qaeval_export.loading import LoadedModel
from qaeval_export.parity import ParityRow, prompted_rows

# Logits of one slice are n_asked x vocab / 8 numbers: 25 MB for 1,000 tokens of 50,000 entries.
_N_SLICES = 8


class TokenLogprobs(nn.Module):  # type: ignore[misc]
    """Log-probability of chosen tokens under a causal LM.

    Parameters
    ----------
    body : nn.Module
        Token ids of shape (n_rows, n_tokens) to final hidden states (n_rows, n_tokens, dim).
    head_weight : float Tensor of shape (vocab, dim)
        The output embedding.
    n_slices : int
        Vocabulary slices: memory is tokens x vocab / n_slices.
    """

    def __init__(self, body: nn.Module, *, head_weight: Tensor, n_slices: int) -> None:
        super().__init__()
        self.body = body
        self.output_embedding = (
            head_weight  # Subtle: the same object, or tied weights are stored twice.
        )
        slices = head_weight.detach().chunk(n_slices)
        self.head_slices = nn.ParameterList(part.t().contiguous() for part in slices)

    def forward(self, input_ids: Tensor, prefix_rows: Tensor, target_ids: Tensor) -> Tensor:
        """Return log p(target | prefix) for each asked token.

        Parameters
        ----------
        input_ids : int64 Tensor of shape (n_rows, n_tokens)
            Right-padded. Padding needs no mask: no earlier position can see it.
        prefix_rows : int64 Tensor of shape (n_asked,)
            row * n_tokens + position of the last prefix token of each asked token.
        target_ids : int64 Tensor of shape (n_asked,)
            The asked token ids.

        Returns
        -------
        float Tensor of shape (n_asked,)
            Natural-log probabilities, in nats; <= 0.
        """
        hidden = self.body(input_ids).flatten(0, 1).index_select(0, prefix_rows)
        target = self.output_embedding.index_select(0, target_ids)
        logit = (hidden.float() * target.float()).sum(dim=1)  # z_{s_t}
        normalizer = torch.stack([_log_sum_exp(hidden @ part) for part in self.head_slices])
        return logit - torch.logsumexp(normalizer, dim=0)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Return log sum exp over the last axis in fp32.

    Subtle: x_0 - log_softmax(x)_0 is the normalizer, and log_softmax is one fused, row-wise
    kernel in ONNX Runtime where max, subtract, exp and sum are four passes over memory.
    """
    logits = logits.float()
    return logits[:, 0] - functional.log_softmax(logits, dim=-1)[:, 0]


class Gpt2Body(nn.Module):  # type: ignore[misc]
    """Hidden states of a transformers GPT-2 after its last layer norm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        core = model.transformer
        self.wte, self.wpe, self.blocks, self.ln_f = core.wte, core.wpe, core.h, core.ln_f
        # transformers writes this activation out; as one operator no cube of it stands in memory.
        is_tanh_gelu = model.config.activation_function == "gelu_new"
        self.act = nn.GELU(approximate="tanh") if is_tanh_gelu else core.h[0].mlp.act

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.wte(input_ids) + self.wpe(positions(input_ids))
        for block in self.blocks:
            hidden = hidden + self._attend(block.attn, block.ln_1(hidden))
            wide = self.act(block.mlp.c_fc(block.ln_2(hidden)))
            hidden = hidden + block.mlp.c_proj(wide)
        return self.ln_f(hidden)

    @staticmethod
    def _attend(block: nn.Module, hidden: Tensor) -> Tensor:
        query, key, value = block.c_attn(hidden).chunk(3, dim=2)
        return block.c_proj(attention(query, key, value, n_heads=block.num_heads))


class LlamaBody(nn.Module):  # type: ignore[misc]
    """Hidden states of a transformers Llama-type model after its last norm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        core, config = model.model, model.config
        self.embed_tokens, self.norm = core.embed_tokens, core.norm
        self.layers = nn.ModuleList(_LlamaLayer(layer, config) for layer in core.layers)
        n_positions = config.max_position_embeddings
        cos, sin = core.rotary_emb(torch.zeros(1), torch.arange(n_positions).unsqueeze(0))
        n_half = cos.shape[2] // 2  # Both halves are the same.
        self.register_buffer("cos", cos[0, :, :n_half].contiguous(), persistent=False)
        self.register_buffer("sin", sin[0, :, :n_half].contiguous(), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed_tokens(input_ids)
        rotary = (self.cos, self.sin, positions(input_ids).expand_as(input_ids))
        for layer in self.layers:
            hidden = layer(hidden, rotary)
        return _normed(self.norm, hidden)


class _LlamaLayer(nn.Module):  # type: ignore[misc]
    """One Llama layer with two fused products: key/value, and gate/up.

    Subtle: what stands in one product is cut into equal parts. Where there are fewer heads of keys
    than of queries, a cut of all three would be unequal, and costs CUDA eight copies to the device.
    """

    def __init__(self, layer: nn.Module, config: Any) -> None:
        super().__init__()
        block, mlp = layer.self_attn, layer.mlp
        self.n_heads: int = config.num_attention_heads
        self.n_kv_heads: int = config.num_key_value_heads
        self.q_proj, self.key_value = block.q_proj, _fuse(block.k_proj, block.v_proj)
        self.gate_up = _fuse(mlp.gate_proj, mlp.up_proj)
        self.o_proj, self.down_proj, self.act_fn = block.o_proj, mlp.down_proj, mlp.act_fn
        self.norm_in, self.norm_mlp = layer.input_layernorm, layer.post_attention_layernorm

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.o_proj(self._attend(_normed(self.norm_in, hidden), rotary))
        gate, up = self.gate_up(_normed(self.norm_mlp, hidden)).chunk(2, dim=2)
        return hidden + self.down_proj(self.act_fn(gate) * up)

    def _attend(self, hidden: Tensor, rotary: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        query = rotate(self.q_proj(hidden), *rotary, n_heads=self.n_heads)
        key, value = self.key_value(hidden).chunk(2, dim=2)
        key = rotate(key, *rotary, n_heads=self.n_kv_heads)
        return attention(query, key, value, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads)


def _normed(norm: nn.Module, hidden: Tensor) -> Tensor:
    return rms_norm(hidden, norm.weight, epsilon=norm.variance_epsilon)


def _fuse(*linears: nn.Linear) -> nn.Linear:
    """Return one linear layer whose output is the given layers' outputs side by side."""
    weight = torch.cat([linear.weight for linear in linears]).detach()
    fused = nn.Linear(weight.shape[1], weight.shape[0], bias=linears[0].bias is not None)
    fused.weight = nn.Parameter(weight)
    if linears[0].bias is not None:
        fused.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]).detach())
    return fused


def _make(loaded: LoadedModel, _: ArtifactRequest) -> tuple[nn.Module, Axes]:
    body = Gpt2Body if loaded.model_type == "gpt2" else LlamaBody
    head: Any = loaded.model.get_output_embeddings()
    module = TokenLogprobs(body(loaded.model), head_weight=head.weight, n_slices=_N_SLICES)
    return module, ("n_asked",)


def _asked(row: ParityRow) -> range:
    return range(len(row.ids) - 1)  # the last prefix token of each token but the first


def _targets(rows: GraphRows) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(row.ids[1:]) for row in rows])


TOKEN_LOGPROBS = GraphExport(
    make=_make,
    inputs={
        "input_ids": TEXTS["input_ids"],
        "prefix_rows": asked_rows(_asked),
        "target_ids": Input(torch.ones(30, dtype=torch.long), ("n_asked",), _targets),
    },
    output="token_logprob_nats",
    make_rows=prompted_rows,
    values=asked_values(_asked),
    # Measured: fp32 4e-5 nats on values down to -19.4, rounding of 30 layers; deeper models round
    # more. A wrong graph is off by whole nats. fp16: 4e-2 nats at worst, 3e-3 at the median.
    tolerance={"fp32": 5e-4, "fp16": 1e-1, "bf16": 2e-1},
)
