"""Profile folder: the profiles of earlier runs, one file each, and which one is the reference.

``DIR/<run id>.profile.parquet`` is written once, whole or not at all, and never again: two audits
at once both leave theirs, and one that is killed leaves nothing that counts. ``DIR/pinned.json``
names the reference. ``DIR/<run id>.alert.json`` says that a run's audit was an alert.

A run's id is the time at which it was complete and a hash of what it wrote about itself, so that
names are in the order of runs and a copy of OUT is the same run.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, RunError, UnreadableFileError
from qaeval_core.pages.html import within
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.signature import hash_text
from qaeval_core.storage import checksums
from qaeval_core.storage.arrow import table_of
from qaeval_core.storage.base import Tag
from qaeval_core.storage.path import AnyPath, StoragePath, as_path, read_json
from qaeval_core.storage.wary import UnfitFileError
from qaeval_core.store.store import Store

ENDING = ".profile.parquet"
ALERT = ".alert.json"
PINNED = "pinned.json"
# Whose profile a file is, in its metadata: a copy under another run's name is not that run's.
_RUN = b"qaeval.run"
# Some kB a column and slice.
_MOST_BYTES = 64 << 20
_TIME = "%Y%m%dT%H%M%S.%fZ"
_ID = re.compile(r"^\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{12}$")
_N_HASH_CHARS = 12
_MAX_NAME = 80


def run_id(out: AnyPath) -> str:
    """Return the id of a complete run.

    Parameters
    ----------
    out : StoragePath, Path or str
        With ``run.json`` and ``_SUCCESS``, which has the hash of the report.
    """
    out = as_path(out)
    marker, found = (out / "_SUCCESS").fetch()
    content = (out / "run.json").read_text() + marker.decode()
    time = datetime.fromtimestamp(found.modified_s, UTC)
    return f"{time.strftime(_TIME)}-{hash_text(content, n_chars=_N_HASH_CHARS)}"


def time_of(run: str) -> datetime:
    """Return when a run was complete, by its id.

    Examples
    --------
    >>> time_of("20260104T050607.000000Z-0123456789ab").isoformat()
    '2026-01-04T05:06:07+00:00'
    """
    return datetime.strptime(run.partition("-")[0], _TIME).replace(tzinfo=UTC)


def shown_run(run: str, name: str) -> str:
    """Return a run as people call it, with its day; what somebody named stays as it is.

    Examples
    --------
    >>> shown_run("20260104T050607.000000Z-0123456789ab", "2026-W01")
    '2026-W01 (2026-01-04)'
    >>> shown_run("runs/last", "2026-W01")
    'runs/last'
    """
    if not name or not _ID.match(run):
        return run
    return f"{within(name, _MAX_NAME)} ({time_of(run):%Y-%m-%d})"


class Runs:
    """The folder of profiles.

    Parameters
    ----------
    store : Store
        Of the folder; made when the first profile is written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.folder = store.out

    def path(self, run: str) -> StoragePath:
        """Return where the profile of a run lies."""
        return self.folder / f"{run}{ENDING}"

    def ids(self) -> list[str]:
        """Return the runs that are there, the oldest first."""

        def names() -> list[str]:
            return sorted(found.name for found in self.folder.list())

        found = self._store.call(names, f"cannot list {self.folder}")
        own = [name.removesuffix(ENDING) for name in found if name.endswith(ENDING)]
        return [name for name in own if _ID.match(name)]

    def known(self, run: str) -> str:
        """Return the id under which a run is there; its own if it is not.

        A copy of OUT has the hash of the original and may have another time.
        """
        ending = run[-_N_HASH_CHARS:]
        return next((own for own in self.ids() if own.endswith(ending)), run)

    def add(self, run: str, profile: RunProfile) -> bool:
        """Write a run's profile unless there is one; return whether it was written.

        Raises
        ------
        StorageError
            If the disk refuses for as long as it is tried.
        """
        path = self.path(run)
        content = profile_bytes(profile, run=run)
        self._store.check_inside(path)
        return self._store.call(lambda: path.put_new(content) is not None, f"cannot write {path}")

    def read(self, run: str) -> RunProfile:
        """Return the profile of a run.

        Raises
        ------
        UnreadableFileError
            If it is damaged, of another run, or was written by another version.
        """
        return read_profile(self.path(run), self._store, run=run)

    def alarmed(self) -> set[str]:
        """Return the runs whose last audit was an alert, and that nobody pinned since."""

        def names() -> list[str]:
            return [found.name for found in self.folder.list() if found.name.endswith(ALERT)]

        found = self._store.call(names, f"cannot list {self.folder}")
        return {name.removesuffix(ALERT) for name in found}

    def mark(self, run: str, *, is_alarmed: bool) -> None:
        """Keep whether a run's audit was an alert: then it says nothing of what is usual.

        Raises
        ------
        StorageError
            If the disk refuses for as long as it is tried.
        """
        path = self.folder / f"{run}{ALERT}"
        self._store.check_inside(path)

        def change() -> None:
            if is_alarmed:
                path.put_new(b"{}\n")
            elif path.is_file():
                path.delete()

        self._store.call(change, f"cannot write {path}")

    def pinned_version(self) -> Tag | None:
        """Return which version of the file says what is pinned; None where there is none."""
        path = self.folder / PINNED
        found = self._store.call(path.head, f"cannot look at {path}")
        return None if found is None else found.tag

    def pin(self, run: str, *, seen: Tag | None) -> str:
        """Make a run the reference for future audits.

        Of several that are pinned at once the newest run is the reference, whoever comes last.

        Parameters
        ----------
        run : str
        seen : Tag, optional
            Of `pinned_version`, when this pin was decided.

        Returns
        -------
        str
            The newer run that was pinned meanwhile and stays; "" where there is none.
        """
        path = self.folder / PINNED
        told = {"run": run, "sha256": self._sha256(run)}
        content = f"{json.dumps(told, indent=2)}\n".encode()
        self._store.check_inside(path)

        def replace() -> str:
            known = seen
            while not self._put(path, content, known):
                known = self.pinned_version()
                other = (read_json(path) or {}).get("run")
                if known is not None and isinstance(other, str) and other > run:
                    return other
            return ""

        return self._store.call(replace, f"cannot write {path}")

    def _put(self, path: StoragePath, content: bytes, seen: Tag | None) -> bool:
        done = path.put_new(content) if seen is None else path.swap(content, seen)
        return done is not None

    def _sha256(self, run: str) -> str:
        return hashlib.sha256(_content(self.path(run), self._store)).hexdigest()

    def pinned(self) -> str | None:
        """Return the run that is pinned.

        Raises
        ------
        UnreadableFileError
            If the file that says so is damaged, or the profile is another one than was pinned.
        RunError
            If its profile is not there.
        """
        path = self.folder / PINNED
        if not self._store.call(path.is_file, f"cannot look at {path}"):
            return None
        told = read_json(path) or {}
        run = told.get("run")
        if not isinstance(run, str) or not _ID.match(run):
            raise UnreadableFileError(f"{path} is damaged [QA0801]")
        if not self.path(run).is_file():
            raise RunError(f"{path} names {run}, and its profile is missing [QA0801]")
        if told.get("sha256") != self._sha256(run):
            raise UnreadableFileError(
                f"{self.path(run)} is damaged, or not the file that was pinned [QA0801]"
            )
        return run

    def reference(self, choice: str | None, run: str) -> str | None:
        """Return the run that another one is compared with; None where there is none.

        Parameters
        ----------
        choice : str, optional
            ``last``: the newest one before the run; ``pinned``; by default the pinned one, else
            the oldest. A run is no reference of its own unless it is pinned.
        run : str

        Raises
        ------
        UnreadableFileError, RunError
            As `pinned` does.
        """
        others = [own for own in self.ids() if own != run]
        if choice == "last":
            return max((own for own in others if own < run), default=None)
        pinned = self.pinned()
        if pinned is not None or choice == "pinned":
            return pinned
        return others[0] if others else None


def profile_bytes(profile: RunProfile, *, run: str) -> bytes:
    """Return a run's profile as a Parquet file that says when a bit of it has turned."""
    table = profile.to_table()
    own = {_RUN: run.encode(), checksums.KEY: checksums.PLACEHOLDER}
    metadata = {**(table.schema.metadata or {}), **own}
    buffer = io.BytesIO()
    sink = checksums.SealedFile(buffer)
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    sink.seal()
    return buffer.getvalue()


def read_profile(path: AnyPath, store: Store, *, run: str | None = None) -> RunProfile:
    """Return the profile in a file.

    Parameters
    ----------
    run : str, optional
        Whose it must be.

    Raises
    ------
    ConfigError
        If there is no such file.
    UnreadableFileError
        If it is no profile, is damaged, of another run, or was written by another version.
    """
    path = as_path(path)
    if not store.call(path.is_file, f"cannot look at {path}"):
        raise ConfigError(f"no such profile: {path} [QA0801]")
    content = _content(path, store)
    if checksums.is_intact(content) is False:
        raise UnreadableFileError(f"{path} is damaged: its checksum differs [QA0801]")
    try:
        table = table_of(content)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(
            f"{path} is not a profile, or damaged: {error} [QA0801]"
        ) from None
    profile = RunProfile.from_table(table, str(path))
    told = (table.schema.metadata or {}).get(_RUN, b"").decode(errors="replace")
    if run is not None and told != run:
        raise UnreadableFileError(
            f"{path} is the profile of another run ({told or 'unknown'}) [QA0801]"
        )
    return profile


def _content(path: StoragePath, store: Store) -> bytes:
    def read() -> bytes:
        try:
            return path.read_bytes(most_bytes=_MOST_BYTES)
        except UnfitFileError as error:
            raise UnreadableFileError(
                f"{path} is not a profile: {error.strerror} [QA0801]"
            ) from None

    return store.call(read, f"cannot read {path}")
