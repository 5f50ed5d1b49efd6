"""Score tables: Parquet, CSV or JSON lines of scores, and what is known of their columns.

Whole tables are read: for those that people have rated, of thousands of rows, not millions.
"""

from __future__ import annotations

import glob
import io
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
    SchemaError,
    StorageError,
    UnreadableFileError,
    first_problem,
    nearest,
)
from qaeval_core.planning.listing import matches
from qaeval_core.planning.text_files.copies import STANDARD_INPUT, held_standard_input
from qaeval_core.planning.text_files.documents import unpacked, whole_json
from qaeval_core.planning.text_files.kinds import DATA_FILES, kind_of
from qaeval_core.planning.text_files.sheets import decimal_comma, is_workbook, read_sheet
from qaeval_core.schema import COLUMNS_METADATA, NOT_SAMPLED, QUARANTINE_REASON
from qaeval_core.storage.arrow import table_of
from qaeval_core.storage.checksums import is_intact
from qaeval_core.storage.path import StoragePath, as_path, near_folders

_WORKBOOKS = (".xlsx", ".xls", ".ods")
_MAX_DIGITS = 38  # of decimals in polars


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """What the Parquet metadata say of a column of scores; defaults for a table without them."""

    metric: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    higher_is_better: bool = True
    over_examples: str = "mean"
    signature: str = ""
    output: str = ""  # "" of an instance's own score
    low: float | None = None
    high: float | None = None


_COLUMNS = TypeAdapter(dict[str, ScoreColumn])


@dataclass(frozen=True, slots=True)
class StudyTable:
    """Rows, the columns known to be scores, and what a reader should know of the reading."""

    frame: pl.DataFrame
    described: dict[str, ScoreColumn]
    notes: list[str]
    files: tuple[StoragePath, ...] = ()


# Columns that say where a row was read: the number of its file, and its number there.
FILE, ROW = "\x00file", "\x00row"


def read_study(
    paths: Sequence[str],
    *,
    text: str | None = None,
    has_places: bool = False,
    encoding: str | None = None,
) -> StudyTable:
    """Read tables below each other: files, folders, globs, or the OUT of ``qaeval score``.

    Each may be in a bucket, by its URI. With ``has_places`` columns ``FILE`` and ``ROW`` are added.

    Struct columns appear as ``column.field``; NaN is null. The column ``text`` is not taken for
    numbers, where a file does not say what it holds. Files of text are in the ``encoding``, if one
    is named.

    Raises
    ------
    UnreadableFileError
        If nothing is found, or a file cannot be read.
    SchemaError
        If columns of one name have types that do not fit.
    """
    paths = [held_standard_input()[0] if own == STANDARD_INPUT else own for own in paths]
    # Each file once: rows that count twice would make intervals too narrow.
    files = list({file.place: file for path in paths for file in table_files(path)}.values())
    frames = [_read(file, text, encoding) for file in files]
    _check_same_columns(files, frames)
    if has_places:
        frames = [
            own.with_columns(pl.lit(i).alias(FILE), pl.int_range(pl.len()).alias(ROW))
            for i, own in enumerate(frames)
        ]
    try:
        frame = pl.concat(frames, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        first = ", ".join(str(file) for file in files[:3])
        raise SchemaError(f"cannot stack these tables ({first}): {error} [QA0321]") from None
    described: dict[str, ScoreColumn] = {}
    notes = [
        f"{path}: this run is not complete, so rows are missing"
        for path in paths
        if _is_run(as_path(path)) and not (as_path(path) / "_SUCCESS").is_file()
    ]
    for file in files:
        for name, column in _described(file).items():
            known = described.setdefault(name, column)
            if known.signature != column.signature:
                notes.append(
                    f"{file}: {name} was scored with other settings than in the files before"
                )
    return StudyTable(flat_columns(_sampled(frame, notes)), described, notes, tuple(files))


def _sampled(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Return the rows that a run's sample has: the others say nothing of a metric."""
    if frame.schema.get(QUARANTINE_REASON) != pl.String:
        return frame
    kept = frame.filter(pl.col(QUARANTINE_REASON).ne_missing(NOT_SAMPLED))
    if kept.height < frame.height:
        notes.append(f"{frame.height - kept.height:,} rows outside of the sample are left out")
    return kept


def read_keyed(
    path: str, key: str, *, as_written: bool = True, encoding: str | None = None
) -> tuple[pl.DataFrame, int]:
    """Return a table whose rows a key names, and how many rows were without and are left out.

    Parameters
    ----------
    path : str
        As `read_study` reads it.
    key : str
        Column; it is returned as text, for ids are often numbers in one table and text in another.
    as_written : bool, default True
        Whether CSV keeps a key such as 007, or reads a number.
    encoding : str, optional
        Of a file of text.

    Raises
    ------
    UnreadableFileError
        If nothing is found, or a file cannot be read.
    SchemaError
        If the column is missing, names the nearest; or a key stands there twice.
    """
    frame = read_study([path], text=key if as_written else None, encoding=encoding).frame
    check_key(frame, key, path)
    keyed = frame.with_columns(pl.col(key).cast(pl.String)).filter(pl.col(key).is_not_null())
    if keyed[key].n_unique() < keyed.height:
        twice = keyed[key].value_counts().sort("count", key, descending=[True, False])[key][0]
        raise SchemaError(f"{path}: {key} {twice!r} exists more than once [QA0313]")
    return keyed, frame.height - keyed.height


def check_column(frame: pl.DataFrame, name: str, option: str) -> None:
    """Raise SchemaError, naming the nearest column, if a table lacks one."""
    if name not in frame.columns:
        raise SchemaError(f"{option}: no column {name!r}{nearest(name, frame.columns)} [QA0305]")


def check_numeric(frame: pl.DataFrame, name: str, option: str) -> None:
    """Raise SchemaError if a table lacks a column, or it holds no numbers."""
    check_column(frame, name, option)
    if not is_numeric(frame, name):
        comma = decimal_comma(frame[name])
        raise SchemaError(
            f"{option}: column {name!r} is {frame[name].dtype}, and a number is needed{comma} "
            "[QA0306]"
        )


def is_numeric(frame: pl.DataFrame, name: str) -> bool:
    """Return whether a column holds numbers, booleans, or nothing at all."""
    kind = frame[name].dtype
    is_empty = kind == pl.String and frame[name].null_count() == frame.height
    return kind.is_numeric() or kind in (pl.Boolean, pl.Null) or is_empty


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


def check_key(frame: pl.DataFrame, name: str, option: str) -> None:
    """Raise SchemaError if a table lacks a column, or its values cannot name groups."""
    check_column(frame, name, option)
    if frame[name].dtype.is_nested():
        raise SchemaError(
            f"{option}: column {name!r} is {frame[name].dtype}, and one value for each row is "
            "needed [QA0306]"
        )


def _check_same_columns(files: Sequence[StoragePath], frames: Sequence[pl.DataFrame]) -> None:
    for file, frame in zip(files, frames, strict=True):
        if differing := sorted(set(frame.columns) ^ set(frames[0].columns)):
            raise SchemaError(
                f"{file} and {files[0]} have different columns: {', '.join(differing[:8])}. Tables "
                "of the same rows are joined with --with TABLE --on KEY [QA0307]"
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
            files = [file for file in files if not file.name.startswith((".", "_"))]
            # Beside other tables a document tells of them.
            found = [file for file in files if _is_table(file, documents=False)]
            found = found or [file for file in files if _is_table(file, documents=True)]
        elif own.local is not None:
            found = [as_path(Path(name)) for name in sorted(glob.glob(path, recursive=True))]
        else:
            found = list(_matching(own))
            hint = "" if found else near_folders(own)
    except (FileNotFoundError, PermissionError) as error:
        raise UnreadableFileError(f"{path}: {error.strerror} [QA0301]") from None
    except OSError as error:
        raise StorageError(f"cannot list {path}: {error.strerror} [QA0302]") from None
    if not found:
        raise UnreadableFileError(
            f"{path}: no table there (data files are {DATA_FILES}){hint} [QA0301]"
        )
    return found


def _is_table(file: StoragePath, *, documents: bool) -> bool:
    kind = kind_of(file.name)
    if kind is None:
        return file.suffix == ".parquet"
    return documents or kind.format != "json"


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


def _read(file: StoragePath, text: str | None = None, encoding: str | None = None) -> pl.DataFrame:
    try:
        # Of an object every read is a request: it is got once.
        content = file.read_bytes()
        source = io.BytesIO(content)
        if file.suffix == ".parquet":
            if is_intact(content) is False:
                raise UnreadableFileError(f"{file} is damaged: its checksum differs [QA0304]")
            return _read_parquet(source)
        kind = kind_of(file.name)
        if kind is not None and not is_workbook(content):
            content = unpacked(content, kind)
            if kind.format in ("csv", "tsv"):
                return read_sheet(content, text, encoding=encoding)
            table = whole_json(content, kind, name=str(file), encoding=encoding)
            return pl.DataFrame(table)
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {file}: {error} [QA0304]") from None
    if file.suffix in _WORKBOOKS or is_workbook(content):
        raise UnreadableFileError(
            f"{file} is a workbook; save its sheet as CSV, and name that [QA0304]"
        )
    raise UnreadableFileError(f"{file}: data files are {DATA_FILES} [QA0304]")


def _read_parquet(source: io.BytesIO) -> pl.DataFrame:
    """Return a table; decimals that are wider than polars takes are texts, as they are for ids."""
    schema = pq.read_schema(source)
    wide = [
        field.name
        for field in schema
        if pa.types.is_decimal(field.type) and field.type.precision > _MAX_DIGITS
    ]
    source.seek(0)
    if not wide:
        return pl.read_parquet(source)
    table = table_of(source.getvalue())
    for name in wide:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(pa.string()))
    return pl.DataFrame(table)


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
        raise UnreadableFileError(
            f"{file}: the description of its columns ({COLUMNS_METADATA.decode()}) is damaged: "
            f"{first_problem(error)} [QA0514]"
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
