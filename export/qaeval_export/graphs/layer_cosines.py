"""Layer cosines: how near each candidate token is to each context token, in every layer.

For the aggregate ``mover`` of ``relevance_matching``, whose weights come of an optimization over a
whole pair: no graph has that, so the cosines of one batch leave it, and are not stored.

Source
------
Wang et al. QRelScore. EMNLP 2022, arXiv:2204.13921, section 4.3, ablation M7.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from qaeval_export.graphs.encoder import Encoder, positions


class LayerCosines(nn.Module):  # type: ignore[misc]
    """cos(h^l_x, h^l_c) of all candidate and context tokens.

    Parameters
    ----------
    encoder : nn.Module
        A transformers encoder in eval mode.
    first_position : int
        Position id of the first token.
    """

    def __init__(self, encoder: nn.Module, *, first_position: int) -> None:
        super().__init__()
        n_layers = encoder.config.num_hidden_layers
        self.encoder = Encoder(encoder, first_position=first_position, n_layers=n_layers)
        self.layers = self.encoder.layers

    def forward(  # noqa: PLR0917, the graph's inputs in order
        self,
        input_ids: Tensor,
        n_tokens: Tensor,
        n_candidate: Tensor,
        context_start: Tensor,
        n_context: Tensor,
        candidate_positions: Tensor,
    ) -> Tensor:
        """Return the cosines; see `RelevanceMatching.forward` for the inputs.

        Returns
        -------
        float Tensor of shape (n_pairs, n_layers, n_cand, n_tokens)
            In [-1, 1]; 0 where a token is none of the candidate's, or none of the context's.
        """
        hidden, _ = self.encoder.start(input_ids, context_start)
        position = positions(input_ids)
        start = context_start.unsqueeze(1)
        in_context = (position >= start) & (position < start + n_context.unsqueeze(1))
        in_candidate = candidate_positions.unsqueeze(0) <= n_candidate.unsqueeze(1)
        counts = in_candidate.unsqueeze(2) & in_context.unsqueeze(1)  # (n_pairs, n_cand, n_tokens)
        found = []
        for layer in self.layers:
            hidden = layer(hidden, n_tokens)
            unit = functional.normalize(hidden, dim=-1)
            cosine = unit.index_select(1, candidate_positions) @ unit.transpose(1, 2)
            found.append(torch.where(counts, cosine, 0.0))
        return torch.stack(found, dim=1)
