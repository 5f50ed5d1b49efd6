"""Answer span: where in a window's context a reader finds the answer, and how sure it is.

Token ids of (question, context) in; of each window the sum over all spans, the logit of "no answer"
and the best spans out. Spans are of no more than MAX_ANSWER_TOKENS tokens, so the pairs of first
and last tokens are a band of that width, and never leave the graph.

Source
------
Devlin, Chang, Lee, Toutanova. BERT. NAACL 2019, arXiv:1810.04805, sections 4.2 and 4.3. With S_i
and E_j the two outputs of tokens i and j, a span scores S_i + E_j, and none S_0 + E_0.

But: probabilities, and windows of one context, are not here (``qaeval_core.metrics.roundtrip``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from qaeval_core.models.record import (
    MAX_ANSWER_TOKENS,
    N_ANSWER_SPANS,
    NO_SPAN,
    ArtifactRequest,
)
from qaeval_export.graphs.base import PAIRS, Axes, GraphExport, GraphRows, Output, per_row
from qaeval_export.graphs.encoder import Encoder
from qaeval_export.loading import LoadedModel, first_position
from qaeval_export.parity import Values, pair_rows


class AnswerSpan(nn.Module):  # type: ignore[misc]
    """The best spans of a context, and the sum over all.

    Parameters
    ----------
    model : nn.Module
        A transformers model for extractive question answering in eval mode.
    first_position : int
        Position id of the first token.
    """

    def __init__(self, model: nn.Module, *, first_position: int) -> None:
        super().__init__()
        self.encoder = Encoder(
            model.base_model, first_position=first_position, n_layers=model.config.num_hidden_layers
        )
        self.outputs = model.qa_outputs

    def forward(
        self,
        input_ids: Tensor,
        n_tokens: Tensor,
        second_start: Tensor,
        n_context: Tensor,
        n_starts: Tensor,
    ) -> Tensor:
        """Return the spans of each window; see `PairScore.forward` for the first inputs.

        Parameters
        ----------
        n_context : int64 Tensor of shape (n_windows,)
            Tokens of the context.
        n_starts : int64 Tensor of shape (n_windows,)
            How many of them, from the first one on, may begin an answer: spans that begin later
            are the next window's.

        Returns
        -------
        float Tensor of shape (n_windows, 2 + 3 N_ANSWER_SPANS)
            log sum exp of all spans; the logit of "no answer"; then scores, first and last tokens
            of the best spans, best first, each with another first token. A score of NO_SPAN or
            less is none's.
        """
        logits = self.outputs(self.encoder(input_ids, n_tokens, second_start))
        first, last = logits[:, :, 0], logits[:, :, 1]
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        place = position.unsqueeze(0) - second_start.unsqueeze(1)  # in the context
        is_first = (place >= 0) & (place < n_starts.unsqueeze(1))
        is_last = (place >= 0) & (place < n_context.unsqueeze(1))
        begin = torch.where(is_first, first, NO_SPAN)
        end = torch.where(is_last, last, NO_SPAN)
        end = functional.pad(end, (0, MAX_ANSWER_TOKENS - 1), value=NO_SPAN)
        # Of each first token, the logits of all last ones: (n_windows, n_tokens, n_lengths).
        lengths = torch.arange(MAX_ANSWER_TOKENS, device=input_ids.device)
        places = (position.unsqueeze(1) + lengths.unsqueeze(0)).flatten()
        ends = end.index_select(1, places).unflatten(1, (-1, MAX_ANSWER_TOKENS))
        best_end, length = ends.max(dim=2)
        log_sum = torch.logsumexp(begin + torch.logsumexp(ends, dim=2), dim=1)
        score, at = (begin + best_end).topk(N_ANSWER_SPANS, dim=1)
        spans = torch.cat([at, at + length.gather(1, at)], dim=1).to(score.dtype)
        both = torch.stack([log_sum, first[:, 0] + last[:, 0]], dim=1)
        return torch.cat([both, score, spans], dim=1)


def _make(loaded: LoadedModel, _: ArtifactRequest) -> tuple[nn.Module, Axes]:
    module = AnswerSpan(loaded.model, first_position=first_position(loaded))
    return module, ("n_rows", 2 + 3 * N_ANSWER_SPANS)


def _values(output: Output, rows: GraphRows) -> list[Values]:
    """Return of each row the sum, "no answer" and the scores of its spans."""
    scores = output[:, : 2 + N_ANSWER_SPANS]
    return [own[: 2 + len(row.context_ids)] for own, row in zip(scores, rows, strict=True)]


ANSWER_SPAN = GraphExport(
    make=_make,
    inputs={
        **PAIRS,
        "n_context": per_row([14, 14, 11], lambda row: len(row.context_ids)),
        "n_starts": per_row([14, 14, 11], lambda row: len(row.context_ids)),
    },
    output="spans",
    make_rows=pair_rows,
    values=_values,
    tolerance={"fp32": 5e-4, "fp16": 1e-1, "bf16": 2e-1},
)
