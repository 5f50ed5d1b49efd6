"""Append: lines that survive a kill of their writer, and, once flushed, of its machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from qaeval_core.errors import RunError


class AppendFile:
    """A file that grows by whole lines.

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
        temporary = self.path.with_suffix(".tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            # Opened before it takes the name: what comes next must not go to the old file.
            new = os.open(temporary, os.O_WRONLY | os.O_APPEND)
            try:
                temporary.replace(self.path)
            except OSError:
                os.close(new)
                raise
            old, self._file, self._is_torn = self._file, new, False
            os.close(old)
            flush_folder(self.path.parent)
        except OSError as error:
            raise _refused(self.path, error) from None

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
