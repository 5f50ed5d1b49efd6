"""Footer: what a Parquet footer says of its row groups and column chunks, read without a crash.

Bytes in, tuples out. PyArrow reads footers, too, but its objects of column chunks end the process
where a damaged footer contradicts itself (an exception of C++ that nobody catches); its readers
raise. So what is asked of chunks before they are read is read here: of Thrift's compact protocol
the few fields that are needed. All others are stepped over, most of them by one regular expression.

But: schemas and values are PyArrow's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# Types of Thrift's compact protocol. Of truths the type of a field is its value.
_TRUTHS, _BYTE, _WHOLE, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (
    (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12,
)  # fmt: skip
_I32, _I64, _LIST = 5, 6, 9
_SIZES = {**dict.fromkeys((*_TRUTHS, _BYTE), 1), _DOUBLE: 8}  # in a list or map
_MAX_DEPTH = 32
_MAX_SHIFT = 63
# Physical types: whoever reads chunks tells numbers from texts by them.
BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = 6, 7


class Chunk(NamedTuple):
    """One column of one row group."""

    column: str  # the top of its path
    encodings: frozenset[int]
    n_values: int
    n_bytes: int  # uncompressed
    start: int  # of its first page in the file
    is_flat: bool  # no part of a list or struct
    kind: int  # physical type of its values


class Group(NamedTuple):
    """One row group."""

    n_rows: int
    n_bytes: int
    chunks: tuple[Chunk, ...]


class Footer(NamedTuple):
    """The counts of a file."""

    n_rows: int
    groups: tuple[Group, ...]


def _heads(*kinds: int) -> bytes:
    """Return the class of bytes that begin a field of some types, its number being told by one."""
    return b"[" + b"".join(b"\\x%02x" % (up << 4 | k) for k in kinds for up in range(1, 16)) + b"]"


def _counted(each: Callable[[int], bytes], n: int) -> bytes:
    """Return what matches what begins with its length, for lengths below n."""
    return b"(?:" + b"|".join(each(i) for i in range(n)) + b")"


# A number; fields that hold no others, all but long texts and lists; the rest of a struct of these
# and of structs of these. Lists of structs hold numbers alone. Nothing is tried twice: *+.
_NUMBER = rb"[\x80-\xff]*+[\x00-\x7f]"
_NUMBERS = _heads(*_WHOLE) + _NUMBER
_TEXT = _counted(lambda n: b"\\x%02x.{%d}" % (n, n), 25)
_PLAIN = b"|".join(
    [
        _NUMBERS,
        _heads(*_TRUTHS),
        _heads(_BINARY) + _TEXT,
        _heads(_LIST) + _counted(lambda n: b"[\\x%x4-\\x%x6](?:%s){%d}" % (n, n, _NUMBER, n), 9),
    ]
)
_REST = b"(?:%s|%s(?:%s|%s\\x00)*+\\x00|%s)*+\\x00" % (
    _PLAIN,
    _heads(_STRUCT),
    _PLAIN,
    _heads(_STRUCT),
    _heads(_LIST) + _counted(lambda n: b"\\x%xc(?:(?:%s)*+\\x00){%d}" % (n, _NUMBERS, n), 5),
)


def _usual(start: bytes, n_structs: int) -> re.Pattern[bytes]:
    """Return what matches structs from their start: N is a number, T a text, E and P lists."""
    numbers = _counted(lambda n: b"\\x%x5(?:N){%d}" % (n, n), 7)
    texts = _counted(lambda n: b"\\x%x8(?:T){%d}" % (n, n), 7)
    for name, pattern in ((b"E", numbers), (b"P", texts), (b"T", _TEXT), (b"N", _NUMBER)):
        start = start.replace(name, pattern)
    return re.compile(start + n_structs * _REST, re.DOTALL)


_BEHIND_STRUCT = _usual(b"", 1)
# As writers write them. An element of the schema: type, its length, repetition, name, children.
_USUAL_ELEMENT = _usual(rb"(?:\x15(N)(?:\x15N\x15|\x25)|\x35)N\x18T(?:\x15(N))?", 1)
# A column chunk: file offset; then its type, encodings, path, codec, values, bytes, packed bytes,
# and the offsets of its pages and its dictionary.
_USUAL_COLUMN = _usual(
    rb"\x26N\x1c\x15N\x19(E)\x19(P)\x15N\x16(N)\x16(N)\x16N\x26(N)(?:\x26(N))?", 2
)

# Returns what is read at a place, and the place behind it; IndexError where bytes end too soon.
_Read = Callable[[bytes, int], tuple[Any, int]]


@functools.lru_cache(maxsize=4)
def parse_footer(content: bytes) -> Footer:
    """Return what a footer says.

    Parameters
    ----------
    content : bytes
        Without its length and the magic number.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        fields, end = _fields(content, 0, _FILE)
        if end > len(content):
            raise IndexError("it ends too soon")
        # Of the schema's elements, those without children have a type, and chunks in their order.
        types = [kind for kind, n_children in fields[2] if kind is not None and not n_children]
        groups = tuple(_group(given, types) for given in fields[4])
        return Footer(fields[3], groups)
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"no footer of Parquet: {error!r}") from None


def page_header(content: bytes) -> tuple[int, int]:
    """Return the type and the uncompressed size of a page, of its first bytes.

    Examples
    --------
    >>> page_header(bytes([0x15, 0x04, 0x15, 0x80, 0x02, 0x15]))
    (2, 128)

    Raises
    ------
    ValueError
        If it is no header of a page.
    """
    if not (content[:1] == bytes([1 << 4 | _I32])):
        raise ValueError("no header of a page")
    try:
        kind, at = _whole(content, 1)
        if content[at] != 1 << 4 | _I32:
            raise ValueError("no header of a page")
        return kind, _whole(content, at + 1)[0]
    except IndexError as error:
        raise ValueError(f"no header of a page: {error!r}") from None


def _group(fields: Mapping[int, Any], types: Sequence[int]) -> Group:
    if len(fields[1]) != len(types):
        raise ValueError(f"a row group of {len(fields[1])} columns, in a file of {len(types)}")
    chunks = tuple(map(_chunk, fields[1], types))
    return Group(fields[3], fields[2], chunks)


def _chunk(fields: Mapping[int, Any], kind: int) -> Chunk:
    path = fields[3]
    first, dictionary = fields[9], fields.get(11, 0)
    starts = [start for start in (first, dictionary) if start > 0]
    return Chunk(
        path[0].decode("utf-8"),
        frozenset(fields[2]),
        fields[5],
        fields[6],
        min(starts, default=0),
        len(path) == 1,
        kind,
    )


def _fields(
    content: bytes, at: int, wanted: Mapping[int, tuple[int, _Read]]
) -> tuple[dict[int, Any], int]:
    """Return the wanted fields of a struct by their numbers, and the place behind it.

    Parameters
    ----------
    wanted : mapping of number and type of a field, number << 4 | type, to (number, reader)
    """
    found: dict[int, Any] = {}
    number, last = 0, max(wanted) >> 4
    while head := content[at]:
        start, at = at, at + 1
        if head > 15:
            number += head >> 4
        else:
            number, at = _whole(content, at)
        if number > last:  # Fields stand in the order of their numbers.
            return found, _behind_struct(content, start, 1)
        kind = head & 15
        reader = wanted.get(number << 4 | kind)
        if reader is not None:
            found[reader[0]], at = reader[1](content, at)
        elif kind in _WHOLE:
            while content[at] > 127:
                at += 1
            at += 1
        elif kind not in _TRUTHS:
            at = _behind(content, at, kind, 1)
    return found, at + 1


def _behind(content: bytes, at: int, kind: int, depth: int) -> int:
    """Return the place behind a value that nobody wants."""
    if kind in _WHOLE:
        while content[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        n_bytes, at = _varint(content, at)
        return at + n_bytes
    if kind in _SIZES:
        return at + _SIZES[kind]
    if depth > _MAX_DEPTH:
        raise ValueError(f"a footer of more than {_MAX_DEPTH} levels")
    if kind == _STRUCT:
        return _behind_struct(content, at, depth)
    if kind in _LISTS:
        kind, n_values, at = _list_head(content, at)
        return _behind_values(content, at, (kind,), n_values, depth)
    return _behind_map(content, at, kind, depth)


def _behind_map(content: bytes, at: int, kind: int, depth: int) -> int:
    if kind != _MAP:
        raise ValueError(f"no type of a field is {kind}")
    n_values, at = _varint(content, at)
    if not n_values:
        return at
    return _behind_values(content, at + 1, divmod(content[at], 16), n_values, depth)


def _behind_struct(content: bytes, at: int, depth: int) -> int:
    found = _BEHIND_STRUCT.match(content, at)
    if found is not None:
        return found.end()
    while head := content[at]:
        at += 1
        if head < 16:
            at = _behind(content, at, _I64, depth)
        kind = head & 15
        if kind == _BINARY and content[at] < 128:
            at += content[at] + 1
        elif kind not in _TRUTHS:
            at = _behind(content, at, kind, depth + 1)
    return at + 1


def _behind_values(content: bytes, at: int, kinds: Sequence[int], n_values: int, depth: int) -> int:
    """Return the place behind values of a list, or pairs of a map."""
    if len(kinds) == 1 and kinds[0] in _SIZES:
        return at + _SIZES[kinds[0]] * n_values
    for _ in range(n_values):
        for kind in kinds:
            at = _SIZES[kind] + at if kind in _SIZES else _behind(content, at, kind, depth + 1)
            if at > len(content):
                raise IndexError("it ends too soon")
    return at


def _list_head(content: bytes, at: int) -> tuple[int, int, int]:
    """Return type and number of a list's values, and the place of the first one."""
    head = content[at]
    if head >> 4 < 15:
        return head & 15, head >> 4, at + 1
    n_values, at = _varint(content, at + 1)
    return head & 15, n_values, at


def _list_of(kind: int, read: _Read) -> _Read:
    def read_list(content: bytes, at: int) -> tuple[list[Any], int]:
        found_kind, n_values, at = _list_head(content, at)
        if found_kind != kind and n_values:
            raise ValueError(f"a list of type {found_kind} where {kind} is needed")
        values = []
        for _ in range(n_values):
            value, at = read(content, at)
            values.append(value)
        return values, at

    return read_list


def _binary(content: bytes, at: int) -> tuple[bytes, int]:
    n_bytes, at = _varint(content, at)
    end = at + n_bytes
    if end > len(content):
        raise IndexError("it ends too soon")
    return content[at:end], end


def _whole(content: bytes, at: int) -> tuple[int, int]:
    number = content[at]
    if number < 128:
        return number >> 1 ^ -(number & 1), at + 1
    number, at = _varint(content, at)
    return number >> 1 ^ -(number & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := content[at]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > _MAX_SHIFT:
            raise ValueError("a number of more than 64 bits")
    return number | byte << shift, at + 1


def _struct(numbers: Mapping[int, tuple[int, _Read]]) -> _Read:
    """Return what reads a struct: of its fields those of some numbers, each of one type."""
    wanted = {number << 4 | kind: (number, read) for number, (kind, read) in numbers.items()}
    return lambda content, at: _fields(content, at, wanted)


def _element(content: bytes, at: int) -> tuple[tuple[int | None, int | None], int]:
    """Return the type of an element of the schema, and how many children it has."""
    usual = _USUAL_ELEMENT.match(content, at)
    if usual is None:
        found, at = _fields(content, at, _OF_ELEMENT)
        return (found.get(1), found.get(5)), at
    kind, n_children = usual.groups()
    return (_maybe(kind), _maybe(n_children)), usual.end()


def _maybe(number: bytes | None) -> int | None:
    return None if number is None else int(_whole(number, 0)[0])


def _column(content: bytes, at: int) -> tuple[Mapping[int, Any], int]:
    """Return the metadata of a column chunk."""
    usual = _USUAL_COLUMN.match(content, at)
    if usual is None:
        found, at = _fields(content, at, _OF_COLUMN)
        return found[3], at
    encodings, path, *numbers = usual.groups()
    metadata = {2: _encodings(encodings), 3: _path(path)}
    for number, given in zip((5, 6, 9, 11), numbers, strict=True):
        if given is not None:
            metadata[number] = _whole(given, 0)[0]
    return metadata, usual.end()


# Of few columns and one writer: the same bytes again and again.
@functools.lru_cache(maxsize=1024)
def _encodings(content: bytes) -> list[int]:
    found: list[int] = _list_of(_I32, _whole)(content, 0)[0]
    return found


@functools.lru_cache(maxsize=1024)
def _path(content: bytes) -> list[bytes]:
    found: list[bytes] = _list_of(_BINARY, _binary)(content, 0)[0]
    return found


_OF_ELEMENT = {number << 4 | _I32: (number, _whole) for number in (1, 5)}
_METADATA = _struct(
    {
        2: (_LIST, _list_of(_I32, _whole)),
        3: (_LIST, _list_of(_BINARY, _binary)),
        **dict.fromkeys((5, 6, 9, 11), (_I64, _whole)),
    }
)
_OF_COLUMN = {3 << 4 | _STRUCT: (3, _METADATA)}
_GROUP = _struct({1: (_LIST, _list_of(_STRUCT, _column)), 2: (_I64, _whole), 3: (_I64, _whole)})
_FILE = {
    2 << 4 | _LIST: (2, _list_of(_STRUCT, _element)),
    3 << 4 | _I64: (3, _whole),
    4 << 4 | _LIST: (4, _list_of(_STRUCT, _GROUP)),
}
