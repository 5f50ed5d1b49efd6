"""Sample: the rows of whole contexts, those of smallest hash; all other rows are left out.

A context is in or out by its own text and one number, the cut. So it does not matter which file,
row group or shard a row is in, and next week's sample has the contexts that this week's had, as
long as they are among the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from qaeval_core.errors import SchemaError
from qaeval_core.families.validate import table_rows
from qaeval_core.planning.columns import resolve_columns
from qaeval_core.planning.inputs import InputFile
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


def context_column(files: Sequence[InputFile], mapping: Mapping[str, str]) -> str:
    """Return the column of contexts.

    Raises
    ------
    SchemaError
        If a file has none.
    """
    try:
        return resolve_columns(files, roles=["context"], mapping=mapping)["context"]
    except SchemaError as error:
        raise SchemaError(f"input.sample_groups takes whole contexts: {error}") from None


def sampled_rows(table: pa.Table, sample: Sample | None) -> NDArray[np.bool_] | None:
    """Return which rows of a table with contexts are in a sample; None is all, without one."""
    return None if sample is None else sample.chosen(table.column(sample.column))


def chosen_values(
    table: pa.Table,
    chosen: NDArray[np.bool_] | None,
    *,
    columns: Mapping[str, str],
    max_bytes: int,
) -> dict[str, list[Any]]:
    """Return the values of some rows, or all, by role; see `table_rows`."""
    if chosen is not None:
        table = table.filter(pa.array(chosen))
    return table_rows(table, columns=columns, max_bytes=max_bytes)
