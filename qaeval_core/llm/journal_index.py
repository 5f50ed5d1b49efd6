"""Journal's index: where each reply lies, so that opening a journal need not read all of it.

``index/<number>.parquet`` has a row per line, sorted by the request's key, and says up to which
position of which segment it knows. Files of the index follow one another; one that knows all from
the start (``is_whole``) stands for those before it. A million replies are 24 bytes each in memory,
beside their calls' ids.

What it says is a hint and no more: a reply is read where it lies, with its checksum, and believed
if it says that it is to the request. An index that is damaged, contradicts itself, or knows of a
segment that is shorter than it says is left out, and the lines are read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.journal_log import INDEX_FOLDER, JournalLog, Place, ReadLine
from qaeval_core.storage import checksums
from qaeval_core.storage.arrow import table_of

_META = b"qaeval.journal"
_VERSION = 1
_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("object", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("n_bytes", pa.int32(), nullable=False),
        pa.field("nano_usd", pa.int64(), nullable=False),
        pa.field("call_id", pa.string(), nullable=False),
    ]
)
_ROWS_AT_ONCE = 50_000
# A file for each run that asked little; more are put into one.
_MAX_FILES = 8
_MAX_SUM = 2**62
# What reading one raises that holds something else; JSON may be deeper than can be read.
_NO_INDEX = (
    pa.ArrowException,
    OSError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class LineSums:
    """What lines of a segment add up to: replies, and lines that are damaged."""

    n_replies: int = 0
    nano_usd: int = 0
    n_prompt_tokens: int = 0
    n_completion_tokens: int = 0
    n_damaged: int = 0
    damaged_nano_usd: int = 0

    def __add__(self, other: LineSums) -> LineSums:
        return LineSums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class SumsOf:
    """Sums that grow, line by line."""

    def __init__(self) -> None:
        self._counts = [0] * len(fields(LineSums))

    def add(self, read: ReadLine) -> None:
        """Take a line."""
        counts, found = self._counts, read.found
        if isinstance(found, JournalEntry):
            counts[0] += 1
            counts[1] += found.nano_usd
            counts[2] += found.n_prompt_tokens
            counts[3] += found.n_completion_tokens
        else:
            counts[4] += 1
            counts[5] += found.nano_usd

    @property
    def sums(self) -> LineSums:
        """What was added up."""
        return LineSums(*self._counts)


@dataclass(frozen=True, slots=True)
class Covered:
    """A stretch of a segment that an index knows."""

    start: int
    stop: int
    sums: LineSums


class IndexPart:
    """One file of an index.

    Parameters
    ----------
    name : str
    content : bytes
    segment_of : callable
        Returns the segment of a file or object, None where it cannot be one.

    Raises
    ------
    ValueError
        If it is damaged, or says what cannot be.
    """

    def __init__(
        self, name: str, content: bytes, *, segment_of: Callable[[str], str | None]
    ) -> None:
        if not checksums.is_intact(content):
            raise ValueError("its checksum differs")
        try:
            self.table = table_of(content).combine_chunks()
            told = json.loads((self.table.schema.metadata or {})[_META])
            segments = told["segments"].items()
            self.covered = {own: _covered(said) for own, said in segments}
            self.is_whole = told["is_whole"] is True
        except _NO_INDEX:
            raise ValueError("it is not an index") from None
        self.name = name
        if told.get("version") != _VERSION or not self.table.schema.equals(_SCHEMA):
            raise ValueError("another version wrote it")
        self._check(segment_of)

    def _check(self, segment_of: Callable[[str], str | None]) -> None:
        table = self.table
        names: list[str] = _column(table, "object").dictionary.to_pylist()
        segments = [segment_of(own) for own in names]
        if not set(segments) <= self.covered.keys():
            raise ValueError("it names something that is not part of a journal")
        n_replies = sum(own.sums.n_replies for own in self.covered.values())
        nano_usd = sum(own.sums.nano_usd for own in self.covered.values())
        lengths, offsets = _column(table, "n_bytes"), _column(table, "offset")
        least = [pc.min(column).as_py() or 0 for column in (lengths, offsets)]
        costs = _column(table, "nano_usd")
        is_cheap = (pc.min(costs).as_py() or 0) < 0
        if any(column.null_count for column in table.columns) or min(least) < 0 or is_cheap:
            raise ValueError("it holds impossible values")
        if (n_replies, nano_usd) != (table.num_rows, pc.sum(costs).as_py() or 0):
            raise ValueError("its sums contradict its rows")
        self._segments = segments
        self._names = names
        self._objects: NDArray[np.int32] = _column(table, "object").indices.to_numpy()
        self._offsets: NDArray[np.int64] = offsets.to_numpy()
        self._lengths: NDArray[np.int32] = lengths.to_numpy()
        self._calls = _column(table, "call_id")
        self._keys = _prefixes(_column(table, "key"))
        if (self._keys[1:] < self._keys[:-1]).any():
            raise ValueError("its rows are not in order")

    def keep(self, segments: Iterable[str]) -> None:
        """Forget rows of other segments, and the table."""
        kept = set(segments)
        if not kept >= self.covered.keys():
            is_kept = np.array([own in kept for own in self._segments], dtype=bool)
            rows = np.flatnonzero(is_kept[self._objects]) if len(is_kept) else np.zeros(0, int)
            self._objects, self._keys = self._objects[rows], self._keys[rows]
            self._offsets, self._lengths = self._offsets[rows], self._lengths[rows]
            self._calls = self._calls.take(pa.array(rows))
            self.covered = {own: self.covered[own] for own in kept & self.covered.keys()}
        del self.table

    def places(self, key: bytes) -> Iterator[Place]:
        """Yield where replies to a request may lie, the first one first."""
        prefix = _prefix(key)
        start = int(np.searchsorted(self._keys, prefix))
        stop = int(np.searchsorted(self._keys, prefix, "right"))
        yield from map(self._place, range(start, stop))

    def places_of_calls(self, call_ids: Iterable[str]) -> Iterator[Place]:
        """Yield where the replies of calls lie."""
        wanted = pa.array(list(call_ids), pa.string())
        for row in np.flatnonzero(pc.is_in(self._calls, wanted).to_numpy(zero_copy_only=False)):
            yield self._place(int(row))

    def _place(self, row: int) -> Place:
        name = self._names[int(self._objects[row])]
        return Place(name, int(self._offsets[row]), int(self._lengths[row]))

    @property
    def n_keys(self) -> int:
        """Different requests."""
        return int((np.diff(self._keys) != 0).sum() + 1) if len(self._keys) else 0


def _covered(said: list[int]) -> Covered:
    start, stop, *sums = said
    found = Covered(start, stop, LineSums(*sums))
    counts = (start, stop, *astuple(found.sums))
    if not all(type(count) is int and 0 <= count < _MAX_SUM for count in counts) or stop < start:
        raise ValueError("no counts")
    return found


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _prefix(key: bytes) -> np.uint64:
    """Return the first eight bytes of a key as a number: the order of numbers is that of keys."""
    return np.uint64(int.from_bytes(key[:8].ljust(8, b"\0")))


def _prefixes(keys: pa.Array) -> NDArray[np.uint64]:
    lengths = pc.binary_length(keys)
    width = pc.max(lengths).as_py() or 0
    if len(keys) == 0 or width != pc.min(lengths).as_py() or width < 8:
        return np.array([_prefix(key) for key in keys.to_pylist()], dtype=np.uint64)
    start = width * keys.offset
    content = np.frombuffer(keys.buffers()[2], np.uint8)[start : start + width * len(keys)]
    first = np.ascontiguousarray(content.reshape(-1, width)[:, :8])
    return first.view(">u8").ravel().astype(np.uint64)


class Index:
    """The files of a journal's index that fit together.

    Parameters
    ----------
    log : JournalLog
        Whose lines it knows.
    keeps_rows : bool, default False
        Whether tables stay in memory, to be written again.
    """

    def __init__(self, log: JournalLog, *, keeps_rows: bool = False) -> None:
        self.covered: dict[str, int] = {}
        self.sums = LineSums()
        self.damaged: dict[str, LineSums] = {}  # of segments with damaged lines
        self.parts: list[IndexPart] = []
        try:
            self.names = log.index_names()
        except OSError as error:
            self.names = []
            log.note(INDEX_FOLDER, f"left out: {error.strerror}")
        for part in self._read(log):
            self._take(part, log, keeps_rows=keeps_rows)

    def _read(self, log: JournalLog) -> list[IndexPart]:
        found: list[IndexPart] = []
        for name in reversed(self.names):
            try:
                part = IndexPart(name, log.read_index(name), segment_of=log.segment_of)
            except FileNotFoundError:  # Another run has put it into a larger one.
                continue
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                log.note(f"{INDEX_FOLDER}/{name}", f"left out: {why}")
                continue
            found.append(part)
            if part.is_whole:
                break
        return found[::-1]

    def _take(self, part: IndexPart, log: JournalLog, *, keeps_rows: bool) -> None:
        fitting = {
            name: own
            for name, own in part.covered.items()
            if own.start == self.covered.get(name, 0) and log.holds(name, own.stop)
        }
        if keeps_rows and len(fitting) < len(part.covered):
            return  # It is written anew from the lines.
        if not keeps_rows:
            part.keep(fitting)
        for name, own in fitting.items():
            self.covered[name] = own.stop
            self.sums += own.sums
            if own.sums.n_damaged:
                self.damaged[name] = self.damaged.get(name, LineSums()) + own.sums
        self.parts.append(part)

    def places(self, key: bytes) -> list[Place]:
        """Return where replies to a request may lie, the first one first."""
        return [place for part in self.parts for place in part.places(key)]

    def places_of_calls(self, call_ids: Iterable[str]) -> list[Place]:
        """Return where the replies of calls lie."""
        wanted = list(call_ids)
        return [place for part in self.parts for place in part.places_of_calls(wanted)]

    @property
    def n_keys(self) -> int:
        """Different requests; those of several files count in each."""
        return sum(part.n_keys for part in self.parts)


class IndexRows:
    """Lines on their way into an index."""

    def __init__(self) -> None:
        self._rows: list[tuple[bytes, str, int, int, int, str]] = []
        self._tables: list[pa.Table] = []
        self._sums: dict[str, SumsOf] = {}
        self.stops: dict[str, int] = {}
        self.n_lines = 0
        self.n_objects = 0
        self._object = ""

    def add(self, read: ReadLine) -> None:
        """Take a line that stands, whole or damaged."""
        self.stops[read.segment] = read.reached
        self._sums.setdefault(read.segment, SumsOf()).add(read)
        self.n_lines += 1
        self.n_objects += read.place.object != self._object
        self._object = read.place.object
        if isinstance(read.found, JournalEntry):
            key = bytes.fromhex(read.found.key)
            self._rows.append((key, *read.place, read.found.nano_usd, read.found.call_id))
            if len(self._rows) >= _ROWS_AT_ONCE:
                self._pack()

    def _pack(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else [[] for _ in _SCHEMA]
        arrays = [
            pa.array(list(own), field.type) for own, field in zip(columns, _SCHEMA, strict=True)
        ]
        self._tables.append(pa.table(arrays, schema=_SCHEMA))
        self._rows = []

    def write(self, log: JournalLog, known: Index) -> None:
        """Write them behind what is known, or with it where that is in many files."""
        self._pack()
        starts = {name: known.covered.get(name, 0) for name in self.stops}
        covered = {
            name: Covered(starts[name], stop, self._sums[name].sums)
            for name, stop in self.stops.items()
        }
        tables = self._tables
        n_known = sum(part.table.num_rows for part in known.parts)
        is_whole = len(known.names) >= _MAX_FILES or self.n_lines >= n_known
        if is_whole:
            tables = [*(part.table for part in known.parts), *tables]
            for part in reversed(known.parts):
                for name, own in part.covered.items():
                    behind = covered.get(name, Covered(own.stop, own.stop, LineSums()))
                    covered[name] = Covered(own.start, behind.stop, own.sums + behind.sums)
        content = _sealed(tables, covered, is_whole=is_whole)
        number = 1 + max((int(name[:8]) for name in known.names), default=-1)
        while not log.write_index(f"{number:08d}.parquet", content):
            number += 1
        if is_whole:
            for name in known.names:
                log.delete_index(name)


def _sealed(tables: list[pa.Table], covered: Mapping[str, Covered], *, is_whole: bool) -> bytes:
    told = {
        "version": _VERSION,
        "is_whole": is_whole,
        "segments": {
            name: [own.start, own.stop, *astuple(own.sums)] for name, own in covered.items()
        },
    }
    table = pa.concat_tables([own.replace_schema_metadata(None) for own in tables])
    table = table.unify_dictionaries().combine_chunks()
    # Stable: the first of two replies to one request is the one that counts.
    order = np.argsort(_prefixes(_column(table, "key")), kind="stable")
    table = table.take(pa.array(order)).replace_schema_metadata(
        {_META: json.dumps(told).encode(), checksums.KEY: checksums.PLACEHOLDER}
    )
    buffer = io.BytesIO()
    sink = checksums.SealedFile(buffer)
    pq.write_table(table, sink, compression="zstd")
    sink.seal()
    return buffer.getvalue()
