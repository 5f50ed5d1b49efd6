"""Unfenced: changes of KEPT in a bucket that a store cannot be told to refuse when they come late.

What a filter writes is copied from its own folder of work, which whoever takes KEPT over deletes
first: who is frozen before that copy has nothing to copy when it wakes up. A deletion has no such
fence, nor has an object that is too large to be copied. So a filter first declares such a change in
a file of KEPT, and looks at its lock after that; who takes KEPT over looks for such files after it
has the lock. So whichever order these take, a change that may still come is known to the successor,
which begins only if the change would do its own files no harm, or cannot come any more.

But: a request that a store already has is taken for done: between it and the successor's first
write lies the successor's whole first pass.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Literal

from qaeval_core.errors import StoreLockedError
from qaeval_core.running.run_files import read_json
from qaeval_core.signature import hash_text
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.lock import Tenure, is_gone, this_process

PREFIX = ".unfenced-"

Change = Literal["delete", "send"]


@contextlib.contextmanager
def declared(
    change: Change, paths: Sequence[StoragePath], tenure: Tenure, fingerprint: str
) -> Iterator[None]:
    """Let a change of files of KEPT be known before it is made, and until it is or has failed.

    Parameters
    ----------
    fingerprint : str
        Of the filter: another run of the very same one makes the same files.

    Raises
    ------
    LockLostError
        If another filter has taken KEPT; nothing is changed then.
    OSError
        If the storage refuses, or does not say whose KEPT is.
    """
    folder = tenure.path.parent
    names = [str(PurePosixPath(path.key).relative_to(folder.key)) for path in paths]
    # Named by what it says: where it could not be deleted, a second try takes its place.
    path = folder / f"{PREFIX}{hash_text(json.dumps([tenure.token, change, names]))}"
    path.put_json({**this_process(), "filter": fingerprint, "change": change, "files": names})
    try:
        tenure.tag()  # Not `check`, to which a look that fails is no loss.
        yield
    finally:
        with contextlib.suppress(OSError):  # The next filter will say that it is there.
            path.delete()


def check_declared(folder: StoragePath, fingerprint: str, names: Collection[str]) -> None:
    """Raise StoreLockedError if a lost filter may still spoil the files of the one that begins.

    Parameters
    ----------
    folder : StoragePath
        KEPT, whose lock the caller holds.
    fingerprint : str
        Of the filter that begins.
    names : collection of str
        Its files, relative to KEPT.
    """
    for found in folder.list():
        path = folder / found.name
        if not found.name.startswith(PREFIX):
            continue
        told = read_json(path) or {}
        if is_gone(told):
            path.delete()
            continue
        given = told.get("files")
        changed = {str(name) for name in given} if isinstance(given, list) else set()
        spoilt = changed.intersection(names)
        # To delete what this filter has not does no harm; to send it does.
        is_apart = told.get("change") == "delete" and changed and not spoilt
        if told.get("filter") != fingerprint and not is_apart and path.is_file():
            name = min(spoilt or changed, default="a file")
            raise StoreLockedError(
                f"{folder}: another filter (process {told.get('pid')} on {told.get('host')}) was "
                f"lost before it could {told.get('change', 'change')} {name}, and would still do "
                f"so if it was frozen and wakes up. Choose another folder; or delete {path} if "
                "that process is gone"
            )
