"""Explain: one row of a finished run: its place, its job again, its stored values, its texts.

Reads the scores, the commits and the input; computes nothing. A row is found by the id column
alone, in batches: scores may have more rows than fit memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rapidfuzz import fuzz, process

from qaeval_core.configure import RunConfig
from qaeval_core.errors import (
    ArtifactMissingError,
    ConfigError,
    InputError,
    ReconcileError,
    nearest,
)
from qaeval_core.metrics.base import Settings
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.unknown import is_known
from qaeval_core.models.artifact import Artifact, default_root, find_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.planning.job import Job, make_job, read_inputs
from qaeval_core.planning.packages import check_packages
from qaeval_core.planning.sample import chosen_values
from qaeval_core.planning.text_files.copies import copies_of
from qaeval_core.running.reader import ShardReader, batches
from qaeval_core.schema import COLUMNS_METADATA, UNREADABLE_LINE
from qaeval_core.storage.arrow import table_at
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.tables.finished_run import FinishedRun, check_address, not_found
from qaeval_core.tables.score_tables import described_columns

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


def make_same_job(
    run: FinishedRun,
    instances: Sequence[str] = (),
    *,
    artifacts: Path | None = None,
    inputs: Sequence[str] = (),
) -> Job:
    """Return the job of a run again, for some instances or all, with the same artifacts.

    ``run.json`` may come from anybody, so it says what was scored, not where to go: artifacts are
    those of the user's cache, none is built, no file of a model is read and no server is asked
    that the user did not name.

    Parameters
    ----------
    instances : sequence of str, default ()
        () is all.
    artifacts : Path, optional
        Where artifacts lie, if not in the cache.
    inputs : sequence of str, default ()
        Where the input lies; () is where the run had it, if that is on a local file system.

    Raises
    ------
    ConfigError
        If an instance is unknown, or the run read its input from a server.
    ArtifactMissingError
        If an artifact is not there; the message holds the command that builds it.
    InputError
        If the input is not where it was.
    ReconcileError
        If a model, option or input column is another one now.
    """
    config = run.config.model_copy(update={"metrics": _chosen(run, instances)})
    check_address(run, inputs)
    config = _with_own_places(config, out=run.out, artifacts=artifacts, inputs=inputs)
    try:
        copies = copies_of(config.input, run.out, is_of_run=True)
        found = replace(read_inputs(config, copies=copies), sample=run.sample)
    except InputError as error:
        raise not_found(error) from None

    def stored(request: ArtifactRequest) -> Artifact:
        return find_artifact(artifacts or default_root(), request, compare_model=False)

    # An explanation builds nothing, and computes on the CPU.
    models = config.models.model_copy(update={"build": False})
    check_packages(config.model_copy(update={"models": models}), device="cpu")
    try:
        job = make_job(config, found, device=run.device, resolve_artifact=stored)
    except ArtifactMissingError as error:
        named = run.config.models.artifacts_path
        hint = (
            f"; the run had its artifacts in {named}: --artifacts names a folder" if named else ""
        )
        raise ArtifactMissingError(
            f"explain builds no model: {error.text}{hint} [{error.code}]"
        ) from None
    changed = changed_files(run, job)
    for family in job.run.families:
        if family.key not in run.families:
            raise ReconcileError(
                f"{family.key} is not what the run computed: "
                f"{_difference(run, family.key, job)}{_likely(changed)} [QA0518]"
            )
    return job


def _chosen(run: FinishedRun, instances: Sequence[str]) -> dict[str, Settings]:
    """Return some instances of a run, or all whose metrics are installed."""
    known = run.config.metrics
    for name in instances:
        if name not in known:
            raise ConfigError(f"no instance {name!r} in {run.out}{nearest(name, known)} [QA0105]")
    chosen = {name: known[name] for name in instances}
    for own in chosen.values():
        metric_of(own).reads(own)  # One that is not installed says so.
    return chosen or {name: own for name, own in known.items() if is_known(own)}


def _with_own_places(
    config: RunConfig, *, out: StoragePath, artifacts: Path | None, inputs: Sequence[str]
) -> RunConfig:
    """Return a run's configuration with the places that the user named."""
    update: dict[str, dict[str, object]] = {
        "output": {"path": str(out)},
        "models": {"artifacts_path": artifacts and str(artifacts), "build": False},
        "input": {"paths": tuple(inputs) or config.input.paths},
    }
    sections = {
        name: getattr(config, name).model_copy(update=fields) for name, fields in update.items()
    }
    return config.model_copy(update=sections)


def _difference(run: FinishedRun, key: str, job: Job) -> str:
    """Return which parts of a family's signature are others than in the run."""
    now = next(str(plan.signature) for plan in job.run.families if plan.key == key)
    own = set(now.split("|"))
    name = key.rpartition("-")[0]
    earlier = [
        set(line.split("|")) for other, line in run.families.items() if other.startswith(f"{name}-")
    ]
    if not earlier:
        return f"it computed no {name}"
    closest = min(earlier, key=lambda parts: len(parts ^ own))
    return f"{', '.join(sorted(own - closest))} now, {', '.join(sorted(closest - own))} then"


def changed_files(run: FinishedRun, job: Job) -> list[str]:
    """Return the input files whose size or time is another one than in the run."""
    return [
        file.relative
        for file in job.files
        if run.file_ids.get(file.relative, file.file_id) != file.file_id
    ]


def _likely(changed: Sequence[str]) -> str:
    if not changed:
        return ""
    return f"; likely reason: {', '.join(changed[:3])} changed since the run"


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row of a finished run, and the run's job again.

    Attributes
    ----------
    values : mapping of role to list of one value
        As the input has them.
    scores : mapping of column to value
        Of the score file.
    """

    run: FinishedRun
    job: Job
    place: RowPlace
    values: Mapping[str, Sequence[object]]
    scores: Mapping[str, object]

    def columns_of(self, instance: str) -> list[str]:
        """Return the columns of an instance in the score file, as the file describes them."""
        path = self.run.out / "scores" / self.place.relative
        metadata = pq.read_schema(path.source()).metadata or {}
        described = described_columns(metadata.get(COLUMNS_METADATA), path)
        return [
            name
            for name, own in described.items()
            if name == (f"{instance}_{own.output}" if own.output else instance)
        ]

    def statistics(self, key: str) -> pa.Table:
        """Return what is committed of the row in one family: a table of one row.

        Raises
        ------
        ReconcileError
            If the family has no commit with the row.
        """
        file_id, row = self.run.file_ids[self.place.relative], self.place.row
        for rows in self.job.store.committed(key).get(file_id, []):
            if rows.start <= row < rows.stop:
                return self.job.store.read(key, file_id, rows).slice(row - rows.start, 1)
        raise ReconcileError(
            f"{key}: no commit holds {self.place}; run the same qaeval score again [QA0509]"
        )


def read_row(run: FinishedRun, job: Job, place: RowPlace) -> StoredRow:
    """Return a row: its value of every role that the instances read, and its scores.

    Raises
    ------
    ReconcileError
        If the input does not have the row any more.
    """
    values = _input_values(run, job, place)
    return StoredRow(
        run, job, place, values, _row_at(run.out / "scores" / place.relative, place.row)
    )


def _input_values(run: FinishedRun, job: Job, place: RowPlace) -> dict[str, list[object]]:
    file = next((file for file in job.files if file.relative == place.relative), None)
    if file is None:
        raise ReconcileError(
            f"{place.relative} is not an input of the last run into {run.out}; its scores are of "
            "an earlier run [QA0518]"
        )
    rows = RowRange(place.row, place.row + 1)
    for piece in job.file_pieces(file):
        if piece.shards[0].start <= place.row < piece.shards[-1].stop:
            columns = {role: name for role, name in job.columns.items() if role != "id"}
            reader = ShardReader([*columns.values(), UNREADABLE_LINE])
            try:
                table = reader.read(piece, rows)
                return chosen_values(table, None, columns=columns, piece=piece)
            finally:
                reader.close()
    raise ReconcileError(
        f"{place}: the input now has {file.n_rows:,} rows{_likely(changed_files(run, job))} "
        "[QA0518]"
    )


def quarantine_message(run: FinishedRun, place: RowPlace) -> str | None:
    """Return what the quarantine says of the row, or None."""
    path = run.out / "quarantine" / place.relative
    if not path.is_file():
        return None
    table = table_at(path, ["position", "message"])
    rows = table.filter(pc.equal(table["position"], place.row)).to_pylist()
    return str(rows[0]["message"]) if rows and rows[0]["message"] is not None else None


def _row_at(path: StoragePath, row: int, *, columns: list[str] | None = None) -> dict[str, object]:
    start = 0
    parquet = pq.ParquetFile(path.source())
    for i in range(parquet.num_row_groups):
        n_rows = parquet.metadata.row_group(i).num_rows
        if row < start + n_rows:
            group = parquet.read_row_group(i, columns=columns)
            found: dict[str, object] = group.slice(row - start, 1).to_pylist()[0]
            return found
        start += n_rows
    raise ReconcileError(f"{path} has {start:,} rows, and row {row} was asked for [QA0518]")


def find_row(out: AnyPath, *, identity: str | None = None, place: str | None = None) -> RowPlace:
    """Return the place of a row.

    Parameters
    ----------
    out : StoragePath, Path or str
        Of a finished run.
    identity : str, optional
        Its id; where the input had no id column that is ``FILE#N``.
    place : str, optional
        ``FILE:N``: input file as in ``scores/`` or as it was named, and row number from 0.

    Raises
    ------
    ConfigError
        If not exactly one of both is given, or ``place`` names no row.
    InputError
        If no row has the id (the nearest ids are named), or more than one (all are listed).
    """
    if (identity is None) == (place is None):
        raise ConfigError("name a row: --id ID, --row FILE:N or --lowest METRIC [QA0103]")
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
        raise InputError(
            f"{len(found):,} rows have the id {identity!r}; choose: {shown}{more} [QA0312]"
        )
    raise InputError(
        f"no row of {out} has the id {identity!r}{_near(files, str(identity))} [QA0312]"
    )


def _score_files(out: AnyPath) -> dict[str, StoragePath]:
    folder = as_path(out) / "scores"
    paths = {name: folder / name for name in sorted(own.name for own in folder.list(is_deep=True))}
    return {name: path for name, path in paths.items() if not path.name.startswith(".")}


def _place(files: dict[str, StoragePath], place: str) -> RowPlace:
    relative, separator, number = place.rpartition(":")
    if not separator or not number.isdecimal():
        raise ConfigError(f"--row takes FILE:N with row numbers from 0, not {place!r} [QA0104]")
    if relative not in files and f"{relative}.parquet" in files:  # A file of text.
        relative += ".parquet"
    if relative not in files:
        raise ConfigError(
            f"--row {place}: {relative!r} has no scores{nearest(relative, files)} [QA0312]"
        )
    row = int(number)
    n_rows = pq.read_metadata(files[relative].source()).num_rows
    if row >= n_rows:
        raise ConfigError(
            f"--row {place}: {relative} has {n_rows:,} rows, the last is {n_rows - 1} [QA0312]"
        )
    own_id = _row_at(files[relative], row, columns=["id"])["id"]
    return RowPlace(relative, row, None if own_id is None else str(own_id))


def _rows_with_id(path: StoragePath, identity: str) -> Iterator[int]:
    for start, ids in _id_batches(path):
        for i in pc.indices_nonzero(pc.equal(ids, identity)).to_pylist():
            yield start + i


def _near(files: dict[str, StoragePath], identity: str) -> str:
    """Return a hint with the ids most like one that is not there."""
    best: list[tuple[float, str]] = []
    for path in files.values():
        for _, ids in _id_batches(path):
            texts = [text for text in ids.unique().to_pylist() if text is not None]
            near = process.extract(identity, texts, scorer=fuzz.ratio, limit=_N_NEAREST)
            best = sorted({*best, *((-score, text) for text, score, _ in near)})[:_N_NEAREST]
    shown = ", ".join(repr(text) for _, text in best)
    return f"; the nearest are {shown}" if shown else ""


def _id_batches(path: StoragePath) -> Iterator[tuple[int, pa.Array]]:
    """Yield (first row, ids as texts) of a file of scores."""
    start = 0
    parquet = pq.ParquetFile(path.source())
    groups = range(parquet.num_row_groups)
    for batch in batches(parquet, groups, ["id"], n_rows=_BATCH_ROWS):
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
