"""Append: lines that survive a kill of their writer, and, once flushed, of its machine."""

from __future__ import annotations

import os
from pathlib import Path

from qaeval_core.errors import RunError


class AppendFile:
    """A file that grows by whole lines.

    Parameters
    ----------
    path : Path
        The file; made, in a folder that is there, if it is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        is_new = not path.exists()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._is_torn = False
        if is_new:
            flush_folder(path.parent)

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
            raise RunError(f"cannot write {self.path}: {error.strerror}") from None
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
            raise RunError(f"cannot write {self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        os.close(self._file)


def flush_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
