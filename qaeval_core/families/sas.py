"""Family ``sas``: a cross-encoder's logit of (reference, candidate) pairs.

Source: Risch et al. SAS, section 3 (``metrics.sas`` has the equation). A pair that is longer than
the model takes is cut, its longer text first, as the model was trained; the cut is counted.
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
from qaeval_core.families.validate import IntArray, SharedPairs, share_texts


class SasScorer(ModelScorer):
    """Lays out pairs for the graph ``pair_score``; an activation is applied at join time."""

    def lay_out(self, shared: SharedPairs[str]) -> SasWork:
        """Encode distinct texts and lay out one unit per distinct pair."""
        template = PairTemplate.of(self.artifact)
        texts = share_texts(shared)
        ids = self.encoder.encode(texts.texts)
        reasons = empty_reasons(ids.counts[texts.left], ids.counts[texts.right])
        pairs = np.flatnonzero(has_score(reasons))
        reference, candidate = ids.take(texts.right[pairs]), ids.take(texts.left[pairs])
        room = self.artifact.record.max_positions - template.n_special
        n_reference, n_candidate = longest_first(reference.counts, candidate.counts, room=room)
        units = Units(
            template.pair(reference.cut(0, n_reference), candidate.cut(0, n_candidate)),
            told={"second_start": template.second_start(n_reference)},
        )
        is_truncated = np.zeros(len(reasons), dtype=np.int32)
        is_truncated[pairs] = n_reference + n_candidate < reference.counts + candidate.counts
        return SasWork(shared, units, pairs, reasons, is_truncated)


def longest_first(n_first: IntArray, n_second: IntArray, *, room: int) -> tuple[IntArray, IntArray]:
    """Return how many tokens of pairs of texts are kept, the longer one cut first.

    As the tokenizers library's strategy of that name.

    Examples
    --------
    >>> kept = longest_first(np.array([3, 20, 3]), np.array([20, 30, 4]), room=11)
    >>> [each.tolist() for each in kept]
    [[3, 5, 3], [8, 6, 4]]
    """
    short = np.minimum(np.minimum(n_first, n_second), room // 2)
    is_first = n_first <= n_second
    fits = n_first + n_second <= room
    return (
        np.where(fits, n_first, np.where(is_first, short, room - short)),
        np.where(fits, n_second, np.where(is_first, room - short, short)),
    )


class SasWork(Work):
    """Units of one shard: pairs that have a score, and the logit of each once the model ran."""

    def __init__(
        self,
        shared: SharedPairs[str],
        units: Units,
        unit_pair: IntArray,
        reasons: Reasons,
        is_truncated: NDArray[np.int32],
    ) -> None:
        self._shared = shared
        self._reasons = reasons
        self._unit_pair = unit_pair
        self._is_truncated = is_truncated
        self.units = units
        self.n_units_unshared = int(has_score(reasons)[shared.row_pair].sum())
        self.n_truncated = int(is_truncated.sum())

    def statistics(self) -> dict[str, pa.Array]:
        """Return logit, whether the pair was cut, and reason, per target of every row."""
        logit = np.full(len(self._reasons), np.nan, dtype=np.float32)
        logit[self._unit_pair] = self.units.output
        reasons, logit = refuse_non_finite(self._reasons, logit)
        return {
            "logit": per_target(self._shared, logit),
            "is_truncated": per_target(self._shared, self._is_truncated),
            "reasons": per_target(self._shared, reasons),
        }
