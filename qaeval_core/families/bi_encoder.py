"""Family ``bi_encoder``: cosine of the sentence vectors of candidates and references.

Source: Reimers and Gurevych (``metrics.bi_encoder``). Every distinct text is run once, whichever
side it is on. A text longer than the model takes is cut, as the model was trained, and counted.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.model_units import (
    ModelScorer,
    PairTemplate,
    Reasons,
    Units,
    Work,
    empty_reasons,
    has_score,
    per_target,
    refuse_non_finite,
)
from qaeval_core.families.validate import IntArray, SharedPairs, SharedTexts, share_texts


class BiEncoderScorer(ModelScorer):
    """Lays out texts for the graph ``sentence_vector``."""

    def lay_out(self, shared: SharedPairs[str]) -> BiEncoderWork:
        """Encode distinct texts, one unit each."""
        template = PairTemplate.of(self.artifact)
        room = self.artifact.record.max_positions - len(template.prefix) - len(template.suffix)
        texts = share_texts(shared)
        ids = self.encoder.encode(texts.texts)
        reasons = empty_reasons(ids.counts[texts.left], ids.counts[texts.right])
        is_scored = has_score(reasons)
        unit_text = np.unique(np.concatenate([texts.left[is_scored], texts.right[is_scored]]))
        read = ids.take(unit_text)
        units = Units(
            template.single(read.cut(0, np.minimum(read.counts, room))),
            shape=(self.artifact.record.dim,),
        )
        return BiEncoderWork(
            shared,
            texts,
            units,
            unit_text=unit_text,
            reasons=reasons,
            is_truncated=ids.counts > room,
        )


class BiEncoderWork(Work):
    """Units of one shard: texts that some pair reads, and their vectors once the model ran."""

    def __init__(
        self,
        shared: SharedPairs[str],
        texts: SharedTexts[str],
        units: Units,
        *,
        unit_text: IntArray,
        reasons: Reasons,
        is_truncated: NDArray[np.bool_],
    ) -> None:
        self._shared = shared
        self._texts = texts
        self._reasons = reasons
        self._is_truncated = is_truncated
        self._is_scored = has_score(reasons)
        self._unit_text = unit_text
        self.units = units
        self.n_units_unshared = 2 * int(self._is_scored[shared.row_pair].sum())
        self.n_truncated = int(is_truncated[unit_text].sum())

    def statistics(self) -> dict[str, pa.Array]:
        """Return cosine, texts that were cut, and reason, per target of every row."""
        left, right = self._texts.left, self._texts.right
        unit = np.zeros(len(self._texts.texts), dtype=np.int64)
        unit[self._unit_text] = np.arange(len(self._unit_text))
        vectors = self.units.output
        is_scored = self._is_scored
        cosine = np.full(len(left), np.nan, dtype=np.float32)
        # Row by row and not one large product: a pair's sum does not depend on other pairs.
        sides = (vectors[unit[side[is_scored]]] for side in (left, right))
        cosine[is_scored] = np.einsum("ij,ij->i", *sides)
        reasons, cosine = refuse_non_finite(self._reasons, cosine)
        n_cut = self._is_truncated[left].astype(np.int32) + self._is_truncated[right]
        return {
            "cosine": per_target(self._shared, cosine),
            "n_truncated": per_target(self._shared, np.where(is_scored, n_cut, 0)),
            "reasons": per_target(self._shared, reasons),
        }
