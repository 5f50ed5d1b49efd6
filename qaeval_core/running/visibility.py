"""Visibility: what every node of a run must see, looked at before its first shard or call.

A folder that is not mounted on a node looks like an empty one: a worker there would keep commits
and paid replies for itself, and take input files that it does not see for damaged ones. So a run
puts a mark into the folders that it shares, and who does not find it does nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from pyarrow import fs

from qaeval_core.models.open_vino import Bf16Engine, bf16_engine, missing_for_bf16
from qaeval_core.planning.filesystems import open_filesystem, store_of
from qaeval_core.planning.job import Job
from qaeval_core.planning.listing import one_a_folder
from qaeval_core.plugins import other_versions, versions
from qaeval_core.storage import files
from qaeval_core.storage.files import expanded
from qaeval_core.storage.path import StoragePath
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Mark, Store

# A shared file system may show a new file a moment later.
_LOOKS = 3
_LOOK_AGAIN_S = 0.5
# Of runs that were killed: another run that lives may use the same journal.
_OLD_MARK_S = 7 * 86_400.0
_MARK = re.compile(r"^\.[0-9a-f]{32}\.mark$")


@dataclass(frozen=True, slots=True)
class Sight:
    """What a node must see.

    Attributes
    ----------
    mark : Mark
        In each of the folders.
    folders : tuple of str
        OUT and the journals.
    given : tuple of str
        Files that workers read: keys, document frequencies.
    inputs : tuple of str
        One input file of each folder.
    retry_s : float, default 0
        How long a store that does not answer is tried by who looks before any work.
    versions : mapping of package to version, optional
        Of the driver's qaeval and plugins: numbers of others are not to stand beside its own.
    bf16 : Bf16Engine, optional
        The driver's, of a run that computes in bfloat16.
    """

    mark: Mark
    folders: tuple[str, ...]
    given: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    retry_s: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    bf16: Bf16Engine | None = None

    def problem(self, outages: Outages | None = None) -> str | None:
        """Return what cannot be seen from this process, or None.

        What is missing, denied or another folder cannot be seen. A store that does not answer says
        nothing of the sort: it is asked again, as it is where something is read.

        Parameters
        ----------
        outages : Outages, optional
            How long a store is tried that does not answer; default once.

        Raises
        ------
        StorageError
            If a store has not answered for as long as it is tried.
        OSError
            Without ``outages``, what it said.
        """
        for left in reversed(range(_LOOKS)):
            found = self._look(outages)
            if found is None or not left:
                return found
            time.sleep(_LOOK_AGAIN_S)
        return None

    def _look(self, outages: Outages | None) -> str | None:
        differing = other_versions(self.versions)
        if differing:
            return f"the driver's {differing}"
        lacking = missing_for_bf16(self.bf16) if self.bf16 else ""
        if lacking:
            return lacking
        looks = [(folder, partial(self._folder_problem, folder)) for folder in self.folders]
        looks += [(path, partial(_given_problem, path)) for path in self.given]
        for name, look in looks:
            if outages is None:
                found = look()
            else:
                found = outages.call(look, store=store_of(name), what=f"cannot look at {name}")
            if found is not None:
                return found
        return next((problem for uri in self.inputs if (problem := input_problem(uri))), None)

    def _folder_problem(self, folder: str) -> str | None:
        try:
            self.mark.check(folder)
        except PermissionError as error:
            return f"{folder} ({error.strerror})"
        except (FileNotFoundError, NotADirectoryError):
            return f"{folder} (there it is missing, or another folder)"
        return None


def _given_problem(path: str) -> str | None:
    try:
        return None if expanded(path).is_file() else path
    except PermissionError as error:
        return f"{path} ({error.strerror})"


def input_problem(uri: str) -> str | None:
    """Return why an input file cannot be seen from this process, or None.

    A store that does not answer at all is no matter of sight: readers try it again.
    """
    try:
        filesystem, path = open_filesystem(uri)
        if filesystem.get_file_info(path).type != fs.FileType.File:
            return uri
        filesystem.open_input_file(path).close()
    except (FileNotFoundError, PermissionError) as error:
        return f"{uri} ({error.strerror})"
    except OSError as error:
        return f"{uri} (access denied)" if "ACCESS_DENIED" in str(error) else None
    return None


@contextlib.contextmanager
def marked(job: Job, outages: Outages) -> Iterator[tuple[Job, Sight]]:
    """Put the run's mark into the folders that its workers share, and take it away at the end.

    Parameters
    ----------
    job : Job
    outages : Outages
        How long this process tries the disk.

    Yields
    ------
    (Job, Sight)
        The job with a store that writes only where the mark is; and what nodes must see.

    Raises
    ------
    RunError
        If OUT cannot be written.
    """
    mark = Mark(f".{uuid.uuid4().hex}.mark")
    out = job.store.out

    def put_mark() -> None:
        _remove_marks(out, older_than_s=0.0)
        (out / mark.name).put(b"")

    outages.call(put_mark, store=str(out), what=f"cannot write below {out}")
    folders = [out]
    for folder in _journal_folders(job):
        # Where replies cannot be kept, the family says so and ends; the others go on.
        with contextlib.suppress(OSError):
            _remove_marks(folder, older_than_s=_OLD_MARK_S)
            if folder.local is not None:
                files.make_folder(folder.local, is_private=True)
            (folder / mark.name).put(b"")
            folders.append(folder)
    sight = Sight(
        mark,
        tuple(map(str, folders)),
        tuple(_given_files(job)),
        tuple(one_a_folder([file.uri for file in job.files])),
        job.config.scoring.retry_storage_s,
        versions(),
        bf16_engine() if _computes_in_bf16(job) else None,
    )
    try:
        store = Store(out, mark=mark, outages=outages, sample=job.sample, guard=job.store.guard)
        yield job.with_store(store), sight
    finally:
        for folder in folders:
            with contextlib.suppress(OSError):
                (folder / mark.name).delete()


def _remove_marks(folder: StoragePath, *, older_than_s: float) -> None:
    for found in list(folder.list()):
        if _MARK.match(found.name) and time.time() - found.modified_s >= older_than_s:
            (folder / found.name).delete()


def _journal_folders(job: Job) -> list[StoragePath]:
    return sorted(
        {plan.journal_folder for plan in job.run.families if plan.journal_folder}, key=str
    )


def _computes_in_bf16(job: Job) -> bool:
    artifacts = (artifact for plan in job.run.families for artifact in plan.artifacts)
    return any(artifact.record.precision == "bf16" for artifact in artifacts)


def _given_files(job: Job) -> Iterator[str]:
    for plan in job.run.families:
        yield from plan.given_files
