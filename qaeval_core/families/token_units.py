"""Token units: distinct texts to the windows a model runs, and its vectors back to texts.

A text longer than the model takes is cut into equal windows; its first vector is that of the
template's first token, its last that of the template's last, as if it were one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qaeval_core.families.sharing import IntArray
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.batching import pad
from qaeval_core.models.record import TemplateRecord
from qaeval_core.text.encode import TokenIds, equal_windows
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
