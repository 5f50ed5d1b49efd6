"""Table: the Python API: tables of scores in memory in, how their systems differ out."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.compare.output import content, printed_comparison
from qaeval_core.compare.request import CompareRequest
from qaeval_core.compare.run import compare_systems
from qaeval_core.errors import ConfigError, nearest
from qaeval_core.pages.printed import FORMATS, check_format
from qaeval_core.storage import files
from qaeval_core.text.given_tables import known_table

_OF_FILES = ("scores", "system", "metrics", "by", "inputs")


@dataclass(frozen=True, slots=True)
class ComparedTables:
    """How systems differ.

    Attributes
    ----------
    systems : table
        Of the kind of the first table: a row for each metric and system, with mean, interval,
        rank, difference from the best or the baseline, corrected p, wins, ties and losses.
    content : dict
        What ``compare.json`` of the command holds.
    notes : list of str
    """

    systems: Any
    content: dict[str, Any]
    notes: list[str]
    _printed: Mapping[str, str]

    def to(self, form: str) -> str:
        """Return the tables as ``text``, ``markdown``, ``latex``, ``json`` or ``csv``.

        Raises
        ------
        ConfigError
            If there is no such format.
        """
        return self._printed[check_format(form)]

    def __repr__(self) -> str:
        return self.to("text")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def compare_tables(
    given: Any,
    *,
    system: str | None = None,
    metrics: str | Sequence[str] = (),
    by: str | Sequence[str] = (),
    **options: Any,
) -> ComparedTables:
    """Compare systems by the scores of the rows that all of them have.

    Parameters
    ----------
    given : mapping of system to table, or table
        Of kinds that `Scorer.score` takes; a single table has a column of systems.
    system : str, optional
        That column.
    metrics : str or sequence of str, optional
        Columns of scores; default those that metadata describe.
    by : str or sequence of str, optional
        Columns whose values get means of their own.
    **options
        Those of `CompareRequest`: on, baseline, cluster, anyway, n_resamples, seed.

    Raises
    ------
    ConfigError, InputError
        As the command says them.

    Examples
    --------
    >>> import polars as pl
    >>> base = pl.DataFrame({"id": ["a", "b", "c"], "f1": [0.1, 0.5, 0.3]})
    >>> large = pl.DataFrame({"id": ["c", "b", "a"], "f1": [0.6, 0.9, 0.4]})
    >>> found = compare_tables({"base": base, "large": large}, metrics="f1")
    >>> found.systems.select("rank", "system", "wins", "losses").rows()
    [(1, 'large', 0, 0), (2, 'base', 0, 3)]
    """
    known = [name for name in CompareRequest.__slots__ if name not in _OF_FILES]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"compare_tables has no argument {name!r}{nearest(name, known)} [QA0105]"
            )
    named = {"": given} if system is not None else _mapping(given)
    own = {name: known_table(table) for name, table in named.items()}
    # Files are what a comparison reads; tables that fit memory fit the disk.
    with tempfile.TemporaryDirectory(prefix="qaeval-compare-") as folder:
        scores = []
        for i, (name, table) in enumerate(own.items()):
            path = Path(folder) / f"{i}.parquet"
            with files.writer(path) as sink:
                pq.write_table(table.table, sink)
            scores.append((name, str(path)))
        request = CompareRequest(
            scores=tuple(scores), system=system, metrics=_names(metrics), by=_names(by), **options
        )
        found = compare_systems(request)
    whole = content(found)
    rows = [
        {"metric": metric, **row, "n": result["n"], "reference": result["reference"]}
        for metric, result in whole["metrics"].items()
        for row in result["systems"]
    ]
    first = next(iter(own.values()))
    return ComparedTables(
        first.back(pa.Table.from_pylist(rows)),
        whole,
        list(found.notes),
        {form: printed_comparison(found, form) for form in FORMATS},
    )


def _mapping(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or len(given) < 2:
        raise ConfigError(
            "give a mapping of at least two systems to tables, or one table and system=COLUMN "
            "[QA0103]"
        )
    return given


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
