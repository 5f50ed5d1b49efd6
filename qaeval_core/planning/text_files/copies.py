"""Copies: the Parquet copies of files of text, made once for each content, in parts that resume.

Parts are named by what they are made of, so that a run which was cut off goes on, and are put
together without being decoded. Of a file that has grown, the blocks that the last copy has are
taken from it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.configure import InputSection
from qaeval_core.errors import InputChangedError, InputError
from qaeval_core.models.artifact import default_root
from qaeval_core.models.cpu import available_cpus
from qaeval_core.planning.filesystems import local_stamp, open_filesystem
from qaeval_core.planning.read_as import said_schema
from qaeval_core.planning.text_files.blocks import (
    BLOCK_BYTES,
    BlockTask,
    QuotedBreakError,
    Redo,
    TextBlock,
    TextReading,
    looked_at,
    read_blocks,
)
from qaeval_core.planning.text_files.kinds import TextKind, sniffed_kind
from qaeval_core.planning.text_files.parsed import InexactNumbersError, joined_schema
from qaeval_core.signature import hash_text
from qaeval_core.storage import files
from qaeval_core.storage.parquet_parts import FirstGroups, join_parts
from qaeval_core.storage.path import StoragePath, as_path, read_json

_MEGABYTE = 1 << 20
_HEAD_BYTES = 1 << 16
STANDARD_INPUT = "-"
_held: list[Any] = []


# What is read before a line of progress is due is not worth one.
MOST_SILENT_MB = 64
Tell = Callable[[str, int, int], None]


def _say_nothing(label: str, n_done: int, n_total: int) -> None:
    """Take how far the work is."""


class Workers(Protocol):
    """Who reads blocks."""

    def read(
        self, tasks: Sequence[BlockTask], *, label: str, sizes: Sequence[int]
    ) -> Iterator[list[TextBlock]]:
        """Yield the blocks of each task, in their order; sizes are megabytes."""


class ThreadWorkers:
    """Reads blocks in this process, one on each core: PyArrow leaves them to work side by side.

    Parameters
    ----------
    tell : callable, optional
        Gets the label, the megabytes done and all megabytes after each task.
    """

    def __init__(self, tell: Tell = _say_nothing) -> None:
        self._tell = tell

    def read(
        self, tasks: Sequence[BlockTask], *, label: str, sizes: Sequence[int]
    ) -> Iterator[list[TextBlock]]:
        """Yield the blocks of each task, in their order."""
        done, total = 0, sum(sizes)
        self._tell(label, 0, total)
        pool = ThreadPoolExecutor(available_cpus())
        try:
            for blocks, size in zip(pool.map(read_blocks, tasks), sizes, strict=True):
                done += size
                self._tell(label, done, total)
                yield blocks
        finally:
            pool.shutdown(cancel_futures=True)


class TextCopy(NamedTuple):
    """A copy.

    Attributes
    ----------
    content : str
        Hash of what the rows are made of.
    note : str
        Which lines are no rows; "" where all are.
    """

    path: StoragePath
    content: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Copies:
    """Where copies lie, and how they are made.

    Attributes
    ----------
    below : StoragePath, optional
        Where copies lie; default the cache, of which nothing is asked before a file of text comes.
    encoding : str, optional
        Of the files; default UTF-8, or what their marks say.
    texts : sequence of str
        Columns of CSV that stay texts, beside those of usual names.
    workers : Workers, optional
        Default threads.
    is_of_run : bool
        Whether what was read for a run is taken, wherever the files are now.
    tell : callable
        Gets a label, the megabytes done and all megabytes, where many small files are read.
    """

    below: StoragePath | None = None
    encoding: str | None = None
    texts: frozenset[str] = frozenset()
    workers: Workers | None = None
    is_of_run: bool = False
    block_bytes: int = BLOCK_BYTES
    tell: Tell = _say_nothing

    @property
    def folder(self) -> StoragePath:
        """Where copies lie."""
        return _cache() if self.below is None else self.below

    def of_run(self, uri: str) -> TextCopy | None:
        """Return what a run read in the place of a file, if this is for what reads a run."""
        record = read_json(self._record(uri)) if self.is_of_run else None
        return None if record is None else self._copy(record)

    def standard_input(self) -> tuple[str, TextKind]:
        """Return where what comes on standard input is held, and its kind.

        Raises
        ------
        InputError
            If nothing can come, or it is Parquet.
        """
        if self.of_run(STANDARD_INPUT) is not None:
            return STANDARD_INPUT, TextKind("jsonl")
        return held_standard_input()

    def of(self, uri: str, name: str, kind: TextKind, *, key: str = "") -> TextCopy:
        """Return the copy of a file, made now where there is none of what it is now.

        Parameters
        ----------
        uri : str
        name : str
            For messages.
        kind : TextKind
        key : str, optional
            What names the file, if not its URI.

        Raises
        ------
        InputError
            If it cannot be read.
        InputChangedError
            If it changes meanwhile.
        """
        if self.is_of_run:  # OUT is only read.
            return replace(self, below=None, is_of_run=False).of(uri, name, kind, key=key)
        given = {"encoding": self.encoding, "texts": sorted(self.texts), "kind": repr(kind)}
        before = {**_state(uri), **given}
        key = key or uri
        copy = self._kept(key, before)
        if copy is not None:
            return copy
        record = read_json(self._record(key)) or {}
        reading = looked_at(
            TextReading(
                uri, name, kind, self.encoding, frozenset(self.texts), block_bytes=self.block_bytes
            )
        )
        try:
            content = self._convert(reading, record, key=key, size=int(str(before["size"])))
        except FileNotFoundError:
            # Another run of the same files has put the parts together, and deleted them.
            copy = self._kept(key, before)
            if copy is None:
                raise
            return copy
        if {**_state(uri), **given} != before:
            raise InputChangedError(f"{name} changed while it was read; run again [QA0309]")
        self._record(key).put_json({"source": key, **before, **content})
        last = self._copy(record)
        if last is not None and last.path.name != content["copy"]:
            last.path.delete()
        made = self._copy(content)
        assert made is not None
        return made

    def _kept(self, key: str, state: Mapping[str, object]) -> TextCopy | None:
        """Return the copy of a file, if it was made of what the file is now."""
        record = read_json(self._record(key)) or {}
        is_same = all(record.get(name) == value for name, value in state.items())
        return self._copy(record) if is_same else None

    def _record(self, uri: str) -> StoragePath:
        return self.folder / f"{hash_text(uri)}.json"

    def _copy(self, record: Mapping[str, Any]) -> TextCopy | None:
        # A record may come from anybody: it says which copy, not where.
        name = str(record.get("copy", "")).rpartition("/")[2]
        path = self.folder / name
        if not name.endswith(".parquet") or not path.is_file():
            return None
        return TextCopy(path, str(record.get("content", "")), str(record.get("note", "")))

    def _convert(
        self, reading: TextReading, record: Mapping[str, Any], *, key: str, size: int
    ) -> dict[str, Any]:
        """Make a copy; return what is known of it."""
        parts = self.folder / f"{hash_text(key)}.parts"
        last = self._copy(record)
        known = [_Known(*own) for own in record.get("blocks", ())] if last is not None else []
        task = BlockTask(reading, parts, known=[own.hash for own in known])
        tasks, blocks = self._blocks(task, size)
        n_kept = next((i for i, own in enumerate(blocks) if own.part is not None), len(blocks))
        schemas = [own.schema for own in blocks if own.schema is not None]
        before = None
        if last is not None and len(schemas) < len(blocks):
            before = said_schema(pq.read_metadata(last.path.source()).schema)
            schemas.insert(0, before)
        otherwise = pa.json_() if reading.header is None else pa.string()
        schema = joined_schema(schemas, otherwise=otherwise)
        again = None
        while again is None:
            n_kept = n_kept if before == schema else 0
            try:
                again = self._again(tasks, blocks, schema, n_kept=n_kept, size=size)
            except InexactNumbersError as error:
                at = schema.get_field_index(error.column)
                schema = schema.set(at, pa.field(error.column, otherwise))
        found = [*known[:n_kept], *(_Known.of(own) for own in again[n_kept:])]
        content = hash_text("|".join([str(schema), *(own.hash for own in found)]))
        copy = self.folder / f"{hash_text(key)}-{content}.parquet"
        if not copy.is_file():
            _write_copy(copy, again, last if n_kept else None, found[:n_kept])
        parts.delete_folder()
        n_bad = sum(own.n_unreadable for own in found)
        first_bad = next((own.first for own in found if own.first), "")
        return {
            "content": content,
            "copy": copy.name,
            "note": _note(reading.name, n_bad, first_bad),
            "blocks": [list(own) for own in found],
        }

    def _blocks(self, task: BlockTask, size: int) -> tuple[list[BlockTask], list[TextBlock]]:
        """Return how a file was cut, and its blocks; whole where a cut is inside of quotes."""
        if task.reading.can_be_cut:
            tasks = _ranges(task, size)
            try:
                return tasks, self._read(tasks, size)
            except QuotedBreakError:
                pass
        return [task], self._read([task], size)

    def _read(self, tasks: Sequence[BlockTask], size: int) -> list[TextBlock]:
        label = f"reading {tasks[0].reading.name}"
        sizes = [
            _megabytes(size if task.stop is None else task.stop - task.start) for task in tasks
        ]
        workers = self.workers or ThreadWorkers()
        found = workers.read(tasks, label=label, sizes=sizes)
        return [block for own in found for block in own]

    def _again(
        self,
        tasks: Sequence[BlockTask],
        blocks: Sequence[TextBlock],
        schema: pa.Schema,
        *,
        n_kept: int,
        size: int,
    ) -> list[TextBlock]:
        """Read again what was read as other columns, or whose lines were not known by number."""
        first_lines = {}
        line = tasks[0].reading.first_line
        for block in blocks:
            is_numbered = not block.n_unreadable or block.first_line == line
            if block.number >= n_kept and not (block.schema == schema and is_numbered):
                first_lines[block.number] = line
            line += block.n_lines
        if not first_lines:
            return list(blocks)
        redo = Redo(schema, first_lines)
        chosen = [
            replace(task, redo=redo)
            for task in tasks
            if task.stop is None or task.number in first_lines
        ]
        done = {block.number: block for block in self._read(chosen, size)}
        return [done.get(block.number, block) for block in blocks]


class _Known(NamedTuple):
    """What a record keeps of a block."""

    hash: str
    n_groups: int
    n_unreadable: int
    first: str

    @classmethod
    def of(cls, block: TextBlock) -> _Known:
        return cls(block.hash, block.n_groups, block.n_unreadable, block.first)


def _ranges(task: BlockTask, size: int) -> list[BlockTask]:
    """Return a task for each block of a file that may be cut."""
    start, n_bytes = task.reading.start, task.reading.block_bytes
    stops = [*range((start // n_bytes + 1) * n_bytes, size, n_bytes), size]
    starts = [start, *stops[:-1]]
    return [
        replace(task, number=i, start=own, stop=stop)
        for i, (own, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def _write_copy(
    copy: StoragePath,
    blocks: Sequence[TextBlock],
    last: TextCopy | None,
    known: Sequence[_Known],
) -> None:
    """Put together the known blocks of the last copy and the parts of the others."""
    first = [] if last is None else [FirstGroups(last.path, sum(own.n_groups for own in known))]
    new = [block for block in blocks[len(known) :] if block.part]
    own = [block.part for block in new if block.part and block.n_groups]
    if not first and not own:  # A part without rows tells the columns.
        own = [block.part for block in new if block.part][:1]
    with copy.writer() as sink:
        join_parts([*first, *own], sink)


def _megabytes(n_bytes: int) -> int:
    return max(round(n_bytes / _MEGABYTE), 1)


def _note(name: str, n_unreadable: int, first: str) -> str:
    if not n_unreadable:
        return ""
    what = "1 line is" if n_unreadable == 1 else f"{n_unreadable:,} lines are"
    return f"{name}: {what} unreadable and quarantined. The first: {first}"


def _state(uri: str) -> dict[str, object]:
    """Return what tells whether a file is another one than before."""
    filesystem, path = open_filesystem(uri)
    try:
        info = filesystem.get_file_info(path)
        stamp = local_stamp(path) if "://" not in uri else ""
    except OSError as error:
        raise InputError(f"cannot read {uri}: {error} [QA0302]") from None
    return {"size": info.size, "mtime_ns": info.mtime_ns or 0, "stamp": stamp}


def held_standard_input() -> tuple[str, TextKind]:
    """Return a file of what comes on standard input, and its kind; it goes with this process.

    Raises
    ------
    InputError
        If nothing can come, or it is Parquet.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("- is standard input, and nothing is piped into it [QA0301]")
    head = sys.stdin.buffer.read(_HEAD_BYTES)
    if head.startswith(b"PAR1"):
        raise InputError("Parquet cannot be read from standard input; name its file [QA0301]")
    kind = sniffed_kind(head)
    folder = tempfile.TemporaryDirectory(prefix="qaeval-")
    _held.append(folder)
    path = Path(folder.name) / f"stdin{kind.suffix}"
    with files.writer(path) as sink:
        sink.write(head)
        while block := sys.stdin.buffer.read(_MEGABYTE):
            sink.write(block)
    return str(path), kind


def copies_of(
    section: InputSection,
    out: StoragePath | None,
    *,
    workers: Workers | None = None,
    is_of_run: bool = False,
    tell: Tell = _say_nothing,
) -> Copies:
    """Return the copies of a run: below OUT, or beside the artifacts of models without one."""
    return Copies(
        None if out is None else out / "inputs",
        encoding=section.encoding,
        texts=frozenset(section.columns.values()),
        workers=workers,
        is_of_run=is_of_run,
        tell=tell,
    )


def _cache() -> StoragePath:
    return as_path(default_root()) / "inputs"
