"""Pair score: the logit of a cross-encoder for a pair of texts.

Token ids of a pair in, one number out.

Source
------
Risch et al. SAS. MRQA 2021, arXiv:2108.06130, section 3.

But: activations are not here (``qaeval_core.metrics.sas``).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.batch_mates import FP16_LIMITS
from qaeval_export.graphs.base import PAIRS, Axes, GraphExport, row_values
from qaeval_export.graphs.encoder import Encoder
from qaeval_export.loading import LoadedModel, first_position
from qaeval_export.parity import pair_rows


class PairScore(nn.Module):  # type: ignore[misc]
    """The logit of a cross-encoder with one output.

    Parameters
    ----------
    model : nn.Module
        A transformers model for sequence classification in eval mode.
    first_position : int
        Position id of the first token.
    """

    def __init__(self, model: nn.Module, *, first_position: int) -> None:
        super().__init__()
        body: Any = model.base_model
        self.encoder = Encoder(
            body, first_position=first_position, n_layers=model.config.num_hidden_layers
        )
        # BERT pools and then classifies; the heads of the other types do both.
        self.pooler = getattr(body, "pooler", None)
        self.classifier = model.classifier

    def forward(self, input_ids: Tensor, n_tokens: Tensor, second_start: Tensor) -> Tensor:
        """Return the logit of each pair.

        Parameters
        ----------
        input_ids : int64 Tensor of shape (n_pairs, n_tokens)
            Right-padded ids of the encoder's pair template.
        n_tokens : int64 Tensor of shape (n_pairs,)
            Real tokens of each row, special tokens included.
        second_start : int64 Tensor of shape (n_pairs,)
            Position of the second text's first token.

        Returns
        -------
        float Tensor of shape (n_pairs,)
            Before any activation; unbounded, higher is better.
        """
        first = self.encoder.first_token(input_ids, n_tokens, second_start)
        features = first if self.pooler is None else self.pooler(first)
        return self.classifier(features).squeeze(1)


def _make(loaded: LoadedModel, _: ArtifactRequest) -> tuple[nn.Module, Axes]:
    return PairScore(loaded.model, first_position=first_position(loaded)), ("n_rows",)


PAIR_SCORE = GraphExport(
    make=_make,
    inputs=PAIRS,
    output="logit",
    make_rows=pair_rows,
    values=row_values,
    tolerance={"fp32": 1e-4, "fp16": FP16_LIMITS["pair_score"], "bf16": 1.5e-1},
)
