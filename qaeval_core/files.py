"""Files: every write below OUT, so that another kind of store can stand behind it one day.

A file is written under a temporary name in its own folder, flushed, and renamed: a reader sees the
old one or the whole new one, also after the death of process or machine. What is not whole keeps
its temporary name, which `remove_temporaries` knows.

But: nothing is retried here; ``outages`` does that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from qaeval_core.errors import RunError

# A dot, a name, 32 hexadecimal digits: nobody else's temporary files look like this.
_TEMPORARY = re.compile(r"^\..*\.[0-9a-f]{32}\.tmp$")


def temporary_path(path: Path) -> Path:
    """Return a new name beside a file, which `remove_temporaries` knows."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


@contextlib.contextmanager
def writer(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to; it takes the path's name at the regular end, flushed.

    After an error the path is as it was, and nothing is left behind.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    make_folder(path.parent)
    temporary = temporary_path(path)
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # The error counts, not that the disk refuses this, too.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
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
        return False
    except OSError:  # A file system without hard links.
        return _write_exclusively(path, content)
    finally:
        temporary.unlink()
    return True


def link(path: Path, name: Path) -> None:
    """Give a file a second name; FileExistsError if another file has it."""
    os.link(path, name)


def move(path: Path, name: Path) -> None:
    """Give a file another name, in the place of whoever has it; one of several movers succeeds."""
    path.rename(name)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there."""
    path.mkdir(parents=True, exist_ok=True)


def _write_exclusively(path: Path, content: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(content)
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


def remove_temporaries(folder: Path) -> None:
    """Delete what killed writers left below a folder; nobody may be writing there."""
    for path in folder.rglob(".*.tmp"):
        if _TEMPORARY.match(path.name):
            path.unlink(missing_ok=True)


class AppendFile:
    """A file that grows by whole lines; they survive a kill, and once flushed, their machine.

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
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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
                f"cannot write {self.path}: {n_written} of {len(content)} bytes fitted on the disk"
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
            with writer(self.path) as file:
                file.writelines(line.encode("utf-8", "surrogatepass") for line in lines)
                # Opened before it takes the name: what comes next must not go to the old file.
                new = os.open(file.name, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            if new is not None:
                os.close(new)
            raise _refused(self.path, error) from None
        old, self._file, self._is_torn = self._file, new, False
        os.close(old)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        os.close(self._file)


def _refused(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror}")


def flush_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
