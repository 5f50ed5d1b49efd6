"""Family ``bi_encoder``: cosine of the sentence vectors of candidates and references.

Source: Reimers and Gurevych (``metrics.bi_encoder``). Every distinct text is run once, whichever
side it is on. A text longer than the model takes is cut, as the model was trained, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.base import (
    NON_FINITE,
    empty_reasons,
    per_target,
    reasons_column,
    token_counts,
)
from qaeval_core.families.token_units import template_of
from qaeval_core.families.validate import SharedPairs, SharedTexts, share_texts
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds


class BiEncoderScorer:
    """Lays out texts for the graph ``sentence_vector``.

    Parameters
    ----------
    artifact : Artifact
        An exported sentence encoder.
    encoder : TextEncoder
        Its tokenizer.
    options : mapping
        None are read.
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        template = template_of(artifact)
        self._encoder = encoder
        self._prefix = np.array(template.prefix_ids, dtype=np.int64)
        self._suffix = np.array(template.suffix_ids, dtype=np.int64)
        self._room = artifact.record.max_positions - len(self._prefix) - len(self._suffix)
        self._dim = artifact.record.dim

    def lay_out(self, shared: SharedPairs[str]) -> BiEncoderWork:
        """Encode distinct texts, one unit each."""
        texts = share_texts(shared)
        ids = self._encoder.encode(texts.texts)
        sequences = [np.concatenate([self._prefix, own[: self._room], self._suffix]) for own in ids]
        n_tokens = token_counts(ids)
        return BiEncoderWork(
            shared,
            texts,
            sequences,
            reasons=empty_reasons(n_tokens[texts.left], n_tokens[texts.right]),
            is_truncated=n_tokens > self._room,
            dim=self._dim,
        )


class BiEncoderWork:
    """Units of one shard: texts that some pair reads, and their vectors once the model ran."""

    def __init__(
        self,
        shared: SharedPairs[str],
        texts: SharedTexts[str],
        sequences: list[TokenIds],
        *,
        reasons: list[str | None],
        is_truncated: NDArray[np.bool_],
        dim: int,
    ) -> None:
        self._shared = shared
        self._texts = texts
        self._reasons = reasons
        self._is_truncated = is_truncated
        self._is_scored = np.array([reason is None for reason in reasons], dtype=bool)
        sides = (texts.left[self._is_scored], texts.right[self._is_scored])
        self._unit_text = np.unique(np.concatenate(sides))
        self._sequences = [sequences[i] for i in self._unit_text.tolist()]
        self.lengths = np.array([len(ids) for ids in self._sequences], dtype=np.int64)
        self.n_units_unshared = 2 * int(self._is_scored[shared.row_pair].sum())
        self.n_truncated = int(is_truncated[self._unit_text].sum())
        self._vectors = np.full((len(sequences), dim), np.nan, dtype=np.float32)

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``sentence_vector`` for some units."""
        rows = list(batch)
        return {
            "input_ids": pad([self._sequences[i] for i in rows]),
            "n_tokens": self.lengths[rows],
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the unit vectors of these units; output has shape (n_rows, dim)."""
        self._vectors[self._unit_text[list(batch)]] = output

    def statistics(self) -> dict[str, pa.Array]:
        """Return cosine, texts that were cut, and reason, per target of every row."""
        left, right = self._texts.left, self._texts.right
        # Row by row and not one large product: a pair's sum does not depend on other pairs.
        cosine = np.einsum("ij,ij->i", self._vectors[left], self._vectors[right])
        cosine[~self._is_scored] = np.nan
        reasons = list(self._reasons)
        for i in np.flatnonzero(self._is_scored & ~np.isfinite(cosine)).tolist():
            reasons[i] = NON_FINITE
            cosine[i] = np.nan
        n_cut = self._is_truncated[left].astype(np.int32) + self._is_truncated[right]
        return {
            "cosine": per_target(self._shared, cosine),
            "n_truncated": per_target(self._shared, np.where(self._is_scored, n_cut, 0)),
            "reasons": reasons_column(self._shared, reasons),
        }
