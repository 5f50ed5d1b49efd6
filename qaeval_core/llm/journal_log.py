"""Journal's log: where the lines of a journal lie, and who reads and appends them.

A log is made of segments, each with one writer, that only grow. A position in a segment is a count
of bytes where it is a file (``llm.segments``), of batches where it is a folder of objects
(``llm.batches``).

But: which reply answers what, and what all have cost, is ``llm.journal``'s.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from qaeval_core.errors import RunError
from qaeval_core.llm.journal_entry import Damage, JournalEntry
from qaeval_core.llm.sealed_lines import Line
from qaeval_core.storage.path import StoragePath

# Below a journal's folder: what opening it needs to know of lines that were there.
INDEX_FOLDER = "index"
# Called with where and what: ("replies-a.jsonl: the last line", "torn, left out").
Note = Callable[[str, str], None]


class Place(NamedTuple):
    """Where a line lies: in which file or object, named relative to the journal's folder."""

    object: str
    offset: int
    n_bytes: int


class ReadLine(NamedTuple):
    """A line that was read; ``reached`` is the position in its segment behind it.

    Of a batch all lines but the last leave the position where it was. One whose writer may be in
    the middle of it is ``unended``.
    """

    segment: str
    reached: int
    place: Place
    line: Line
    found: JournalEntry | Damage
    unended: bool = False


class JournalLog(ABC):
    """The lines of a folder.

    Parameters
    ----------
    folder : StoragePath
    section : str
        Of the settings that messages name, with its dot.
    note : callable
        Gets what is left out.

    Attributes
    ----------
    writer : str
        Name of the own segment, unlike that of any other process.
    """

    is_quick = True  # whether a line is read in less time than a loop of events can miss

    def __init__(self, folder: StoragePath, *, section: str, note: Note) -> None:
        self.folder = folder
        self._section = section
        self.note = note
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        self.writer = f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    @abstractmethod
    def segment_of(self, name: str) -> str | None:
        """Return the segment of a file or object; None where it cannot be one of a journal."""

    @abstractmethod
    def holds(self, segment: str, position: int) -> bool:
        """Whether a segment may be read, and is as long as this."""

    @abstractmethod
    def begin_at(self, segment: str, position: int) -> None:
        """Take what stands before a position as read."""

    @abstractmethod
    def read_new(self, writers: Collection[str] | None = None) -> Iterator[ReadLine]:
        """Yield the lines of others that were not read yet.

        Parameters
        ----------
        writers : collection of str, optional
            Look at these alone, where a look at all takes time.
        """

    @abstractmethod
    def read_rest(self, reached: Mapping[str, int]) -> Iterator[ReadLine]:
        """Yield all lines behind these positions, torn ones too; what cannot be read is noted."""

    @abstractmethod
    def entries(self) -> Iterator[JournalEntry]:
        """Yield every reply that was read so far, and one's own; read again."""

    @abstractmethod
    def entry_at(self, place: Place) -> JournalEntry | Damage:
        """Return what a line says now."""

    @abstractmethod
    def append(self, line: bytes) -> Future[Place]:
        """Add a line; the result is there when it survives a kill of process and machine."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise RunError where replies can be read and not be written."""

    @abstractmethod
    def close(self) -> None:
        """Wait for what is being written, and close."""

    @abstractmethod
    def read_index(self, name: str) -> bytes:
        """Return a file of the index; OSError where that is not to be had."""

    @abstractmethod
    def write_index(self, name: str, content: bytes) -> bool:
        """Write a file of the index; whether no other had the name."""

    def index_names(self) -> list[str]:
        """Return the names of the files of the index, the oldest first."""
        found = (self.folder / INDEX_FOLDER).list()
        return sorted(own.name for own in found if INDEX_NAME.match(own.name))

    def delete_index(self, name: str) -> None:
        """Delete a file of the index."""
        (self.folder / INDEX_FOLDER / name).delete()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Name the folder, and the key that sets it, in what the disk refuses."""
        try:
            yield
        except OSError as error:
            raise self.refusal(error.strerror) from None

    def refusal(self, why: str | None) -> RunError:
        """Return the error that says so."""
        return RunError(
            f"cannot keep replies in {self.folder}: {why} ({self._section}journal_path) [QA0606]"
        )


INDEX_NAME = re.compile(r"^(\d{8})\.parquet$", re.ASCII)
