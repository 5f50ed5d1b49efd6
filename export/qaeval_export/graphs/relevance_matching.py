"""Relevance matching: one number per (candidate, context) pair and encoder layer.

Token ids of ``[CLS] X [SEP] C [SEP]`` in, ``Prec_l`` of QRelScore out; every attention matrix and
hidden state is reduced inside the graph. It knows the BERT layer (BERT, RoBERTa, XLM-R, ELECTRA).

Source
------
Wang et al. QRelScore. EMNLP 2022, arXiv:2204.13921, section 2.1, eq. 2-4. With h^l the hidden state
after layer l and a^l_mn the largest attention over the heads of layer l from x_m to c_n::

    attended:  n*(m) = argmax_n a^l_mn,   Prec_l = mean_m cos(h^l_{x_m}, h^l_{c_n*})
    weighted:  Prec_l = mean_m agg_n( a^l_mn * cos(h^l_{x_m}, h^l_{c_n}) ),   agg = max or average

Differs from the authors' code (evalpackage/mlmscore)
-----------------------------------------------------
- Theirs returns all hidden states and attentions of one pair; here the same numbers are reduced
  in the graph, for a padded batch.
- Theirs stops one token early on both sides; here the caller says how many tokens count.

The same module is the graph ``relevance_matches``: what the means are taken of, for explaining one
pair.

But: windows, power means, baselines are not here (``qaeval_core.metrics.qrelscore``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qaeval_core.errors import ExportError
from qaeval_core.models.batches import exact_widths
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.graphs.base import (
    TEXTS,
    Axes,
    GraphExport,
    GraphRows,
    Input,
    Output,
    padded_width,
    per_row,
)
from qaeval_export.graphs.encoder import EncoderEmbeddings, EncoderLayer, padding_bias, positions
from qaeval_export.graphs.layer_cosines import LayerCosines
from qaeval_export.loading import LoadedModel, first_position
from qaeval_export.parity import Values, pair_rows


class _Match(NamedTuple):
    """What each candidate token is matched to in one layer; Tensors of shape (n_pairs, n_cand)."""

    position: Tensor  # of the context token; only read where matches are the output
    worth: Tensor


class _Batch(NamedTuple):
    """Which tokens of a batch are what."""

    n_tokens: Tensor  # (n_pairs,)
    bias: Tensor  # (n_pairs, 1, 1, n_tokens), takes padding out of attention
    in_context: Tensor  # (n_pairs, n_tokens)
    row_start: Tensor  # (n_pairs, 1), row number of a pair's first token
    candidate_positions: Tensor  # (n_cand,)
    candidate_rows: Tensor  # (n_pairs, n_cand), their row numbers


class RelevanceMatching(nn.Module):  # type: ignore[misc]
    """QRelScore's layer-wise matching precision, reduced inside the graph.

    Parameters
    ----------
    encoder : nn.Module
        A transformers BERT, RoBERTa, XLM-R or ELECTRA encoder in eval mode.
    matching : {"attended", "weighted"}
        Which reading of eq. 4.
    aggregate : {"max", "average"}
        ``agg`` of the weighted reading.
    first_position : int
        Position id of the first token: 0 for BERT, padding_idx + 1 for the RoBERTa family.
    keep_matches : bool, default False
        Return the matches themselves in place of their mean.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        matching: str,
        aggregate: str,
        first_position: int,
        keep_matches: bool = False,
    ) -> None:
        super().__init__()
        self.embeddings = EncoderEmbeddings(encoder, first_position=first_position)
        self.layers = nn.ModuleList(EncoderLayer(layer) for layer in encoder.encoder.layer)
        self.matching = matching
        self.aggregate = aggregate
        self.keep_matches = keep_matches

    def forward(  # noqa: PLR0917, the graph's inputs in order
        self,
        input_ids: Tensor,
        n_tokens: Tensor,
        n_candidate: Tensor,
        context_start: Tensor,
        n_context: Tensor,
        candidate_positions: Tensor,
    ) -> Tensor:
        """Return Prec_l for each pair and layer, or what it is the mean of.

        Parameters
        ----------
        input_ids : int64 Tensor of shape (n_pairs, n_tokens)
            Right-padded ids of the encoder's pair template.
        n_tokens : int64 Tensor of shape (n_pairs,)
            Real tokens of each row, special tokens included.
        n_candidate : int64 Tensor of shape (n_pairs,)
            Candidate tokens that count, at least 1; they start at position 1.
        context_start : int64 Tensor of shape (n_pairs,)
            Position of the first context token.
        n_context : int64 Tensor of shape (n_pairs,)
            Context tokens that count, at least 1.
        candidate_positions : int64 Tensor of shape (n_cand,)
            1, 2, ..., n_cand with n_cand the largest n_candidate of the batch.

        Returns
        -------
        float Tensor of shape (n_pairs, n_layers)
            Prec_l. Unitless, in [-1, 1] (attended), higher is better. With ``keep_matches`` a
            float Tensor of shape (n_pairs, n_layers, n_cand, 2): which context token (0 is the
            first) each candidate token is matched to, and what that is worth; Prec_l is its mean
            over the candidate's tokens. Where the average is taken, the context token is the one
            that is worth most.
        """
        # A token of the batch has a row number, row * n_tokens + position: the flattened hidden
        # states are indexed by it.
        position = positions(input_ids)
        start = context_start.unsqueeze(1)  # (n_pairs, 1)
        in_context = (position >= start) & (position < start + n_context.unsqueeze(1))
        hidden = self.embeddings(input_ids, position, position >= start)
        row_start = torch.arange(input_ids.shape[0], device=input_ids.device).unsqueeze(1)
        row_start = row_start * input_ids.shape[1]
        batch = _Batch(
            n_tokens=n_tokens,
            bias=padding_bias(input_ids, n_tokens, hidden.dtype),
            in_context=in_context,
            row_start=row_start,
            candidate_positions=candidate_positions,
            candidate_rows=row_start + candidate_positions.unsqueeze(0),
        )
        weight = (candidate_positions.unsqueeze(0) <= n_candidate.unsqueeze(1)).to(hidden.dtype)
        # 1 / n_candidate on candidate tokens, 0 on what stands beside a shorter candidate.
        weight = weight / n_candidate.unsqueeze(1).to(hidden.dtype)  # (n_pairs, n_cand)

        reduced = []
        for layer in self.layers[:-1]:
            attention, hidden = _attended(layer, hidden, batch)
            reduced.append(self._reduce(self._match(hidden, attention, batch), weight, start))
        last = self._last_layer if self.matching == "attended" else self._last_layer_whole
        reduced.append(self._reduce(last(hidden, batch), weight, start))
        return torch.stack(reduced, dim=1)

    def _reduce(self, match: _Match, weight: Tensor, start: Tensor) -> Tensor:
        if self.keep_matches:
            index = (match.position - start).to(match.worth.dtype)
            return torch.stack([index, match.worth], dim=2)
        return (match.worth * weight).sum(dim=1)

    def _match(self, hidden: Tensor, attention: Tensor, batch: _Batch) -> _Match:
        """Return what each candidate token is matched to in this layer, and what it is worth."""
        flat = hidden.flatten(0, 1)
        candidate = _take(flat, batch.candidate_rows)
        if self.matching == "attended":
            best_context = _attended_position(attention, batch.in_context)  # n*(m)
            matched = _take(flat, batch.row_start + best_context)
            return _Match(best_context, _cosine(candidate, matched))
        unit_candidate = functional.normalize(candidate, dim=-1)
        cosine = unit_candidate @ functional.normalize(hidden, dim=-1).transpose(1, 2)
        worth = attention * cosine  # a^l_mn cos(x_m, c_n)
        allowed = batch.in_context.unsqueeze(1)
        position = batch.candidate_rows
        if self.keep_matches:  # What nothing reads would still stand in the graph and its hash.
            position = worth.masked_fill(~allowed, -2.0).argmax(dim=2)
        if self.aggregate == "max":
            return _Match(position, worth.masked_fill(~allowed, -2.0).amax(dim=2))
        kept = worth.masked_fill(~allowed, 0.0).sum(dim=2)
        return _Match(position, kept / batch.in_context.sum(dim=1, keepdim=True).to(kept.dtype))

    def _last_layer(self, hidden: Tensor, batch: _Batch) -> _Match:
        """Compute the last layer for the 2 x n_cand tokens that anything reads.

        Only h^L of candidate tokens and of the context tokens they attend to is used, so query,
        attention output and feed-forward run on those alone: for a 20-token question and a
        180-token context about 80 % of the layer's work is not done.
        """
        layer = self.layers[-1]
        flat = hidden.flatten(0, 1)
        candidate = _take(flat, batch.candidate_rows)
        key, value = layer.project_key_value(hidden)
        probabilities = layer.probabilities(layer.project_query(candidate), key, batch.bias)
        best_context = _attended_position(probabilities.amax(dim=1), batch.in_context)
        matched = _take(flat, batch.row_start + best_context)
        of_matched = layer.probabilities(layer.project_query(matched), key, batch.bias)
        mixed = layer.mix(torch.cat([probabilities, of_matched], dim=2), value)
        both = layer.finish(mixed, torch.cat([candidate, matched], dim=1))
        n_cand = batch.candidate_positions.shape[0]
        return _Match(best_context, _cosine(both[:, :n_cand], both[:, n_cand:]))

    def _last_layer_whole(self, hidden: Tensor, batch: _Batch) -> _Match:
        attention, hidden = _attended(self.layers[-1], hidden, batch)
        return self._match(hidden, attention, batch)


def _attended(layer: nn.Module, hidden: Tensor, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Return a^l_mn of candidate tokens, the largest over heads, and the layer's output.

    The operator shows no probabilities. Candidates are a tenth of the tokens, so theirs are
    computed once more, beside it: (n_pairs, n_heads, n_cand, n_tokens) in place of all tokens'.
    """
    query, key, value = layer.project(hidden)
    candidate = query.index_select(1, batch.candidate_positions)
    seen = layer.probabilities(candidate, key, batch.bias).amax(
        dim=1
    )  # (n_pairs, n_cand, n_tokens)
    return seen, layer.attend(query, key, value, hidden, batch.n_tokens)


def _attended_position(attention: Tensor, in_context: Tensor) -> Tensor:
    """Return argmax_n a_mn over context tokens, the first on ties; shape (n_pairs, n_cand)."""
    return attention.masked_fill(~in_context.unsqueeze(1), -1.0).argmax(dim=2)


def _take(flat: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a (n_pairs * n_tokens, dim) matrix as (n_pairs, n_cand, dim)."""
    taken = flat.index_select(0, rows.flatten())
    return taken.reshape(rows.shape[0], rows.shape[1], flat.shape[1])


def _cosine(left: Tensor, right: Tensor) -> Tensor:
    unit_left = functional.normalize(left, dim=-1)
    return (unit_left * functional.normalize(right, dim=-1)).sum(dim=-1)


def _make(
    loaded: LoadedModel, request: ArtifactRequest, *, keep_matches: bool = False
) -> tuple[nn.Module, Axes]:
    if loaded.model_type == "mpnet":
        raise ExportError(
            "relevance_matching does not support the relative positions of MPNet yet [QA0408]"
        )
    if request.options["aggregate"] == "mover":
        cosines = LayerCosines(loaded.model, first_position=first_position(loaded))
        return cosines, ("n_pairs", len(cosines.layers), "n_cand", "n_tokens_padded")
    module = RelevanceMatching(
        loaded.model,
        matching=request.options["matching"],
        aggregate=request.options["aggregate"],
        first_position=first_position(loaded),
        keep_matches=keep_matches,
    )
    of_pair: Axes = ("n_pairs", len(module.layers))
    return module, (*of_pair, "n_cand", 2) if keep_matches else of_pair


def _candidate_positions(rows: GraphRows) -> NDArray[np.int64]:
    n = max(len(row.candidate_ids) for row in rows)
    if any(row.width for row in rows):  # Rows of exact batches have candidates of one width, too.
        n = int(exact_widths(np.array([n]), has_short_steps=False)[0])
    # Those beyond a candidate are left out by the graph, whatever they name.
    return np.minimum(np.arange(1, n + 1), padded_width(rows) - 1)


_of_pair = partial(per_row, axis="n_pairs")
# Three rows of different lengths; no two axes have equal size, or they would be tied.
_INPUTS = {
    "input_ids": TEXTS["input_ids"]._replace(axes=("n_pairs", "n_tokens_padded")),
    "n_tokens": _of_pair([24, 22, 20], lambda row: len(row.ids)),
    "n_candidate": _of_pair([7, 5, 6], lambda row: len(row.candidate_ids)),
    "context_start": _of_pair([9, 7, 8], lambda row: row.second_start),
    "n_context": _of_pair([14, 14, 11], lambda row: len(row.context_ids)),
    "candidate_positions": Input(torch.arange(1, 8), ("n_cand",), _candidate_positions),
}


def _layer_values(output: Output, rows: GraphRows) -> list[Values]:
    if output.ndim == 2:
        return list(output)  # of shape (n_layers,) each
    # Cosines, of shape (n_pairs, n_layers, n_cand, n_tokens).
    return [
        own[:, : len(row.candidate_ids), row.second_start :][:, :, : len(row.context_ids)].reshape(
            -1
        )
        for own, row in zip(output, rows, strict=True)
    ]


def _match_values(output: Output, rows: GraphRows) -> list[Values]:
    # A wrong position has another worth. Positions themselves may differ where attentions tie.
    worth = output[..., 1]  # (n_pairs, n_layers, n_cand)
    return [own[:, : len(row.candidate_ids)].ravel() for own, row in zip(worth, rows, strict=True)]


RELEVANCE_MATCHING = GraphExport(
    make=_make,
    inputs=_INPUTS,
    output="layer_precision",
    make_rows=pair_rows,
    values=_layer_values,
    # Measured: fp32 3e-7. fp16 1e-3 where attention weighs (matching=weighted). Where it chooses
    # one token (attended), two nearly equal attentions can swap: 0.1 on 2 of 240 values, and then
    # the gate fails and fp32 is used. In bf16 they swap in most texts: there is no tolerance, so
    # only who allows what is lossy has it.
    tolerance={"fp32": 1e-4, "fp16": 2e-2},
)
RELEVANCE_MATCHES = replace(
    RELEVANCE_MATCHING,
    make=partial(_make, keep_matches=True),
    output="matches",
    values=_match_values,
    # The same values before their mean is taken: fp32 1e-6.
    tolerance={"fp32": 1e-4, "fp16": 1e-1},
)
