"""Footer: what a Parquet footer says of its row groups and column chunks, read without a crash.

Bytes in, tuples out. PyArrow reads footers, too, but its objects of column chunks end the process
where a damaged footer contradicts itself (an exception of C++ that nobody catches); its readers
raise. So what is asked of chunks before they are read is read here: Thrift's compact protocol,
whole, and of it the few fields that are needed.

But: schemas and values are PyArrow's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_TRUTHS = (1, 2)  # true and false: the type of a field is its value
_MAX_DEPTH = 32
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
        fields = _ThriftReader(content).struct(depth=0)
        # Of the schema's elements, those without children have a type, and chunks in their order.
        types = [given[1] for given in fields[2] if 1 in given and not given.get(5)]
        groups = tuple(_group(given, types) for given in fields[4])
        return Footer(int(fields[3]), groups)
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
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
    reader = _ThriftReader(content)
    try:
        found = dict(reader.field(number) for number in (0, 1))
        return int(found[1]), int(found[2])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no header of a page: {error!r}") from None


def _group(fields: dict[int, Any], types: Sequence[int]) -> Group:
    if len(fields[1]) != len(types):
        raise ValueError(f"a row group of {len(fields[1])} columns, in a file of {len(types)}")
    chunks = tuple(_chunk(given[3], kind) for given, kind in zip(fields[1], types, strict=True))
    return Group(int(fields[3]), int(fields[2]), chunks)


def _chunk(fields: dict[int, Any], kind: int) -> Chunk:
    starts = [int(fields[9]), int(fields.get(11, 0))]
    return Chunk(
        column=fields[3][0].decode("utf-8"),
        encodings=frozenset(fields[2]),
        n_values=int(fields[5]),
        n_bytes=int(fields[6]),
        start=min((start for start in starts if start > 0), default=0),
        is_flat=len(fields[3]) == 1,
        kind=kind,
    )


class _ThriftReader:
    """Reads Thrift's compact protocol; IndexError where it ends too soon."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        # By type: truths (a byte each in a list), bytes, whole numbers, doubles, texts, ...
        self._readers: dict[int, Callable[[int], Any]] = {
            **dict.fromkeys(_TRUTHS, lambda _: self._bytes(1)[0]),
            3: lambda _: self._bytes(1)[0],
            **dict.fromkeys((4, 5, 6), lambda _: self._whole()),
            7: lambda _: self._bytes(8),
            8: lambda _: self._bytes(self._varint()),
            **dict.fromkeys((9, 10), self._list),
            11: self._map,
            12: lambda depth: self.struct(depth=depth + 1),
        }

    def struct(self, *, depth: int) -> dict[int, Any]:
        """Return the fields of a struct, by their numbers."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"a footer of more than {_MAX_DEPTH} levels")
        found: dict[int, Any] = {}
        number = 0
        while self._content[self._at]:
            number, value = self.field(number, depth=depth)
            found[number] = value
        self._at += 1
        return found

    def field(self, number: int, *, depth: int = 0) -> tuple[int, Any]:
        """Return the number and value of the next field, after one of a number."""
        head = self._content[self._at]
        self._at += 1
        number = number + (head >> 4) if head >> 4 else self._whole()
        kind = head & 15
        if kind in _TRUTHS:
            return number, kind == _TRUTHS[0]
        return number, self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        return self._readers[kind](depth)

    def _list(self, depth: int) -> list[Any]:
        head = self._bytes(1)[0]
        n = head >> 4 if head >> 4 < 15 else self._varint()
        return [self._value(head & 15, depth + 1) for _ in range(n)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        n = self._varint()
        if not n:
            return []
        kinds = self._bytes(1)[0]
        return [
            (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1))
            for _ in range(n)
        ]

    def _bytes(self, n: int) -> bytes:
        found = self._content[self._at : self._at + n]
        if len(found) < n:
            raise IndexError("it ends too soon")
        self._at += n
        return found

    def _whole(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        content, at = self._content, self._at
        number = shift = 0
        while (byte := content[at]) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
        self._at = at + 1
        return number | byte << shift
