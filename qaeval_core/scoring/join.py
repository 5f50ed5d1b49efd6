"""Join: committed statistics and the input's own columns to one file of scores per input file.

Streams: neither the input nor the statistics of a file are ever in memory as a whole.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import ReconcileError
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.run_plan import (
    CompiledRun,
    columns_metadata,
    score_fields,
)
from qaeval_core.running.carried_columns import Copied, CopiedColumns
from qaeval_core.running.piece_worker import UNREADABLE
from qaeval_core.running.reader import check_unchanged
from qaeval_core.running.score_rows import score_rows
from qaeval_core.running.totals import Totals
from qaeval_core.schema import (
    NOT_SAMPLED,
    QUARANTINE_MESSAGE,
    QUARANTINE_REASON,
    QUARANTINE_SCHEMA,
)
from qaeval_core.scoring.summary import Overview
from qaeval_core.storage import checksums
from qaeval_core.storage.checksums import SealedFile
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import FamilyStream, Store
from qaeval_core.text.column_hashes import hashes, readable, text_of


@dataclass(slots=True)
class _Joined:
    """What is known of a file once its scores are written."""

    overview: Overview
    totals: Totals = field(default_factory=Totals)
    quarantine: list[pa.Table] = field(default_factory=list)
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)  # of ids
    n_lost: int = 0  # rows whose ids and carried columns cannot be read


class FileJoin:
    """Writes one input file's scores.

    Parameters
    ----------
    store : Store
    run : CompiledRun
    id_column : str or None
        None: a row's id is its file and row number.
    carry : mapping of column to type
        Input columns to copy; a file that lacks one has nulls of that type.
    cluster : str, optional
        Column of the input that says which rows belong together.
    with_statistics : bool, default False
        Also write what corpus scores are summed from.

    Attributes
    ----------
    notes : list of str
        What could not be copied from the files written so far.
    """

    def __init__(
        self,
        store: Store,
        run: CompiledRun,
        *,
        id_column: str | None,
        carry: Mapping[str, pa.DataType],
        cluster: str | None = None,
        with_statistics: bool = False,
    ) -> None:
        self._store = store
        self._run = run
        self._copied = CopiedColumns(store, id_column=id_column, carry=carry, cluster=cluster)
        self._with_statistics = with_statistics
        self.notes: list[str] = []
        self._metadata = {**columns_metadata(run), checksums.KEY: checksums.PLACEHOLDER}
        # A family that asks may have ended early: its other rows are pending.
        self._schemas = {
            plan.key: plan.pending_schema
            for plan in run.families
            if plan.pending_schema is not None
        }

    def path(self, file: InputFile) -> StoragePath:
        """Return where the scores of a file lie."""
        relative = PurePosixPath(os.path.normpath(file.relative))
        leads_out = relative.is_absolute() or relative.parts[:1] in ((), ("..",))
        assert not leads_out, f"{file.relative} leads out of OUT"
        return self._store.out / "scores" / relative

    def write(
        self,
        file: InputFile,
        *,
        n_rows: int,
        ranges: Mapping[str, Sequence[RowRange]],
        totals: Totals,
        overview: Overview,
    ) -> None:
        """Write the scores and quarantine records of a file, each whole or not at all.

        Parameters
        ----------
        ranges : mapping of family key to committed ranges
            They tile the file's rows, but for families that ask: rows that are missing there have
            no score, and the reason ``pending``.
        totals : Totals
            Counted up.
        overview : Overview
            Counted up.

        Raises
        ------
        StorageError
            If the disk refuses for as long as it is tried.
        InputChangedError
            If the file is another one than when the run began.
        RunStoppedError
            If the run is to stop.
        """
        path = self.path(file)
        joined = self._store.call(
            lambda: self._write(file, _Joined(overview.empty()), n_rows=n_rows, ranges=ranges),
            f"cannot write {path}",
        )
        self._write_quarantine(file, joined.quarantine)
        totals.add(joined.totals)
        overview.add(joined.overview)
        if joined.n_lost and self._copied.names:
            names = ", ".join(self._copied.names)
            self.notes.append(
                f"{file.name}: {names} of {joined.n_lost:,} rows cannot be read and are null "
                "in the scores: the file is torn or damaged there"
            )

    def _write(
        self,
        file: InputFile,
        joined: _Joined,
        *,
        n_rows: int,
        ranges: Mapping[str, Sequence[RowRange]],
    ) -> _Joined:
        """Write the scores of a file; what is counted of them counts if they are whole."""
        streams = {
            key: FamilyStream(self._store, key, file.file_id, own, schema=self._schemas.get(key))
            for key, own in ranges.items()
        }
        self._store.check_inside(self.path(file))
        with self.path(file).writer() as opened:
            sink = SealedFile(opened)
            self._write_rows(sink, file, n_rows=n_rows, streams=streams, joined=joined)
            sink.seal()
            check_unchanged(file, outages=self._store.outages)
            self._store.guard()
        joined.totals.n_duplicate_ids += _n_repeats(joined.hashes)
        return joined

    def _write_rows(
        self,
        sink: SealedFile,
        file: InputFile,
        *,
        n_rows: int,
        streams: Mapping[str, FamilyStream],
        joined: _Joined,
    ) -> None:
        with contextlib.ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for given in self._copied.chunks(file, n_rows):
                self._store.outages.look()  # Joining many rows takes minutes, too.
                try:
                    n_given = given.table.num_rows
                    statistics = {key: own.take(n_given) for key, own in streams.items()}
                    rows = self._score(given, statistics, joined)
                except (KeyError, pa.ArrowException) as error:
                    raise ReconcileError(
                        f"commits of {file.name} lack what its metrics read ({error}); delete "
                        f"{self._store.out / 'families'} and run again [QA0509]"
                    ) from None
                if writer is None:
                    writer = stack.enter_context(
                        pq.ParquetWriter(sink, rows.schema, compression="zstd")
                    )
                writer.write_table(rows)
                own = hashes(given.table.column("id"))
                if given.is_lost:
                    joined.n_lost += n_given
                else:
                    joined.hashes.append(own)
                if given.clusters is not None:
                    shared, is_shared = given.clusters
                    own = np.where(is_shared, shared, own)
                first_row = joined.totals.n_rows - rows.num_rows
                joined.overview.count(rows, own, file=file.relative, first_row=first_row)
            if writer is None:
                pq.write_table(self._empty(file), sink)

    def _score(
        self, given: Copied, statistics: Mapping[str, pa.Table], joined: _Joined
    ) -> pa.Table:
        """Return given columns and scores of some rows, and count them."""
        table, chosen, has_more = given.table, given.chosen, self._with_statistics
        scores = score_rows(
            self._run, statistics, joined.totals, with_statistics=has_more, chosen=chosen
        )
        joined.quarantine.append(_quarantine_rows(table, scores, statistics))
        return _beside(_readable(table), scores).replace_schema_metadata(self._metadata)

    def _empty(self, file: InputFile) -> pa.Table:
        given = self._copied.missing(file, RowRange(0, 0))
        fields = [
            *given.schema,
            *score_fields(self._run, with_statistics=self._with_statistics),
            pa.field(QUARANTINE_REASON, pa.string()),
        ]
        return pa.schema(fields, metadata=self._metadata).empty_table()

    def _write_quarantine(self, file: InputFile, parts: Sequence[pa.Table]) -> None:
        path = self._store.out / "quarantine" / file.relative
        rows = pa.concat_tables(parts) if parts else QUARANTINE_SCHEMA.empty_table()
        if rows.num_rows == 0:
            self._store.delete(path)
            return
        buffer = io.BytesIO()
        pq.write_table(rows, buffer)
        self._store.write(path, buffer.getvalue())


def _n_repeats(hashes: Sequence[NDArray[np.uint64]]) -> int:
    """Return how many values are repeats; sorted in place, for a file may have many rows."""
    if not hashes:
        return 0
    joined = np.concatenate(hashes)
    joined.sort()
    return int(np.count_nonzero(joined[1:] == joined[:-1]))


def _readable(given: pa.Table) -> pa.Table:
    columns = {name: readable(given.column(name)) for name in given.column_names}
    return pa.table(columns)


def _beside(left: pa.Table, right: pa.Table) -> pa.Table:
    for name in right.column_names:
        left = left.append_column(name, right.column(name))
    return left


def _quarantine_rows(
    given: pa.Table, scores: pa.Table, statistics: Mapping[str, pa.Table]
) -> pa.Table:
    """Return the quarantine records of some rows, messages and stages from their families."""
    records = []
    reasons = scores.column(QUARANTINE_REASON).to_pylist()
    positions = next(iter(statistics.values())).column("position").to_pylist()
    messages = [
        (key, table.column(QUARANTINE_MESSAGE).to_pylist()) for key, table in statistics.items()
    ]
    for i, reason in enumerate(reasons):
        if reason in (None, NOT_SAMPLED):
            continue
        key, message = next((key, own[i]) for key, own in messages if own[i] is not None)
        kinds = (UNREADABLE, "killed_worker")
        records.append(
            {
                "id": text_of(given.column("id")[i]),
                "position": positions[i],
                "reason": reason,
                "message": message,
                "stage": key if reason in kinds else "validate",
            }
        )
    return pa.Table.from_pylist(records, schema=QUARANTINE_SCHEMA)
