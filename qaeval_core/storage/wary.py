"""Wary: files that others may have put where they are read: regular ones alone, and not too large.

A pipe keeps its reader waiting for ever, a device never ends, and either may lie in a folder that
is shared, or at the end of a link.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# Of whatever is read whole; tables are read in parts.
MOST_BYTES = 1 << 30
# The largest is a configuration that names a million files.
_MOST_GIVEN_BYTES = 64 << 20


class UnfitFileError(OSError):
    """What has a name is no regular file, or has more bytes than are read."""


def open_regular(path: Path | str) -> BinaryIO:
    """Return a regular file open to be read; links are followed, nobody is waited for.

    Raises
    ------
    UnfitFileError
        If it is a pipe, a device or a socket.
    OSError
        If it cannot be opened.
    """
    # A folder is refused by Python, in its own words.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(handle))
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(path: Path | str) -> None:
    """Raise UnfitFileError if a name leads to a pipe, a device or a socket; nothing is opened."""
    try:
        found = os.stat(path)
    except OSError:
        return  # Whoever opens it says what is wrong.
    _check(path, found)


def _check(path: Path | str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise UnfitFileError(errno.EINVAL, "it is not a regular file", str(path))


def read_whole(file: BinaryIO, path: Path | str, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is left of an open file.

    Raises
    ------
    UnfitFileError
        If that is more than is allowed.
    """
    content = file.read(most_bytes + 1)
    check_size(len(content), path, most_bytes=most_bytes)
    return content


def check_size(n_bytes: int, path: Path | str, *, most_bytes: int) -> None:
    """Raise UnfitFileError if a file has more bytes than are read."""
    if n_bytes > most_bytes:
        told = f"it has more than {most_bytes:,} bytes"
        raise UnfitFileError(errno.EFBIG, told, str(path))


def read_given(path: str | Path) -> str:
    """Return the text of a file that a user names.

    Raises
    ------
    OSError
        If it is not there, no regular file, or larger than 64 MiB.
    UnicodeDecodeError
        If it is not UTF-8; a ValueError.
    """
    with open_regular(path) as file:
        return read_whole(file, path, most_bytes=_MOST_GIVEN_BYTES).decode("utf-8")
