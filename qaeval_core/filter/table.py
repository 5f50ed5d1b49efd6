"""Table: the Python API: a table in memory in, kept rows and decisions out; no Ray, no folder."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.filter.labels import LABEL_COLUMN
from qaeval_core.filter.plan import make_plan
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.run import run_filter
from qaeval_core.running.range_executor import LocalRangeExecutor
from qaeval_core.storage import files
from qaeval_core.tables.open_corpus import open_corpus
from qaeval_core.text.given_tables import known_table

_NAME = "rows.parquet"


@dataclass(frozen=True, slots=True)
class FilteredTable:
    """What a filter made of a table.

    Attributes
    ----------
    kept : table
        Rows that are kept, in their order; of the kind given.
    decisions : the same kind
        Of every row: id, kept, reason, rank_value, duplicate_of, group_size, group_kept.
    content : dict
        What ``filter.json`` would say: counts by reason, cut, yields, certificate.
    """

    kept: Any
    decisions: Any
    content: dict[str, Any]

    def __repr__(self) -> str:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in self.content["reasons"].items())
        dropped = f"; dropped: {reasons}" if reasons else ""
        n_kept, n_rows = self.content["kept"], self.content["rows"]
        return f"FilteredTable(kept {n_kept:,} of {n_rows:,} rows{dropped})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def filter_table(
    table: Any,
    *,
    columns: Mapping[str, str] | None = None,
    keep: str | Sequence[str] = (),
    learn: Sequence[str] = (),
    **options: Any,
) -> FilteredTable:
    """Keep the rows of a table that are worth training on.

    Parameters
    ----------
    table : table
        With at least one column of numbers; of a kind that `Scorer.score` takes.
    columns : mapping of role to column, optional
        Of id, question, context and answer, where the names are others.
    keep : str or sequence of str
        Conditions that rows fulfill.
    learn : sequence of str
        Columns to learn the rank from.
    **options
        Those of `FilterRequest`: rules, rank_by, near_duplicates, group, top_k, share, budget,
        share_per, quota, undefined, precision, labels, label, confidence, seed. ``labels`` is a
        table, a file of one, or a column of this table, whose nulls are rows that nobody labeled;
        or a list of these, one for each rater.

    Returns
    -------
    FilteredTable

    Raises
    ------
    ConfigError, InputError
        As the command says them.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"id": ["a", "b", "c"], "score": [0.1, 0.9, None]})
    >>> found = filter_table(rows, rank_by="score", share=0.5)
    >>> found.kept["id"].to_list(), found.decisions["reason"].to_list()
    (['b'], ['share', None, 'undefined_score'])
    """
    known = [name for name in FilterRequest.__slots__ if name not in ("label_sheet", "partial")]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"filter_table has no argument {name!r}{nearest(name, known)} [QA0105]"
            )
    given = known_table(table)
    # Files are what everything below reads; a table that fits memory fits the disk.
    with tempfile.TemporaryDirectory(prefix="qaeval-filter-") as name:
        folder = Path(name)
        if (several := options.get("labels")) is not None:
            is_list = isinstance(several, list | tuple)
            if not is_list or all(isinstance(own, Mapping) for own in several):  # rows of one
                several = [several]
            id_column = (columns or {}).get("id", "id")
            options["labels"] = tuple(
                _label_file(own, given.table, id_column, folder / "labels" / f"{i}.parquet")
                for i, own in enumerate(several)
            )
        request = FilterRequest(
            columns=dict(columns or {}),
            keep=(keep,) if isinstance(keep, str) else tuple(keep),
            learn=tuple(learn),
            **options,
        )
        source = folder / "source" / _NAME
        with files.writer(source) as sink:
            pq.write_table(given.table, sink)
        plan = make_plan(request, open_corpus(source.parent, columns=request.columns))
        result = run_filter(plan, folder / "kept", LocalRangeExecutor(), say=lambda _: None)
        kept = folder / "kept" / "kept" / _NAME
        rows = pq.read_table(kept) if kept.is_file() else pq.read_table(source).slice(0, 0)
        decisions = pq.read_table(folder / "kept" / "decisions" / _NAME)
    return FilteredTable(given.back(rows), given.back(decisions), result.content)


def _label_file(given: object, rows: pa.Table, id_column: str, path: Path) -> str:
    """Return a file of labels with a column ``id``; of those in memory one is written."""
    if isinstance(given, Path) or (isinstance(given, str) and given not in rows.column_names):
        return str(given)
    if isinstance(given, str):
        ids = (
            rows[id_column]
            if id_column in rows.column_names
            else pa.array([f"{_NAME}#{i}" for i in range(rows.num_rows)])
        )
        labels = pa.table({"id": ids, LABEL_COLUMN: rows[given]})
        labels = labels.filter(pc.is_valid(labels[LABEL_COLUMN]))
    else:
        labels = known_table(given).table
    with files.writer(path) as sink:
        pq.write_table(labels, sink)
    return str(path)
