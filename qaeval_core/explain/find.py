"""Explain: find one row in the scores of an OUT, by its id or by file and row number.

Reads the id column alone, in batches: scores may have more rows than fit memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rapidfuzz import fuzz, process

from qaeval_core.errors import ConfigError, InputError
from qaeval_core.suggest import nearest

_BATCH_ROWS = 65_536
_N_NEAREST = 3
_N_LISTED = 10


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row is: input file as the scores name it, row number from 0, and its id."""

    relative: str
    row: int
    id: str | None

    def __str__(self) -> str:
        return f"{self.relative}:{self.row}"


def find_row(out: Path, *, identity: str | None = None, place: str | None = None) -> RowPlace:
    """Return the place of a row.

    Parameters
    ----------
    out : Path
        Of a finished run.
    identity : str, optional
        Its id; where the input had no id column that is ``FILE#N``.
    place : str, optional
        ``FILE:N``: input file as in ``scores/``, and row number from 0.

    Raises
    ------
    ConfigError
        If not exactly one of both is given, or ``place`` names no row.
    InputError
        If no row has the id (the nearest ids are named), or more than one (all are listed).
    """
    if (identity is None) == (place is None):
        raise ConfigError("name one row: --id ID, or --row FILE:N")
    files = _score_files(out)
    if place is not None:
        return _place(files, place)
    found = [
        RowPlace(relative, row, identity)
        for relative, path in files.items()
        for row in _rows_with_id(path, str(identity))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(f"--row {item}" for item in found[:_N_LISTED])
        more = "" if len(found) <= _N_LISTED else f" and {len(found) - _N_LISTED:,} more"
        raise InputError(f"{len(found):,} rows have the id {identity!r}; choose: {shown}{more}")
    raise InputError(f"no row of {out} has the id {identity!r}{_near(files, str(identity))}")


def _score_files(out: Path) -> dict[str, Path]:
    folder = out / "scores"
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def _place(files: dict[str, Path], place: str) -> RowPlace:
    relative, separator, number = place.rpartition(":")
    if not separator or not number.isdigit():
        raise ConfigError(f"--row takes FILE:N, row numbers from 0, not {place!r}")
    if relative not in files:
        raise ConfigError(f"--row {place}: no scores of {relative!r}{nearest(relative, files)}")
    row = int(number)
    n_rows = pq.read_metadata(files[relative]).num_rows
    if row >= n_rows:
        raise ConfigError(
            f"--row {place}: {relative} has {n_rows:,} rows, the last is {n_rows - 1}"
        )
    return RowPlace(relative, row, _id_at(files[relative], row))


def _id_at(path: Path, row: int) -> str | None:
    for start, ids in _id_batches(path):
        if row < start + len(ids):
            value = ids[row - start].as_py()
            return None if value is None else str(value)
    return None


def _rows_with_id(path: Path, identity: str) -> Iterator[int]:
    for start, ids in _id_batches(path):
        for i in pc.indices_nonzero(pc.equal(ids, identity)).to_pylist():
            yield start + i


def _near(files: dict[str, Path], identity: str) -> str:
    """Return a hint with the ids most like one that is not there."""
    best: list[tuple[float, str]] = []
    for path in files.values():
        for _, ids in _id_batches(path):
            texts = [text for text in ids.unique().to_pylist() if text is not None]
            near = process.extract(identity, texts, scorer=fuzz.ratio, limit=_N_NEAREST)
            best = sorted({*best, *((-score, text) for text, score, _ in near)})[:_N_NEAREST]
    shown = ", ".join(repr(text) for _, text in best)
    return f"; the nearest are {shown}" if shown else ""


def _id_batches(path: Path) -> Iterator[tuple[int, pa.Array]]:
    """Yield (first row, ids as texts) of a file of scores."""
    start = 0
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH_ROWS, columns=["id"]):
        ids = batch.column(0)
        yield start, _as_texts(ids)
        start += len(ids)


def _as_texts(ids: pa.Array) -> pa.Array:
    if pa.types.is_integer(ids.type) or pa.types.is_large_string(ids.type):
        return ids.cast(pa.string())
    if pa.types.is_string(ids.type):
        return ids
    values = ids.to_pylist()
    return pa.array([None if value is None else str(value) for value in values], pa.string())
