"""Posix: a local disk or a shared file system, on what ``files`` writes.

What two processes on one machine may do at once is as safe as a rename. `PosixStorage.put_new` is
safe between machines wherever hard links are, NFS among them. `PosixStorage.swap` locks a file
beside the one it replaces, which holds between machines where ``flock`` does: NFS 4, and NFS 3 with
its lock service. Elsewhere it looks and renames, with less than a millisecond between.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

from qaeval_core.storage import files
from qaeval_core.storage.base import Found, Sink, Storage, Tag
from qaeval_core.storage.wary import MOST_BYTES, check_size, open_regular, read_whole


class PosixStorage(Storage):
    """A folder and all that is below it.

    Parameters
    ----------
    root : Path, optional
        The folder; default the whole tree.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def uri(self, name: str) -> str:
        """Return the absolute path of a name."""
        return str(self.local(name))

    def local(self, name: str) -> Path:
        """Return the path of a name."""
        return self._root / name

    def put(self, name: str, content: bytes) -> Tag:
        """Write a file under a temporary name, flush it, and rename it."""
        with files.writer(self.local(name)) as file:
            file.write(content)
            # It keeps inode and time of change under its new name.
            file.flush()
            written = os.fstat(file.fileno())
        return _tag(written)

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Write a file under a temporary name, and link it."""
        path = self.local(name)
        files.make_folder(path.parent)
        if not files.write_new(path, content):
            return None
        return _tag(path.lstat())

    def swap(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Compare and rename, while no other `swap` of this file is between the two."""
        path = self.local(name)
        if not path.parent.is_dir():
            return None
        with files.swapping(path):
            try:
                old = path.lstat()
            except FileNotFoundError:
                return None
            if _tag(old) != tag:
                return None
            with files.writer(path) as file:
                file.write(content)
                file.flush()
                # Inodes are used again, and clocks of disks tick slowly: no two versions are alike.
                files.set_later(file.fileno(), than=old)
                written = os.fstat(file.fileno())
            return _tag(written)

    def copy(self, name: str, to: str) -> None:
        """Read a file, and write it under a temporary name that is renamed."""
        with open_regular(self.local(name)) as file, files.writer(self.local(to)) as sink:
            shutil.copyfileobj(file, sink)

    def fetch(self, name: str, *, most_bytes: int = MOST_BYTES) -> tuple[bytes, Found]:
        """Read a file."""
        path = self.local(name)
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            check_size(found.st_size, path, most_bytes=most_bytes)
            return read_whole(file, path, most_bytes=most_bytes), _found(name, found)

    def read_range(self, name: str, start: int, n_bytes: int, tag: Tag = "") -> bytes:
        """Read a part of a file."""
        with open_regular(self.local(name)) as file:
            if tag and _tag(os.fstat(file.fileno())) != tag:
                raise OSError(errno.ESTALE, f"{self.uri(name)} was replaced while it was read")
            file.seek(start)
            return file.read(n_bytes)

    def head(self, name: str) -> Found | None:
        """Look at a file."""
        path = self.local(name)
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(found.st_mode) else _found(name, found)

    def list(self, folder: str, *, is_deep: bool = False, after: str = "") -> Iterator[Found]:
        """Scan a folder; temporary files are none, and links to folders are not followed."""
        found = self._scan(folder, is_deep=is_deep)
        return (file for file in found if file.name > after) if after else found

    def folders(self, folder: str) -> builtins.list[str]:
        """Scan a folder for folders."""
        try:
            with os.scandir(self.local(folder)) as entries:
                return sorted(own.name for own in entries if own.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _scan(self, folder: str, *, is_deep: bool) -> Iterator[Found]:
        try:
            entries = os.scandir(self.local(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                if entry.is_dir():
                    if is_deep and not entry.is_symlink():
                        for found in self._scan(f"{folder}/{entry.name}", is_deep=True):
                            yield found._replace(name=f"{entry.name}/{found.name}")
                elif not files.is_temporary(entry.name):
                    try:
                        yield _found(entry.name, entry.stat())
                    except FileNotFoundError:  # Deleted while we look, or a link to nothing.
                        continue

    def delete(self, names: Sequence[str]) -> None:
        """Unlink files."""
        for name in names:
            files.delete(self.local(name))

    def writer(self, name: str, *, is_flushed: bool = True) -> AbstractContextManager[Sink]:
        """Write to a temporary name that is renamed at the end."""
        opened = files.writer(self.local(name), is_flushed=is_flushed)
        return cast("AbstractContextManager[Sink]", opened)


def _found(name: str, found: os.stat_result) -> Found:
    # Of a million files in a folder, nothing is asked twice.
    size, time_ns = found.st_size, found.st_mtime_ns
    return Found(name, size, f"{time_ns:x}-{found.st_ino:x}-{size:x}", time_ns / 1e9)


def _tag(found: os.stat_result) -> Tag:
    return f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"
