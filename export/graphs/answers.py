"""Graphs of answers judged by models: pairs, sentences, tokens, keyphrases.

Token ids in, one small array out; padding never leaves a graph, since what is read is asked for by
row number. All run on `encoder.Encoder`.

Source
------
- ``pair_score``: Risch et al. SAS. MRQA 2021, arXiv:2108.06130, section 3: a cross-encoder's logit.
- ``sentence_vector``: Reimers, Gurevych. Sentence-BERT. EMNLP 2019, arXiv:1908.10084, section 3.
- ``token_vectors``: Zhang et al. BERTScore. ICLR 2020, arXiv:1904.09675, section 3: unit vectors of
  one layer's hidden states.
- ``keyphrase_weights``: Lee et al. KPQA. NAACL 2021, arXiv:2005.00192, section 3.1: the probability
  that a token is in the answer span.

But: activations, matches and weighted means are not here (``qaeval_core.metrics``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.graphs.encoder import Encoder, take_rows

PAIR_INPUTS = ("input_ids", "n_tokens", "second_start")
TEXT_INPUTS = ("input_ids", "n_tokens")
ASKED_INPUTS = ("token_rows",)


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
        """Return unit vectors of shape (n_rows, dim); see `PairScore.forward` for the inputs."""
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
        input_ids, n_tokens
            See `PairScore.forward`.
        token_rows : int64 Tensor of shape (n_asked,)
            row * n_tokens + position of each asked token.

        Returns
        -------
        float Tensor of shape (n_asked, dim)
        """
        hidden = take_rows(self.encoder(input_ids, n_tokens), token_rows)
        return functional.normalize(hidden, dim=-1)


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
        """Return the weight of each asked token, in [0, 1]; shape (n_asked,)."""
        hidden = take_rows(self.encoder(input_ids, n_tokens, second_start), token_rows)
        return torch.softmax(self.classifier(hidden), dim=-1)[:, self.label]
