"""Sample: drawn as the rows of whole contexts, those of smallest hash; others are left out.

A context is in or out by its own text and one number, the cut. So it does not matter which file,
row group or shard a row is in, and next week's sample has the contexts that this week's had, as
long as they are among the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import SchemaError
from qaeval_core.families.validate import table_rows
from qaeval_core.planning.columns import resolve_columns
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.shards import Piece
from qaeval_core.store.sample import Sample


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
    piece: Piece,
) -> dict[str, list[Any]]:
    """Return the values of some rows of a piece, or all, by role; see `table_rows`."""
    if chosen is not None:
        table = table.filter(pa.array(chosen))
    return table_rows(
        table,
        columns=columns,
        max_bytes=piece.limits.text_bytes,
        has_no_answers=piece.read_as.has_no_answers,
    )
