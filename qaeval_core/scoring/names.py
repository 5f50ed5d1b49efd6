"""Names: whether files of these relative paths can be written below OUT, looked at first of all.

A store may list what no file can be called, or what leads out of the folder that was asked for;
found when scores are written, it ends a run after everything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from qaeval_core.errors import InputError

# File systems take 255; a temporary name is 38 longer than the file's.
MAX_NAME_BYTES = 200


def shown_name(name: str) -> str:
    """Return a name that can be printed, whatever bytes it is made of."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check_names(relatives: Sequence[str]) -> None:
    """Look at relative paths, which are unique.

    Raises
    ------
    InputError
        If one leads out of its folder, is no UTF-8 or too long, or is another one's folder.

    Examples
    --------
    >>> check_names(["a.parquet", "b/a.parquet"])
    >>> check_names(["../a.parquet"])
    Traceback (most recent call last):
    ...
    qaeval_core.errors.InputError: '../a.parquet' leads out of the folder that was named
    """
    for relative in relatives:
        check_utf8(relative)
        parts = PurePosixPath(relative).parts
        if not parts or relative.startswith("/") or ".." in parts or "\0" in relative:
            raise InputError(f"{relative!r} leads out of the folder that was named")
        for part in parts:
            n_bytes = len(part.encode())
            if n_bytes > MAX_NAME_BYTES:
                raise InputError(
                    f"{part[:40]}... is a name of {n_bytes} bytes, {MAX_NAME_BYTES} can be written "
                    "below OUT; rename it"
                )
    names = set(relatives)
    for relative in relatives:
        for parent in PurePosixPath(relative).parents:
            if str(parent) in names:
                raise InputError(
                    f"{parent} is a file in one place and a folder in another ({relative}): their "
                    "scores cannot both be written; rename one, or score them into two OUTs"
                )


def check_utf8(name: str) -> None:
    """Raise InputError if a name is no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"{shown_name(name)} is a name that is no UTF-8; rename it") from None
