"""Token units: distinct texts to the windows a model runs, and its vectors back to texts.

A text longer than the model takes is cut into equal windows; its first vector is that of the
template's first token, its last that of the template's last, as if it were one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.base import list_column, row_totals
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.record import TemplateRecord
from qaeval_core.models.session import pad
from qaeval_core.text.encode import TextEncoder, TokenIds, equal_windows
from qaeval_core.text.ngrams import concat_ranges


def template_of(artifact: Artifact) -> TemplateRecord:
    """Return the special tokens of an encoder's texts."""
    template = artifact.record.template
    assert template is not None, f"{artifact.folder.name} has no pair template: not an encoder"
    return template


class TokenUnits:
    """Windows of distinct texts, and where each window's vectors go.

    Parameters
    ----------
    texts : sequence of int ndarray
        Token ids of distinct texts, without special tokens; a text without tokens has no unit
        and no vector.
    artifact : Artifact
        Of the graph ``token_vectors``.

    Attributes
    ----------
    lengths : int ndarray of shape (n_units,)
        Tokens of each unit, special tokens included.
    spans : int ndarray of shape (n_texts, 2)
        Start and stop of each text's vectors, special tokens included.
    ids : int ndarray of shape (n_total_tokens,)
        Token of each vector.
    is_special : bool ndarray of shape (n_total_tokens,)
    """

    def __init__(self, texts: Sequence[TokenIds], artifact: Artifact) -> None:
        template = template_of(artifact)
        prefix = np.array(template.prefix_ids, dtype=np.int64)
        suffix = np.array(template.suffix_ids, dtype=np.int64)
        n_special = len(prefix) + len(suffix)
        room = artifact.record.max_positions - n_special
        self._sequences: list[TokenIds] = []
        # Per unit: first position that is kept, first vector it becomes, how many.
        kept: list[tuple[int, int, int]] = []
        self.n_windows = np.zeros(len(texts), dtype=np.int64)
        counts = np.array([len(ids) + n_special if len(ids) else 0 for ids in texts], np.int64)
        starts = np.cumsum(counts) - counts
        for i, ids in enumerate(texts):
            windows = equal_windows(len(ids), max_tokens=room)
            self.n_windows[i] = len(windows)
            for start, stop in windows:
                self._sequences.append(np.concatenate([prefix, ids[start:stop], suffix]))
                is_first, is_last = start == 0, stop == len(ids)
                skipped = 0 if is_first else len(prefix)
                n_kept = len(prefix) * is_first + stop - start + len(suffix) * is_last
                at = int(starts[i]) + (0 if is_first else len(prefix) + start)
                kept.append((skipped, at, n_kept))
        self._kept = np.array(kept, dtype=np.int64).reshape(-1, 3)
        self.lengths = np.array([len(ids) for ids in self._sequences], dtype=np.int64)
        self.spans = np.stack([starts, starts + counts], axis=1)
        total = int(counts.sum())
        self._shape = (total, artifact.record.dim)
        self._vectors: NDArray[np.float32] | None = None
        self.ids = np.zeros(total, dtype=np.int64)
        self.is_special = np.ones(total, dtype=bool)
        own = concat_ranges(starts + len(prefix), np.maximum(counts - n_special, 0))
        self.is_special[own] = False
        self.ids[own] = np.concatenate([np.zeros(0, np.int64), *texts])

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Vectors of all texts; NaN where the unit has not run.

        Made when the first unit has run: the next shard waits laid out, and must not hold them yet.
        """
        if self._vectors is None:
            self._vectors = np.full(self._shape, np.nan, dtype=np.float32)
        return self._vectors

    def make_inputs(self, batch: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of ``token_vectors`` for some units."""
        rows = list(batch)
        input_ids = pad([self._sequences[i] for i in rows])
        kept = self._kept[rows]
        first = np.arange(len(rows)) * input_ids.shape[1] + kept[:, 0]
        return {
            "input_ids": input_ids,
            "n_tokens": self.lengths[rows],
            "token_rows": concat_ranges(first, kept[:, 2]),
        }

    def take(self, batch: Sequence[int], output: NDArray[np.float32]) -> None:
        """Keep the vectors of these units; output has shape (n_asked, dim)."""
        kept = self._kept[list(batch)]
        self.vectors[concat_ranges(kept[:, 1], kept[:, 2])] = output

    def ordinary(self) -> IntArray:
        """Return how many tokens each text has, special tokens left out."""
        bounds = np.concatenate([[0], np.cumsum(~self.is_special)])
        return np.asarray(bounds[self.spans[:, 1]] - bounds[self.spans[:, 0]], dtype=np.int64)


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

    def lay_out(self, shared: SharedPairs[str]) -> TokenFrequenciesWork:
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
