"""Study inputs: scores joined with human ratings, and the rows and metrics chosen from them.

Reads whole tables: a study has human ratings, so it has thousands of rows, not millions. Rows are
chosen and labeled by conditions as a person writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import (
    ConfigError,
    InputError,
    QAEvalError,
    SchemaError,
)
from qaeval_core.planning.columns import CLUSTER_ROLES
from qaeval_core.storage.path import as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.study.records import StudyRequest
from qaeval_core.tables.open_corpus import open_corpus
from qaeval_core.tables.range_reader import RangeReader
from qaeval_core.tables.score_tables import (
    FILE,
    NO_KEY,
    ROW,
    ScoreColumn,
    StudyTable,
    check_key,
    check_numeric,
    is_numeric,
    numbers,
    read_keyed,
    texts,
)
from qaeval_core.text.column_hashes import column_hashes


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


def join_ratings(
    table: StudyTable, path: str, *, on: str, encoding: str | None = None
) -> StudyTable:
    """Add the columns of a second table by a key; rows without a partner are left out and counted.

    Parameters
    ----------
    on : str
        The key, ``name``, or ``name_here=name_there``.
    encoding : str, optional
        Of a second table of text.

    Raises
    ------
    SchemaError
        If a table lacks the key, or the second table has a key twice.
    """
    here, _, there = on.partition("=")
    there = there or here
    check_key(table.frame, here, f"join on {on}")
    # A table of scores in CSV has lost the zeros that ids began with: so must its partner.
    is_number = table.frame[here].dtype.is_numeric()
    right, n_without = read_keyed(path, there, as_written=not is_number, encoding=encoding)
    left = table.frame.with_columns(pl.col(here).cast(pl.String))
    same = [name for name in right.columns if name in left.columns and name != there]
    joined = left.join(
        right, left_on=here, right_on=there, how="inner", suffix="_with", maintain_order="left"
    )
    if left.height and not joined.height:
        raise SchemaError(
            f"join on {on}: no row has a rating. Keys are such as {left[here].head(2).to_list()} "
            f"here and {right[there].head(2).to_list()} in {path} [QA0317]"
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
    return replace(table, frame=joined, notes=[*table.notes, *notes])


@dataclass(frozen=True, slots=True)
class Clusters:
    """What is drawn together in a resample: a column of a table, and what its values are called.

    ``column`` is None where rows are drawn one by one.
    """

    column: str | None
    name: str = "rows"


def with_clusters(table: StudyTable, request: StudyRequest) -> tuple[StudyTable, Clusters]:
    """Return a table that was read with places, without them, and with its clusters.

    The context, else the question where it repeats, else the row; ``request.cluster`` is a column,
    a role, or ``none``. Of an OUT without such a column the input is read again.

    Raises
    ------
    SchemaError, ConfigError
        If the column that was asked for is not there.
    InputError
        If the input that has it is not there.
    """
    asked = request.cluster
    clean = replace(table, frame=table.frame.drop(FILE, ROW))
    if asked == "none":
        return clean, Clusters(None)
    if asked is not None and (asked in clean.frame.columns or asked not in CLUSTER_ROLES):
        check_key(clean.frame, asked, "--cluster")
        return clean, Clusters(asked, asked)
    for role in CLUSTER_ROLES if asked is None else (asked,):
        try:
            values = _values_of(table, role, request)
        except QAEvalError as error:
            if asked is not None:
                raise InputError(f"--cluster {asked} reads the input again. {error}") from None
            note = f"rows are resampled one by one, because the input cannot be read: {error}"
            return replace(clean, notes=[*clean.notes, note]), Clusters(None)
        if values is None or (asked is None and role == "question" and values.is_unique().all()):
            continue
        name = role if role in clean.frame.columns else f"{role} of the input"
        return replace(clean, frame=clean.frame.with_columns(values.alias(name))), Clusters(
            name, role
        )
    if asked is not None:
        check_key(clean.frame, asked, "--cluster")
    return clean, Clusters(None)


def _values_of(table: StudyTable, role: str, request: StudyRequest) -> pl.Series | None:
    """Return texts that are equal where a role is, one a row; None where there is no such role."""
    if role in table.frame.columns:
        own = table.frame[role]
        return own.hash(0).cast(pl.String) if own.dtype.is_nested() else own.cast(pl.String)
    numbers_of = {file.place: i for i, file in enumerate(table.files)}
    parts = []
    for path in request.scores:
        if not (as_path(path) / "run.json").is_file():
            return None
        corpus = open_corpus(path, columns={}, partial=True, inputs=request.inputs)
        # The question of a run may be its candidate, which is an answer here.
        is_own = role == "question" and role in corpus.names
        column = role if is_own else corpus.roles.get(role)
        if column is None:
            return None
        for task in corpus.tasks():
            scores = task.file.scores or task.file.source
            number = numbers_of[as_path(scores.uri).place]
            reader = RangeReader(task, names=[column], has_ids=False, outages=Outages())
            for rows, read, _ in reader:
                hashes, is_there = column_hashes(read[column])
                texts_of = pl.Series(hashes).cast(pl.String).set(pl.Series(~is_there), None)
                places = pl.int_range(rows.start, rows.start + rows.n_rows, eager=True)
                parts.append(
                    pl.DataFrame({ROW: places, "value": texts_of}).with_columns(
                        pl.lit(number).alias(FILE)
                    )
                )
            reader.close()
    found = table.frame.select(FILE, ROW).join(
        pl.concat(parts), on=[FILE, ROW], how="left", maintain_order="left"
    )
    return found["value"]


def choose_metrics(table: StudyTable, names: Sequence[str]) -> list[str]:
    """Return the columns to judge: the named ones, else those that the metadata call scores.

    Without names, those of `no_metrics` are left out.

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
    aside = no_metrics(table)
    known = [
        name
        for name in table.described
        if name in table.frame.columns and is_numeric(table.frame, name) and name not in aside
    ]
    if not known:
        numeric = [name for name in table.frame.columns if is_numeric(table.frame, name)]
        raise ConfigError(
            "no column is described as a score; name some with --metrics. Numeric columns: "
            f"{', '.join(numeric) or 'none'} [QA0314]"
        )
    return known


def no_metrics(table: StudyTable) -> list[str]:
    """Return described columns that say nothing of quality, or what another one says.

    They are counts, such as ``sas_truncated``, which are integers beside a metric's own score. And
    they are raw values beside the same ones on their scale, such as ``qrelscore_lrm_raw``.
    """
    return [
        name
        for name, own in table.described.items()
        if name in table.frame.columns
        and own.output
        and (
            table.frame[name].dtype.is_integer()
            or (own.output.endswith("_raw") and name.removesuffix("_raw") in table.described)
        )
    ]


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
        raise InputError(
            f"{column}: rows hold different numbers of statistics: {sorted(lengths)} [QA0306]"
        )
    blank = [float("nan")] * lengths.pop()
    return np.array([blank if row is None else row for row in rows], dtype=np.float64)
