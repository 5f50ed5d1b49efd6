"""Token vectors: unit vectors of the tokens of a text, from one layer.

Token ids of a text in, one vector for each asked token out; padding never leaves the graph, since
what is read is asked for by row number.

Source
------
Zhang et al. BERTScore. ICLR 2020, arXiv:1904.09675, section 3.

But: matches are not here (``qaeval_core.metrics.bertscore``, ``moverscore``).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.graphs.base import TEXTS, Axes, GraphExport, asked_rows, asked_values
from qaeval_export.graphs.encoder import Encoder, take_rows
from qaeval_export.loading import LoadedModel, first_position, wanted_layer
from qaeval_export.parity import ParityRow, text_rows


class TokenVectors(nn.Module):  # type: ignore[misc]
    """Unit vectors of the tokens of a text, from one layer.

    Parameters
    ----------
    encoder : nn.Module
        A transformers encoder in eval mode.
    first_position : int
        Position id of the first token.
    layer : int
        Hidden state 0 is the embeddings; layers above are not run.
    """

    def __init__(self, encoder: nn.Module, *, first_position: int, layer: int) -> None:
        super().__init__()
        self.encoder = Encoder(encoder, first_position=first_position, n_layers=layer)

    def forward(self, input_ids: Tensor, n_tokens: Tensor, token_rows: Tensor) -> Tensor:
        """Return the unit vectors of the asked tokens.

        Parameters
        ----------
        input_ids : int64 Tensor of shape (n_rows, n_tokens)
            Right-padded ids of the encoder's template of one text.
        n_tokens : int64 Tensor of shape (n_rows,)
            Real tokens of each row, special tokens included.
        token_rows : int64 Tensor of shape (n_asked,)
            row * n_tokens + position of each asked token.

        Returns
        -------
        float Tensor of shape (n_asked, dim)
        """
        hidden = take_rows(self.encoder(input_ids, n_tokens), token_rows)
        return functional.normalize(hidden, dim=-1)


def _make(loaded: LoadedModel, request: ArtifactRequest) -> tuple[nn.Module, Axes]:
    first, layer = first_position(loaded), wanted_layer(loaded, request)
    module = TokenVectors(loaded.model, first_position=first, layer=layer)
    return module, ("n_asked", int(loaded.config.hidden_size))


def _asked(row: ParityRow) -> range:
    return range(len(row.ids))


TOKEN_VECTORS = GraphExport(
    make=_make,
    inputs={**TEXTS, "token_rows": asked_rows(_asked)},
    output="vectors",
    make_rows=text_rows,
    values=asked_values(_asked),
    tolerance={"fp32": 1e-5, "fp16": 5e-3, "bf16": 1e-2},
)
