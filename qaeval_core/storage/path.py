"""Path: a name in a storage, as code that is used to ``pathlib`` reads and writes it.

``out / "report.json"`` is the same for a folder and for a bucket. What only a disk can do (links,
locks, memory maps) asks for `StoragePath.local`.
"""

from __future__ import annotations

import builtins
import io
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import pyarrow as pa

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.storage import files
from qaeval_core.storage.base import Found, Sink, Storage, Tag
from qaeval_core.storage.files import expanded, read_own
from qaeval_core.storage.open_uri import open_bucket
from qaeval_core.storage.posix import PosixStorage
from qaeval_core.storage.retry import Outages
from qaeval_core.storage.wary import MOST_BYTES, check_regular, open_regular, read_whole

_DISK = PosixStorage()
# Columns are read in pieces of about a row group; whole files from their start on.
_BUFFER_BYTES = 1 << 20
_MOST_JSON_BYTES = 256 << 20
# Ray sets it for the process of a job that was submitted, and for no other.
_OF_SUBMITTED_JOBS = "RAY_JOB_CONFIG_JSON_ENV_VAR"


class StoragePath:
    """A name in a storage; opened again from its URI wherever it is pickled to.

    Parameters
    ----------
    storage : Storage
    key : str
        Name of a file or folder there, "" for its root.

    Examples
    --------
    >>> out = as_path("memory://bucket/out")
    >>> str(out / "scores" / "a.parquet"), (out / "scores").name
    ('memory://bucket/out/scores/a.parquet', 'scores')
    >>> (out / "a").put(b"one") and (out / "a").read_bytes(), (out / "b").exists()
    (b'one', False)
    """

    __slots__ = ("key", "storage")

    def __init__(self, storage: Storage, key: str) -> None:
        self.storage = storage
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return as_path, (str(self),)

    def __str__(self) -> str:
        """Return what `as_path` opens: a path, or a URI with the way to its store."""
        return self.storage.uri(self.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __fspath__(self) -> str:
        local = self.local
        if local is None:
            raise TypeError(f"{self} is no file of this machine")
        return str(local)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Path):
            return self.local == other
        return isinstance(other, StoragePath) and str(self) == str(other)

    def __hash__(self) -> int:
        # As a path that it is equal to.
        local = self.local
        return hash(str(self)) if local is None else hash(local)

    def __truediv__(self, part: str | PurePosixPath) -> StoragePath:
        joined = str(PurePosixPath(self.key, part))
        return StoragePath(self.storage, "" if joined == "." else joined)

    @property
    def local(self) -> Path | None:
        """The path on this machine's file systems; None for an object."""
        return self.storage.local(self.key)

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """What begins with the last dot of the last part."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> StoragePath:
        """The folder."""
        return StoragePath(self.storage, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> StoragePath:
        """Return another file of the same folder."""
        return self.parent / name

    @property
    def place(self) -> str:
        """Where it is, without the way to it: options of a URI name endpoint and region."""
        local = self.local
        return str(self).partition("?")[0] if local is None else str(local.resolve())

    def is_below(self, folder: StoragePath) -> bool:
        """Whether this is a folder or lies in it; links of a disk are followed."""
        own, above = self.place.rstrip("/"), folder.place.rstrip("/")
        return own == above or own.startswith(f"{above}/")

    def put(self, content: bytes) -> Tag:
        """Write it, whole or not at all."""
        return self.storage.put(self.key, content)

    def put_json(self, content: object) -> Tag:
        """Write JSON, whole or not at all, keys in the given order."""
        return self.put(as_json(content))

    def put_new(self, content: bytes) -> Tag | None:
        """Write it unless it is there; None if another one is."""
        return self.storage.put_new(self.key, content)

    def swap(self, content: bytes, tag: Tag) -> Tag | None:
        """Replace it if it still is the version of a tag; None if it is not."""
        return self.storage.swap(self.key, content, tag)

    def writer(self, *, is_flushed: bool = True) -> AbstractContextManager[Sink]:
        """Return a context in which it is written; it is there at the regular end alone."""
        return self.storage.writer(self.key, is_flushed=is_flushed)

    def copy(self, to: StoragePath) -> None:
        """Write its bytes to another path of this storage, whole or not at all."""
        self.storage.copy(self.key, to.key)

    def fetch(self) -> tuple[bytes, Found]:
        """Return its content and what is known of this very version."""
        return self.storage.fetch(self.key)

    def read_bytes(self, *, most_bytes: int = MOST_BYTES) -> bytes:
        """Return its content; UnfitFileError if that is more, or no regular file's."""
        return self.storage.read(self.key, most_bytes=most_bytes)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return its content as a text."""
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return it open to be read; an object is got in ranges."""
        if mode != "rb":
            raise ValueError(f"{mode!r}: files are written by put and writer")
        local = self.local
        if local is not None:
            return open_regular(local)
        return io.BufferedReader(_Ranges(self), _BUFFER_BYTES)

    def source(self) -> str | pa.NativeFile:
        """Return what PyArrow reads it from: a path, or a file that gets the ranges it needs."""
        local = self.local
        if local is None:
            return pa.PythonFile(_Ranges(self), mode="r")
        check_regular(local)
        return str(local)

    def head(self) -> Found | None:
        """Return what is known of it; None where it is no file."""
        return self.storage.head(self.key)

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self.head() is not None

    def is_dir(self) -> bool:
        """Whether it is a folder; that of objects has something in it."""
        local = self.local
        if local is not None:
            return local.is_dir()
        return next(self.list(is_deep=True), None) is not None

    def exists(self) -> bool:
        """Whether it is a file or a folder."""
        return self.is_file() or self.is_dir()

    def list(self, *, is_deep: bool = False, after: str = "") -> Iterator[Found]:
        """Yield its files, named relative to it, in no order; none where it is no folder.

        With ``after`` those alone whose names are behind it.
        """
        return self.storage.list(self.key, is_deep=is_deep, after=after)

    def folders(self) -> builtins.list[str]:
        """Return the names of the folders in it, in order."""
        return self.storage.folders(self.key)

    def delete(self) -> None:
        """Delete it, if it is a file."""
        self.storage.delete([self.key])

    def delete_folder(self) -> None:
        """Delete all that is below it, and the folder itself; links are not followed."""
        local = self.local
        if local is not None:
            files.delete_folder(local)
            return
        self.storage.delete([f"{self.key}/{found.name}" for found in self.list(is_deep=True)])


class _Ranges(io.RawIOBase):
    """An object as a file that is read anywhere; each read is a request."""

    def __init__(self, path: StoragePath) -> None:
        super().__init__()
        found = path.head()
        if found is None:
            raise FileNotFoundError(2, f"there is no {path}")
        self._path, self._n_bytes, self._tag, self._at = path, found.size, found.tag, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._n_bytes}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._n_bytes - self._at, 0)
        n_bytes = left if size < 0 else min(size, left)
        # As a file that is open stays the one that it was, whoever takes its name.
        content = self._path.storage.read_range(self._path.key, self._at, n_bytes, self._tag)
        self._at += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


# What functions that read and write below OUT take.
AnyPath = str | Path | StoragePath


def as_json(content: object) -> bytes:
    """Return a value as files hold it, keys in the given order."""
    return f"{json.dumps(content, indent=2, ensure_ascii=False, default=str)}\n".encode()


def as_path(given: AnyPath) -> StoragePath:
    """Return a path, file URI or URI of an object store as a path in its storage.

    Raises
    ------
    ConfigError
        If it is no URI of a store that is known and installed.
    """
    if isinstance(given, StoragePath):
        return given
    text = str(given)
    if "://" not in text or text.startswith("file://"):
        path = expanded(text.removeprefix("file://")).absolute()
        return StoragePath(_DISK, str(path).removeprefix("/"))
    return StoragePath(*open_bucket(text))


def check_lasting(given: str | Path | None, option: str) -> None:
    """Look whether what is written to a path outlives this process, as far as the path tells.

    Parameters
    ----------
    given : str, Path or None
        As the user gave it; None was not given.
    option : str
        That gave it, for the message.

    Raises
    ------
    ConfigError
        If it is relative in a submitted Ray job: that lies in Ray's copy of the working folder, on
        one node, and Ray deletes it.
    """
    text = "" if given is None else str(given).removeprefix("file://")
    is_relative = text and "://" not in text and not text.startswith(("/", "~"))
    if is_relative and _OF_SUBMITTED_JOBS in os.environ:
        raise ConfigError(
            f"{option} {text} is relative, and a submitted Ray job deletes its working folder. "
            "Give an absolute path that all nodes share, or a bucket [QA0108]"
        )


def open_out(given: str, option: str = "--out") -> StoragePath:
    """Return a folder to write to; raise ConfigError if it is a file or cannot be one's folder."""
    check_lasting(given, option)
    out = as_path(given)
    if given.startswith("memory://"):
        raise ConfigError(
            f"{option} {given} would be lost with this process; name a folder or bucket [QA0108]"
        )
    if out.local is not None and out.local.exists() and not out.local.is_dir():
        raise ConfigError(f"{option} {given} is a file; name a folder [QA0111]")
    return out


def near_folders(path: StoragePath) -> str:
    """Return a hint that names the folders beside one that is not there; "" without any.

    Raises
    ------
    OSError
        If the store refuses to list them, or there is no bucket.
    """
    names = [name for name in path.parent.folders() if not name.startswith(".")]
    return nearest(path.name, names) if names and path.name else ""


def read_json(path: AnyPath, outages: Outages | None = None) -> dict[str, Any] | None:
    """Return a JSON object, or None where there is none.

    Parameters
    ----------
    outages : Outages, optional
        How long an object store is tried; default once.

    Raises
    ------
    StorageError
        If an object store does not say whether there is one.
    """
    try:
        content = json.loads(_read_wary(as_path(path), outages or Outages()))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _read_wary(path: StoragePath, outages: Outages) -> bytes:
    if path.local is not None:
        with read_own(path.local, of_others=True) as file:
            return read_whole(file, path.local, most_bytes=_MOST_JSON_BYTES)

    def read() -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""

    return outages.call(read, store=str(path.parent), what=f"cannot read {path}")
