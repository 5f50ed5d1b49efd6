"""Base: what a storage does, whatever is behind it.

The operations are those that disks and object stores share: a file is written whole or not at all,
made only if it is not there, or replaced only if it is unchanged; there is no rename, no append and
no folder. Names are parts joined by "/", relative to the storage's root.

But: nothing is retried here for longer than a moment; ``retry`` does that. So whatever a storage
refuses is an OSError, as a disk's is.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from qaeval_core.storage.wary import MOST_BYTES

# What a version of a file is known by: equal tags mean the same bytes written by the same write.
Tag = str


class Found(NamedTuple):
    """A file that is there; a tuple, for a million of them are made in a listing.

    Attributes
    ----------
    name : str
        As it was asked for; in a listing, relative to the folder that was listed.
    size : int
        In bytes.
    tag : Tag
        Of this version; a listing, a look and a write give the same one.
    modified_s : float
        When it was written, in seconds since 1970, by the clock of the storage; some have whole
        seconds.
    """

    name: str
    size: int
    tag: Tag
    modified_s: float


class Sink(Protocol):
    """What a file is written to, from its first byte to its last; PyArrow takes it."""

    closed: bool

    def write(self, content: bytes) -> int:
        """Write on."""

    def tell(self) -> int:
        """Return how much was written."""

    def flush(self) -> None:
        """Hand on what is buffered."""


class Storage(ABC):
    """A disk or a bucket.

    Every method raises OSError where the storage refuses: FileNotFoundError where there is no file,
    or no bucket, PermissionError where credentials are missing or not enough.
    """

    @abstractmethod
    def uri(self, name: str) -> str:
        """Return what a name is called outside, from which it can be opened again."""

    def check_name(self, name: str) -> None:  # noqa: B027
        """Raise ValueError if no file can have a name here; what a disk refuses it says itself."""

    def local(self, name: str) -> Path | None:
        """Return the path of a name on this machine's file systems; None elsewhere."""
        return None

    @abstractmethod
    def put(self, name: str, content: bytes) -> Tag:
        """Write a file, whole or not at all, in the place of whoever has the name."""

    @abstractmethod
    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Write a file unless there is one; None if there is another.

        Of several writers one succeeds, whatever machines they are on. One whose answer was lost
        finds its own bytes and has succeeded: where equal bytes of two writers must be told apart,
        each puts a token into its own.
        """

    @abstractmethod
    def swap(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Replace a file if it still is the version of a tag; None if it is not, or is gone.

        As `put_new` does, it finds its own bytes where an answer was lost.
        """

    @abstractmethod
    def copy(self, name: str, to: str) -> None:
        """Write a file under another name, too, whole or not at all.

        Raises
        ------
        FileNotFoundError
            If there is no such file; the other name is as it was then.
        """

    @abstractmethod
    def fetch(self, name: str, *, most_bytes: int = MOST_BYTES) -> tuple[bytes, Found]:
        """Return a file and what is known of this very version.

        Raises
        ------
        UnfitFileError
            If it is larger than is allowed, or no regular file.
        """

    def read(self, name: str, *, most_bytes: int = MOST_BYTES) -> bytes:
        """Return a file; raises as `fetch` does."""
        return self.fetch(name, most_bytes=most_bytes)[0]

    @abstractmethod
    def read_range(self, name: str, start: int, n_bytes: int, tag: Tag = "") -> bytes:
        """Return some bytes of a file, fewer if it ends before.

        Parameters
        ----------
        tag : Tag, default ""
            Of the version that they are to be of, OSError if it is another one by now.
        """

    @abstractmethod
    def head(self, name: str) -> Found | None:
        """Return what is known of a file; None where there is none."""

    @abstractmethod
    def list(self, folder: str, *, is_deep: bool = False, after: str = "") -> Iterator[Found]:
        """Yield the files of a folder, in no order; none where there is no such folder.

        Parameters
        ----------
        is_deep : bool, default False
            Whether those of the folders below it as well.
        after : str, default ""
            Files whose names are not behind this one are left out; a bucket does not list them.
        """

    @abstractmethod
    def folders(self, folder: str) -> builtins.list[str]:
        """Return the names of the folders in a folder, links to folders among them, in order."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete files, if they are there."""

    @abstractmethod
    def writer(self, name: str, *, is_flushed: bool = True) -> AbstractContextManager[Sink]:
        """Return a context in which a file is written; it is there at the regular end alone.

        After an error the name is as it was.

        Parameters
        ----------
        is_flushed : bool, default True
            Whether it survives the machine; False for what is made again then. An object does.
        """

    def clock_s(self, name: str) -> float:
        """Return the storage's own time; a name that is free is written to and deleted for it."""
        self.put(name, b"")
        try:
            found = self.head(name)
        finally:
            self.delete([name])
        if found is None:
            raise FileNotFoundError(f"{self.uri(name)} is gone while it is looked at")
        return found.modified_s
