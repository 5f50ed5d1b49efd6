"""Journal: every paid reply, stored before it is used, found again by what was asked.

A folder of segments, ``replies-<host>-<process>-<random>.jsonl``, one per writer, one line of JSON
per reply. Only its writer appends to a segment, so processes and runs share a folder without locks.
``put`` returns when its line is on the disk; calls of several threads share a flush.

A line that was torn by a kill is left out, with a note: its reply was never used, and is asked for
again. So is a line that was damaged later, and one that says what cannot be; where its money can be
read, that counts as spent. Of two replies with one key (two writers asked at once) the first that
is read counts, and both were paid.

What others may have put into the folder is not believed: links, pipes and files of other users are
left out, and a reply to a key that names another server, model or run than was asked is none.

But: equal requests in flight are ``llm.asker``'s; calls without a reply are in ``llm.ledger``.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qaeval_core.errors import RunError
from qaeval_core.files import AppendFile, make_folder, read_own, why_not_own
from qaeval_core.llm.journal_entry import (
    Asked,
    Damage,
    JournalEntry,
    entries_of,
    line_of,
)
from qaeval_core.llm.sealed_lines import Line

SEGMENT = re.compile(r"^replies-.+\.jsonl$")
# A folder may hold a million lines of nonsense.
_MAX_NOTES = 100
_AS_MYSELF = os.access in os.supports_effective_ids
_Place = tuple[Path, int]


@dataclass(slots=True)
class _Segment:
    path: Path
    read_to: int = 0  # bytes; ends with a line
    seen: int = 0  # bytes; those behind read_to are of a torn line


class Journal:
    """Replies of a folder: those of other writers, as far as read, and one's own.

    Parameters
    ----------
    folder : Path
        Made if it is not there; may be shared by processes and runs.
    with_text : bool, default True
        False drops the replies' texts and keeps what was parsed, tokens and money.
    of_others : bool, default False
        Whether to read what other users wrote: to show it, not to score by it.
    section : str, default ""
        Of the settings that messages name, with its dot.

    Raises
    ------
    RunError
        If there can be no such folder, or it cannot be read; from ``get`` and ``refresh`` as well.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> entry = JournalEntry("0f", "a-1", "c0ffee", "http://localhost/v1", "m", 0, "Yes.",
    ...                      {"n_steps": 1}, "stop", 20, 2, usd=0.001, at=0.0)
    >>> Journal(folder).put(entry)
    >>> again = Journal(folder)
    >>> again.get("0f").text, again.spent_usd()
    ('Yes.', 0.001)
    """

    def __init__(
        self,
        folder: Path,
        *,
        with_text: bool = True,
        of_others: bool = False,
        section: str = "",
    ) -> None:
        self.folder = folder
        self._section = section
        self._with_text = with_text
        self._of_others = of_others
        self._segments: dict[str, _Segment] = {}
        self._places: dict[bytes, _Place] = {}
        # Later replies to a key that has one: the first may turn out to be none.
        self._more_places: dict[bytes, list[_Place]] = {}
        self._spent_nano_usd = 0
        self._notes: dict[str, str] = {}
        self._n_more_notes = 0
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        self._own_name = f"replies-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._file: AppendFile | None = None
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._refresh_lock = threading.Lock()
        self._n_written = self._n_flushed = 0
        with self._told():
            make_folder(folder, is_private=True)
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def notes(self) -> list[str]:
        """What was left out: torn and damaged lines, and files that are not one's own."""
        more = [f"{self._n_more_notes:,} more"] if self._n_more_notes else []
        return [*self._notes.values(), *more]

    def get(self, key: str, asked: Asked | None = None) -> JournalEntry | None:
        """Return the reply to a request, or None if it is not known here; see ``refresh``.

        Parameters
        ----------
        key : str
        asked : Asked, optional
            What the reply must say that it is to; replies that say otherwise are left out.
        """
        name = bytes.fromhex(key)
        while True:
            with self._lock:
                place = self._places.get(name)
            if place is None:
                return None
            found = self._entry_at(place)
            if isinstance(found, JournalEntry):
                why = _why_none(found, key, asked)
                if why is None:
                    return found
                found = Damage(why, 0)
            path, offset = place
            self._note(f"{path.name}: the line at byte {offset}", str(found))
            self._forget(name, place)

    def _entry_at(self, place: _Place) -> JournalEntry | Damage:
        path, offset = place
        with self._told(), read_own(path, of_others=self._of_others) as file:
            file.seek(offset)
            _, found = next(entries_of(file), (None, Damage("it is gone", 0)))
            return found

    def _forget(self, name: bytes, place: _Place) -> None:
        with self._lock:
            if self._places.get(name) == place:
                more = self._more_places.get(name)
                if more:
                    self._places[name] = more.pop(0)
                else:
                    del self._places[name]

    def put(self, entry: JournalEntry) -> None:
        """Store a reply; when this returns it survives a kill of the process and its machine.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        if not self._with_text:
            entry = replace(entry, text=None)
        line = line_of(entry)
        with self._lock:
            file = self._own_file()
            end = file.append(line)
            self._segments[file.path.name].read_to = end
            self._n_written += 1
            number = self._n_written
        with self._flush_lock:
            if self._n_flushed < number:  # Otherwise another's flush took this line along.
                up_to = self._n_written
                file.flush()
                self._n_flushed = up_to
        with self._lock:
            self._know(entry, file.path, end - len(line))

    def refresh(self) -> int:
        """Read what others have written since; return how many replies are new.

        Costs 3 ms for a thousand segments that did not grow: they are not opened.
        """
        with self._refresh_lock, self._told():
            n_before = len(self._places)
            for name, path, size in self._grown():
                segment = self._segments.get(name) or _Segment(Path(path))
                with self._lock:
                    self._segments[name] = segment
                self._read(segment, size)
            return len(self._places) - n_before

    def _grown(self) -> list[tuple[str, str, int]]:
        """Return names, paths and sizes of others' segments that hold what was not read."""
        found = []
        with os.scandir(self.folder) as files:
            for file in files:
                if file.name == self._own_name or not SEGMENT.match(file.name):
                    continue
                look, segment = file.stat(follow_symlinks=False), self._segments.get(file.name)
                if segment is not None and segment.seen == look.st_size:
                    continue
                why = why_not_own(Path(file.path), look, of_others=self._of_others)
                if why is not None:
                    self._note(file.name, f"left out: {why}")
                    continue
                found.append((file.name, file.path, look.st_size))
        return sorted(found)

    def _note(self, where: str, what: str) -> None:
        if where in self._notes or len(self._notes) < _MAX_NOTES:
            self._notes[where] = f"{where} is {what}"
        else:
            self._n_more_notes += 1

    def spent_usd(self) -> float:
        """Return the money that all known replies cost, on whatever account."""
        return self._spent_nano_usd / 1e9

    def check_writable(self) -> None:
        """Look before anything is paid for whether it can be kept.

        Raises
        ------
        RunError
            If replies can be read and not be written.
        """
        if not os.access(self.folder, os.W_OK | os.X_OK, effective_ids=_AS_MYSELF):
            raise self._refusal("no permission to write there")

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every known reply, two of one key as well; read from the disk again."""
        with self._lock:
            segments = list(self._segments.values())
        for segment in segments:
            n_read = 0
            with self._told(), read_own(segment.path, of_others=self._of_others) as file:
                for line, found in entries_of(file):
                    n_read += line.n_bytes
                    if n_read > segment.read_to:
                        break
                    if isinstance(found, JournalEntry):
                        yield found

    def close(self) -> None:
        """Close the own segment."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _own_file(self) -> AppendFile:
        if self._file is None:
            self._file = AppendFile(self.folder / self._own_name)
            self._segments.setdefault(self._own_name, _Segment(self._file.path))
        return self._file

    def _know(self, entry: JournalEntry, path: Path, offset: int) -> None:
        name, place = bytes.fromhex(entry.key), (path, offset)
        if self._places.setdefault(name, place) != place:
            self._more_places.setdefault(name, []).append(place)
        self._spent_nano_usd += entry.nano_usd

    def _read(self, segment: _Segment, size: int) -> None:
        """Read on in a segment that had this size; its writer may be writing on."""
        end = f"{segment.path.name}: the last line"
        self._notes.pop(end, None)
        segment.seen = size
        with read_own(segment.path, of_others=self._of_others) as file:
            file.seek(segment.read_to)
            for line, found in entries_of(file):
                if line.is_torn:
                    # Torn, or its writer is in the middle of it: looked at again when it grows.
                    self._note(end, "torn, left out")
                    return
                self._take(segment, line, found)

    def _take(self, segment: _Segment, line: Line, found: JournalEntry | Damage) -> None:
        with self._lock:
            if isinstance(found, JournalEntry):
                self._know(found, segment.path, segment.read_to)
            else:
                self._spent_nano_usd += found.nano_usd
                where = f"{segment.path.name}: the line at byte {segment.read_to}"
                self._note(where, f"damaged, {found}")
            segment.read_to += line.n_bytes

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Name the folder, and the key that sets it, in what the disk refuses."""
        try:
            yield
        except OSError as error:
            raise self._refusal(error.strerror) from None

    def _refusal(self, why: str | None) -> RunError:
        return RunError(
            f"cannot keep replies in {self.folder}: {why} ({self._section}journal_path)"
        )


def _why_none(found: JournalEntry, key: str, asked: Asked | None) -> str | None:
    """Return why an entry is no reply to what is asked; None if it is one."""
    if found.key != key:
        return "it is to another request by now"
    if asked is not None and not found.answers(asked):
        return "it names another server, model or run than its key"
    return None


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """Sums over a journal's replies, two to one request as well: both were paid.

    ``notes`` tell what could not be read; ``usd`` holds what can be read of damaged lines' money.
    """

    n_replies: int
    usd: float
    n_prompt_tokens: int
    n_completion_tokens: int
    notes: tuple[str, ...] = ()


def journal_totals(folder: Path) -> JournalTotals:
    """Return the sums over all segments of a folder, each read once; nothing is written.

    Examples
    --------
    >>> journal_totals(Path("no/such/folder")).notes
    ('cannot read replies in no/such/folder: No such file or directory',)
    """
    notes: list[str] = []
    n_replies = nano_usd = n_prompt_tokens = n_completion_tokens = 0
    for path in _segments(folder, notes):
        for entry in _entries(path, notes):
            nano_usd += entry.nano_usd
            if isinstance(entry, Damage):
                continue
            n_replies += 1
            n_prompt_tokens += entry.n_prompt_tokens
            n_completion_tokens += entry.n_completion_tokens
    return JournalTotals(
        n_replies, nano_usd / 1e9, n_prompt_tokens, n_completion_tokens, tuple(notes)
    )


def _segments(folder: Path, notes: list[str]) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if SEGMENT.match(name))
    except OSError as error:
        notes.append(f"cannot read replies in {folder}: {error.strerror}")
        return []


def _entries(path: Path, notes: list[str]) -> Iterator[JournalEntry | Damage]:
    n_damaged = nano_usd = 0
    try:
        with read_own(path) as file:
            for _, found in entries_of(file):
                if isinstance(found, Damage):
                    n_damaged += 1
                    nano_usd += found.nano_usd
                yield found
    except OSError as error:
        notes.append(f"cannot read {path.name}: {error.strerror}")
    if n_damaged:
        what = "1 line is" if n_damaged == 1 else f"{n_damaged:,} lines are"
        cost = f"; ${nano_usd / 1e9:g} of them count as spent" if nano_usd else ""
        notes.append(f"{path.name}: {what} torn or damaged, left out{cost}")
