"""Study inputs: tables of scores and human ratings, read, joined, checked and chosen from.

Reads whole tables: a study has human ratings, so it has thousands of rows, not millions. Rows are
chosen and labelled by conditions as a person writes them.
"""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from qaeval_core.errors import (
    ConfigError,
    InputError,
    SchemaError,
    StorageError,
    UnreadableFileError,
    nearest,
)
from qaeval_core.planning.listing import matches
from qaeval_core.schema import COLUMNS_METADATA, NOT_SAMPLED, QUARANTINE_REASON
from qaeval_core.storage.checksums import is_intact
from qaeval_core.storage.path import StoragePath, as_path, near_folders

SUFFIXES = (".parquet", ".jsonl", ".csv")


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """What the Parquet metadata say of a column of scores; defaults for a table without them."""

    metric: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    higher_is_better: bool = True
    over_examples: str = "mean"
    signature: str = ""


_COLUMNS = TypeAdapter(dict[str, ScoreColumn])


@dataclass(frozen=True, slots=True)
class StudyTable:
    """Rows, the columns known to be scores, and what a reader should know of the reading."""

    frame: pl.DataFrame
    described: dict[str, ScoreColumn]
    notes: list[str]


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


def read_study(paths: Sequence[str], *, text: str | None = None) -> StudyTable:
    """Read tables below each other: files, folders, globs, or the OUT of ``qaeval score``.

    Each may be in a bucket, by its URI.

    Struct columns appear as ``column.field``; NaN is null. The column ``text`` is not taken for
    numbers, where a file does not say what it holds.

    Raises
    ------
    UnreadableFileError
        If nothing is found, or a file cannot be read.
    SchemaError
        If columns of one name have types that do not fit.
    """
    # Each file once: rows that count twice would make intervals too narrow.
    files = list({file.place: file for path in paths for file in table_files(path)}.values())
    frames = [_read(file, text) for file in files]
    _check_same_columns(files, frames)
    try:
        frame = pl.concat(frames, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        first = ", ".join(str(file) for file in files[:3])
        raise SchemaError(f"tables do not fit below each other ({first}): {error}") from None
    described: dict[str, ScoreColumn] = {}
    notes = [
        f"{path}: this run is not complete, rows are missing"
        for path in paths
        if _is_run(as_path(path)) and not (as_path(path) / "_SUCCESS").is_file()
    ]
    for file in files:
        for name, column in _described(file).items():
            known = described.setdefault(name, column)
            if known.signature != column.signature:
                notes.append(f"{file}: {name} was made in another way than in the files before")
    return StudyTable(flat_columns(_sampled(frame, notes)), described, notes)


def _sampled(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Return the rows that a run's sample has: the others say nothing of a metric."""
    if frame.schema.get(QUARANTINE_REASON) != pl.String:
        return frame
    kept = frame.filter(pl.col(QUARANTINE_REASON).ne_missing(NOT_SAMPLED))
    if kept.height < frame.height:
        notes.append(f"{frame.height - kept.height:,} rows are not sampled and left out")
    return kept


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


def read_keyed(path: str, key: str, *, as_written: bool = True) -> tuple[pl.DataFrame, int]:
    """Return a table whose rows a key names, and how many rows were without and are left out.

    Parameters
    ----------
    path : str
        As `read_study` reads it.
    key : str
        Column; it is returned as text, for ids are often numbers in one table and text in another.
    as_written : bool, default True
        Whether CSV keeps a key such as 007, or reads a number.

    Raises
    ------
    UnreadableFileError
        If nothing is found, or a file cannot be read.
    SchemaError
        If the column is missing, names the nearest; or a key stands there twice.
    """
    frame = read_study([path], text=key if as_written else None).frame
    check_key(frame, key, f"{path}:")
    keyed = frame.with_columns(pl.col(key).cast(pl.String)).filter(pl.col(key).is_not_null())
    if keyed[key].n_unique() < keyed.height:
        twice = keyed[key].value_counts().sort("count", key, descending=[True, False])[key][0]
        raise SchemaError(f"{path}: {key} {twice!r} stands there more than once")
    return keyed, frame.height - keyed.height


def check_column(frame: pl.DataFrame, name: str, option: str) -> None:
    """Raise SchemaError, naming the nearest column, if a table lacks one."""
    if name not in frame.columns:
        raise SchemaError(f"{option} no column {name!r}{nearest(name, frame.columns)}")


def check_numeric(frame: pl.DataFrame, name: str, option: str) -> None:
    """Raise SchemaError if a table lacks a column, or it holds no numbers."""
    check_column(frame, name, option)
    if not is_numeric(frame, name):
        raise SchemaError(f"{option} column {name!r} is {frame[name].dtype}, not a number")


def is_numeric(frame: pl.DataFrame, name: str) -> bool:
    """Return whether a column holds numbers, booleans, or nothing at all."""
    kind = frame[name].dtype
    is_empty = kind == pl.String and frame[name].null_count() == frame.height
    return kind.is_numeric() or kind in (pl.Boolean, pl.Null) or is_empty


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


def numbers(frame: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """Return a numeric column; float ndarray of shape (n_rows,), NaN where undefined."""
    values = frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    # An infinite score has no place on a scale.
    return np.where(np.isfinite(values), values, np.nan)


# No text of a table is this one, so rows without a key never join those of a key.
NO_KEY = "\x01"


def texts(frame: pl.DataFrame, name: str) -> NDArray[np.str_]:
    """Return a column as text, to group rows by; null is ``NO_KEY``."""
    return np.array(frame[name].cast(pl.String).fill_null(NO_KEY).to_list(), dtype=np.str_)


def cluster_codes(frame: pl.DataFrame, column: str) -> NDArray[np.intp]:
    """Return the number, from 0, of each row's value of a column; a row without is alone."""
    names, codes = np.unique(texts(frame, column), return_inverse=True)
    alone = names[codes] == NO_KEY if len(names) else np.zeros(0, dtype=bool)
    codes[alone] = len(names) + np.arange(int(alone.sum()))
    return np.unique(codes, return_inverse=True)[1].astype(np.intp)


def check_key(frame: pl.DataFrame, name: str, option: str) -> None:
    """Raise SchemaError if a table lacks a column, or its values cannot name groups."""
    check_column(frame, name, option)
    if frame[name].dtype.is_nested():
        raise SchemaError(f"{option} column {name!r} is {frame[name].dtype}, not one value a row")


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


# Texts and names in quotes.
QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_SUB_QUERY = re.compile(r"\bselect\b", re.IGNORECASE)
_DECIMAL = re.compile(
    rf"{QUOTED.pattern}|(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=e))(?:e[+-]?\d+)?", re.I
)


def select_rows(frame: pl.DataFrame, expression: str, option: str) -> pl.Series:
    """Return a boolean column: SQL's comparison operators, and Python's ``==`` and ``!=``.

    Raises
    ------
    ConfigError
        If the expression cannot be read, names an unknown column or is not true or false.
    """
    hint = 'quote names with signs, as in "BLEU-1" > 0.5'
    if _SUB_QUERY.search(QUOTED.sub("''", expression)):
        raise ConfigError(f"{option} {expression!r}: no sub-queries: they could read any file")
    try:
        parsed = pl.sql_expr(expression)
        roots = parsed.meta.root_names()
        for name in roots:
            if name not in frame.columns and not _fields(frame, name):
                found = nearest(name, frame.columns)
                raise ConfigError(f"{option} {expression!r}: no column {name!r}{found} ({hint})")
        beside = _with_structs(frame, roots)
        chosen = beside.with_columns(parsed.alias("_chosen"))["_chosen"]
        # polars compares texts with 9.5 as texts, but refuses to compare them with 9.
        whole = _DECIMAL.sub(lambda own: own[0] if own[0][0] in "'\"" else "1", expression)
        beside.clear().select(pl.sql_expr(whole))
    except pl.exceptions.PolarsError as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{option} {expression!r}: {why} ({hint})") from None
    if frame.height > 1 and beside.select(parsed).height == 1:
        raise ConfigError(f"{option} {expression!r} is one value for all rows, not one for each")
    if chosen.dtype != pl.Boolean:
        raise ConfigError(f"{option} {expression!r} is {chosen.dtype}, not true or false")
    return chosen


def binary_labels(frame: pl.DataFrame, label: str, option: str = "--auc") -> NDArray[np.float64]:
    """Return labels of rows: a column of 0 and 1 or booleans, or an expression.

    Returns
    -------
    float ndarray of shape (n_rows,)
        1.0 for positive rows, 0.0 for negative ones, NaN where undefined.
    """
    if label not in frame.columns:
        return numbers(frame.select(select_rows(frame, label, option).alias("_")), "_")
    check_numeric(frame, label, option)
    values = numbers(frame, label)
    if others := sorted(set(values[~np.isnan(values)].tolist()) - {0.0, 1.0}):
        raise ConfigError(
            f"{option} {label}: holds {others[0]:g}, not only 0 and 1; give a condition, such as "
            f"'{label} >= {others[-1]:g}'"
        )
    return values


def _check_same_columns(files: Sequence[StoragePath], frames: Sequence[pl.DataFrame]) -> None:
    for file, frame in zip(files, frames, strict=True):
        if differing := sorted(set(frame.columns) ^ set(frames[0].columns)):
            raise SchemaError(
                f"{file} and {files[0]} have different columns: {', '.join(differing[:8])}; tables "
                "of the same rows are joined by --with TABLE --on KEY"
            )


def _is_run(folder: StoragePath) -> bool:
    return (folder / "run.json").is_file()


def table_files(path: str) -> list[StoragePath]:
    """Return the files of tables that a path, folder, glob or OUT names.

    Raises
    ------
    UnreadableFileError
        If there is none.
    StorageError
        If they cannot be listed.
    """
    own = as_path(path)
    hint = ""
    try:
        folder = own / "scores" if _is_run(own) and (own / "scores").is_dir() else own
        if folder.is_file():
            found = [folder]
        elif folder.is_dir():
            names = sorted(file.name for file in folder.list(is_deep=True))
            files = [folder / name for name in names]
            found = [file for file in files if file.suffix in SUFFIXES]
            found = [file for file in found if not file.name.startswith((".", "_"))]
        elif own.local is not None:
            found = [as_path(Path(name)) for name in sorted(glob.glob(path, recursive=True))]
        else:
            found = list(_matching(own))
            hint = "" if found else near_folders(own)
    except (FileNotFoundError, PermissionError) as error:
        raise UnreadableFileError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise StorageError(f"cannot list {path}: {error.strerror}") from None
    if not found:
        raise UnreadableFileError(f"{path}: no table there ({', '.join(SUFFIXES)}){hint}")
    return found


def _matching(pattern: StoragePath) -> Iterator[StoragePath]:
    """Yield the objects that a glob names; none if it is no glob."""
    parts = PurePosixPath(pattern.key).parts
    n_plain = next((i for i, part in enumerate(parts) if set(part) & set("*[")), None)
    if n_plain is None:
        return
    base = StoragePath(pattern.storage, "/".join(parts[:n_plain]))
    for name in sorted(file.name for file in base.list(is_deep=True)):
        if matches(name, parts[n_plain:]):
            yield base / name


def _read(file: StoragePath, text: str | None = None) -> pl.DataFrame:
    try:
        # Of an object every read is a request: it is got once.
        content = file.read_bytes()
        source = io.BytesIO(content)
        if file.suffix == ".parquet":
            if is_intact(content) is False:
                raise UnreadableFileError(f"{file} is damaged: a bit of it has turned")
            return pl.read_parquet(source)
        if file.suffix == ".jsonl":
            return pl.read_ndjson(source, infer_schema_length=None)
        if file.suffix == ".csv":
            kinds = {text: pl.String} if text is not None else None
            return pl.read_csv(source, infer_schema_length=None, schema_overrides=kinds)
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {file}: {error}") from None
    raise UnreadableFileError(f"{file}: not one of {', '.join(SUFFIXES)}")


def _described(file: StoragePath) -> dict[str, ScoreColumn]:
    if file.suffix != ".parquet":
        return {}
    return described_columns(
        (pq.read_schema(file.source()).metadata or {}).get(COLUMNS_METADATA), file
    )


def described_columns(text: bytes | None, file: object) -> dict[str, ScoreColumn]:
    """Return what a file's metadata say of its columns of scores; nothing where there are none.

    Raises
    ------
    UnreadableFileError
        If they are damaged.
    """
    if text is None:
        return {}
    try:
        found: dict[str, ScoreColumn] = _COLUMNS.validate_json(text)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UnreadableFileError(
            f"{file}: what it says of its columns ({COLUMNS_METADATA.decode()}) is damaged: "
            f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        ) from None


def flat_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose structs are columns ``column.field``, and in which NaN is null."""
    structs = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Struct)]
    flat = frame
    for name in structs:
        flat = flat.unnest(name, separator=".")
    # Polars holds NaN above every number: a condition such as score > 0.5 would choose it.
    floats = [name for name, kind in flat.schema.items() if kind.is_float()]
    return flat.with_columns(pl.col(name).fill_nan(None) for name in floats)


def column_of(name: str, columns: Collection[str]) -> str:
    """Return the column that a name of `flat_columns` is: itself, or a field of a struct.

    Examples
    --------
    >>> [column_of(name, ["peer", "bleu.1"]) for name in ("peer", "peer.f1", "bleu.1")]
    ['peer', 'peer', 'bleu.1']
    """
    parts = name.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in columns), name)


def _fields(frame: pl.DataFrame, name: str) -> list[str]:
    return [column for column in frame.columns if column.startswith(f"{name}.")]


def _with_structs(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Put structs back that an expression such as ``peer.f1 = 0`` reads."""
    return frame.with_columns(
        pl.struct(
            pl.col(column).alias(column[len(name) + 1 :]) for column in _fields(frame, name)
        ).alias(name)
        for name in dict.fromkeys(names)
        if name not in frame.columns
    )
