"""Body: the bytes of a response, and no more of them than a chat completion may have.

A server may send without end, or a few kB that unpack into gigabytes. So the bytes are counted
while they come, and again while they are unpacked; what is beyond the bound is never held.
Responses are asked for as they are (``ACCEPT``); one that is packed all the same, as gateways do,
is unpacked once.

But: what a response means is ``llm.outcome``'s.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import cast

import httpx

# A reply of 100,000 tokens is some 400 kB of text, and six times as much with every sign escaped.
MAX_BODY_BYTES = 8 << 20
# What is said of an error is shown in 300 characters.
MAX_ERROR_BYTES = 64 << 10
ACCEPT = {"Accept-Encoding": "identity"}

_GZIP_OR_ZLIB = 47  # zlib's name for either, found by the first bytes
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})


@dataclass(frozen=True, slots=True)
class Received:
    """A response as far as it was read.

    Attributes
    ----------
    is_cut : bool
        Whether there was more of it, packed or unpacked, than is read.
    packed_as : str
        How it is packed, where that is no way that can be unpacked here; else empty.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    is_cut: bool = False
    packed_as: str = ""


async def receive(response: httpx.Response) -> Received:
    """Read a response that was opened as a stream; its caller closes it.

    Raises
    ------
    httpx.HTTPError
        If it ends before its end.
    """
    most = MAX_BODY_BYTES if response.status_code == 200 else MAX_ERROR_BYTES
    raw = bytearray()
    # As it came: httpx unpacks each part whole, and 64 kB may be 64 MB.
    parts = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
    async with contextlib.aclosing(parts):
        async for part in parts:
            raw += part
            if len(raw) > most:
                break
    packed_as = _packed_as(response.headers.get("content-encoding", ""))
    content = bytes(raw)
    if packed_as in _PACKED:
        content, packed_as = _unpacked(content, packed_as, max_bytes=most + 1)
    is_cut = len(raw) > most or len(content) > most
    return Received(response.status_code, response.headers, content[:most], is_cut, packed_as)


def _packed_as(header: str) -> str:
    """Return how a content is packed.

    >>> _packed_as(" GZIP, identity"), _packed_as("gzip,gzip"), _packed_as("")
    ('gzip', 'gzip, gzip', '')
    """
    names = (name.strip().lower() for name in header.split(","))
    return ", ".join(name for name in names if name not in ("", "identity"))


def _unpacked(content: bytes, packed_as: str, *, max_bytes: int) -> tuple[bytes, str]:
    """Return the first bytes of what is packed, and how they are still packed: mostly not."""
    for kind in (_GZIP_OR_ZLIB, -zlib.MAX_WBITS):  # Some servers leave the header out of deflate.
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(kind).decompress(content, max_bytes), ""
    return content, packed_as
