"""Store: commits of one (shard, family) at a time, found again by name.

A commit's name derives from the file's identity and the row range, its folder from the family's
signature: a retry or a zombie writes the same bytes to the same name.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ReconcileError, RunError
from qaeval_core.schema import POSITION
from qaeval_core.signature import hash_text
from qaeval_core.storage import checksums
from qaeval_core.storage.arrow import table_of
from qaeval_core.storage.base import Found, Tag
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.sample import Sample

T = TypeVar("T")

# What lies below OUT and is a run's own.
OWN_FOLDERS = ("families", "manifest", "joined", "scores", "quarantine", "corpus", "journal")

COMMIT_NAME = re.compile(
    r"^(?P<file>[0-9a-f]+)-(?P<start>\d{1,18})-(?P<stop>\d{1,18})(?P<sample>-[0-9a-f]{16})?\.parquet$"
)
_STATS = b"qaeval.stats"
_SIGNATURE = b"qaeval.signature"


@dataclass(frozen=True, slots=True)
class Commit:
    """A shard of a family that is committed: what its worker tells of it.

    Attributes
    ----------
    size : int
        In bytes.
    tag : Tag
        Of this very version: who finds another one under its name has another commit.
    stats : PassStats
        What it cost; the counts are in its footer as well.
    """

    family: str
    file_id: str
    rows: RowRange
    name: str
    size: int
    tag: Tag
    stats: PassStats


@dataclass(frozen=True, slots=True)
class Mark:
    """A file that a run puts into the folders it shares with its workers: who sees it sees them.

    A folder that is not mounted looks like an empty one, in which a worker would keep what it
    computed for itself.
    """

    name: str

    def check(self, folder: AnyPath) -> None:
        """Raise OSError if a folder does not hold it."""
        if not (as_path(folder) / self.name).is_file():
            raise FileNotFoundError(
                errno.ENOENT, f"{folder} is not the folder in which the run began"
            )


class Store:
    """The OUT folder, on a disk or in an object store.

    Parameters
    ----------
    out : StoragePath, Path or str
        The folder; made on the first write.
    mark : Mark, optional
        Of the run; on a disk nothing is read or written where OUT does not hold it. A bucket cannot
        be another one for some moments, as a mount can.
    outages : Outages, optional
        How long the disk is tried; default once.
    sample : Sample, optional
        Whose rows alone are scored: its name is part of the names of commits, in which the other
        rows are nulls.
    guard : callable, optional
        Called right before each try to write or delete; raises where OUT is another run's by now.
    """

    def __init__(
        self,
        out: AnyPath,
        *,
        mark: Mark | None = None,
        outages: Outages | None = None,
        sample: Sample | None = None,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.out = as_path(out)
        self.mark = mark
        self.sample = sample
        self.outages = outages or Outages()
        self.guard = guard or (lambda: None)

    def family_folder(self, family: str) -> StoragePath:
        """Return the folder of a family's commits."""
        return self.out / "families" / family

    def commit_path(self, family: str, file_id: str, rows: RowRange) -> StoragePath:
        """Return where the statistics of a shard lie."""
        name = f"{file_id}-{rows.start:012d}-{rows.stop:012d}{self.suffix}.parquet"
        return self.family_folder(family) / name

    @property
    def suffix(self) -> str:
        """What names of commits end with: nothing, or the name of the sample."""
        return "" if self.sample is None else f"-{self.sample.name}"

    def commit(
        self,
        family: str,
        file_id: str,
        rows: RowRange,
        table: pa.Table,
        *,
        signature: str,
        stats: PassStats,
    ) -> Commit:
        """Write a shard's statistics, whole or not at all; counts of the pass go to its footer.

        Raises
        ------
        ReconcileError
            If the table has other than the shard's rows.
        """
        if table.num_rows != rows.n_rows:
            raise ReconcileError(
                f"{family}: shard {rows.start}-{rows.stop} has {rows.n_rows} rows, and its "
                f"statistics {table.num_rows} [QA0509]"
            )
        metadata = {
            _SIGNATURE: signature.encode(),
            _STATS: stats.counts_json().encode(),
            checksums.KEY: checksums.PLACEHOLDER,
        }
        buffer = io.BytesIO()
        sink = checksums.SealedFile(buffer)
        pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
        sink.seal()
        path, content = self.commit_path(family, file_id, rows), buffer.getvalue()
        tag = self.write(path, content)
        return Commit(family, file_id, rows, path.name, len(content), tag, stats)

    def write(self, path: AnyPath, content: bytes) -> Tag:
        """Write a file below OUT, whole or not at all.

        Raises
        ------
        StorageError
            If the disk refuses for as long as it is tried.
        """
        self.check_inside(path)
        return self.change(lambda: as_path(path).put(content), f"cannot write {path}")

    def write_json(self, path: AnyPath, content: object) -> None:
        """Write JSON below OUT, as `write` does."""
        self.check_inside(path)
        self.change(lambda: as_path(path).put_json(content), f"cannot write {path}")

    def delete(self, path: AnyPath) -> None:
        """Delete a file below OUT, if it is there."""
        self.check_inside(path)
        self.change(as_path(path).delete, f"cannot delete {path}")

    def check_inside(self, path: AnyPath) -> None:
        """Look whether links lead a path below OUT out of it; OUT itself may be a link.

        Raises
        ------
        RunError
            If they do.
        """
        if self.out.local is None:
            return
        path = as_path(path)
        folder, out = os.path.realpath(path.parent), os.path.realpath(self.out)
        if os.path.commonpath([folder, out]) != out:
            raise RunError(
                f"{path.parent} leads out of {self.out}, to {folder}. Nothing is written through "
                "links below OUT; remove the link, or make OUT itself one [QA0508]"
            )

    def check_folders(self) -> None:
        """Look at the folders that a run writes to, as `check_inside` does."""
        for name in OWN_FOLDERS:
            self.check_inside(self.out / name / "any")

    def change(self, action: Callable[[], T], what: str) -> T:
        """Return what an action that writes or deletes below OUT returns, as `write` does."""

        def guarded() -> T:
            # An outage that is waited for may last longer than another run waits for this one.
            self.guard()
            return action()

        return self.call(guarded, what)

    def call(self, action: Callable[[], T], what: str) -> T:
        """Return what an action on OUT returns, tried as long as the disk refuses."""
        return self.outages.call(partial(self.once, action), store=str(self.out), what=what)

    def once(self, action: Callable[[], T]) -> T:
        """Return what an action on OUT returns; OSError where the disk refuses, or is not OUT's."""
        if self.mark is not None and self.out.local is not None:
            self.mark.check(self.out)
        return action()

    def listed(self, family: str, as_one: Callable[[Iterator[Found]], T]) -> T:
        """Return what a function makes of the files of a family's folder, in no order."""
        folder = self.family_folder(family)

        def names() -> T:
            # Without looking for folders, which there are none of, an answer comes page by page.
            return as_one(folder.list(is_deep=True))

        return self.call(names, f"cannot list {folder}")

    def committed(self, family: str) -> dict[str, list[RowRange]]:
        """Return the committed ranges of every file of a family, by names alone.

        Those of another sample, or of all rows where there is one, are left out.
        """
        ranges: dict[str, list[RowRange]] = {}
        for match in self._names(family):
            if (match["sample"] or "") == self.suffix:
                ranges.setdefault(match["file"], []).append(_rows_of(match))
        return ranges

    def committed_otherwise(self, family: str) -> dict[tuple[str, RowRange], list[StoragePath]]:
        """Return the commits of a family under other samples, by file and range."""
        found: dict[tuple[str, RowRange], list[StoragePath]] = {}
        for match in self._names(family):
            if (match["sample"] or "") != self.suffix:
                path = self.family_folder(family) / match.string
                found.setdefault((match["file"], _rows_of(match)), []).append(path)
        return found

    def _names(self, family: str) -> list[re.Match[str]]:
        names = self.listed(family, lambda listed: sorted(found.name for found in listed))
        return [match for match in map(COMMIT_NAME.match, names) if match]

    def is_committed(self, family: str, file_id: str, rows: RowRange) -> bool:
        """Return whether a shard is committed."""
        path = self.commit_path(family, file_id, rows)
        return self.call(path.is_file, f"cannot look at {path}")

    def read(
        self, family: str, file_id: str, rows: RowRange, columns: list[str] | None = None
    ) -> pa.Table:
        """Return the statistics of a committed shard, as they were committed.

        Raises
        ------
        ReconcileError
            If a bit of the commit has turned, or it is not of these rows.
        StorageError
            If the disk does not give its bytes for as long as it is tried.
        """
        return self.read_commit(self.commit_path(family, file_id, rows), family, rows, columns)

    def read_commit(
        self, path: StoragePath, family: str, rows: RowRange, columns: list[str] | None = None
    ) -> pa.Table:
        """Return what `read` does, of a commit that may be another sample's."""
        content = self.call(path.read_bytes, f"cannot read {path}")
        self._check_intact(path, checksums.is_intact(content))
        try:
            table = table_of(content, columns)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from None
        self._check_footer(path, family, rows, table.schema.metadata or {}, table.num_rows)
        if columns is None and not _has_positions(table, rows):
            raise _damaged(path, "it holds other rows")
        return table

    def check_scores(self, path: AnyPath) -> None:
        """Raise ReconcileError if a bit of a file of scores has turned since it was written."""
        self._check_intact(
            path, self.call(lambda: checksums.is_file_intact(path), f"cannot read {path}")
        )

    def look_into(
        self, path: StoragePath, family: str, rows: RowRange
    ) -> tuple[PassStats, Tag | None]:
        """Return a commit's counts, from its footer; of which version, None where not known.

        Raises
        ------
        ReconcileError
            If the footer is damaged or does not have its shard's rows and family.
        StorageError
            If the disk does not give its bytes for as long as it is tried.
        """
        tag = None
        try:
            # An object of some kilobytes is got whole: its footer alone would be two requests.
            footer = pq.read_metadata(str(path)) if path.local is not None else None
        except (OSError, pa.ArrowException):
            footer = None
        if footer is None:
            # Whose fault it is, the disk's or the content's, its bytes tell.
            content, found = self.call(path.fetch, f"cannot read {path}")
            tag = found.tag
            try:
                footer = pq.read_metadata(pa.BufferReader(content))
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from None
        return self._check_footer(path, family, rows, footer.metadata or {}, footer.num_rows), tag

    def _check_intact(self, path: AnyPath, is_intact: bool | None) -> None:
        if is_intact is None:
            raise _damaged(path, "it holds no checksum")
        if not is_intact:
            raise _damaged(path, "its checksum differs")

    def _check_footer(
        self,
        path: StoragePath,
        family: str,
        rows: RowRange,
        metadata: Mapping[bytes, bytes],
        n_rows: int,
    ) -> PassStats:
        if n_rows != rows.n_rows:
            raise _damaged(path, f"it has {n_rows} rows, its name says {rows.n_rows}")
        signature = metadata.get(_SIGNATURE, b"").decode(errors="replace")
        if not family.endswith(f"-{hash_text(signature)}"):
            raise _damaged(path, f"it belongs to another family: {signature[:200]!r}")
        try:
            return PassStats.from_json(metadata[_STATS])
        except (KeyError, ValueError, TypeError) as error:
            raise _damaged(path, f"cannot read its counts: {error}") from None

    def drop(self, family: str, file_id: str, rows: RowRange) -> None:
        """Take a commit back, so that its shard is computed again."""
        self.delete(self.commit_path(family, file_id, rows))

    def write_signature(self, family: str, content: Mapping[str, object]) -> None:
        """Describe a family's folder for people."""
        path = self.family_folder(family) / "family.json"
        if not self.call(path.is_file, f"cannot look at {path}"):
            self.write_json(path, content)


def _rows_of(match: re.Match[str]) -> RowRange:
    return RowRange(int(match["start"]), int(match["stop"]))


def _has_positions(table: pa.Table, rows: RowRange) -> bool:
    if POSITION not in table.column_names:
        return False
    positions = table.column(POSITION).to_numpy()
    return bool(np.array_equal(positions, np.arange(rows.start, rows.stop)))


def _damaged(path: AnyPath, why: object) -> ReconcileError:
    return ReconcileError(f"{path} is damaged ({why}); delete it and run again [QA0510]")
