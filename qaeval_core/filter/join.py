"""Join: output files put together in a filter's own folder, and then in their places.

But: S3 copies no object of more than five gigabytes. Such a file is sent to its place itself, which
is declared first (`qaeval_core.filter.unfenced`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial

from qaeval_core.filter.unfenced import declared
from qaeval_core.filter.write import WritePlan, part_path
from qaeval_core.storage import files
from qaeval_core.storage.checksums import HashedFile, hash_of
from qaeval_core.storage.parquet_parts import copy_part, join_parts
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.store.lock import Tenure

_MAX_COPY_BYTES = 5 << 30


@dataclass(frozen=True, slots=True)
class FileTask:
    """An output file, ``kept`` or ``decisions``, and the numbers of its parts."""

    what: str
    relative: str
    numbers: tuple[int, ...]


def join_file(task: FileTask, folder: str, plan: WritePlan) -> tuple[int, str]:
    """Put the parts of an output file together; return its bytes, and of decisions the SHA-256.

    Raises
    ------
    LockLostError
        If another filter has taken KEPT; nothing is put there then.
    StorageError
        If a store refuses for as long as it is tried.
    """
    path = as_path(folder) / task.what / task.relative
    parts = [part_path(plan.work, task.what, number) for number in task.numbers]

    def write() -> tuple[int, str]:
        whole, sha256 = parts[0], ""
        if len(parts) > 1:
            whole = as_path(plan.work) / "whole" / task.what / task.relative
            with whole.writer(is_flushed=False) as file:
                sink = HashedFile(file)
                join_parts(parts, sink)
            sha256 = sink.hash.hexdigest()
        elif task.what == "decisions":
            sha256 = hash_of(whole)
        n_bytes = put_in_place(whole, path, plan.tenure, plan.fingerprint)
        return n_bytes, sha256 if task.what == "decisions" else ""

    call = partial(plan.outages.call, store=folder, what=f"cannot write {path}")
    done: tuple[int, str] = call(write)
    if (local := path.local) is not None:  # Apart from the move, which cannot be done twice.
        call(partial(files.flush_folder, local.parent))
    return done


def put_in_place(whole: StoragePath, path: StoragePath, tenure: Tenure, fingerprint: str) -> int:
    """Give a file of the folder of work its place in KEPT; return its bytes.

    Whoever takes KEPT over deletes that folder before all else. So who was frozen after the look at
    the lock, however long, finds nothing to move or to copy.

    Raises
    ------
    LockLostError
        If another filter has taken KEPT.
    OSError
        If the storage refuses, or the file is gone.
    """
    local, own = path.local, whole.local
    if local is not None and own is not None:
        files.make_folder(local.parent)
        files.flush_file(own)
        n_bytes = own.stat().st_size
        tenure.check()
        files.move(own, local)
        return n_bytes
    found = whole.head()
    if found is None:
        raise FileNotFoundError(f"there is no {whole}")
    if found.size > _MAX_COPY_BYTES:
        with contextlib.ExitStack() as until_it_is_there, path.writer() as sink:
            copy_part(whole, sink)
            # Last of all: it is in its place once this context ends.
            until_it_is_there.enter_context(declared("send", [path], tenure, fingerprint))
    else:
        tenure.check()
        whole.copy(path)
    return found.size
