"""Journal: every paid reply, stored before it is used, found again by what was asked.

A folder of segments, ``replies-<host>-<process>-<random>.jsonl``, one per writer, one line of JSON
per reply. Only its writer appends to a segment, so processes and runs share a folder without locks.
``put`` returns when its line is on the disk; calls of several threads share a flush.

A line that was torn by a kill is left out, with a note: its reply was never used, and is asked for
again. Of two replies with one key (two writers asked at once) the first that is read counts, and
both were paid.

But: equal requests in flight are ``llm.ask``'s; calls without a reply are in ``llm.ledger``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from qaeval_core.errors import RunError
from qaeval_core.files import AppendFile, make_folder
from qaeval_core.llm.journal_entry import JournalEntry, entry_of, request_key

__all__ = ["Journal", "JournalEntry", "request_key"]

SEGMENT = re.compile(r"^replies-.+\.jsonl$")
_AS_MYSELF = os.access in os.supports_effective_ids


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

    def __init__(self, folder: Path, *, with_text: bool = True) -> None:
        self.folder = folder
        self._with_text = with_text
        self._segments: dict[str, _Segment] = {}
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._spent_nano_usd = 0
        self._torn: dict[str, str] = {}
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        self._own_name = f"replies-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._file: AppendFile | None = None
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._refresh_lock = threading.Lock()
        self._n_written = self._n_flushed = 0
        with self._told():
            make_folder(folder)
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def notes(self) -> list[str]:
        """What was left out: torn and damaged lines."""
        return list(self._torn.values())

    def get(self, key: str) -> JournalEntry | None:
        """Return the reply to a request, or None if it is not known here; see ``refresh``."""
        with self._lock:
            place = self._places.get(bytes.fromhex(key))
        if place is None:
            return None
        path, offset = place
        with self._told(), path.open("rb") as file:
            file.seek(offset)
            return entry_of(file.readline())

    def put(self, entry: JournalEntry) -> None:
        """Store a reply; when this returns it survives a kill of the process and its machine.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        if not self._with_text:
            entry = replace(entry, text=None)
        line = json.dumps(asdict(entry), ensure_ascii=True, separators=(",", ":")) + "\n"
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
                segment, size = self._segments.get(file.name), file.stat().st_size
                if segment is None or segment.seen != size:
                    found.append((file.name, file.path, size))
        return sorted(found)

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
            with self._told(), segment.path.open("rb") as file:
                while file.tell() < segment.read_to:
                    with contextlib.suppress(ValueError):
                        yield entry_of(file.readline())

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
        self._places.setdefault(bytes.fromhex(entry.key), (path, offset))
        self._spent_nano_usd += entry.nano_usd

    def _read(self, segment: _Segment, size: int) -> None:
        """Read on in a segment that had this size; its writer may be writing on."""
        name = segment.path.name
        self._torn.pop(f"{name} end", None)
        segment.seen = size
        with segment.path.open("rb") as file:
            file.seek(segment.read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    # Torn, or its writer is in the middle of it: looked at again when it grows.
                    self._torn[f"{name} end"] = f"{name}: the last line is torn, left out"
                    return
                try:
                    entry = entry_of(line)
                    with self._lock:
                        self._know(entry, segment.path, segment.read_to)
                except ValueError:
                    where = f"{name}: the line at byte {segment.read_to}"
                    self._torn[where] = f"{where} is damaged, left out"
                segment.read_to += len(line)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Name the folder, and the key that sets it, in what the disk refuses."""
        try:
            yield
        except OSError as error:
            raise self._refusal(error.strerror) from None

    def _refusal(self, why: str | None) -> RunError:
        return RunError(f"cannot keep replies in {self.folder}: {why} (naco.journal_path)")
