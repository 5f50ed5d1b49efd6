"""Files: every write to a disk; what runs write goes through ``storage``, which stands on this.

A file is written under a temporary name in its own folder, flushed, and renamed: a reader sees the
old one or the whole new one, also after the death of process or machine. What is not whole keeps
its temporary name, which `remove_temporaries` knows.

Files that others could have put there, or will want to read (journals, ledgers, locks, caches), are
opened without following a link and without waiting for a pipe, and are private when they are made.

But: nothing is retried here; ``retry`` does that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from qaeval_core.errors import ConfigError, RunError

# A dot, a name, 32 hexadecimal digits: nobody else's temporary files look like this.
_TEMPORARY = re.compile(r"^\.(?P<name>.*)\.[0-9a-f]{32}\.tmp$")
# A link may lead to a victim's file, and a pipe keeps its reader waiting for ever.
_WARILY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE = 0o600
# How long a swap of a small file may take, on the slowest of disks.
_SWAP_S = 30.0
_LOOK_S = 0.01
_ROOT = 0


def temporary_path(path: Path) -> Path:
    """Return a new name beside a file, which `remove_temporaries` knows."""
    # Not by `with_name`: of "." that is an error of its own, before the disk has said anything.
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"


@contextlib.contextmanager
def writer(path: Path, *, is_private: bool = False, is_flushed: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write to; it takes the path's name at the regular end, flushed.

    After an error the path is as it was, and nothing is left behind.

    Parameters
    ----------
    is_private : bool, default False
        Whether nobody else may read it; else the umask says who may.
    is_flushed : bool, default True
        Whether it survives the machine; False for what is done again then.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    make_folder(path.parent)
    temporary = temporary_path(path)
    try:
        with temporary.open("x+b") as file:
            if is_private:
                os.fchmod(file.fileno(), _PRIVATE)
            yield file
            file.flush()
            if is_flushed:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # The error counts, not that the disk refuses this, too.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if is_flushed:
        flush_folder(path.parent)


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with writer(path) as file:
        file.write(content)


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all, keys in the given order."""
    write(path, (json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n").encode())


def write_new(path: Path, content: bytes) -> bool:
    """Write a file unless there is one of that name; return whether it was written.

    Of several processes that try at once, on whatever machines, one succeeds.
    """
    temporary = temporary_path(path)
    _write_exclusively(temporary, content)
    try:
        link(temporary, path)  # Fails if it exists, also on NFS; never half written.
    except FileExistsError:
        # NFS may lose the answer to a link that was made, and ask again.
        return _is_same(temporary, path)
    except OSError:  # A file system without hard links.
        return _write_exclusively(path, content)
    finally:
        temporary.unlink()
    flush_folder(path.parent)
    return True


def _is_same(path: Path, name: Path) -> bool:
    own, found = path.lstat(), name.lstat()
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


@contextlib.contextmanager
def swapping(path: Path) -> Iterator[None]:
    """Hold a file's swaps off while one is under way, of all processes that see it.

    Where the file system knows no ``flock``, nothing is held off.

    Raises
    ------
    OSError
        If another swap is under way for as long as a swap may take.
    """
    beside = path.with_name(f".{path.name.lstrip('.')}.swap")
    while True:
        held = _hold(beside)
        if held is None:
            yield
            return
        try:
            if _has_name(held, beside):
                yield
                return
        finally:
            # Unlinked before it is let go: who waits finds that it has no name, and starts anew.
            if _has_name(held, beside):
                beside.unlink(missing_ok=True)
            os.close(held)


def _hold(beside: Path) -> int | None:
    """Return the locked descriptor of a file, made if it is not there; None without locks."""
    # Whoever may write to this folder may swap its files.
    held = os.open(beside, os.O_RDWR | os.O_CREAT | _WARILY, 0o666)
    until_s = time.monotonic() + _SWAP_S
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                os.close(held)
                raise OSError(errno.EAGAIN, f"another process holds {beside}") from None
            time.sleep(_LOOK_S)
        except OSError:
            os.close(held)
            return None
        else:
            return held


def _has_name(file: int, path: Path) -> bool:
    own = os.fstat(file)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def set_later(file: int, *, than: os.stat_result) -> None:
    """Give an open file a time that is later than another one's, if it has not."""
    found = os.fstat(file)
    if found.st_mtime_ns <= than.st_mtime_ns:
        os.utime(file, ns=(found.st_atime_ns, than.st_mtime_ns + 1))


def link(path: Path, name: Path) -> None:
    """Give a file a second name; FileExistsError if another file has it."""
    os.link(path, name)


def move(path: Path, name: Path) -> None:
    """Give a file another name, in the place of whoever has it; one of several movers succeeds."""
    path.rename(name)


def make_folder(path: Path, *, is_private: bool = False) -> None:
    """Make a folder, and those above it, unless it is there; a private one is nobody else's."""
    path.mkdir(mode=0o700 if is_private else 0o777, parents=True, exist_ok=True)


def why_not_own(path: Path, found: os.stat_result, *, of_others: bool = False) -> str | None:
    """Return why a file is not to be read, for people; None if it is.

    Parameters
    ----------
    path : Path
    found : os.stat_result
        Of the file itself: of a link, not of what it leads to.
    of_others : bool, default False
        Whether files of other users are to be read as well.
    """
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no regular file')}"
    if of_others or found.st_uid in (os.geteuid(), _ROOT):
        return None
    # Where a store knows no users, or maps them, a file made there now is whose they all are.
    return None if found.st_uid == _owner_in(path.parent) else f"{path} belongs to another user"


_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder"}


@functools.lru_cache(maxsize=64)
def _owner_in(folder: Path) -> int:
    """Return whose a file is that this process makes in a folder."""
    probe = temporary_path(folder / "owner")
    try:
        with probe.open("xb") as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def open_own(path: Path, flags: int = os.O_RDONLY, *, of_others: bool = False) -> int:
    """Return a descriptor of a regular file of this user; one that is made is private.

    Parameters
    ----------
    flags : int, default os.O_RDONLY
        As `os.open` takes them.
    of_others : bool, default False
        Whether files of other users will do.

    Raises
    ------
    OSError
        If it cannot be opened, or is a link, a pipe, a device or somebody else's.
    """
    try:
        file = os.open(path, flags | _WARILY, _PRIVATE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{path} is a link") from None
        raise
    why = why_not_own(path, os.fstat(file), of_others=of_others)
    if why is not None:
        os.close(file)
        raise OSError(errno.EPERM, why)
    return file


def read_own(path: Path, *, of_others: bool = False) -> BinaryIO:
    """Return a regular file of this user, open to be read; OSError as `open_own` raises it."""
    return os.fdopen(open_own(path, of_others=of_others), "rb")


def open_lock(path: Path) -> int:
    """Return the descriptor of a file to be locked, made if it is not there.

    Raises
    ------
    OSError
        As `open_own` does, and if the file has a second name: its content is overwritten.
    """
    file = open_own(path, os.O_RDWR | os.O_CREAT)
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise OSError(errno.EPERM, f"{path} has a second name")
    return file


def _write_exclusively(path: Path, content: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    except OSError:
        # On a full disk half a file would keep it full.
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return True


def delete(path: Path) -> None:
    """Delete a file, if it is there."""
    path.unlink(missing_ok=True)


def delete_folder(path: Path) -> None:
    """Delete a folder and all that is in it, if it is there; links are not followed."""
    if path.exists():
        shutil.rmtree(path)


def is_temporary(name: str) -> bool:
    """Return whether a name is one of `temporary_path`."""
    return name.startswith(".") and _TEMPORARY.match(name) is not None


def remove_temporaries(
    folder: Path, *, is_deep: bool = True, of: Callable[[str], bool] | None = None
) -> None:
    """Delete what killed writers left in a folder; nobody may be writing there.

    Parameters
    ----------
    is_deep : bool, default True
        Whether to look below the folder as well; links are not followed.
    of : callable, optional
        Whether a file of this name is meant; by default all are.
    """
    if folder.is_symlink():
        return
    for path in folder.rglob(".*.tmp") if is_deep else folder.glob(".*.tmp"):
        found = _TEMPORARY.match(path.name)
        if found and (of is None or of(found["name"])) and not path.is_dir():
            path.unlink(missing_ok=True)


class AppendFile:
    """A private file that grows by whole lines; they survive a kill, and once flushed, the machine.

    Parameters
    ----------
    path : Path
        The file; made, in a folder that is there, if it is not.

    Raises
    ------
    RunError
        If it cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_torn = False
        try:
            is_new = not path.exists()
            self._file = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            if is_new:
                flush_folder(path.parent)
        except OSError as error:
            raise _refused(path, error) from None

    def append(self, lines: str) -> int:
        """Write lines, each with its line end; return the offset of the first byte after them.

        Raises
        ------
        RunError
            If they cannot be written whole. What was written of them is cut off by the next call.
        """
        # A line that could not be ended would swallow the one after it.
        content = ("\n" if self._is_torn else "").encode() + lines.encode("utf-8", "surrogatepass")
        self._is_torn = True
        try:
            n_written = os.write(self._file, content)
        except OSError as error:
            raise _refused(self.path, error) from None
        if n_written < len(content):
            raise RunError(
                f"cannot write {self.path}: the disk took {n_written} of {len(content)} bytes "
                "[QA0508]"
            )
        self._is_torn = False
        return os.lseek(self._file, 0, os.SEEK_CUR)

    def flush(self) -> None:
        """Return when all that was written is on the disk.

        Raises
        ------
        RunError
            If the disk refuses.
        """
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _refused(self.path, error) from None

    def rewrite(self, lines: Iterable[str]) -> None:
        """Replace all lines, in one step: a kill leaves the old ones or the new ones.

        Raises
        ------
        RunError
            If the new ones cannot be written; the old ones are as they were.
        """
        new: int | None = None
        try:
            with writer(self.path, is_private=True) as file:
                file.writelines(line.encode("utf-8", "surrogatepass") for line in lines)
                # Opened before it takes the name: what comes next must not go to the old file.
                new = open_own(Path(file.name), os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            if new is not None:
                os.close(new)
            raise _refused(self.path, error) from None
        old, self._file, self._is_torn = self._file, new, False
        os.close(old)

    def close(self, *, is_flushed: bool = False) -> None:
        """Flush, unless that was done, and close.

        Raises
        ------
        RunError
            If the disk refuses; it is closed all the same.
        """
        try:
            if not is_flushed:
                self.flush()
        finally:
            os.close(self._file)


def _refused(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror} [QA0508]")


def flush_file(path: Path) -> None:
    """Return when a file's content is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def expanded(path: str | Path, *, instead: str = "") -> Path:
    """Return a path with ``~`` as the user's home.

    Parameters
    ----------
    instead : str
        What can be set where there is no home, for the message.

    Raises
    ------
    ConfigError
        If there is no home: a container's user may have neither ``HOME`` nor a name.

    Examples
    --------
    >>> expanded("/data/rows").as_posix()
    '/data/rows'
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        named = f", or {instead}" if instead else ""
        raise ConfigError(
            f"{path}: this user has no home folder (no HOME, and user id {os.getuid()} has no name "
            f"here); set HOME{named} [QA0112]"
        ) from None
