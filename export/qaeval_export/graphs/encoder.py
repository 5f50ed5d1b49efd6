"""Encoder: the layers of BERT-like models, in parts that graphs put together and reduce.

Right-padded token ids in, hidden states of one layer out. It knows BERT, ELECTRA, RoBERTa, XLM-R,
CamemBERT and MPNet, and computes no more than a graph reads: layers above the wanted one are left
out, and the last one can be run for the first token alone.

But: what becomes of hidden states is not here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qaeval_export.graphs.operators import attention


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """One layer with query, key and value projected by one matrix product."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        block = layer.attention
        own: Any
        if hasattr(block, "attn"):  # MPNet
            own = block.attn
            projections = (own.q, own.k, own.v)
            self.attention_output: nn.Module = _MpnetOutput(own.o, block.LayerNorm)
        else:
            own = block.self
            projections = (own.query, own.key, own.value)
            self.attention_output = block.output
        self.n_heads: int = own.num_attention_heads
        self.dim_head: int = own.attention_head_size
        self.qkv_weight = nn.Parameter(torch.cat([p.weight for p in projections]).detach())
        self.qkv_bias = nn.Parameter(torch.cat([p.bias for p in projections]).detach())
        self.intermediate = layer.intermediate
        self.output = layer.output

    def forward(self, hidden: Tensor, n_tokens: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the layer's output for every token."""
        return self.attend(*self.project(hidden), hidden, n_tokens, bias)

    def attend(  # noqa: PLR0917, three parts of attention and what it is of
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        residual: Tensor,
        n_tokens: Tensor,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's output; no (tokens x tokens) matrix leaves the operator."""
        mixed = attention(query, key, value, n_heads=self.n_heads, n_tokens=n_tokens, bias=bias)
        return self.finish(mixed, residual)

    def heads(self, x: Tensor) -> Tensor:
        """Split (n_rows, n, dim) into (n_rows, n_heads, n, dim_head)."""
        return x.unflatten(2, (self.n_heads, self.dim_head)).transpose(1, 2)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key, value, each of shape (n_rows, n_tokens, dim)."""
        query, key, value = functional.linear(hidden, self.qkv_weight, self.qkv_bias).chunk(3, 2)
        return query, key, value

    def project_query(self, hidden: Tensor) -> Tensor:
        """Return the query alone."""
        dim = hidden.shape[-1]
        return functional.linear(hidden, self.qkv_weight[:dim], self.qkv_bias[:dim])

    def project_key_value(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return key and value."""
        dim = hidden.shape[-1]
        both = functional.linear(hidden, self.qkv_weight[dim:], self.qkv_bias[dim:])
        key, value = both.chunk(2, 2)
        return key, value

    def probabilities(self, query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
        """Return attention probabilities of shape (n_rows, n_heads, n_queries, n_tokens).

        For few queries, or where something reads them.
        """
        scaled = self.heads(query) * (self.dim_head**-0.5)
        return torch.softmax(scaled @ self.heads(key).transpose(2, 3) + bias, dim=-1)

    def mix(self, probabilities: Tensor, value: Tensor) -> Tensor:
        """Return the values that the given probabilities weigh, heads side by side."""
        return (probabilities @ self.heads(value)).transpose(1, 2).flatten(2)

    def finish(self, mixed: Tensor, residual: Tensor) -> Tensor:
        """Return the layer's output for tokens whose attention is done."""
        attended = self.attention_output(mixed, residual)
        return self.output(self.intermediate(attended), attended)


class _MpnetOutput(nn.Module):  # type: ignore[misc]
    """MPNet's attention output in the form of BERT's."""

    def __init__(self, dense: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.norm = dense, norm

    def forward(self, mixed: Tensor, residual: Tensor) -> Tensor:
        return self.norm(self.dense(mixed) + residual)


class EncoderEmbeddings(nn.Module):  # type: ignore[misc]
    """Word, position and segment embeddings.

    Parameters
    ----------
    encoder : nn.Module
        A transformers encoder in eval mode.
    first_position : int
        Position id of the first token: 0 for BERT, padding_idx + 1 for RoBERTa and MPNet.
    """

    def __init__(self, encoder: nn.Module, *, first_position: int) -> None:
        super().__init__()
        parts = encoder.embeddings
        self.words, self.positions = parts.word_embeddings, parts.position_embeddings
        self.norm = parts.LayerNorm
        self.segments = getattr(parts, "token_type_embeddings", None)  # MPNet has none
        self.project = getattr(encoder, "embeddings_project", None)  # ELECTRA may have one
        self.first_position = first_position

    def forward(self, input_ids: Tensor, position: Tensor, is_second: Tensor | None) -> Tensor:
        """Return embeddings; ``is_second`` marks the tokens of the second text, if there is one."""
        hidden = self.words(input_ids) + self.positions(position + self.first_position)
        if self.segments is not None:
            # RoBERTa has one token type; BERT gives the second text, from its first token on, 1.
            segment = torch.zeros_like(input_ids)
            if is_second is not None and self.segments.num_embeddings > 1:
                segment = is_second.long()
            hidden = hidden + self.segments(segment)
        hidden = self.norm(hidden)
        return hidden if self.project is None else self.project(hidden)


class Encoder(nn.Module):  # type: ignore[misc]
    """Hidden states of one layer for right-padded rows.

    Parameters
    ----------
    encoder : nn.Module
        A transformers encoder in eval mode.
    first_position : int
        Position id of the first token.
    n_layers : int
        Layers to run: 0 gives the embeddings.
    """

    def __init__(self, encoder: nn.Module, *, first_position: int, n_layers: int) -> None:
        super().__init__()
        self.embeddings = EncoderEmbeddings(encoder, first_position=first_position)
        stack = encoder.encoder
        self.layers = nn.ModuleList(EncoderLayer(layer) for layer in stack.layer[:n_layers])
        relative = getattr(stack, "relative_attention_bias", None)  # MPNet
        self.relative_bias = relative
        self.bucket = stack.relative_position_bucket if relative is not None else None

    def forward(
        self, input_ids: Tensor, n_tokens: Tensor, second_start: Tensor | None = None
    ) -> Tensor:
        """Return hidden states of shape (n_rows, n_tokens, dim) after the last wanted layer."""
        hidden, relative = self.start(input_ids, second_start)
        for layer in self.layers:
            hidden = layer(hidden, n_tokens, relative)
        return hidden

    def first_token(
        self, input_ids: Tensor, n_tokens: Tensor, second_start: Tensor | None = None
    ) -> Tensor:
        """Return the first token's hidden state, shape (n_rows, 1, dim).

        The last layer runs for that token alone: query, attention output and feed-forward of all
        others are read by nothing.
        """
        hidden, relative = self.start(input_ids, second_start)
        for layer in self.layers[:-1]:
            hidden = layer(hidden, n_tokens, relative)
        last = self.layers[-1]
        first = hidden[:, :1]
        key, value = last.project_key_value(hidden)
        bias = padding_bias(input_ids, n_tokens, hidden.dtype)
        if relative is not None:
            bias = bias + relative[:, :, :1]
        # One row of probabilities is nothing to save: the operator would split it over the chip.
        probabilities = last.probabilities(last.project_query(first), key, bias)
        return last.finish(last.mix(probabilities, value), first)

    def start(self, input_ids: Tensor, second_start: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return embeddings, and MPNet's relative positions, which are added to products."""
        position = positions(input_ids)
        is_second = None if second_start is None else position >= second_start.unsqueeze(1)
        hidden = self.embeddings(input_ids, position, is_second)
        if self.relative_bias is None or self.bucket is None:
            return hidden, None
        distance = position - position.transpose(0, 1)  # of the attended token
        buckets = self.bucket(distance, num_buckets=self.relative_bias.num_embeddings)
        return hidden, self.relative_bias(buckets).permute(2, 0, 1).unsqueeze(0)


def positions(input_ids: Tensor) -> Tensor:
    """Return 0, 1, ... of a row's tokens; shape (1, n_tokens)."""
    return torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)


def padding_bias(input_ids: Tensor, n_tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what takes padding out of attention: (n_rows, 1, 1, n_tokens), added to products."""
    bias = torch.where(positions(input_ids) < n_tokens.unsqueeze(1), 0.0, -1e4).to(dtype)
    return bias.unsqueeze(1).unsqueeze(1)


def take_rows(hidden: Tensor, rows: Tensor) -> Tensor:
    """Return the tokens at row * n_tokens + position; shape (n_asked, dim)."""
    return hidden.flatten(0, 1).index_select(0, rows)
