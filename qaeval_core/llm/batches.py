"""Batches: a journal's lines in an object store, where nothing can be appended.

Each writer owns ``<host>-<process>-<random>/<number>.jsonl``: objects of some lines each, made once
and never changed, in the order of their numbers. One PUT is under way; what arrives meanwhile, and
for a linger, is the next batch. So a reply is used a linger and a PUT after it came, and a kill
loses those that were not put yet: at most as many as calls may be under way.

But: a bucket knows no owner of a file. Who may write to the journal's prefix is believed as far as
``llm.journal_entry`` believes a line.
"""

from __future__ import annotations

import io
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from qaeval_core.errors import RunError
from qaeval_core.llm.journal_entry import Damage, JournalEntry, entries_of
from qaeval_core.llm.journal_log import INDEX_FOLDER, JournalLog, Note, Place, ReadLine
from qaeval_core.llm.sealed_lines import MAX_LINE_BYTES
from qaeval_core.storage.base import Found
from qaeval_core.storage.path import StoragePath
from qaeval_core.storage.retry import Outages

T = TypeVar("T")
S = TypeVar("S")

LINGER_S = 0.1
_MAX_BATCH_BYTES = 4 << 20
_BATCH = re.compile(r"^(\d{8})\.jsonl$", re.ASCII)
_WRITER = re.compile(r"^[A-Za-z0-9._-]{1,255}$", re.ASCII)
_NOT_WRITERS = (INDEX_FOLDER, "_probe")
_N_AT_ONCE = 32
# Replies that are asked for one after the other lie in the same few batches.
_CACHE_BYTES = 32 << 20


class BatchLog(JournalLog):
    """The objects below a prefix.

    Parameters
    ----------
    folder : StoragePath
        In an object store.
    linger_s : float, default 0.1
        How long a line waits for others.
    outages : Outages, optional
        How long the store is tried; default once.

    Attributes
    ----------
    n_puts, most_unwritten : int
        Batches that were put, and the most lines that waited at a time.
    """

    is_quick = False

    def __init__(
        self,
        folder: StoragePath,
        *,
        section: str,
        note: Note,
        linger_s: float = LINGER_S,
        outages: Outages | None = None,
    ) -> None:
        super().__init__(folder, section=section, note=note)
        self._outages = outages or Outages()
        self._has_answered = False
        self._linger_s = linger_s
        self._reached: dict[str, int] = {}
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cache_lock = threading.Lock()
        # Of the writer: lines that are not put yet, and since when the first of them waits.
        self._turn = threading.Condition()
        self._waiting: list[tuple[bytes, Future[Place]]] = []
        self._since_s = 0.0
        self._is_closing = False
        self._n_sending = 0
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self.n_puts = self.most_unwritten = 0

    def segment_of(self, name: str) -> str | None:
        """Return the writer of a batch."""
        writer, _, batch = name.partition("/")
        return writer if self._is_writer(writer) and _BATCH.match(batch) else None

    def _is_writer(self, name: str) -> bool:
        return bool(_WRITER.match(name)) and name not in _NOT_WRITERS

    def holds(self, segment: str, position: int) -> bool:
        """Whatever was listed once: batches are not looked at until they are read."""
        return self._is_writer(segment) and position >= 0

    def begin_at(self, segment: str, position: int) -> None:
        """Take the first batches of a writer as read."""
        self._reached[segment] = position

    def read_new(self, writers: Collection[str] | None = None) -> Iterator[ReadLine]:
        """Yield the lines of others that were not read yet: a LIST for each writer."""
        if writers is None:
            writers = self._writers()
        others = sorted(set(writers) - {self.writer})
        for read in self._read({name: self._reached.get(name, 0) for name in others}):
            yield read
            self._reached[read.segment] = read.reached

    def read_rest(self, reached: Mapping[str, int]) -> Iterator[ReadLine]:
        """Yield what stands behind positions of all writers."""
        return self._read({name: reached.get(name, 0) for name in self._writers()})

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every reply of the batches that were read, and one's own; got again."""
        reached = {**self._reached, self.writer: self.n_puts}
        for read in self._read(dict.fromkeys(reached, 0)):
            number = int(read.place.object[-14:-6])
            if number < reached[read.segment] and isinstance(read.found, JournalEntry):
                yield read.found

    def _writers(self) -> list[str]:
        return [name for name in self._try(self.folder.folders) if self._is_writer(name)]

    def _read(self, reached: Mapping[str, int]) -> Iterator[ReadLine]:
        """Yield the lines of the batches from these numbers on; several are got at once."""
        with ThreadPoolExecutor(_N_AT_ONCE, "journal") as pool:
            lists = pool.map(self._list, reached, reached.values())
            names = (name for own in lists for name in own)
            for name, content in _ahead(pool, self._get_batch, names):
                yield from self._lines(name, content)

    def _list(self, writer: str, number: int) -> list[str]:
        after = f"{number - 1:08d}.jsonl" if number else ""
        found = self._try(lambda: list((self.folder / writer).list(after=after)))
        return [f"{writer}/{own.name}" for own in sorted(found, key=_name) if self._is_good(own)]

    def _is_good(self, found: Found) -> bool:
        if not _BATCH.match(found.name):
            return False
        if not 0 < found.size <= _MAX_BATCH_BYTES + MAX_LINE_BYTES:
            self.note(found.name, f"skipped: no batch has {found.size:,} bytes")
            return False
        return True

    def _lines(self, name: str, content: bytes | None) -> Iterator[ReadLine]:
        if content is None:
            self.note(name, "gone")
            return
        writer, number = name[:-15], int(name[-14:-6])
        offset = 0
        for line, found in entries_of(io.BytesIO(content)):
            place = Place(name, offset, line.n_bytes)
            offset += line.n_bytes
            reached = number + (offset == len(content))
            yield ReadLine(writer, reached, place, line, found)

    def entry_at(self, place: Place) -> JournalEntry | Damage:
        """Return what a line says; its batch is kept for the next ones."""
        with self._cache_lock:
            content = self._cache.get(place.object)
            if content is not None:
                self._cache.move_to_end(place.object)
        if content is None:
            content = self._get_batch(place.object)
            if content is None:
                return Damage("its batch is gone", 0)
            self._keep(place.object, content)
        line = content[place.offset : place.offset + place.n_bytes]
        _, found = next(entries_of(io.BytesIO(line)), (None, Damage("it is gone", 0)))
        return found

    def _keep(self, name: str, content: bytes) -> None:
        with self._cache_lock:
            self._cache[name] = content
            while sum(map(len, self._cache.values())) > _CACHE_BYTES:
                self._cache.popitem(last=False)

    def _get_batch(self, name: str) -> bytes | None:
        def get() -> bytes | None:
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

        return self._try(get)

    def append(self, line: bytes) -> Future[Place]:
        """Let a line wait for its batch.

        Raises
        ------
        RunError
            If the store has refused an earlier batch for good: numbers have no gaps.
        """
        done: Future[Place] = Future()
        with self._turn:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            if not self._waiting:
                self._since_s = time.monotonic()
            self._waiting.append((line, done))
            self.most_unwritten = max(self.most_unwritten, len(self._waiting) + self._n_sending)
            if self._thread is None:
                # It ends with the last line, so that nobody has to end it.
                self._thread = threading.Thread(target=self._send, name="journal", daemon=True)
                self._thread.start()
        return done

    def _send(self) -> None:
        """Put batches until no line waits."""
        while batch := self._next_batch():
            name = f"{self.writer}/{self.n_puts:08d}.jsonl"
            content = b"".join(line for line, _ in batch)
            try:
                self._put(name, content)
            except Exception as error:
                self._fail(batch, error)
                return
            self.n_puts += 1
            self._keep(name, content)
            offset = 0
            for line, done in batch:
                done.set_result(Place(name, offset, len(line)))
                offset += len(line)

    def _next_batch(self) -> list[tuple[bytes, Future[Place]]]:
        with self._turn:
            self._n_sending = 0
            if self._waiting and not self._is_closing:
                left_s = self._since_s + self._linger_s - time.monotonic()
                self._turn.wait_for(lambda: self._is_closing, timeout=max(left_s, 0.0))
            batch: list[tuple[bytes, Future[Place]]] = []
            n_bytes = 0
            for line, done in self._waiting:
                n_bytes += len(line)
                if batch and n_bytes > _MAX_BATCH_BYTES:
                    break
                batch.append((line, done))
            del self._waiting[: len(batch)]
            self._n_sending = len(batch)
            self._since_s = time.monotonic()
            if not batch:
                self._thread = None
                self._turn.notify_all()
            return batch

    def _put(self, name: str, content: bytes) -> None:
        """Put a batch; one whose answer was lost is found to be there, and one's own."""
        tag = self._try(lambda: (self.folder / name).put_new(content))
        if tag is None:
            raise RunError(
                f"cannot keep replies: another process created {self.folder / name} [QA0606]"
            )

    def _fail(self, batch: list[tuple[bytes, Future[Place]]], error: Exception) -> None:
        with self._turn:
            self._failure = error
            left, self._waiting = [*batch, *self._waiting], []
            self._thread = None
            self._turn.notify_all()
        for _, done in left:
            done.set_exception(error)

    def check_writable(self) -> None:
        """Write and delete an object, before anything is paid for."""
        path = self.folder / "_probe" / uuid.uuid4().hex

        def look() -> None:
            path.put(b"")
            path.delete()

        self._has_answered = False  # To read, perhaps; not to write.
        self._try(look)

    def close(self) -> None:
        """Put what waits, and return when that is done."""
        with self._turn:
            self._is_closing = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._thread is None)
            self._is_closing = False

    def index_names(self) -> list[str]:
        """Return the names of the objects of the index, the oldest first."""
        return self._try(super().index_names)

    def read_index(self, name: str) -> bytes:
        """Return an object of the index."""
        found = self._get_batch(f"{INDEX_FOLDER}/{name}")
        if found is None:
            raise FileNotFoundError(2, "it is gone")
        return found

    def write_index(self, name: str, content: bytes) -> bool:
        """Write an object of the index, unless another run has."""
        path = self.folder / INDEX_FOLDER / name
        return self._try(lambda: path.put_new(content)) is not None

    def delete_index(self, name: str) -> None:
        """Delete an object of the index."""
        self._try((self.folder / INDEX_FOLDER / name).delete)

    def _try(self, action: Callable[[], T]) -> T:
        def ask() -> T:
            try:
                done = action()
            except (PermissionError, FileNotFoundError) as error:
                if self._has_answered:
                    raise
                # At first it is no outage: there is no such bucket, or no right to use it.
                raise self.refusal(error.strerror) from None
            self._has_answered = True
            return done

        what = f"cannot keep or read replies in {self.folder}"
        return self._outages.call(ask, store=str(self.folder), what=what)


def _name(found: Found) -> str:
    return found.name


def _ahead(
    pool: ThreadPoolExecutor, do: Callable[[S], T], given: Iterable[S]
) -> Iterator[tuple[S, T]]:
    """Yield each with what comes of it, in order; some are done ahead, and no more are held."""
    left = iter(given)
    under_way = [(one, pool.submit(do, one)) for one in islice(left, 2 * _N_AT_ONCE)]
    while under_way:
        one, done = under_way.pop(0)
        yield one, done.result()
        under_way.extend((more, pool.submit(do, more)) for more in islice(left, 1))
