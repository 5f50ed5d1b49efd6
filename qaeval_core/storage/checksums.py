"""Checksums: Parquet files that say so when a bit of them has turned.

A file holds the SHA-256 of itself in its metadata, computed with zeros in the place of the digits.
Parquet's own checksums are of pages' bodies: of single bits turned in commits 65 % gave other
values in silence without them, and 0.6 % with them, in headers and footer.

But: who can write a file can also write its checksum. This is for disks, not for forgers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from qaeval_core.storage.path import AnyPath, as_path

KEY = b"qaeval.checksum"
_PREFIX = b"sha256:"
_N_DIGITS = 64
_ZEROS = b"0" * _N_DIGITS
# What the metadata of a file to be sealed holds under ``KEY``.
PLACEHOLDER = _PREFIX + _ZEROS
# As Thrift's compact protocol writes a key and, in its next field, a value of this length.
_MARK = KEY + b"\x18" + bytes([len(PLACEHOLDER)]) + _PREFIX
_BLOCK_BYTES = 1 << 20
_TAIL_BYTES = 8  # length of the footer, magic
# The checksum's place is known once the footer is written, and what is sent to an object store does
# not come back. Behind the place the footer has the schema, which is shorter by far.
_HELD_BYTES = 16 << 20


class Written(Protocol):
    """A file that grows."""

    def write(self, content: bytes, /) -> int:
        """Write on."""


class SealedFile:
    """A file that Parquet is written to, and that gets its checksum at the end.

    Its last bytes are held back until then.

    Parameters
    ----------
    file : file
        Open for writing, empty.

    Examples
    --------
    >>> import io
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> file = io.BytesIO()
    >>> sink = SealedFile(file)
    >>> pq.write_table(pa.table({"x": [1]}).replace_schema_metadata({KEY: PLACEHOLDER}), sink)
    >>> sink.seal()
    >>> content = file.getvalue()
    >>> is_intact(content), is_intact(content.replace(b"PAR1", b"PAR2", 1)), is_intact(b"PAR1")
    (True, False, None)
    """

    def __init__(self, file: Written) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._held = bytearray()
        self._n_bytes = 0
        self.closed = False

    def write(self, content: bytes) -> int:
        """Write on."""
        self._hash.update(content)
        self._held += content
        self._n_bytes += len(content)
        if len(self._held) >= 2 * _HELD_BYTES:
            n_whole = len(self._held) - _HELD_BYTES
            self._file.write(bytes(memoryview(self._held)[:n_whole]))
            del self._held[:n_whole]
        return len(content)

    def tell(self) -> int:
        """Return how much was written."""
        return self._n_bytes

    def flush(self) -> None:
        """Nothing: what is held back waits for the checksum."""

    def seal(self) -> None:
        """Put the checksum into its place, and hand on all.

        Raises
        ------
        ValueError
            If the metadata has no place for it.
        """
        place = _find(self._held)
        if place is None:
            raise ValueError(f"the metadata holds no {KEY.decode()}")
        self._held[place : place + _N_DIGITS] = self._hash.hexdigest().encode()
        self._file.write(bytes(self._held))
        self._held.clear()


class HashedFile:
    """Hands on what is written, and hashes it: who reads it again can tell whether it turned.

    Parameters
    ----------
    file : file
        Open for writing, empty.

    Attributes
    ----------
    hash : SHA-256 of what was written
    """

    closed = False

    def __init__(self, file: Written) -> None:
        self._file = file
        self._n_bytes = 0
        self.hash = hashlib.sha256()

    def write(self, content: bytes, /) -> int:
        """Write on."""
        self.hash.update(content)
        self._file.write(content)
        self._n_bytes += len(content)
        return len(content)

    def tell(self) -> int:
        """Return how much was written."""
        return self._n_bytes

    def flush(self) -> None:
        """Nothing: who opened the file ends it."""


def hash_of(path: AnyPath) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    found = hashlib.sha256()
    with as_path(path).open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def is_intact(content: bytes) -> bool | None:
    """Return whether a file's bytes are those that were sealed; None if it never was."""
    place = _find(content)
    if place is None:
        return None
    told = content[place : place + _N_DIGITS]
    found = hashlib.sha256(content[:place])
    found.update(_ZEROS)
    found.update(memoryview(content)[place + _N_DIGITS :])
    return found.hexdigest().encode() == told


def is_file_intact(path: AnyPath) -> bool | None:
    """Return what `is_intact` does, reading a file piece by piece."""
    with as_path(path).open("rb") as file:
        offset = _offset_in(file)
        if offset is None:
            return None
        file.seek(offset)
        told = file.read(_N_DIGITS)
        found = hashlib.sha256()
        file.seek(0)
        for block in _blocks(file, n_bytes=offset):
            found.update(block)
        found.update(_ZEROS)
        file.seek(offset + _N_DIGITS)
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest().encode() == told


def _blocks(file: BinaryIO, *, n_bytes: int) -> Iterator[bytes]:
    while n_bytes > 0:
        block = file.read(min(n_bytes, _BLOCK_BYTES))
        if not block:
            return
        n_bytes -= len(block)
        yield block


def _offset_in(file: BinaryIO) -> int | None:
    """Return where the digits lie in an open file, by its footer."""
    n_bytes = file.seek(0, 2)
    file.seek(max(n_bytes - _TAIL_BYTES, 0))
    footer_bytes = int.from_bytes(file.read(4), "little") + _TAIL_BYTES
    start = max(n_bytes - footer_bytes, 0)
    file.seek(start)
    place = _find(file.read(n_bytes - start))
    return None if place is None else start + place


def _find(content: bytes | bytearray) -> int | None:
    # The last one: texts of rows may hold the same bytes, and stand before the metadata.
    place = content.rfind(_MARK)
    return None if place < 0 else place + len(_MARK)
