"""Keyphrase weights: the probability that a token is in the answer span.

Token ids of a pair in, one number for each asked token of the second text out; padding never leaves
the graph, since what is read is asked for by row number.

Source
------
Lee et al. KPQA. NAACL 2021, arXiv:2005.00192, section 3.1.

But: weighted means are not here (``qaeval_core.metrics.kpqa``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.graphs.base import PAIRS, Axes, GraphExport, asked_rows, asked_values
from qaeval_export.graphs.encoder import Encoder, take_rows
from qaeval_export.loading import LoadedModel, first_position, in_span_label
from qaeval_export.parity import ParityRow, pair_rows


class KeyphraseWeights(nn.Module):  # type: ignore[misc]
    """The probability that a token of the second text is in the answer span.

    Parameters
    ----------
    model : nn.Module
        A transformers model for token classification in eval mode.
    first_position : int
        Position id of the first token.
    label : int
        Which output is "in the answer span".
    """

    def __init__(self, model: nn.Module, *, first_position: int, label: int) -> None:
        super().__init__()
        self.encoder = Encoder(
            model.base_model, first_position=first_position, n_layers=model.config.num_hidden_layers
        )
        self.classifier = model.classifier
        self.label = label

    def forward(
        self, input_ids: Tensor, n_tokens: Tensor, second_start: Tensor, token_rows: Tensor
    ) -> Tensor:
        """Return the weight of each asked token; see `PairScore.forward` for the other inputs.

        Parameters
        ----------
        token_rows : int64 Tensor of shape (n_asked,)
            row * n_tokens + position of each asked token.

        Returns
        -------
        float Tensor of shape (n_asked,)
            In [0, 1].
        """
        hidden = take_rows(self.encoder(input_ids, n_tokens, second_start), token_rows)
        return torch.softmax(self.classifier(hidden), dim=-1)[:, self.label]


def _make(loaded: LoadedModel, _: ArtifactRequest) -> tuple[nn.Module, Axes]:
    first, label = first_position(loaded), in_span_label(loaded.config)
    return KeyphraseWeights(loaded.model, first_position=first, label=label), ("n_asked",)


def _asked(row: ParityRow) -> range:
    return range(row.second_start, row.second_start + len(row.context_ids))


KEYPHRASE_WEIGHTS = GraphExport(
    make=_make,
    inputs={**PAIRS, "token_rows": asked_rows(_asked)},
    output="weight",
    make_rows=pair_rows,
    values=asked_values(_asked),
    tolerance={"fp32": 1e-5, "fp16": 1e-2, "bf16": 3e-2},
)
