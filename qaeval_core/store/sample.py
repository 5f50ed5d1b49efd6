"""Sample: which rows of a run are scored, and so held by its commits, whose names have its name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from qaeval_core.signature import hash_text
from qaeval_core.text.column_hashes import column_hashes

LARGEST_HASH = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Which rows of a run are scored, and how many they are.

    Attributes
    ----------
    column : str
        Of contexts.
    cut : int
        A context is in the sample if its hash is at most this; `LARGEST_HASH` if all are.
    n_groups : int
        Contexts that were asked for.
    n_contexts, n_rows : int
        Contexts and rows of the sample.
    n_without : int
        Rows without a context: they are in no sample.
    corpus : str
        Hash of the rows that it was drawn from.
    """

    column: str
    cut: int
    n_groups: int
    n_contexts: int
    n_rows: int
    n_without: int
    corpus: str

    @property
    def name(self) -> str:
        """Which rows are in it, in 16 characters: it is in the names of their commits."""
        return hash_text(f"{self.cut:016x} {self.column}", n_chars=16)

    def chosen(self, contexts: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Return which rows are in the sample; bool ndarray of shape (n_rows,)."""
        hashes, is_there = column_hashes(contexts)
        return np.asarray(is_there & (hashes <= np.uint64(self.cut)), dtype=bool)

    def line(self, n_rows_total: int) -> str:
        """Return how large it is, for people."""
        which = f"{self.n_contexts:,}" if self.cut < LARGEST_HASH else f"all {self.n_contexts:,}"
        shown = f"sample: {self.n_rows:,} of {n_rows_total:,} rows, those of {which} contexts"
        if self.n_without:
            shown += f"; {self.n_without:,} rows have no context and are not sampled"
        return shown


_SAMPLE = TypeAdapter(Sample)


def read_sample(content: object) -> Sample | None:
    """Return the sample that a run wrote down; None where there is none that can be read."""
    try:
        return _SAMPLE.validate_python(content)
    except ValidationError:
        return None
