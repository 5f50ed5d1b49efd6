"""Blocks: stretches of whole rows of a file of text, each read, and written as a Parquet part.

Lines of plain JSON Lines and CSV are cut anywhere: a block has the lines that begin in its range of
bytes. Whatever is compressed, in another encoding or one document is read from its start on, and so
is CSV whose values have line breaks.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import InputError, UnreadableFileError
from qaeval_core.planning.filesystems import open_filesystem
from qaeval_core.planning.read_as import said_schema
from qaeval_core.planning.text_files.csv_rows import (
    Header,
    has_quoted_break,
    parse_records,
    read_header,
    whole_records,
)
from qaeval_core.planning.text_files.documents import document_rows
from qaeval_core.planning.text_files.json_lines import count_lines, parse_lines
from qaeval_core.planning.text_files.kinds import TextKind, known_encoding, marked_encoding
from qaeval_core.planning.text_files.parsed import (
    records_table,
    with_unreadable,
    without_unreadable,
)
from qaeval_core.planning.usual_names import is_usual
from qaeval_core.schema import UNREADABLE_LINE
from qaeval_core.signature import hash_text
from qaeval_core.storage.path import StoragePath

# Whatever changes the rows of the same bytes raises it.
_VERSION = 1
BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_LOOK_BYTES = 1 << 14
# PyArrow reads no larger line.
_MAX_LINE_BYTES = 1 << 30
_ROWS_OF_A_DOCUMENT = 1 << 16
_N_HASH_CHARS = 32
_MARK = codecs.BOM_UTF8
# Of the longest encoded character: of UTF-16 and UTF-32 the first one has a zero byte.
_N_SIGN_BYTES = 4


@dataclass(frozen=True, slots=True)
class TextReading:
    """A file of text, and how its rows are read.

    Attributes
    ----------
    name : str
        As messages show it.
    encoding : str, optional
        Other than UTF-8.
    texts : frozenset of str
        Columns of CSV that stay texts, beside those of usual names.
    header : Header, optional
        Of CSV.
    start : int
        Bytes before the first row.
    """

    uri: str
    name: str
    kind: TextKind
    encoding: str | None = None
    texts: frozenset[str] = frozenset()
    header: Header | None = None
    start: int = 0
    block_bytes: int = BLOCK_BYTES

    @property
    def key(self) -> str:
        """Hash of whatever changes the rows of the same bytes."""
        names = self.header.names if self.header is not None else ()
        delimiter = self.header.delimiter if self.header is not None else ""
        texts = sorted(self.text_columns)
        return hash_text(repr((_VERSION, names, delimiter, texts, self.encoding)))

    @property
    def text_columns(self) -> frozenset[str]:
        """Columns of CSV that stay texts."""
        names = self.header.names if self.header is not None else ()
        return frozenset(name for name in names if name in self.texts or is_usual(name))

    @property
    def can_be_cut(self) -> bool:
        """Whether a worker may begin anywhere, as far as is known."""
        is_one_line = self.header is None or self.header.is_one_line
        is_plain = self.kind.compression is None and self.encoding is None
        return is_plain and self.kind.format != "json" and is_one_line

    @property
    def first_line(self) -> int:
        """Number of the first line behind the header."""
        return 1 if self.header is None else 1 + self.header.n_lines


class Redo(NamedTuple):
    """Which blocks are read again, as these columns; the first line of each."""

    schema: pa.Schema
    first_lines: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class BlockTask:
    """What one worker reads: a range of lines, or a file from its start on.

    Attributes
    ----------
    folder : StoragePath
        Of the parts.
    number : int
        Of the first block.
    start, stop : int, optional
        Bytes in which the lines begin; ``stop`` is None where the whole file is read.
    known : sequence of str
        Hashes of the blocks that are not read into rows.
    """

    reading: TextReading
    folder: StoragePath
    number: int = 0
    start: int = 0
    stop: int | None = None
    known: Sequence[str] = ()
    redo: Redo | None = None


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Rows of a stretch of a file, in a part; without one where they are known."""

    number: int
    hash: str
    n_lines: int
    part: StoragePath | None = None
    n_rows: int = 0
    n_groups: int = 0
    n_unreadable: int = 0
    first: str = ""
    first_line: int = 1
    schema: pa.Schema | None = None


class QuotedBreakError(InputError):
    """A value of CSV goes on in the next line: the file is read from its start on."""


def read_blocks(task: BlockTask) -> list[TextBlock]:
    """Read what a task says; return its blocks in order.

    Raises
    ------
    QuotedBreakError
        If a range of CSV may be no range of records.
    InputError
        If the file cannot be read.
    """
    name = task.reading.name
    try:
        return list(_blocks(task))
    except UnicodeDecodeError as error:
        encoding = task.reading.encoding or "UTF-8"
        raise UnreadableFileError(f"{name} is not {encoding}: {error} [QA0304]") from None
    except OSError as error:
        raise InputError(f"cannot read {name}: {error} [QA0302]") from None


def _blocks(task: BlockTask) -> Iterator[TextBlock]:
    reading = task.reading
    if task.stop is not None:
        data = _lines(reading, task.start, task.stop)
        if reading.header is not None and has_quoted_break(data, reading.header.delimiter):
            raise QuotedBreakError(f"{reading.name} has line breaks in values [QA0304]")
        yield from _block(task, _stretch(reading, task.number, data, reading.first_line))
        return
    if reading.kind.format == "json":
        data = b"".join(_chunks(reading))
        rows = document_rows(data, name=reading.name)
        if rows is not None:
            yield from _document_blocks(task, data, rows)
            return
    line = reading.first_line
    for number, data in enumerate(_stretches(reading)):
        yield from _block(task, _stretch(reading, number, data, line))
        line += count_lines(data)


def _sum(reading: TextReading, data: bytes, *more: str) -> str:
    found = hashlib.sha256("|".join([reading.key, *more, ""]).encode())
    found.update(data)
    return found.hexdigest()[:_N_HASH_CHARS]


def _parse(
    reading: TextReading, data: bytes, n_lines: int, first_line: int, schema: pa.Schema | None
) -> pa.Table:
    if reading.header is None:
        name = reading.name
        return parse_lines(data, n_lines, name=name, first_line=first_line, schema=schema)
    return parse_records(
        data,
        reading.header,
        name=reading.name,
        texts=reading.text_columns,
        first_line=first_line,
        schema=schema,
    )


class _Stretch(NamedTuple):
    """What becomes a block; ``parse`` takes the first line and a schema."""

    number: int
    hash: str
    first_line: int
    n_lines: int
    parse: Callable[[int, pa.Schema | None], pa.Table]


def _stretch(reading: TextReading, number: int, data: bytes, first_line: int) -> _Stretch:
    n_lines = count_lines(data)
    parse = partial(_parse, reading, data, n_lines)
    return _Stretch(number, _sum(reading, data), first_line, n_lines, parse)


def _block(task: BlockTask, own: _Stretch) -> Iterator[TextBlock]:
    """Yield a block, with its part written; none where another one is asked for."""
    redo, schema, name, first_line = task.redo, None, own.hash, own.first_line
    if redo is not None:
        if own.number not in redo.first_lines:
            return
        first_line, schema = redo.first_lines[own.number], redo.schema
        name = f"{own.hash}-{hash_text(f'{first_line}|{schema}')}"
    block = TextBlock(own.number, own.hash, own.n_lines, first_line=first_line)
    if redo is None and own.number < len(task.known) and task.known[own.number] == own.hash:
        yield block
        return
    part = task.folder / f"{name}.parquet"
    if not part.is_file():
        table = _as_written(own.parse(first_line, schema))
        with part.writer(is_flushed=False) as sink:
            # Dictionaries take as long as half of the parsing; equal texts beside each other are
            # short without.
            pq.write_table(
                table,
                sink,
                row_group_size=max(table.num_rows, 1),
                compression="snappy",
                use_dictionary=False,
                write_page_checksum=True,
            )
    yield _written(block, part)


def _as_written(table: pa.Table) -> pa.Table:
    """Return a table with the types that a reader finds: of parts the footers must be alike."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.schema.empty_table(), sink)
    return table.cast(said_schema(pq.read_metadata(pa.BufferReader(sink.getvalue())).schema))


def _written(block: TextBlock, part: StoragePath) -> TextBlock:
    """Return a block with what its part says."""
    file = pq.ParquetFile(part.source())
    metadata = file.metadata
    why = file.read([UNREADABLE_LINE])[UNREADABLE_LINE].drop_null()
    return replace(
        block,
        part=part,
        n_rows=metadata.num_rows,
        n_groups=metadata.num_row_groups,
        n_unreadable=len(why),
        first=why[0].as_py() if len(why) else "",
        schema=said_schema(metadata.schema),
    )


def _document_blocks(
    task: BlockTask, data: bytes, rows: Iterator[dict[str, Any]]
) -> Iterator[TextBlock]:
    has_halves = b"\\ud" in data.lower()
    number = 0
    while records := list(islice(rows, _ROWS_OF_A_DOCUMENT)):
        hash_ = _sum(task.reading, data, str(number))
        first = number * _ROWS_OF_A_DOCUMENT
        why = {
            i: f"{task.reading.name}, row {first + i}: it has half of a surrogate pair"
            for i, record in enumerate(records)
            if has_halves and _has_half(record)
        }
        parse = partial(_parse_rows, records, why)
        yield from _block(task, _Stretch(number, hash_, 0, 0, parse))
        number += 1


def _parse_rows(
    records: Sequence[dict[str, Any]], why: Mapping[int, str], _: int, schema: pa.Schema | None
) -> pa.Table:
    own = [None if i in why else record for i, record in enumerate(records)]
    table = records_table(own, without_unreadable(schema))
    return with_unreadable(table, len(records), why)


def _has_half(record: object) -> bool:
    """Return whether a text of a record has half of a surrogate pair, which is no character."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _lines(reading: TextReading, start: int, stop: int) -> bytes:
    """Return the lines that begin in a range of bytes."""
    filesystem, path = open_filesystem(reading.uri)
    with filesystem.open_input_file(path) as file:
        n_bytes = int(file.size())
        # A line begins behind the end of another one.
        first = start if start == reading.start else _line_end(reading, file, start - 1, n_bytes)
        last = _line_end(reading, file, stop - 1, n_bytes)
        return bytes(file.read_at(max(last - first, 0), first))


def _line_end(reading: TextReading, file: pa.NativeFile, at: int, n_bytes: int) -> int:
    """Return where the line ends that a byte is in."""
    begin = at
    while at < n_bytes:
        more = bytes(file.read_at(min(_LOOK_BYTES, n_bytes - at), at))
        end = more.find(b"\n") + 1
        if end or not more:
            return at + end
        at += len(more)
        _check_line(reading, at - begin)
    return n_bytes


def _check_line(reading: TextReading, n_bytes: int) -> None:
    if n_bytes > _MAX_LINE_BYTES:
        raise UnreadableFileError(
            f"{reading.name} has a line of more than {_MAX_LINE_BYTES:,} bytes [QA0304]"
        )


def _stretches(reading: TextReading) -> Iterator[bytes]:
    """Yield whole rows of a file in order, about a block at once."""
    left = b""
    skipped = 0 if reading.header is None else reading.header.n_bytes
    for chunk in _sized(_chunks(reading), reading.block_bytes):
        data = left + chunk
        if skipped:
            taken = min(skipped, len(data))
            data, skipped = data[taken:], skipped - taken
        if reading.header is not None:
            n_whole = whole_records(data, reading.header.delimiter)
        else:
            n_whole = data.rfind(b"\n") + 1
        if n_whole:
            yield data[:n_whole]
        left = data[n_whole:]
        _check_line(reading, len(left))
    if left:
        yield left


def _sized(chunks: Iterator[bytes], n_bytes: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size, however they come."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= n_bytes:
            yield bytes(held[:n_bytes])
            del held[:n_bytes]
    if held:
        yield bytes(held)


def _chunks(reading: TextReading) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8 without its mark."""
    filesystem, path = open_filesystem(reading.uri)
    compression = reading.kind.compression
    decode = codecs.getincrementaldecoder(reading.encoding)() if reading.encoding else None
    is_first = True
    with filesystem.open_input_stream(path, compression=compression) as file:
        while chunk := file.read(_READ_BYTES):
            text = decode.decode(chunk).encode() if decode is not None else bytes(chunk)
            yield text.removeprefix(_MARK) if is_first else text
            is_first = False
    if decode is not None:
        yield decode.decode(b"", final=True).encode()


def looked_at(reading: TextReading) -> TextReading:
    """Return how a file is read, by its first bytes: its encoding, and the header of CSV.

    Raises
    ------
    ConfigError
        If the encoding that is asked for is unknown.
    InputError
        If the file cannot be read, is empty, or has no header.
    """
    if reading.encoding is not None:
        codec = known_encoding(reading.encoding)
        reading = replace(reading, encoding=None if codec in ("utf-8", "utf-8-sig") else codec)
    try:
        head = next(_chunks(replace(reading, encoding=None)), b"")
        marked = marked_encoding(head)  # That of UTF-8 is gone.
        if reading.encoding is None and marked is not None:
            reading = replace(reading, encoding=marked)
        if reading.kind.compression is None and reading.encoding is None:
            filesystem, path = open_filesystem(reading.uri)
            with filesystem.open_input_stream(path) as file:
                reading = replace(reading, start=len(_MARK) * (file.read(len(_MARK)) == _MARK))
        head = next(_sized(_chunks(reading), _READ_BYTES), b"")
    except UnicodeDecodeError as error:
        raise UnreadableFileError(
            f"{reading.name} is not {reading.encoding}: {error} [QA0304]"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {reading.name}: {error} [QA0302]") from None
    if not head.strip():
        raise UnreadableFileError(f"{reading.name} is empty [QA0304]")
    if b"\0" in head[:_N_SIGN_BYTES]:
        raise UnreadableFileError(
            f"{reading.name} begins with a zero byte, so it is not UTF-8; name its encoding, such "
            "as --encoding utf-16-le [QA0304]"
        )
    if reading.kind.format not in ("csv", "tsv"):
        return reading
    delimiter = "\t" if reading.kind.format == "tsv" else None
    header = read_header(head, name=reading.name, delimiter=delimiter)
    return replace(reading, header=header, start=reading.start + header.n_bytes)
