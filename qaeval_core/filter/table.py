"""Table: the Python API: a table in memory in, kept rows and decisions out; no Ray, no folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.filter.plan import make_plan
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.run import run_filter
from qaeval_core.storage import files
from qaeval_core.tables.executor import LocalRangeExecutor
from qaeval_core.tables.open_corpus import open_corpus

_NAME = "rows.parquet"


@dataclass(frozen=True, slots=True)
class FilteredTable:
    """What a filter made of a table.

    Attributes
    ----------
    kept : pyarrow.Table or polars.DataFrame
        Rows that are kept, in their order; of the kind given.
    decisions : the same kind
        Of every row: id, kept, reason, rank_value, duplicate_of, group_size, group_kept.
    content : dict
        What ``filter.json`` would say: counts by reason, cut, yields, certificate.
    """

    kept: Any
    decisions: Any
    content: dict[str, Any]


def filter_table(
    table: pa.Table | pl.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    keep: str | Sequence[str] = (),
    learn: Sequence[str] = (),
    **options: Any,
) -> FilteredTable:
    """Keep the rows of a table that are worth training on.

    Parameters
    ----------
    table : pyarrow.Table or polars.DataFrame
        With at least one column of numbers.
    columns : mapping of role to column, optional
        Of id, question, context and answer, where the names are others.
    keep : str or sequence of str
        Conditions that rows fulfill.
    learn : sequence of str
        Columns to learn the rank from.
    **options
        Those of `FilterRequest`: rules, rank_by, near_duplicates, group, top_k, share, budget,
        quota, undefined, precision, labels, label, confidence, seed.

    Returns
    -------
    FilteredTable

    Raises
    ------
    ConfigError, InputError
        As the command says them.

    Examples
    --------
    >>> rows = pl.DataFrame({"id": ["a", "b", "c"], "score": [0.1, 0.9, None]})
    >>> found = filter_table(rows, rank_by="score", share=0.5, rules="none")
    >>> found.kept["id"].to_list(), found.decisions["reason"].to_list()
    (['b'], ['share', None, 'undefined_score'])
    """
    known = [name for name in FilterRequest.__slots__ if name not in ("label_sheet", "partial")]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"filter_table has no argument {name!r}{nearest(name, known)} [QA0105]"
            )
    request = FilterRequest(
        columns=dict(columns or {}),
        keep=(keep,) if isinstance(keep, str) else tuple(keep),
        learn=tuple(learn),
        **options,
    )
    is_polars = isinstance(table, pl.DataFrame)
    # Files are what everything below reads; a table that fits memory fits the disk.
    with tempfile.TemporaryDirectory(prefix="qaeval-filter-") as name:
        folder = Path(name)
        source = folder / "source" / _NAME
        with files.writer(source) as sink:
            pq.write_table(table.to_arrow() if is_polars else table, sink)
        plan = make_plan(request, open_corpus(source.parent, columns=request.columns))
        result = run_filter(plan, folder / "kept", LocalRangeExecutor(), say=lambda _: None)
        kept = folder / "kept" / "kept" / _NAME
        rows = pq.read_table(kept) if kept.is_file() else pq.read_table(source).slice(0, 0)
        decisions = pq.read_table(folder / "kept" / "decisions" / _NAME)
    if is_polars:
        return FilteredTable(pl.from_arrow(rows), pl.from_arrow(decisions), result.content)
    return FilteredTable(rows, decisions, result.content)
