"""Token units: distinct texts to the windows a model runs, and its vectors back to texts.

A text longer than the model takes is cut into equal windows; its first vector is that of the
template's first token, its last that of the template's last, as if it were one sequence.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.model_units import (
    Batch,
    ModelScorer,
    PairTemplate,
    TokenValueUnits,
    Units,
    Work,
    list_column,
    row_totals,
)
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.text.encode import equal_cuts
from qaeval_core.text.ngrams import concat_ranges
from qaeval_core.text.token_runs import TokenRuns

VectorArray = NDArray[np.float32]


class TokenUnits(TokenValueUnits):
    """Windows of distinct texts, and where each window's vectors go.

    Parameters
    ----------
    texts : TokenRuns
        Distinct texts, without special tokens; a text without tokens has no unit and no vector.
    artifact : Artifact
        Of the graph ``token_vectors``.

    Attributes
    ----------
    n_windows : int ndarray of shape (n_texts,)
    spans : int ndarray of shape (n_texts, 2)
        Start and stop of each text's vectors, special tokens included.
    ids : int ndarray of shape (n_total_tokens,)
        Token of each vector.
    is_special : bool ndarray of shape (n_total_tokens,)
    """

    def __init__(self, texts: TokenRuns, artifact: Artifact) -> None:
        template = PairTemplate.of(artifact)
        n_prefix, n_suffix = len(template.prefix), len(template.suffix)
        room = artifact.record.max_positions - n_prefix - n_suffix
        counts = np.where(texts.counts > 0, texts.counts + n_prefix + n_suffix, 0)
        starts = np.cumsum(counts) - counts
        text, start, n_tokens = equal_cuts(texts.counts, max_tokens=room)
        is_first, is_last = start == 0, start + n_tokens == texts.counts[text]
        super().__init__(
            template.single(texts.take(text).cut(start, n_tokens)),
            first_token=np.where(is_first, 0, n_prefix),
            first_value=starts[text] + np.where(is_first, 0, n_prefix + start),
            n_values=n_prefix * is_first + n_tokens + n_suffix * is_last,
            values_shape=(int(counts.sum()), artifact.record.dim),
        )
        self.n_windows = np.bincount(text, minlength=len(texts))
        self._parts: list[VectorArray | None] = [None] * len(text)  # by unit
        self.spans = np.stack([starts, starts + counts], axis=1)
        self.ids = np.zeros(int(counts.sum()), dtype=np.int64)
        self.is_special = np.ones(len(self.ids), dtype=bool)
        own = concat_ranges(starts + n_prefix, np.maximum(counts - n_prefix - n_suffix, 0))
        self.is_special[own] = False
        self.ids[own] = texts.flat()

    def take(self, batch: Batch, output: VectorArray) -> None:
        """Keep the vectors of these units where they are: a copy would take as long as matching."""
        stops = np.cumsum([0, *self.facts["n_values"][batch]]).tolist()
        for unit, (start, stop) in zip(np.asarray(batch).tolist(), pairwise(stops), strict=True):
            self._parts[unit] = output[start:stop]

    @cached_property
    def vectors(self) -> VectorArray:
        """Vectors of all texts, of shape (n_total_tokens, dim); NaN where the unit has not run."""
        for start, part in zip(self.facts["first_value"].tolist(), self._parts, strict=True):
            if part is not None:
                self.values[start : start + len(part)] = part
        return self.values

    @cached_property
    def text_vectors(self) -> list[VectorArray]:
        """Vectors of each text, of shape (n_tokens, dim); once all units have run."""
        parts = [part for part in self._parts if part is not None]
        nothing = np.zeros((0, *self._values_shape[1:]), dtype=np.float32)
        first = np.cumsum(self.n_windows) - self.n_windows
        return [
            parts[i] if n == 1 else np.concatenate([nothing, *parts[i : i + n]])
            for i, n in zip(first.tolist(), self.n_windows.tolist(), strict=True)
        ]

    def ordinary(self) -> IntArray:
        """Return how many tokens each text has, special tokens left out."""
        bounds = np.concatenate([[0], np.cumsum(~self.is_special)])
        return np.asarray(bounds[self.spans[:, 1]] - bounds[self.spans[:, 0]], dtype=np.int64)


# No token id: ids are below 2^31.
DOCUMENT = np.array([1 << 63], dtype=np.uint64)


class TokenFrequenciesScorer(ModelScorer):
    """Lists the distinct tokens of references."""

    def lay_out(self, shared: SharedPairs[str]) -> TokenFrequenciesWork:
        """Encode distinct references."""
        listed = [
            np.concatenate([DOCUMENT, np.unique(ids).astype(np.uint64)])
            for ids in self.encoder.encode(shared.targets)
        ]
        return TokenFrequenciesWork(shared, listed)


class TokenFrequenciesWork(Work):
    """A shard whose references are encoded; no unit is run."""

    def __init__(self, shared: SharedPairs[str], listed: list[NDArray[np.uint64]]) -> None:
        self.units = Units(TokenRuns.of([]))
        self._shared = shared
        self._listed = listed

    def statistics(self) -> dict[str, pa.Array]:
        """Return the distinct tokens of every reference of every row, each with its mark."""
        shared = self._shared
        count = np.array([len(own) for own in self._listed], dtype=np.int64)
        first = np.cumsum(count) - count
        targets = shared.pair_target[shared.row_pair]
        values = np.concatenate([np.zeros(0, np.uint64), *self._listed])
        places = concat_ranges(first[targets], count[targets])
        return {"grams": list_column(values[places], row_totals(count[targets], shared.n_targets))}
