"""Family ``token_frequencies``: which tokens each reference has; runs no model.

Summed over a corpus they give BERTScore's idf. Every reference is a document, as in the authors'
program, and lists a mark of its own beside its tokens: how often the mark occurs is the number of
documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.base import list_column, row_totals
from qaeval_core.families.sharing import SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.text.encode import TextEncoder
from qaeval_core.text.ngrams import concat_ranges

# No token id: ids are below 2^31.
DOCUMENT = np.array([1 << 63], dtype=np.uint64)


class TokenFrequenciesScorer:
    """Lists the distinct tokens of references.

    Parameters
    ----------
    artifact : Artifact
        Of the encoder whose tokens are weighed.
    encoder : TextEncoder
        Its tokenizer.
    options : mapping
        None are read.
    """

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        self._encoder = encoder

    def prepare(self, shared: SharedPairs[str]) -> TokenFrequenciesWork:
        """Encode distinct references."""
        listed = [
            np.concatenate([DOCUMENT, np.unique(ids).astype(np.uint64)])
            for ids in self._encoder.encode(shared.targets)
        ]
        return TokenFrequenciesWork(shared, listed)


class TokenFrequenciesWork:
    """A shard whose references are encoded; no unit is run."""

    def __init__(self, shared: SharedPairs[str], listed: list[NDArray[np.uint64]]) -> None:
        self._shared = shared
        self._listed = listed
        self.lengths = np.zeros(0, dtype=np.int64)
        self.n_units_unshared = 0
        self.n_truncated = 0

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return nothing: there is no unit."""
        return {}

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep nothing: there is no unit."""

    def statistics(self) -> dict[str, pa.Array]:
        """Return the distinct tokens of every reference of every row, each with its mark."""
        shared = self._shared
        count = np.array([len(own) for own in self._listed], dtype=np.int64)
        first = np.cumsum(count) - count
        targets = shared.pair_target[shared.row_pair]
        values = np.concatenate([np.zeros(0, np.uint64), *self._listed])
        places = concat_ranges(first[targets], count[targets])
        return {"grams": list_column(values[places], row_totals(count[targets], shared.n_targets))}
