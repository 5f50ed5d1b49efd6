"""Family ``sas``: a cross-encoder's logit of (reference, candidate) pairs.

Source: Risch et al. SAS, section 3 (``metrics.sas`` has the equation). A pair that is longer than
the model takes is cut, its longer text first, as the model was trained; the cut is counted.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from qaeval_core.families.model_units import (
    ModelScorer,
    PairTemplate,
    Units,
    Work,
    empty_reasons,
    per_target,
    reasons_column,
    refuse_non_finite,
    token_counts,
)
from qaeval_core.families.validate import SharedPairs


class SasScorer(ModelScorer):
    """Lays out pairs for the graph ``pair_score``; an activation is applied at join time."""

    def lay_out(self, shared: SharedPairs[str]) -> SasWork:
        """Encode distinct texts and lay out one unit per distinct pair."""
        template = PairTemplate.of(self.artifact)
        room = self.artifact.record.max_positions - template.n_special
        candidates = self.encoder.encode(shared.candidates)
        targets = self.encoder.encode(shared.targets)
        n_candidate = token_counts(candidates)[shared.pair_candidate]
        n_target = token_counts(targets)[shared.pair_target]
        work = SasWork(shared, empty_reasons(n_candidate, n_target))
        for pair in work.unit_pair.tolist():
            candidate = candidates[int(shared.pair_candidate[pair])]
            reference = targets[int(shared.pair_target[pair])]
            n_kept = longest_first(len(reference), len(candidate), room=room)
            work.units.add(
                template.pair(reference[: n_kept[0]], candidate[: n_kept[1]]),
                second_start=template.second_start(n_kept[0]),
            )
            work.is_truncated[pair] = sum(n_kept) < len(reference) + len(candidate)
        work.n_truncated = int(work.is_truncated.sum())
        return work


def longest_first(n_first: int, n_second: int, *, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept, the longer one cut first.

    As the tokenizers library's strategy of that name.

    Examples
    --------
    >>> longest_first(3, 20, room=10), longest_first(20, 30, room=11)
    ((3, 7), (5, 6))
    """
    if n_first + n_second <= room:
        return n_first, n_second
    short = min(n_first, n_second)
    if short <= room // 2:
        return (short, room - short) if n_first <= n_second else (room - short, short)
    half = room // 2
    return (half, room - half) if n_first <= n_second else (room - half, half)


class SasWork(Work):
    """Units of one shard: pairs that have a score, and the logit of each once the model ran."""

    def __init__(self, shared: SharedPairs[str], reasons: list[str | None]) -> None:
        self._shared = shared
        self._reasons = reasons
        self.units = Units(told=("second_start",))
        has_unit = np.array([reason is None for reason in reasons], dtype=bool)
        self.unit_pair = np.flatnonzero(has_unit)
        self.n_units_unshared = int(has_unit[shared.row_pair].sum())
        self.is_truncated = np.zeros(len(reasons), dtype=np.int32)

    def statistics(self) -> dict[str, pa.Array]:
        """Return logit, whether the pair was cut, and reason, per target of every row."""
        logit = np.full(len(self._reasons), np.nan, dtype=np.float32)
        logit[self.unit_pair] = self.units.output
        reasons, logit = refuse_non_finite(self._reasons, logit)
        return {
            "logit": per_target(self._shared, logit),
            "is_truncated": per_target(self._shared, self.is_truncated),
            "reasons": reasons_column(self._shared, reasons),
        }
