"""Tables: the Python API: two tables of scores in memory in, every test and all alerts out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from qaeval_core.audit.audited_columns import RowColumns, scored_rows, watched_columns
from qaeval_core.audit.compare import Alert, compare
from qaeval_core.audit.pair_counts import MatchedCounts, MatchedPairs
from qaeval_core.audit.paired import MIN_SHARE, PairedColumn, with_pairs
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.errors import ConfigError, SchemaError, nearest
from qaeval_core.profile.cells import choose_cells
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import Slices, choose_values
from qaeval_core.stats.paired_rows import match_rows
from qaeval_core.text import column_hashes as text_hashes
from qaeval_core.text.given_tables import known_table

# In this order, where no cluster is named.
_CLUSTERS = ("context", "id")


@dataclass(frozen=True, slots=True)
class AuditedTables:
    """What a comparison of two tables found.

    Attributes
    ----------
    alerts : list of Alert
        Kind, column, slice and a sentence; empty if nothing moved.
    tests : table
        Every test, alerts first; of the kind given.
    notes : list of str
    paired : list of PairedColumn
        Differences of rows that both tables hold; empty where fewer than half are in both.
    is_too_few : bool
        Whether there are too few clusters for a verdict.
    profiles : pair of RunProfile
        Of the reference and of the current table.
    """

    alerts: list[Alert]
    tests: Any
    notes: list[str]
    paired: list[PairedColumn]
    is_too_few: bool
    profiles: tuple[RunProfile, RunProfile] = field(repr=False)

    def __repr__(self) -> str:
        n = len(self.alerts)
        texts = f": {self.alerts[0].text}" if n else ""
        return f"AuditedTables({n:,} {'alert' if n == 1 else 'alerts'}{texts})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def audit_tables(
    reference: Any,
    current: Any,
    *,
    watch: str | Sequence[str] = (),
    by: str | Sequence[str] = (),
    cluster: str | None = None,
    id: str = "id",
    kept: str | None = None,
    **options: Any,
) -> AuditedTables:
    """Tell whether the scores of one table moved from those of another.

    Parameters
    ----------
    reference, current : table
        Of a kind that `Scorer.score` takes.
    watch : str or sequence of str, optional
        Columns of scores; all that the tables' metadata describe.
    by : str or sequence of str, optional
        Columns whose values make slices: the 50 largest, the rest together.
    cluster : str, optional
        Rows of one value depend on each other; ``context``, else ``id``, else each row alone.
    id : str, default "id"
        Column that pairs rows, where both tables have it.
    kept : str, optional
        Condition whose share of rows is audited, such as ``roundtrip >= 0.5``.
    **options
        Those of `AuditSettings`: tolerances, columns, alpha, n_draws, seed, min_clusters.

    Returns
    -------
    AuditedTables

    Raises
    ------
    ConfigError, InputError
        If an option or a column is not there, or the condition cannot be read.

    Examples
    --------
    >>> import polars as pl
    >>> before = pl.DataFrame({"id": list(map(str, range(100))), "score": [0.0, 1.0] * 50})
    >>> now = before.with_columns(score=pl.lit(1.0))
    >>> found = audit_tables(before, now, watch="score")
    >>> found.alerts[0].text
    'the mean of score rose from 0.5 to 1 (p 0.001)'
    """
    known = list(AuditSettings.__slots__)
    for name in options:
        if name not in known:
            raise ConfigError(
                f"audit_tables has no argument {name!r}{nearest(name, known)} [QA0105]"
            )
    settings = AuditSettings(**options)
    given = known_table(current)
    tables = (known_table(reference).table, given.table)
    names = [watch] if isinstance(watch, str) else list(watch)
    slices = [by] if isinstance(by, str) else list(by)
    columns = _columns(tables, names, RowColumns(watch={}, by=slices, kept=kept), cluster, id)
    profiles = _profiles(tables, columns, cluster=columns[0].cluster or "row")
    result = compare(*profiles, settings)
    paired = _paired(tables, columns, settings)
    alerts = with_pairs(result.alerts, paired, settings)
    return AuditedTables(
        alerts,
        given.back(result.table()),
        [*result.notes, *profiles[1].slice_notes()],
        paired,
        result.is_too_few,
        profiles,
    )


def _columns(
    tables: Sequence[pa.Table],
    names: Sequence[str],
    asked: RowColumns,
    cluster: str | None,
    id_column: str,
) -> tuple[RowColumns, RowColumns]:
    """Return the columns of each table; ranges are those that the first one says."""
    watched = watched_columns(tables, names, "watch")
    both = set(tables[0].column_names) & set(tables[1].column_names)
    for option, own in [*(("by", one) for one in asked.by), ("cluster", cluster)]:
        if own is not None and own not in both:
            raise SchemaError(
                f"{option}: no column {own!r} in both tables{nearest(own, sorted(both))} [QA0305]"
            )
    found = next((one for one in _CLUSTERS if one in both), None) if cluster is None else cluster
    own_id = id_column if id_column in both else None
    each = []
    for table in tables:
        there = [one for one in watched if one in table.column_names]
        said = watched_columns([table], there, "watch") if there else {}
        ranged = {one: replace(watched[one], signature=said[one].signature) for one in there}
        each.append(replace(asked, watch=ranged, cluster=found, id=own_id))
    return each[0], each[1]


def _profiles(
    tables: Sequence[pa.Table], columns: Sequence[RowColumns], *, cluster: str
) -> tuple[RunProfile, RunProfile]:
    """Return the profiles of both tables, in the cells and slices of the first one."""
    cells = {}
    for table, own in reversed(list(zip(tables, columns, strict=True))):
        for name, values in own.values(table).items():
            said = own.watch[name]
            cells[name] = choose_cells(partial(iter, [values]), low=said.low, high=said.high)
    slices: dict[str, tuple[str | None, ...]] = dict.fromkeys(columns[0].by, ())
    profiles = []
    for table, own in zip(tables, columns, strict=True):
        counts = own.count_values(table)
        slices = {name: choose_values(counts[name], known) for name, known in slices.items()}
        profile = RunProfile.of(
            {name: cells[name] for name in own.watch},
            Slices(slices),
            signatures={name: each.signature for name, each in own.watch.items()},
            ranges={name: (each.low, each.high) for name, each in own.watch.items()},
            cluster=cluster,
        )
        own.add(profile, table)
        profiles.append(profile)
    return profiles[0], profiles[1]


def _paired(
    tables: Sequence[pa.Table], columns: Sequence[RowColumns], settings: AuditSettings
) -> list[PairedColumn]:
    """Return the differences of shared rows; none where fewer than half are shared."""
    name = columns[0].id
    if name is None:
        return []
    tables = [table.filter(pa.array(scored_rows(table))) for table in tables]
    ids = [text_hashes.text_column(table[name]).cast(pa.large_string()) for table in tables]
    matched = match_rows(ids)
    if matched.share < MIN_SHARE:
        return []
    before, now = (table.take(rows) for table, rows in zip(tables, matched.rows, strict=True))
    values = [own.values(table) for own, table in zip(columns, (before, now), strict=True)]
    shared = {
        name: (values[0][name], own)
        for name, own in values[1].items()
        if name in values[0]
        and columns[0].watch[name].signature == columns[1].watch[name].signature
    }
    counts = MatchedCounts(settings)
    counts.add(
        MatchedPairs(
            ids=ids[1].take(matched.rows[1]),
            rows=matched.rows[1],
            clusters=columns[1].clusters(now),
            values=shared,
        )
    )
    return counts.columns()
