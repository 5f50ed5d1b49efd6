"""The graph of the first token's unit vector, and what it is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.graphs.base import TEXTS, Axes, GraphExport, row_values
from qaeval_export.graphs.encoder import Encoder
from qaeval_export.loading import LoadedModel, first_position
from qaeval_export.parity import ParityRow, Values, text_rows


class FirstToken(nn.Module):
    """The unit vector of a text's first token."""

    def __init__(self, model: nn.Module, *, first: int) -> None:
        super().__init__()
        n_layers = model.config.num_hidden_layers
        self.encoder = Encoder(model, first_position=first, n_layers=n_layers)

    def forward(self, input_ids: Tensor, n_tokens: Tensor) -> Tensor:
        """Return the vectors of texts, of shape (n_rows, dim)."""
        return functional.normalize(self.encoder.first_token(input_ids, n_tokens)[:, 0], dim=-1)


def _make(loaded: LoadedModel, _: ArtifactRequest) -> tuple[nn.Module, Axes]:
    module = FirstToken(loaded.model, first=first_position(loaded))
    return module, ("n_rows", int(loaded.config.hidden_size))


def _oracle(loaded: Any, _: ArtifactRequest, row: ParityRow) -> Values:
    inputs = {"input_ids": torch.tensor([row.ids])}
    state = loaded.model(**inputs).last_hidden_state[0, 0].double()
    return np.asarray((state / state.norm()).numpy())[None]


FIRST_TOKEN = GraphExport(
    make=_make,
    inputs=TEXTS,
    output="vector",
    make_rows=text_rows,
    values=row_values,
    tolerance={"fp32": 1e-5, "fp16": 5e-3},
    oracle=_oracle,
)
