"""Unfenced: changes of KEPT in a bucket that nothing makes fail when they come late.

What a filter writes is copied from its own folder of work, which whoever takes KEPT over deletes
first: who is frozen before that copy has nothing to copy when it wakes up. A deletion has no such
fence, nor has an object that is too large to be copied. So a process first declares such a change
in a file of KEPT, and looks at its filter's lock after that; who takes KEPT over looks for such
files after it has the lock. So whichever order these take, a change that may still come is known to
the successor, which begins only if the change would do its own files no harm, or cannot come any
more.

But: a request that a store already has is taken for done, but for the end of an upload, which a
store may work on for minutes. Between the others and the successor's first write lies the
successor's whole first pass.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import pyarrow as pa

from qaeval_core.errors import StoreLockedError
from qaeval_core.signature import hash_text
from qaeval_core.storage.base import Found
from qaeval_core.storage.path import StoragePath, read_json
from qaeval_core.storage.retry import Outages
from qaeval_core.store.lock import Tenure, is_gone, this_process

PREFIX = ".unfenced-"
# How long a store may work on the end of an upload whose sender is dead: S3 takes minutes.
_SEND_S = 900.0

UnfencedChange = Literal["delete", "send"]

# What this process has declared, and neither done nor given up.
_pending: set[str] = set()


@contextlib.contextmanager
def declared(
    change: UnfencedChange, paths: Sequence[StoragePath], tenure: Tenure, fingerprint: str
) -> Iterator[None]:
    """Let a change of files of KEPT be known before it is made, and until it is.

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
    folder, process = tenure.path.parent, this_process()
    names = [str(PurePosixPath(path.key).relative_to(folder.key)) for path in paths]
    # Of this process: one that takes the work of another, which may only be frozen, has its own.
    name = f"{PREFIX}{hash_text(json.dumps([tenure.token, process, change, names]))}"
    path = folder / name
    _pending.add(name)
    may_come = False
    try:
        path.put_json({**process, "filter": _filter(fingerprint), "change": change, "files": names})
        tenure.tag()  # Not `check`, to which a look that fails is no loss.
        may_come = True
        yield
        may_come = False
    finally:
        _pending.discard(name)
        if not may_come:
            with contextlib.suppress(OSError):  # The next filter deletes it: nothing is pending.
                path.delete()


def check_declared(
    folder: StoragePath, fingerprint: str, names: Collection[str], *, lock: Found, outages: Outages
) -> None:
    """Raise StoreLockedError if a lost filter may still spoil the files of the one that begins.

    Parameters
    ----------
    folder : StoragePath
        KEPT, whose lock the caller holds.
    fingerprint : str
        Of the filter that begins.
    names : collection of str
        Its files, relative to KEPT.
    lock : Found
        Tells the time by the clock that dates what was declared.
    outages : Outages
        How long the store is tried.
    """
    for found in folder.list():
        path = folder / found.name
        if not found.name.startswith(PREFIX):
            continue
        told = read_json(path, outages) or {}
        if _is_over(told, found, now_s=lock.modified_s):
            path.delete()
            continue
        given = told.get("files")
        changed = {str(name) for name in given} if isinstance(given, list) else set()
        spoiled = changed.intersection(names)
        # To delete what this filter has not does no harm; to send it does.
        is_apart = told.get("change") == "delete" and changed and not spoiled
        if told.get("filter") != _filter(fingerprint) and not is_apart and path.is_file():
            name = min(spoiled or changed, default="a file")
            raise StoreLockedError(
                f"{folder}: another filter (process {told.get('pid')} on {told.get('host')}) was "
                f"lost before it could {told.get('change', 'change')} {name}. If it was only "
                "frozen, it would still do so when it wakes up. Choose another folder; or delete "
                f"{path} if that process has been gone for 15 minutes [QA0505]"
            )


def _is_over(told: Mapping[str, Any], found: Found, *, now_s: float) -> bool:
    """Return whether what was declared is done, or will never be."""
    is_own = this_process().items() <= told.items()
    if found.name in _pending if is_own else not is_gone(told):
        return False
    return told.get("change") == "delete" or now_s - found.modified_s > _SEND_S


def _filter(fingerprint: str) -> str:
    """Return what files depend on: their bytes are those that one version of PyArrow writes."""
    return f"{fingerprint} by pyarrow {pa.__version__}"
