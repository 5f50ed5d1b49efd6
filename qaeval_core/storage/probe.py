"""Probe: whether a bucket does what a run needs, looked at before any work.

Stores that speak S3 are not S3: some answer 200 to a write that must not replace, and replace. Two
runs into one OUT would not notice each other there. Credentials that may read and not write, or not
list, are found here too, and not after an hour.

But: of a disk nothing is looked at; it does what its file system promises.
"""

from __future__ import annotations

import errno
import uuid

from qaeval_core.errors import OutRefusedError
from qaeval_core.storage.path import StoragePath
from qaeval_core.storage.retry import Outages

# Folder of what is written to look; readers of tables pass over names that begin so.
PROBES = "_probe"
# A probe lives for some requests. What is older, by the store's own clock, is of one who died.
OLD_S = 3600.0
_LOCK_OFF = (
    "two runs could write to one OUT. Make sure that there is only one, and add "
    "--set output.lock=off"
)
_OTHER_STORE = "two commands could write there at once; name another store"


def probe(
    out: StoragePath, outages: Outages, *, is_locked: bool = True, option: str = "--out"
) -> None:
    """Write, read, list and delete below OUT, if it is in an object store.

    Parameters
    ----------
    is_locked : bool, default True
        Whether the run counts on conditional writes.
    option : str, default "--out"
        That names the folder; messages begin with it.

    Raises
    ------
    OutRefusedError
        If there is no bucket, credentials are missing or not enough, or conditions are ignored.
    StorageError
        If the store does not answer for as long as it is tried.
    """
    if out.local is not None:
        return

    name = f"{option} {out}"

    def look() -> None:
        try:
            _look(out, name, is_locked=is_locked)
        except (FileNotFoundError, PermissionError) as error:
            raise OutRefusedError(f"{name}: {error.strerror} [QA0508]") from None
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            why = f"it has no conditional writes ({error.strerror})"
            raise OutRefusedError(f"{name}: {why}: {_way_out(name)} [QA0508]") from None

    outages.call(look, store=str(out), what=f"cannot write below {out}")


def _look(out: StoragePath, name: str, *, is_locked: bool) -> None:
    path = out / PROBES / uuid.uuid4().hex
    tag = path.put_new(b"first") if is_locked else path.put(b"first")
    try:
        _check(
            path.read_bytes() == b"first",
            name,
            "it does not return the object that was just written",
        )
        listed = {found.name: found for found in path.parent.list()}
        _check(path.name in listed, name, "it does not list the object that was just written")
        own = listed[path.name]
        _check(own.tag == tag, name, "it lists a different ETag than the write returned")
        for found in listed.values():
            if found.modified_s < own.modified_s - OLD_S:
                (path.parent / found.name).delete()
        if is_locked:
            _look_at_conditions(name, path)
    finally:
        path.delete()
    _check(not path.is_file(), name, "it still has the object that was just deleted")


def _look_at_conditions(name: str, path: StoragePath) -> None:
    ignored = [
        header
        for header, answer in (
            ("If-None-Match", path.put_new(b"second")),
            ("If-Match", path.swap(b"third", '"0123456789abcdef0123456789abcdef"')),
        )
        if answer is not None
    ]
    _check(not ignored, name, f"it ignores {' and '.join(ignored)}: {_way_out(name)}")
    _check(
        _is_swapped(path),
        name,
        f"it does not replace an unchanged object (If-Match): {_way_out(name)}",
    )


def _is_swapped(path: StoragePath) -> bool:
    """Whether an object that nobody else writes can be replaced: leases are renewed so."""
    try:
        return path.swap(b"fourth", path.fetch()[1].tag) is not None
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False


def _way_out(name: str) -> str:
    return _LOCK_OFF if name.startswith("--out") else _OTHER_STORE


def _check(is_so: bool, name: str, why: str) -> None:
    if not is_so:
        raise OutRefusedError(f"{name}: {why} [QA0508]")
