"""Study inputs: scores joined with human ratings, and the rows and metrics chosen from them.

Reads whole tables: a study has human ratings, so it has thousands of rows, not millions. Rows are
chosen and labeled by conditions as a person writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import (
    ConfigError,
    InputError,
    SchemaError,
)
from qaeval_core.tables.score_tables import (
    NO_KEY,
    ScoreColumn,
    StudyTable,
    check_key,
    check_numeric,
    is_numeric,
    numbers,
    read_keyed,
    texts,
)


@dataclass(frozen=True, slots=True)
class Subset:
    """Rows under a name, and the scores to judge in them."""

    name: str
    frame: pl.DataFrame
    columns: dict[str, ScoreColumn]

    def scores(self, metric: str) -> NDArray[np.float64]:
        """Return scores of shape (n_rows,), higher is better; NaN where undefined."""
        values = numbers(self.frame, metric)
        return values if self.columns[metric].higher_is_better else -values


def join_ratings(table: StudyTable, path: str, *, on: str) -> StudyTable:
    """Add the columns of a second table by a key; rows without a partner are left out and counted.

    Parameters
    ----------
    on : str
        The key, ``name``, or ``name_here=name_there``.

    Raises
    ------
    SchemaError
        If a table lacks the key, or the second table has a key twice.
    """
    here, _, there = on.partition("=")
    there = there or here
    check_key(table.frame, here, f"join on {on}:")
    # A table of scores in CSV has lost the zeros that ids began with: so must its partner.
    is_number = table.frame[here].dtype.is_numeric()
    right, n_without = read_keyed(path, there, as_written=not is_number)
    left = table.frame.with_columns(pl.col(here).cast(pl.String))
    same = [name for name in right.columns if name in left.columns and name != there]
    joined = left.join(
        right, left_on=here, right_on=there, how="inner", suffix="_with", maintain_order="left"
    )
    if left.height and not joined.height:
        raise SchemaError(
            f"join on {on}: no row has a rating; keys are such as {left[here].head(2).to_list()} "
            f"here and {right[there].head(2).to_list()} in {path}"
        )
    matched = int(right[there].is_in(left[here].drop_nulls().implode()).sum())
    notes = [
        f"join on {on}: {joined.height:,} rows of {left.height:,} have ratings, "
        f"{left.height - joined.height:,} left out; {right.height - matched:,} ratings unused"
    ]
    if n_without:
        notes.append(f"{path}: {n_without:,} rows without {there} are left out")
    if same:
        notes.append(f"columns of both tables; {path}'s end in _with: {', '.join(same)}")
    return StudyTable(joined, table.described, [*table.notes, *notes])


def choose_metrics(table: StudyTable, names: Sequence[str]) -> list[str]:
    """Return the columns to judge: the named ones, else those that the metadata call scores.

    Raises
    ------
    SchemaError
        If a named column is missing or holds no numbers.
    ConfigError
        If none is named and the metadata name none; lists the numeric columns.
    """
    for name in names:
        check_numeric(table.frame, name, "--metrics")
    if names:
        return list(dict.fromkeys(names))
    known = [
        name
        for name in table.described
        if name in table.frame.columns and is_numeric(table.frame, name)
    ]
    if not known:
        numeric = [name for name in table.frame.columns if is_numeric(table.frame, name)]
        raise ConfigError(
            "no column is described as a score; name some with --metrics. Numeric columns: "
            f"{', '.join(numeric) or 'none'}"
        )
    return known


def cluster_codes(frame: pl.DataFrame, column: str) -> NDArray[np.intp]:
    """Return the number, from 0, of each row's value of a column; a row without is alone."""
    names, codes = np.unique(texts(frame, column), return_inverse=True)
    alone = names[codes] == NO_KEY if len(names) else np.zeros(0, dtype=bool)
    codes[alone] = len(names) + np.arange(int(alone.sum()))
    return np.unique(codes, return_inverse=True)[1].astype(np.intp)


def statistics_of(frame: pl.DataFrame, name: str) -> NDArray[np.float64] | None:
    """Return the sufficient statistics of a score column, or None where the table has none.

    Returns
    -------
    float ndarray of shape (n_rows, n_statistics), or None
        NaN in rows without.
    """
    column = f"{name}_statistics"
    if column not in frame.columns:
        return None
    rows: list[list[float] | None] = frame[column].to_list()
    lengths = {len(row) for row in rows if row is not None}
    if len(lengths) != 1:
        if not lengths:
            return None
        raise InputError(f"{column}: rows hold different numbers of statistics: {sorted(lengths)}")
    blank = [float("nan")] * lengths.pop()
    return np.array([blank if row is None else row for row in rows], dtype=np.float64)
