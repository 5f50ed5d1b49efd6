"""Family ``sas``: a cross-encoder's logit of (reference, candidate) pairs.

Source: Risch et al. SAS, section 3 (``metrics.sas`` has the equation). A pair that is longer than
the model takes is cut, its longer text first, as the model was trained; the cut is counted.
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
from qaeval_core.families.validate import SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds


class SasScorer:
    """Lays out pairs for the graph ``pair_score``.

    Parameters
    ----------
    artifact : Artifact
        An exported cross-encoder.
    encoder : TextEncoder
        Its tokenizer.
    options : mapping
        None are read: an activation is applied at join time.
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        template = template_of(artifact)
        self._encoder = encoder
        self._prefix = np.array(template.prefix_ids, dtype=np.int64)
        self._middle = np.array(template.middle_ids, dtype=np.int64)
        self._suffix = np.array(template.suffix_ids, dtype=np.int64)
        self._room = (
            artifact.record.max_positions
            - len(self._prefix)
            - len(self._middle)
            - len(self._suffix)
        )

    def lay_out(self, shared: SharedPairs[str]) -> SasWork:
        """Encode distinct texts and lay out one unit per distinct pair."""
        candidates = self._encoder.encode(shared.candidates)
        targets = self._encoder.encode(shared.targets)
        n_candidate = token_counts(candidates)[shared.pair_candidate]
        n_target = token_counts(targets)[shared.pair_target]
        work = SasWork(shared, empty_reasons(n_candidate, n_target))
        for pair in work.unit_pair.tolist():
            candidate = candidates[int(shared.pair_candidate[pair])]
            reference = targets[int(shared.pair_target[pair])]
            n_kept = longest_first(len(reference), len(candidate), room=self._room)
            head = [self._prefix, reference[: n_kept[0]], self._middle]
            work.add_unit(
                np.concatenate([*head, candidate[: n_kept[1]], self._suffix]),
                second_start=len(self._prefix) + n_kept[0] + len(self._middle),
                is_truncated=sum(n_kept) < len(reference) + len(candidate),
            )
        return work.close()


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


class SasWork:
    """Units of one shard: token sequences, and the logit of each once the model ran."""

    def __init__(self, shared: SharedPairs[str], reasons: list[str | None]) -> None:
        self._shared = shared
        self._reasons = reasons
        has_unit = np.array([reason is None for reason in reasons], dtype=bool)
        self.unit_pair = np.flatnonzero(has_unit)
        self.n_units_unshared = int(has_unit[shared.row_pair].sum())
        self.n_truncated = 0
        self._sequences: list[TokenIds] = []
        self._second_start: list[int] = []
        self._is_truncated = np.zeros(len(reasons), dtype=np.int32)

    def add_unit(self, sequence: TokenIds, *, second_start: int, is_truncated: bool) -> None:
        """Note the unit of the next pair that has one."""
        self._is_truncated[self.unit_pair[len(self._sequences)]] = is_truncated
        self._sequences.append(sequence)
        self._second_start.append(second_start)

    def close(self) -> SasWork:
        """Fix the units; called once after the last one."""
        self.lengths = np.array([len(ids) for ids in self._sequences], dtype=np.int64)
        self._starts = np.array(self._second_start, dtype=np.int64)
        self._logit = np.full(len(self._sequences), np.nan, dtype=np.float32)
        self.n_truncated = int(self._is_truncated.sum())
        return self

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``pair_score`` for some units."""
        rows = list(batch)
        return {
            "input_ids": pad([self._sequences[i] for i in rows]),
            "n_tokens": self.lengths[rows],
            "second_start": self._starts[rows],
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the logits of these units; output has shape (n_pairs,)."""
        self._logit[list(batch)] = output

    def statistics(self) -> dict[str, pa.Array]:
        """Return logit, whether the pair was cut, and reason, per target of every row."""
        logit = np.full(len(self._reasons), np.nan, dtype=np.float32)
        logit[self.unit_pair] = self._logit
        reasons = list(self._reasons)
        for i in self.unit_pair[~np.isfinite(self._logit)].tolist():
            reasons[i] = NON_FINITE
            logit[i] = np.nan  # The sigmoid of infinity is 1, the best score.
        return {
            "logit": per_target(self._shared, logit),
            "is_truncated": per_target(self._shared, self._is_truncated),
            "reasons": reasons_column(self._shared, reasons),
        }
