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
import hashlib
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qaeval_core.llm.append import AppendFile

_SEGMENT = re.compile(r"^replies-.+\.jsonl$")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One paid reply.

    ``account`` names server and key (``ApiKey.account``), ``key`` the request (``request_key``).
    ``text`` is None where the journal keeps no texts; ``parsed`` is what was read from it.
    """

    key: str
    call_id: str
    account: str
    base_url: str
    model: str
    run_index: int
    text: str | None
    parsed: Mapping[str, Any] | None
    finish_reason: str | None
    n_prompt_tokens: int
    n_completion_tokens: int
    usd: float
    at: float  # seconds since 1970


def request_key(
    *,
    base_url: str,
    model: str,
    parameters: Mapping[str, object],
    messages: Sequence[Mapping[str, str]],
    run_index: int,
) -> str:
    """Return the name of a request: 64 hex digits, equal for equal requests alone.

    Examples
    --------
    >>> asked = {"model": "m", "parameters": {"temperature": 0.7}, "run_index": 0,
    ...          "messages": [{"role": "user", "content": "Who?"}]}
    >>> key = request_key(base_url="http://localhost/v1/", **asked)
    >>> key == request_key(base_url="http://localhost/v1", **asked), len(key)
    (True, 64)
    """
    request = {
        "base_url": base_url.rstrip("/"),
        "model": model,
        "parameters": dict(parameters),
        "messages": [dict(message) for message in messages],
        "run_index": run_index,
    }
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._with_text = with_text
        self._segments: dict[str, _Segment] = {}
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._spent_nano_usd: dict[str, int] = {}  # by account
        self._torn: dict[str, str] = {}
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        self._own_name = f"replies-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._file: AppendFile | None = None
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._refresh_lock = threading.Lock()
        self._n_written = self._n_flushed = 0
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
        with path.open("rb") as file:
            file.seek(offset)
            return _entry(json.loads(file.readline()))

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
        with self._refresh_lock:
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
                if file.name == self._own_name or not _SEGMENT.match(file.name):
                    continue
                segment, size = self._segments.get(file.name), file.stat().st_size
                if segment is None or segment.seen != size:
                    found.append((file.name, file.path, size))
        return sorted(found)

    def spent_usd(self, account: str | None = None) -> float:
        """Return the money that all known replies cost, or those of one account."""
        accounts = self._spent_nano_usd if account is None else [account]
        return sum(self._spent_nano_usd.get(name, 0) for name in accounts) / 1e9

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every known reply, two of one key as well; read from the disk again."""
        with self._lock:
            segments = list(self._segments.values())
        for segment in segments:
            with segment.path.open("rb") as file:
                while file.tell() < segment.read_to:
                    with contextlib.suppress(ValueError, TypeError, AttributeError):
                        yield _entry(json.loads(file.readline()))

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
        spent = self._spent_nano_usd.get(entry.account, 0)
        self._spent_nano_usd[entry.account] = spent + round(entry.usd * 1e9)

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
                    entry = _entry(json.loads(line))
                    with self._lock:
                        self._know(entry, segment.path, segment.read_to)
                except (ValueError, TypeError, AttributeError):
                    where = f"{name}: the line at byte {segment.read_to}"
                    self._torn[where] = f"{where} is damaged, left out"
                segment.read_to += len(line)


def _entry(fields: Mapping[str, Any]) -> JournalEntry:
    """Return a line as an entry; TypeError if it is none."""
    return JournalEntry(**fields)
