"""Parquet parts: files of one schema put together byte by byte, without decoding a row.

Several workers write the parts of one large file; what follows is a copy. Between its magic number
and its footer a Parquet file holds pages, and the footer says where each column chunk begins: parts
are laid one after another, and the places of each are moved by where it begins now.

Source
------
Apache Parquet, ``parquet.thrift`` (field numbers), and Thrift's compact protocol.

But: reading footers without a crash is `planning.footer`'s; these footers are our own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NamedTuple

from qaeval_core.storage.checksums import Written
from qaeval_core.storage.path import AnyPath, StoragePath, as_path

_MAGIC = b"PAR1"
_BLOCK_BYTES = 1 << 22
_TRUE, _FALSE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 8, 9, 10, 11, 12
# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 1, 3, 5, 7
_CHUNK_OFFSETS, _CHUNK_META = (2, 4, 6), 3
_PAGE_OFFSETS = (9, 10, 11, 14)
_MAX_ORDINAL = 32_767


class _Field(NamedTuple):
    kind: int
    value: Any


class _Items(NamedTuple):
    kind: int
    values: list[Any]


_Struct = dict[int, _Field]


class FirstGroups(NamedTuple):
    """The first row groups of a file without page indexes, as a part."""

    path: StoragePath
    n_groups: int


def copy_part(part: AnyPath, sink: Written) -> None:
    """Write a part that is the whole file, as it is."""
    with as_path(part).open("rb") as source:
        while block := source.read(_BLOCK_BYTES):
            sink.write(block)


def join_parts(parts: Sequence[AnyPath | FirstGroups], sink: Written) -> int:
    """Write a Parquet file with the row groups of several, in order.

    Parameters
    ----------
    parts : sequence of StoragePath, Path, str or FirstGroups
        One at least; written with the same schema and metadata, not encrypted.
    sink : file
        Open for writing, empty.

    Returns
    -------
    int
        Rows.

    Raises
    ------
    ValueError
        If a part is no Parquet file, or its schema is another one.
    """
    sink.write(_MAGIC)
    position = len(_MAGIC)
    footer: _Struct | None = None
    for given in parts:
        path = given.path if isinstance(given, FirstGroups) else given
        with as_path(path).open("rb") as part:
            own, n_bytes = _read_footer(part, path)
            if isinstance(given, FirstGroups):
                n_bytes = _keep_first(own, given.n_groups, n_bytes)
            for group in own[_ROW_GROUPS].value.values:
                _move(group, by=position - len(_MAGIC))
            part.seek(len(_MAGIC))
            _copy(part, sink, n_bytes)
        position += n_bytes
        footer = own if footer is None else _joined(footer, own, path)
    if footer is None:
        raise ValueError("no parts")
    for i, group in enumerate(footer[_ROW_GROUPS].value.values):
        if i <= _MAX_ORDINAL and _ORDINAL in group:
            group[_ORDINAL] = _Field(group[_ORDINAL].kind, i)
        else:
            group.pop(_ORDINAL, None)
    content = _Writer().struct(footer)
    sink.write(content + struct.pack("<I", len(content)) + _MAGIC)
    return int(footer[_NUM_ROWS].value)


def _read_footer(part: BinaryIO, path: AnyPath) -> tuple[_Struct, int]:
    """Return a footer, and how many bytes lie between it and the magic number."""
    size = part.seek(0, 2)
    part.seek(max(size - 8, 0))
    tail = part.read()
    n_footer = int.from_bytes(tail[:4], "little")
    n_body = size - 8 - n_footer - len(_MAGIC)
    if tail[4:] != _MAGIC or n_body < 0:
        raise ValueError(f"{path} is no whole Parquet file")
    part.seek(size - 8 - n_footer)
    return _StructReader(part.read(n_footer)).struct(), n_body


def _keep_first(footer: _Struct, n_groups: int, n_bytes: int) -> int:
    """Leave the first row groups in a footer; return how many bytes they take."""
    groups = footer[_ROW_GROUPS].value.values
    if n_groups < len(groups):
        n_bytes = _first_byte(groups[n_groups]) - len(_MAGIC)
    del groups[n_groups:]
    n_rows = sum(group[_GROUP_ROWS].value for group in groups)
    footer[_NUM_ROWS] = _Field(footer[_NUM_ROWS].kind, n_rows)
    return n_bytes


def _first_byte(group: _Struct) -> int:
    chunks = [chunk[_CHUNK_META].value for chunk in group[_COLUMNS].value.values]
    places = [
        chunk[number].value for chunk in chunks for number in _PAGE_OFFSETS if number in chunk
    ]
    return int(min(place for place in places if place))


def _joined(first: _Struct, other: _Struct, path: AnyPath) -> _Struct:
    own = (_NUM_ROWS, _ROW_GROUPS)
    differing = [key for key in first if key not in own and first[key] != other.get(key)]
    if differing or first.keys() != other.keys():
        raise ValueError(f"{path} has another schema than the parts before it")
    n_rows = first[_NUM_ROWS].value + other[_NUM_ROWS].value
    first[_ROW_GROUPS].value.values.extend(other[_ROW_GROUPS].value.values)
    return {**first, _NUM_ROWS: _Field(first[_NUM_ROWS].kind, n_rows)}


def _move(group: _Struct, *, by: int) -> None:
    """Move the places that a row group names."""
    _move_fields(group, (_GROUP_OFFSET,), by)
    for chunk in group[_COLUMNS].value.values:
        _move_fields(chunk, _CHUNK_OFFSETS, by)
        _move_fields(chunk[_CHUNK_META].value, _PAGE_OFFSETS, by)


def _move_fields(fields: _Struct, numbers: Sequence[int], by: int) -> None:
    for number in numbers:
        # 0 is "nowhere": a page never lies where the magic number is.
        if number in fields and fields[number].value:
            kind, value = fields[number]
            fields[number] = _Field(kind, value + by)


def _copy(source: BinaryIO, sink: Written, n_bytes: int) -> None:
    while n_bytes > 0:
        block = source.read(min(n_bytes, _BLOCK_BYTES))
        if not block:
            raise ValueError("a part ends before its footer")
        sink.write(block)
        n_bytes -= len(block)


class _StructReader:
    """Reads a struct of the compact protocol into fields that `_Writer` writes as they were."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self) -> _Struct:
        found: _Struct = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._whole()
            kind = head & 15
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)
            found[number] = _Field(_TRUE if kind == _FALSE else kind, value)
        return found

    def _value(self, kind: int) -> Any:
        readers: dict[int, Callable[[], Any]] = {
            **dict.fromkeys((_TRUE, _FALSE, 3), lambda: self._take(1)),
            **dict.fromkeys((4, 5, 6), self._whole),
            7: lambda: self._take(8),
            _BINARY: lambda: self._take(self._varint()),
            **dict.fromkeys((_LIST, _SET), self._items),
            _STRUCT: self.struct,
        }
        if kind not in readers:
            raise ValueError(f"a footer with a field of type {kind}")
        return readers[kind]()

    def _items(self) -> _Items:
        head = self._take(1)[0]
        n = head >> 4 if head >> 4 < 15 else self._varint()
        return _Items(head & 15, [self._value(head & 15) for _ in range(n)])

    def _take(self, n: int) -> bytes:
        found = self._content[self._at : self._at + n]
        if len(found) < n:
            raise ValueError("a footer ends too soon")
        self._at += n
        return found

    def _whole(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._take(1)[0]) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift


class _Writer:
    """Writes what `_StructReader` reads."""

    def struct(self, fields: _Struct) -> bytes:
        out = bytearray()
        last = 0
        for number, (kind, value) in fields.items():
            is_truth = kind == _TRUE
            shown = (_TRUE if value else _FALSE) if is_truth else kind
            step = number - last
            if 0 < step < 16:
                out.append(step << 4 | shown)
            else:
                out.append(shown)
                out += _whole(number)
            last = number
            if not is_truth:
                out += self._value(kind, value)
        out.append(0)
        return bytes(out)

    def _value(self, kind: int, value: Any) -> bytes:
        if kind in (4, 5, 6):
            return _whole(value)
        if kind == _BINARY:
            return _varint(len(value)) + bytes(value)
        if kind in (_LIST, _SET):
            n = len(value.values)
            head = bytes([min(n, 15) << 4 | value.kind]) + (_varint(n) if n >= 15 else b"")
            return head + b"".join(self._value(value.kind, item) for item in value.values)
        return self.struct(value) if kind == _STRUCT else bytes(value)


def _whole(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
