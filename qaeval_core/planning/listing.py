"""Listing: the files of a local folder, each once, however many links lead to it.

A link to a folder above is a loop: 2 rows became 82 by one, and two beside each other have 2**40
ways through. So a folder is entered once, by its own name where it has one here.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from qaeval_core.errors import InputError


def files_below(folder: str) -> tuple[list[str], int]:
    """Return the paths of all files below a folder, in order, links among them.

    Parameters
    ----------
    folder : str
        An absolute path.

    Returns
    -------
    (list of str, int)
        And how many links to folders were not followed, because the folders are known already.

    Raises
    ------
    OSError
        If a folder cannot be listed.
    """
    entered: set[str] = set()
    found: list[str] = []
    links: deque[str] = deque([folder])
    n_known = 0
    while links:  # Nearest first, each after all that is there without it.
        link = links.popleft()
        if os.path.realpath(link) in entered:
            n_known += 1
            continue
        for path, is_folder_link in _walk(link, entered):
            (links if is_folder_link else found).append(path)
    return sorted(found), n_known


def _walk(folder: str, entered: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield files, and links to folders, below a folder; enter those that are none."""
    todo = deque([(folder, os.path.realpath(folder))])
    while todo:
        path, real = todo.popleft()
        if real in entered:
            continue
        entered.add(real)
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.is_dir():
                    yield entry.path, False
                elif entry.is_symlink():
                    yield entry.path, True
                else:
                    todo.append((entry.path, os.path.join(real, entry.name)))


def is_hidden(path: str, folder: str) -> bool:
    """Return whether a file of a folder is hidden, by its name or that of a folder.

    >>> is_hidden("in/_tmp/a.parquet", "in"), is_hidden("in/_lang=de/a.parquet", "in")
    (True, False)
    """
    # What leads out of the folder is no hidden file: it is refused by name.
    parts = [part for part in PurePosixPath(os.path.relpath(path, folder)).parts if part != ".."]
    # A key that begins with _ is a key, as for Spark.
    return any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in parts)


_GLOB_SIGNS = frozenset("*?[")


def is_glob(path: str) -> bool:
    """Return whether a path has signs of a glob; a file may have them in its name, too."""
    return bool(_GLOB_SIGNS & set(path))


def split_glob(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that a glob looks below, and what its parts below must match.

    Examples
    --------
    >>> split_glob("/data/2026*/a.parquet")
    ('/data', ('2026*', 'a.parquet'))
    """
    parts = PurePosixPath(pattern).parts
    n_plain = next(i for i, part in enumerate(parts) if is_glob(part))
    return str(PurePosixPath(*parts[:n_plain])) if n_plain else ".", parts[n_plain:]


def matches(relative: str, pattern: Sequence[str]) -> bool:
    """Return whether a relative path matches the parts of a glob, as Python's ``glob`` would.

    Examples
    --------
    >>> matches("a/b/c.parquet", ["**", "*.parquet"]), matches("c.parquet", ["**", "*.parquet"])
    (True, True)
    >>> matches("a/.b/c.parquet", ["**", "*.parquet"]), matches("a/c.pq", ["*", "*.parquet"])
    (False, False)
    """
    return _match(PurePosixPath(relative).parts, tuple(pattern))


def _match(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    head, rest = pattern[0], pattern[1:]
    is_plain = bool(parts) and not parts[0].startswith(".")
    if head == "**":
        return _match(parts, rest) or (is_plain and _match(parts[1:], pattern))
    if not parts or not (is_plain or head.startswith(".")):
        return False
    return fnmatchcase(parts[0], head) and _match(parts[1:], rest)


def distinct(paths: Sequence[str]) -> list[str]:
    """Return paths without those that lead to the same file as another, in the given order.

    Of several names the one is kept that is no link, else the first.
    """
    real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)
    seen: set[object] = set()
    kept: set[str] = set()

    def real(path: str) -> str:
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        return os.path.join(real_folder(folder), name)

    reals = {path: real(path) for path in paths}
    for path in sorted(reals, key=lambda path: reals[path] != path):
        found = os.stat(path)
        # Inodes are trusted where hard links are known to be: some stores number all files alike.
        inode = (found.st_dev, found.st_ino) if found.st_nlink > 1 else None
        if reals[path] not in seen and (inode is None or inode not in seen):
            kept.add(path)
        seen |= {reals[path], inode}
    return [path for path in paths if path in kept]


# File systems take 255; a temporary name is 38 longer than the file's.
MAX_NAME_BYTES = 200
_MAX_SHOWN = 5


def shown_name(name: str) -> str:
    """Return a name that can be printed, whatever bytes it is made of."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def left_out_note(names: Sequence[str], why: str) -> str:
    """Return what to tell people of files that are left out.

    >>> left_out_note(["a.txt"], "no data file")
    '1 file is left out, being no data file: a.txt'
    """
    what = "1 file is" if len(names) == 1 else f"{len(names):,} files are"
    shown = ", ".join(shown_name(name) for name in names[:_MAX_SHOWN])
    more = ", ..." if len(names) > _MAX_SHOWN else ""
    return f"{what} left out, being {why}: {shown}{more}"


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
    qaeval_core.errors.InputError: '../a.parquet' leads out of the named folder [QA0310]
    """
    for relative in relatives:
        check_utf8(relative)
        parts = PurePosixPath(relative).parts
        if not parts or relative.startswith("/") or ".." in parts or "\0" in relative:
            raise InputError(f"{relative!r} leads out of the named folder [QA0310]")
        for part in parts:
            n_bytes = len(part.encode())
            if n_bytes > MAX_NAME_BYTES:
                raise InputError(
                    f"{part[:40]}... is a name of {n_bytes} bytes, and {MAX_NAME_BYTES} fit below "
                    "OUT; rename it [QA0310]"
                )
    names = set(relatives)
    for relative in relatives:
        for parent in PurePosixPath(relative).parents:
            if str(parent) in names:
                raise InputError(
                    f"{parent} is a file in one place and a folder in another ({relative}), so "
                    "their scores cannot both be written. Rename one, or score them into two OUTs "
                    "[QA0310]"
                )


def check_utf8(name: str) -> None:
    """Raise InputError if a name is no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{shown_name(name)} is a name that is not UTF-8; rename it [QA0310]"
        ) from None


def parquet_names(names: Sequence[str]) -> list[str]:
    """Return names that end with .parquet: scores lie under them, where every tool shall look.

    >>> parquet_names(["a", "a.parquet", "b.pq"])
    ['a.parquet.parquet', 'a.parquet', 'b.pq.parquet']
    """
    found, taken = [], set(names)
    for name in names:
        own = name
        while not own.endswith(".parquet") or (own != name and own in taken):
            own += ".parquet"
        taken.add(own)
        found.append(own)
    return found


# A look at each folder of inputs, but not at a million of them.
_MAX_INPUT_FOLDERS = 64


def one_a_folder(uris: Sequence[str]) -> list[str]:
    """Return one file of each folder, of so many that they are quickly looked at.

    >>> one_a_folder(["s3://b/x/1", "s3://b/x/2", "s3://b/y/1"])
    ['s3://b/x/1', 's3://b/y/1']
    """
    by_folder: dict[str, str] = {}
    for uri in uris:
        by_folder.setdefault(uri.rpartition("/")[0], uri)
    return list(by_folder.values())[:_MAX_INPUT_FOLDERS]
