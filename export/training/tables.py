"""Tables: Parquet or JSONL files -> checked columns, with errors that name file, column and row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import InputError, SchemaError, UnreadableFileError
from qaeval_core.suggest import nearest

__all__ = ["check_file", "read_columns", "text_of"]


def check_file(path: Path, *, option: str) -> None:
    """Raise if a file is not there; names the nearest one in its folder."""
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder, a file is needed")
    folder = path.parent
    known = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    hint = nearest(path.name, known) if 0 < len(known) <= 20 else ""
    raise InputError(f"{option} {path}: no such file{hint}")


def read_columns(path: Path, names: Iterable[str]) -> dict[str, list[Any]]:
    """Return columns of a Parquet or JSONL file as lists, one value per row.

    Raises
    ------
    SchemaError
        If a column is missing.
    UnreadableFileError
        If the file is not what its name says.
    InputError
        If it has no rows.
    """
    is_jsonl = path.suffix.lower() in (".jsonl", ".ndjson", ".json")
    columns = (_read_jsonl if is_jsonl else _read_parquet)(path, tuple(names))
    if not next(iter(columns.values())):
        raise InputError(f"{path} has no rows")
    return columns


def text_of(value: object, *, path: Path, column: str, row: int) -> str:
    """Return a value that must be a text.

    Raises
    ------
    InputError
        If it is null or no text; rows count from 0.
    """
    if not isinstance(value, str):
        found = "null" if value is None else type(value).__name__
        raise InputError(f"{path}, column {column!r}, row {row}: a text is needed, not {found}")
    return value


def _read_parquet(path: Path, names: tuple[str, ...]) -> dict[str, list[Any]]:
    try:
        known = pq.read_schema(path).names
        _check_names(path, names, known)
        table = pq.read_table(path, columns=list(names))
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(f"{path} is not a readable Parquet file: {error}") from None
    return {name: table[name].to_pylist() for name in names}


def _read_jsonl(path: Path, names: tuple[str, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = _parse_line(path, number, line)
            missing = [name for name in names if name not in row]
            if missing:
                raise SchemaError(
                    f"{path}, line {number}: no field {missing[0]!r}{nearest(missing[0], row)}"
                )
            for name in names:
                columns[name].append(row[name])
    return columns


def _parse_line(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UnreadableFileError(f"{path}, line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UnreadableFileError(f"{path}, line {number} is not a JSON object")
    return row


def _check_names(path: Path, names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise SchemaError(f"{path} has no column {name!r}{nearest(name, known)}")
