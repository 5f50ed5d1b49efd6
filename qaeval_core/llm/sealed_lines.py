"""Sealed lines: lines of JSON that say so when a bit of them has turned.

A line ends with the CRC-32 of what stands before it: no single bit turns unseen, and no run of 32.

But: who can write a line can also seal it. This is for disks, not for forgers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

MAX_LINE_BYTES = 1 << 20
_MARK = b',"crc32":"'
_END = b'"}\n'
_SEAL_BYTES = len(_MARK) + 8 + len(_END)
# What is kept of a line that is too long.
_TAIL_BYTES = 4096


class Line(NamedTuple):
    """One line of a file; of one that is too long, its end."""

    content: bytes
    n_bytes: int

    @property
    def is_torn(self) -> bool:
        """Whether the file ends before the line does."""
        return not self.content.endswith(b"\n")


def sealed(fields: Mapping[str, object]) -> str:
    r"""Return fields, of which there is at least one, as a line with its checksum.

    Examples
    --------
    >>> line = sealed({"sent": "a-1"}).encode()
    >>> line
    b'{"sent":"a-1","crc32":"ac068dc1"}\n'
    >>> fields_of(Line(line, len(line)))["sent"]
    'a-1'
    >>> fields_of(Line(line.replace(b"a-1", b"a-3"), len(line)))
    Traceback (most recent call last):
    ...
    ValueError: the line's checksum differs
    """
    body = json.dumps(fields, separators=(",", ":"))[:-1]
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'


def fields_of(line: Line) -> dict[str, Any]:
    """Return what a line says.

    Raises
    ------
    ValueError
        If it is torn, damaged, without a checksum, or longer than ``MAX_LINE_BYTES``.
    """
    content = line.content
    if line.is_torn or line.n_bytes > MAX_LINE_BYTES:
        raise ValueError(f"the line of {line.n_bytes:,} bytes is torn or too long")
    body, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    if not seal.startswith(_MARK):
        raise ValueError("the line has no checksum")
    if b"%08x" % zlib.crc32(body) != seal[len(_MARK) : -len(_END)]:
        raise ValueError("the line's checksum differs")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("the line is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the line is not a JSON object")
    return found


def lines_of(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a file from where it stands; no more than a line is in memory."""
    while content := file.readline(MAX_LINE_BYTES + 1):
        n_bytes = len(content)
        while not content.endswith(b"\n") and n_bytes > MAX_LINE_BYTES:
            more = file.readline(MAX_LINE_BYTES)
            if not more:
                break
            n_bytes += len(more)
            content = (content + more)[-_TAIL_BYTES:]
        yield Line(content, n_bytes)
