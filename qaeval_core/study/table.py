"""Table: the Python API: a table in memory with scores and ratings in, how they agree out."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.storage import files
from qaeval_core.study.records import TABLES, StudyRequest
from qaeval_core.study.run import run_study
from qaeval_core.text.given_tables import known_table

_OF_FILES = ("scores", "human", "metrics", "ratings", "on", "inputs", "subsets")


@dataclass(frozen=True, slots=True)
class CorrelatedTable:
    """How scores agree with ratings; the tables that ``qaeval correlate --out`` writes.

    Attributes
    ----------
    correlations, comparisons, auc, win_lose, forward_selection : table
        Of the kind given; empty where nothing asks for one.
    notes : list of str
    """

    correlations: Any
    comparisons: Any
    auc: Any
    win_lose: Any
    forward_selection: Any
    notes: list[str]

    def __repr__(self) -> str:
        return f"CorrelatedTable({len(self.notes):,} notes)"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def correlate_table(
    table: Any,
    human: str | Sequence[str],
    *,
    metrics: str | Sequence[str] = (),
    subsets: str | Sequence[str] = (),
    **options: Any,
) -> CorrelatedTable:
    """Correlate the scores of a table with its human ratings.

    Parameters
    ----------
    table : table
        Of a kind that `Scorer.score` takes.
    human : str or sequence of str
        Columns of ratings.
    metrics : str or sequence of str, optional
        Columns of scores; all that the table's metadata describe.
    subsets : str or sequence of str, optional
        Conditions whose rows are also correlated alone, such as ``f1 == 0``.
    **options
        Those of `StudyRequest`: by, system, question, n_draws, questions_per_draw, auc, win_lose,
        min_gap, forward_selection, compare, cluster, draw_systems, n_resamples, seed.

    Returns
    -------
    CorrelatedTable

    Raises
    ------
    ConfigError, InputError
        As the command says them.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"score": [0.1, 0.5, 0.9], "rating": [1, 2, 3]})
    >>> found = correlate_table(rows, "rating", metrics="score", n_resamples=20)
    >>> found.correlations.select("coefficient", "value").head(1).rows()
    [('pearson', 1.0)]
    """
    known = [name for name in StudyRequest.__slots__ if name not in _OF_FILES]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"correlate_table has no argument {name!r}{nearest(name, known)} [QA0105]"
            )
    given = known_table(table)
    # A file is what a study reads; a table that fits memory fits the disk.
    with tempfile.TemporaryDirectory(prefix="qaeval-correlate-") as folder:
        source = Path(folder) / "rows.parquet"
        with files.writer(source) as sink:
            pq.write_table(given.table, sink)
        request = StudyRequest(
            scores=(str(source),),
            human=_names(human),
            metrics=_names(metrics),
            subsets=_names(subsets),
            **options,
        )
        study = run_study(request)
    found = {name: given.back(study.frame(name).to_arrow()) for name in TABLES}
    return CorrelatedTable(**found, notes=study.notes)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
