"""Sentence vector: the unit vector of a text.

Token ids of a text in, one vector out; padding never leaves the graph.

Source
------
Reimers, Gurevych. Sentence-BERT. EMNLP 2019, arXiv:1908.10084, section 3.

But: cosines are not here (``qaeval_core.metrics.bi_encoder``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.batch_mates import FP16_LIMITS
from qaeval_export.graphs.base import TEXTS, Axes, GraphExport, row_values
from qaeval_export.graphs.encoder import Encoder
from qaeval_export.loading import LoadedModel, first_position
from qaeval_export.parity import text_rows
from qaeval_export.sentence_files import SentenceFiles


class SentenceVector(nn.Module):  # type: ignore[misc]
    """The unit vector of a text: its tokens' hidden states, pooled.

    Parameters
    ----------
    encoder : nn.Module
        A transformers encoder in eval mode.
    first_position : int
        Position id of the first token.
    pooling : {"mean", "cls", "max"}
        Over tokens, special ones included. A mean over the root of the length has the same
        direction as a mean.
    """

    def __init__(self, encoder: nn.Module, *, first_position: int, pooling: str) -> None:
        super().__init__()
        n_layers = encoder.config.num_hidden_layers
        self.encoder = Encoder(encoder, first_position=first_position, n_layers=n_layers)
        self.pooling = pooling

    def forward(self, input_ids: Tensor, n_tokens: Tensor) -> Tensor:
        """Return the unit vector of each text.

        Parameters
        ----------
        input_ids : int64 Tensor of shape (n_rows, n_tokens)
            Right-padded ids of the encoder's template of one text.
        n_tokens : int64 Tensor of shape (n_rows,)
            Real tokens of each row, special tokens included.

        Returns
        -------
        float Tensor of shape (n_rows, dim)
        """
        if self.pooling == "cls":
            return functional.normalize(self.encoder.first_token(input_ids, n_tokens)[:, 0], dim=-1)
        hidden = self.encoder(input_ids, n_tokens)
        position = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        is_token = (position < n_tokens.unsqueeze(1)).unsqueeze(2)
        if self.pooling == "max":
            pooled = hidden.masked_fill(~is_token, -1e4).amax(dim=1)
        else:
            # The sum has the direction of the mean, and fp16 the range for neither's square:
            # divided first.
            share = is_token.to(hidden.dtype) / n_tokens.unsqueeze(1).unsqueeze(2).to(hidden.dtype)
            pooled = (hidden * share).sum(dim=1)
        return functional.normalize(pooled, dim=-1)


def _make(loaded: LoadedModel, _: ArtifactRequest) -> tuple[nn.Module, Axes]:
    first = first_position(loaded)
    pooling = SentenceFiles(loaded.source, "SentenceTransformer").pooling()
    module = SentenceVector(loaded.model, first_position=first, pooling=pooling)
    return module, ("n_rows", int(loaded.config.hidden_size))


SENTENCE_VECTOR = GraphExport(
    make=_make,
    inputs=TEXTS,
    output="vector",
    make_rows=text_rows,
    values=row_values,
    tolerance={"fp32": 1e-5, "fp16": FP16_LIMITS["sentence_vector"], "bf16": 5e-3},
)
