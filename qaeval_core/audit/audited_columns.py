"""Audited columns: what an audit counts of the rows of scores, found by the names of columns.

A table as ``qaeval score`` writes it: scores, why they are undefined (``<metric>_reason``), cut
inputs (``<metric>_truncated``) and quarantine. Any other table will do: what it lacks is not there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.errors import SchemaError, nearest
from qaeval_core.profile.column_profile import FloatArray
from qaeval_core.profile.run_profile import RunProfile, UInt64
from qaeval_core.schema import COLUMNS_METADATA, NOT_SAMPLED, QUARANTINE_REASON
from qaeval_core.tables.conditions import select_rows
from qaeval_core.tables.score_tables import column_of, described_columns, flat_columns, is_numeric
from qaeval_core.text import column_hashes as text_hashes


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of one column before its values are read."""

    signature: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """Which columns of a table say what.

    Attributes
    ----------
    watch : mapping of column to Watched
    by : sequence of str
        Whose values make slices.
    cluster : str, optional
        Rows of one value belong together; None, or a null: each row alone.
    id : str, optional
    kept : str, optional
        Condition whose share of rows is audited.
    """

    watch: Mapping[str, Watched]
    by: Sequence[str] = ()
    cluster: str | None = None
    id: str | None = None
    kept: str | None = None

    def values(self, table: pa.Table) -> dict[str, FloatArray]:
        """Return the scores of a table; NaN where undefined."""
        return {name: score_values(table[name]) for name in self.watch}

    def clusters(self, table: pa.Table, *, first_row: int = 0) -> UInt64:
        """Return hashes of clusters, the same in every run.

        Parameters
        ----------
        first_row : int
            Number of the first row over the whole run, which names rows without an id.
        """
        hashes = np.zeros(table.num_rows, np.uint64)
        is_there = np.zeros(table.num_rows, dtype=bool)
        for name in (self.cluster, self.id):
            if name is not None and not is_there.all():
                own, there = text_hashes.column_hashes(table[name])
                hashes = np.where(is_there, hashes, own)
                is_there |= there
        if not is_there.all():
            numbers = range(first_row, first_row + table.num_rows)
            alone = text_hashes.text_hashes(f"row {number}".encode() for number in numbers)
            hashes = np.where(is_there, hashes, alone)
        return hashes

    def slice_texts(self, table: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Return the columns of slices as text_hashes."""
        return {name: text_hashes.text_column(table[name]).cast(pa.string()) for name in self.by}

    def count_values(self, table: pa.Table) -> dict[str, Counter[str | None]]:
        """Return how many rows each value of the columns of slices has."""
        found = {}
        for name, own in self.slice_texts(table).items():
            counted = pc.value_counts(own.combine_chunks())
            pairs = zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)
            found[name] = Counter(dict(pairs))
        return found

    def add(self, run: RunProfile, table: pa.Table, *, first_row: int = 0) -> None:
        """Count the rows of a table in a profile of the same columns and slices."""
        is_scored = scored_rows(table)
        not_sampled = np.zeros(table.num_rows, dtype=bool)
        rates: dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_] | None]] = {}
        if QUARANTINE_REASON in table.column_names:
            why = text_hashes.decoded(table[QUARANTINE_REASON])
            not_sampled = np.asarray(pc.equal(why, NOT_SAMPLED).fill_null(False))
            rates["quarantined"] = (~is_scored & ~not_sampled, ~not_sampled)
        reasons = {name: own for name in self.watch if (own := _reasons(table, name)) is not None}
        rates["not_sampled"] = (not_sampled, None)
        for name in self.watch:
            if f"{name}_truncated" in table.column_names:
                cut = score_values(table[f"{name}_truncated"]) > 0
                rates[f"truncated.{name}"] = (cut, is_scored)
        if self.kept is not None:
            # Under the condition's name: shares of different conditions are not compared.
            rates[f"kept.{self.kept}"] = (self._fulfill(table, self.kept), is_scored)
        run.add(
            self.values(table),
            self.clusters(table, first_row=first_row),
            by=self.slice_texts(table),
            reasons=reasons,
            rates=rates,
            is_scored=is_scored,
        )

    def _fulfill(self, table: pa.Table, condition: str) -> NDArray[np.bool_]:
        """Return the rows that are kept; where a value is missing they are not."""
        roots = pl.sql_expr(condition).meta.root_names()
        read = {column_of(name, table.column_names) for name in roots}
        own = table.select(
            [name for name in table.column_names if name in read] or table.column_names
        )
        frame = flat_columns(pl.DataFrame(pl.from_arrow(own)))
        found: NDArray[np.bool_] = (
            select_rows(frame, condition, "--kept").fill_null(value=False).to_numpy()
        )
        return found


def scored_rows(table: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are neither quarantined nor left out by a sample, (n_rows,)."""
    if QUARANTINE_REASON not in table.column_names:
        return np.ones(table.num_rows, dtype=bool)
    is_none: NDArray[np.bool_] = ~np.asarray(
        text_hashes.decoded(table[QUARANTINE_REASON]).is_valid()
    )
    return is_none


def score_values(column: pa.ChunkedArray) -> FloatArray:
    """Return numbers of shape (n_rows,), NaN where there is none; infinite ones stay.

    Examples
    --------
    >>> score_values(pa.chunked_array([[1, None, 3]])).tolist()
    [1.0, nan, 3.0]
    """
    series = pl.Series(pl.from_arrow(text_hashes.decoded(column)))
    return series.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _reasons(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Return why values of a column are undefined: its own reasons, or those of its metric."""
    parts = name.split("_")
    for n in range(len(parts), 0, -1):
        reason = f"{'_'.join(parts[:n])}_reason"
        if reason in table.column_names:
            return text_hashes.text_column(table[reason]).cast(pa.string())
    return None


def watched_columns(
    tables: Sequence[pa.Table], names: Sequence[str], option: str
) -> dict[str, Watched]:
    """Return the columns to watch: the named ones, else those that metadata call scores.

    Counts of what was cut, such as ``sas_truncated``, are no scores.

    Raises
    ------
    SchemaError
        If a named column is in no table, or holds no numbers; or if none is named or described.
    """
    said: dict[str, Watched] = {}
    for table in tables:
        text = (table.schema.metadata or {}).get(COLUMNS_METADATA)
        ranges = json.loads(text) if described_columns(text, "table") and text else {}
        for name, own in ranges.items():
            said.setdefault(
                name, Watched(own.get("signature", ""), own.get("low"), own.get("high"))
            )
    frames = [pl.DataFrame(pl.from_arrow(table)) for table in tables]
    numeric = list(dict.fromkeys(n for own in frames for n in own.columns if is_numeric(own, n)))
    if not names:
        names = [name for name in said if name in numeric and not name.endswith("_truncated")]
        if not names:
            raise SchemaError(
                f"no column is described as a score; name some with {option}. Numeric columns: "
                f"{', '.join(numeric) or 'none'} [QA0314]"
            )
    for name in names:
        if name not in numeric:
            raise SchemaError(
                f"{option}: no numeric column {name!r}{nearest(name, numeric)} [QA0305]"
            )
    return {name: said.get(name, Watched()) for name in names}
