"""Given: read a small file that a user, or a file of somebody else, names.

A regular file of a bounded size as UTF-8, or an error at once: a pipe would be waited for, and a
device read for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_given"]

# The largest that is read this way is a configuration that names a million files.
_MAX_BYTES = 64 << 20


def read_given(path: str | Path) -> str:
    """Return the text of a file.

    Raises
    ------
    OSError
        If it is not there, no regular file, or larger than 64 MiB.
    UnicodeDecodeError
        If it is not UTF-8; a ValueError.
    """
    # Without waiting for a writer, if it is a pipe.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES:,} bytes", str(path))
    return content.decode("utf-8")
