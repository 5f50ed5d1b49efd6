"""Segments: a journal's lines on a disk, a file for each writer.

``replies-<host>-<process>-<random>.jsonl`` has one line of JSON per reply. Only its writer appends
to it, so processes and runs share a folder without locks. Calls of several threads share a flush.

What others may have put into the folder is not believed: links, pipes and files of other users are
left out.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from qaeval_core.llm.journal_entry import Damage, JournalEntry, entries_of
from qaeval_core.llm.journal_log import INDEX_FOLDER, JournalLog, Note, Place, ReadLine
from qaeval_core.storage.files import AppendFile, make_folder, read_own, why_not_own, writer
from qaeval_core.storage.path import StoragePath

SEGMENT = re.compile(r"^replies-.+\.jsonl$")
_AS_MYSELF = os.access in os.supports_effective_ids


@dataclass(slots=True)
class _Segment:
    path: Path
    read_to: int = 0  # bytes; ends with a line
    seen: int = 0  # bytes; those behind read_to are of a torn line


class SegmentLog(JournalLog):
    """The files of a folder.

    Parameters
    ----------
    folder : StoragePath
        On a disk.
    of_others : bool, default False
        Whether to read what other users wrote.
    """

    def __init__(
        self, folder: StoragePath, *, section: str, note: Note, of_others: bool = False
    ) -> None:
        super().__init__(folder, section=section, note=note)
        self._folder = Path(folder)
        self._of_others = of_others
        self._segments: dict[str, _Segment] = {}
        self._own_name = f"replies-{self.writer}.jsonl"
        self._file: AppendFile | None = None
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._n_written = self._n_flushed = 0

    def make(self) -> None:
        """Make the folder, a private one, unless it is there."""
        with self.told():
            make_folder(self._folder, is_private=True)

    def segment_of(self, name: str) -> str | None:
        """Return the name of a file."""
        return name if SEGMENT.match(name) and "/" not in name else None

    def holds(self, segment: str, position: int) -> bool:
        """Whether a file is one's own, and as long as this."""
        path = self._folder / segment
        try:
            look = path.lstat()
        except OSError:
            return False
        is_own = why_not_own(path, look, of_others=self._of_others) is None
        return is_own and look.st_size >= position

    def begin_at(self, segment: str, position: int) -> None:
        """Take the first bytes of a file as read."""
        self._segments[segment] = _Segment(self._folder / segment, position, position)

    def read_new(self, writers: Collection[str] | None = None) -> Iterator[ReadLine]:
        """Yield the lines of others that were not read yet, whoever wrote them.

        Costs 3 ms for a thousand segments that did not grow: they are not opened.
        """
        with self.told():
            for name, size in self._grown():
                with self._lock:
                    segment = self._segments.setdefault(name, _Segment(self._folder / name))
                yield from self._read(segment, size)

    def _grown(self) -> list[tuple[str, int]]:
        """Return names and sizes of others' segments that hold what was not read."""
        found = []
        with os.scandir(self._folder) as files:
            for file in files:
                if file.name == self._own_name or not SEGMENT.match(file.name):
                    continue
                look, segment = file.stat(follow_symlinks=False), self._segments.get(file.name)
                if segment is not None and segment.seen == look.st_size:
                    continue
                why = why_not_own(Path(file.path), look, of_others=self._of_others)
                if why is not None:
                    self.note(file.name, f"left out: {why}")
                    continue
                found.append((file.name, look.st_size))
        return sorted(found)

    def _read(self, segment: _Segment, size: int) -> Iterator[ReadLine]:
        """Read on in a segment that had this size; its writer may be writing on."""
        end = f"{segment.path.name}: the last line"
        self.note(end, "")
        segment.seen = size
        with self._open(segment.path) as file:
            for read in _reads(file, segment.path.name, segment.read_to):
                if read.unended:
                    # Torn, or its writer is in the middle of it: looked at again when it grows.
                    self.note(end, "torn, left out")
                    return
                yield read
                segment.read_to = read.reached

    def read_rest(self, reached: Mapping[str, int]) -> Iterator[ReadLine]:
        """Yield what stands behind positions of all files, each read once."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if SEGMENT.match(name))
        except OSError as error:
            self.note("", f"cannot read replies in {self._folder}: {error.strerror}")
            return
        for name in names:
            try:
                with self._open(self._folder / name) as file:
                    yield from _reads(file, name, reached.get(name, 0))
            except OSError as error:
                self.note("", f"cannot read {name}: {error.strerror}")

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every reply of the bytes that were read; from the disk again."""
        with self._lock:
            segments = list(self._segments.values())
        for segment in segments:
            with self.told(), self._open(segment.path) as file:
                for read in _reads(file, segment.path.name, 0):
                    if read.reached > segment.read_to:
                        break
                    if isinstance(read.found, JournalEntry):
                        yield read.found

    def entry_at(self, place: Place) -> JournalEntry | Damage:
        """Return what a line says now."""
        with self.told(), self._open(self._folder / place.object) as file:
            file.seek(place.offset)
            _, found = next(entries_of(file), (None, Damage("it is gone", 0)))
            return found

    def _open(self, path: Path) -> BinaryIO:
        return read_own(path, of_others=self._of_others)

    def append(self, line: bytes) -> Future[Place]:
        """Append a line and flush it, before this returns.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        with self._lock:
            file = self._own_file()
            end = file.append(line.decode())
            self._segments[file.path.name].read_to = end
            self._n_written += 1
            number = self._n_written
        with self._flush_lock:
            if self._n_flushed < number:  # Otherwise another's flush took this line along.
                up_to = self._n_written
                file.flush()
                self._n_flushed = up_to
        done: Future[Place] = Future()
        done.set_result(Place(file.path.name, end - len(line), len(line)))
        return done

    def _own_file(self) -> AppendFile:
        if self._file is None:
            self._file = AppendFile(self._folder / self._own_name)
            self._segments.setdefault(self._own_name, _Segment(self._file.path))
        return self._file

    def check_writable(self) -> None:
        """Look at the modes of the folder."""
        if not os.access(self._folder, os.W_OK | os.X_OK, effective_ids=_AS_MYSELF):
            raise self.refusal("no permission to write there")

    def close(self) -> None:
        """Close the own file; a later line opens it again."""
        with self._lock, self._flush_lock:
            file, self._file = self._file, None
            if file is not None:
                # Lines were flushed when they were stored, or who stored them knows.
                file.close(is_flushed=self._n_flushed == self._n_written)
                self._n_flushed = self._n_written

    def read_index(self, name: str) -> bytes:
        """Return a file of the index, if it is one's own."""
        with self._open(self._folder / INDEX_FOLDER / name) as file:
            return file.read()

    def write_index(self, name: str, content: bytes) -> bool:
        """Write a private file; of two that write at once the later one's is left."""
        with writer(self._folder / INDEX_FOLDER / name, is_private=True) as file:
            file.write(content)
        return True


def _reads(file: BinaryIO, name: str, start: int) -> Iterator[ReadLine]:
    file.seek(start)
    for line, found in entries_of(file):
        place, reached = Place(name, start, line.n_bytes), start + line.n_bytes
        yield ReadLine(name, reached, place, line, found, unended=line.is_torn)
        start += line.n_bytes
