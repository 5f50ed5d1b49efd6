"""Journal: every paid reply, stored before it is used, found again by what was asked.

A folder of lines, one of JSON per reply: on a disk in a file for each writer (``llm.segments``), in
an object store in batches (``llm.batches``). ``put`` returns when its line survives a kill. What
was there when a run ended is opened from an index (``llm.journal_index``); the lines behind it are
read.

A line that was torn by a kill is left out, with a note: its reply was never used, and is asked for
again. So is a line that was damaged later, and one that says what cannot be; where its money can be
read, that counts as spent. Of two replies with one key (two writers asked at once) the first that
is read counts, and both were paid.

What others may have put into the folder is not believed: a reply to a key that names another
server, model or run than was asked is none.

What all replies cost (`journal_totals`) needs one reading of the lines that the last index does not
know. The driver of a run does so before its first call and after its last.

But: equal requests in flight are ``llm.asker``'s; calls without a reply are in ``llm.ledger``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from qaeval_core.errors import RunError, RunStoppedError
from qaeval_core.llm.batches import LINGER_S, BatchLog
from qaeval_core.llm.journal_entry import Asked, Damage, JournalEntry, line_of
from qaeval_core.llm.journal_index import Index, IndexRows, LineSums, SumsOf
from qaeval_core.llm.journal_log import INDEX_FOLDER, JournalLog, Note, Place, ReadLine
from qaeval_core.llm.segments import SegmentLog
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from qaeval_core.storage.retry import Outages

# What is read in a tenth of a second needs no index.
MIN_LINES = 1_000
MIN_OBJECTS = 64

# A folder may hold a million lines of nonsense.
_MAX_NOTES = 100
_MAX_READERS = 32


class Journal:
    """Replies of a folder: those of other writers, as far as read, and one's own.

    Parameters
    ----------
    folder : path or URI
        Made if it is not there; may be shared by processes and runs.
    with_text : bool, default True
        False drops the replies' texts and keeps what was parsed, tokens and money.
    of_others : bool, default False
        Whether to read what other users wrote: to show it, not to score by it.
    section : str, default ""
        Of the settings that messages name, with its dot.
    linger_s : float, default 0.1
        How long a reply waits for others, to be put with them, in an object store.
    outages : Outages, optional
        How long an object store is tried; default once.

    Raises
    ------
    RunError
        If there can be no such folder, or it cannot be read; from ``get`` and ``refresh`` as well.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> entry = JournalEntry("0f", "a-1", "c0ffee", "http://localhost/v1", "m", 0, "Yes.",
    ...                      {"n_steps": 1}, "stop", 20, 2, usd=0.001, at=0.0)
    >>> Journal(folder).put(entry)
    >>> again = Journal(folder)
    >>> again.get("0f").text, again.spent_usd()
    ('Yes.', 0.001)
    """

    def __init__(
        self,
        folder: AnyPath,
        *,
        with_text: bool = True,
        of_others: bool = False,
        section: str = "",
        linger_s: float = LINGER_S,
        outages: Outages | None = None,
    ) -> None:
        self.folder = as_path(folder)
        self._with_text = with_text
        self._places: dict[bytes, Place] = {}
        # Later replies to a key that has one: the first may turn out to be none.
        self._more_places: dict[bytes, list[Place]] = {}
        self._calls: dict[str, Place] = {}
        self._left_out: set[Place] = set()
        self._nano_usd = 0
        self._notes: dict[str, str] = {}
        self._n_more_notes = 0
        self._lock = threading.Lock()
        self._refresh_lock = threading.Lock()
        # Its threads are made when they are needed, and end with the journal.
        self._readers = ThreadPoolExecutor(_MAX_READERS, "replies")
        self._log = open_log(
            self.folder,
            note=self._note,
            of_others=of_others,
            section=section,
            linger_s=linger_s,
            outages=outages,
        )
        if isinstance(self._log, SegmentLog):
            self._log.make()
        self._index = Index(self._log)
        self._nano_usd += self._index.sums.nano_usd + self._index.sums.damaged_nano_usd
        for segment, position in self._index.covered.items():
            self._log.begin_at(segment, position)
        for segment, sums in self._index.damaged.items():
            self._note(segment, f"damaged in {sums.n_damaged:,} lines, left out")
        self._n_keys = self._index.n_keys
        self.refresh()

    def __len__(self) -> int:
        return self._n_keys

    @property
    def notes(self) -> list[str]:
        """What was left out: torn and damaged lines, and files that are not one's own."""
        more = [f"{self._n_more_notes:,} more"] if self._n_more_notes else []
        return [*self._notes.values(), *more]

    @property
    def writer(self) -> str:
        """What others know this journal's own lines by."""
        return self._log.writer

    @property
    def is_quick(self) -> bool:
        """Whether it lies on a disk: what is read there keeps no event loop waiting."""
        return self._log.is_quick

    def knows(self, key: str) -> bool:
        """Whether there may be a reply to a request, as far as is known without reading it."""
        return bool(self._places_of(bytes.fromhex(key)))

    def get(self, key: str, asked: Asked | None = None) -> JournalEntry | None:
        """Return the reply to a request, or None if it is not known here; see ``refresh``.

        Parameters
        ----------
        key : str
        asked : Asked, optional
            What the reply must say that it is to; replies that say otherwise are left out.
        """
        return next(self.replies(key, asked), None)

    async def find(self, key: str, asked: Asked) -> JournalEntry | None:
        """Return what ``get`` does; an object store keeps no event loop waiting."""
        if self.is_quick:
            return self.get(key, asked)
        if not self.knows(key):
            return None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self.get, key, asked)

    def replies(self, key: str, asked: Asked | None = None) -> Iterator[JournalEntry]:
        """Yield all replies to a request; there are several where writers asked at once."""
        for place in self._places_of(bytes.fromhex(key)):
            found = self._log.entry_at(place)
            if isinstance(found, JournalEntry):
                why = _why_none(found, key, asked)
                if why is None:
                    yield found
                    continue
                found = Damage(why, 0)
            self._note(f"{place.object}: the line at byte {place.offset}", str(found))
            with self._lock:
                self._left_out.add(place)

    def of_calls(self, call_ids: Collection[str]) -> Iterator[JournalEntry]:
        """Yield the replies of calls, of those that were there when the journal was opened."""
        own = [self._calls[one] for one in call_ids if one in self._calls]
        for place in [*self._index.places_of_calls(call_ids), *own]:
            found = self._log.entry_at(place)
            if isinstance(found, JournalEntry) and found.call_id in call_ids:
                yield found

    def _places_of(self, name: bytes) -> list[Place]:
        with self._lock:
            place = self._places.get(name)
            own = [] if place is None else [place, *self._more_places.get(name, [])]
            found = [*self._index.places(name), *own]
            return [one for one in found if one not in self._left_out]

    def put(self, entry: JournalEntry) -> None:
        """Store a reply; when this returns it survives a kill of the process and its machine.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        self.put_soon(entry).result()

    def put_soon(self, entry: JournalEntry) -> Future[None]:
        """Store a reply; the result is there when it survives a kill.

        On a disk that is when this returns.

        Raises
        ------
        RunError
            If it cannot be written; here, or as the result.
        """
        if not self._with_text:
            entry = replace(entry, text=None)
        stored: Future[None] = Future()
        # Who waits may be cancelled; what is being written cannot.
        stored.set_running_or_notify_cancel()

        def know(done: Future[Place]) -> None:
            error = done.exception()
            if error is not None:
                stored.set_exception(error)
                return
            with self._lock:
                self._know(entry, done.result())
            stored.set_result(None)

        self._log.append(line_of(entry).encode()).add_done_callback(know)
        return stored

    def refresh(self, writers: Collection[str] | None = None) -> int:
        """Read what others have written since; return how many replies are new.

        Parameters
        ----------
        writers : collection of str, optional
            Of whom something is new; where a look at all is quick, all are looked at.
        """
        with self._refresh_lock:
            n_before, is_first = self._n_keys, not self._calls and not self._places
            for read in self._log.read_new(writers):
                self._take(read, is_first=is_first)
            return self._n_keys - n_before

    def _note(self, where: str, what: str) -> None:
        if not what:
            self._notes.pop(where, None)
        elif where in self._notes or len(self._notes) < _MAX_NOTES:
            self._notes[where] = f"{where} is {what}"
        else:
            self._n_more_notes += 1

    def spent_usd(self) -> float:
        """Return the money that all known replies cost, on whatever account."""
        return self._nano_usd / 1e9

    def check_writable(self) -> None:
        """Look before anything is paid for whether it can be kept.

        Raises
        ------
        RunError
            If replies can be read and not be written.
        """
        self._log.check_writable()

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every known reply, two of one key as well; read again."""
        return self._log.entries()

    def close(self) -> None:
        """Write what waits, and close."""
        self._log.close()

    def _know(self, entry: JournalEntry, place: Place) -> None:
        name = bytes.fromhex(entry.key)
        is_new = name not in self._places
        if self._places.setdefault(name, place) != place:
            self._more_places.setdefault(name, []).append(place)
        self._n_keys += is_new and not self._index.places(name)
        self._nano_usd += entry.nano_usd

    def _take(self, read: ReadLine, *, is_first: bool) -> None:
        with self._lock:
            if isinstance(read.found, JournalEntry):
                self._know(read.found, read.place)
                if is_first:
                    self._calls[read.found.call_id] = read.place
                return
            self._nano_usd += read.found.nano_usd
        where = f"{read.place.object}: the line at byte {read.place.offset}"
        self._note(where, f"damaged, {read.found}")


def open_log(
    folder: StoragePath,
    *,
    note: Note,
    of_others: bool = False,
    section: str = "",
    linger_s: float = LINGER_S,
    outages: Outages | None = None,
) -> JournalLog:
    """Return the log of a folder: files on a disk, batches in an object store."""
    if folder.local is not None:
        return SegmentLog(folder, section=section, note=note, of_others=of_others)
    return BatchLog(folder, section=section, note=note, linger_s=linger_s, outages=outages)


def _why_none(found: JournalEntry, key: str, asked: Asked | None) -> str | None:
    """Return why an entry is no reply to what is asked; None if it is one."""
    if found.key != key:
        return "it replies to another request"
    if asked is not None and not found.answers(asked):
        return "its server, model or run is not that of its key"
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


def journal_totals(
    folder: AnyPath,
    *,
    outages: Outages | None = None,
    writes_index: bool = False,
    min_lines: int = MIN_LINES,
    min_objects: int = MIN_OBJECTS,
) -> JournalTotals:
    """Return the sums over all lines of a folder.

    Parameters
    ----------
    outages : Outages, optional
        How long an object store is tried.
    writes_index : bool, default False
        Whether an index is written; else nothing is.
    min_lines, min_objects : int
        Lines and files or objects that no index knows for which there is a new one.

    Examples
    --------
    >>> journal_totals("/no/such/folder").notes
    ('cannot read replies in /no/such/folder: No such file or directory',)
    """
    notes: list[str] = []

    def note(where: str, what: str) -> None:
        notes.append(f"{where} is {what}" if where else what)

    log = open_log(as_path(folder), note=note, outages=outages)
    rows, by_segment = IndexRows(), dict[str, SumsOf]()
    sums, damaged = LineSums(), dict[str, LineSums]()
    try:
        known = Index(log, keeps_rows=writes_index)
        sums, damaged = known.sums, known.damaged
        for read in log.read_rest(known.covered):
            by_segment.setdefault(read.segment, SumsOf()).add(read)
            if writes_index and not read.unended:
                rows.add(read)
        if rows.n_lines >= min_lines or rows.n_objects >= min_objects:
            rows.write(log, known)
    except RunStoppedError:
        raise
    except RunError as error:  # Of a store; who asks ends with it, and the others go on.
        notes.append(str(error))
    except OSError as error:
        note(INDEX_FOLDER, f"not written: {error.strerror}")
    for segment, counted in by_segment.items():
        sums += counted.sums
        if counted.sums.n_damaged:
            damaged = {**damaged, segment: damaged.get(segment, LineSums()) + counted.sums}
    return JournalTotals(
        sums.n_replies,
        (sums.nano_usd + sums.damaged_nano_usd) / 1e9,
        sums.n_prompt_tokens,
        sums.n_completion_tokens,
        (*notes, *_told(damaged)),
    )


def _told(damaged: Mapping[str, LineSums]) -> list[str]:
    notes = []
    for name, sums in sorted(damaged.items()):
        n_damaged, nano_usd = sums.n_damaged, sums.damaged_nano_usd
        what = "1 line is" if n_damaged == 1 else f"{n_damaged:,} lines are"
        cost = f"; ${nano_usd / 1e9:g} of them count as spent" if nano_usd else ""
        notes.append(f"{name}: {what} torn or damaged, and skipped{cost}")
    return notes
