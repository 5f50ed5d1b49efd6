"""Kinds: which files of text are data, by their names, or by their first bytes."""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from qaeval_core.errors import ConfigError

Format = Literal["jsonl", "json", "csv", "tsv"]

_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# What messages name.
DATA_FILES = "Parquet, or end in .jsonl, .json, .csv or .tsv, also with .gz or .zst"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True, slots=True)
class TextKind:
    """A format, and ``gzip`` or ``zstd`` where the file is compressed."""

    format: Format
    compression: str | None = None

    @property
    def suffix(self) -> str:
        """A suffix that says so."""
        packed = {"gzip": ".gz", "zstd": ".zst"}.get(self.compression or "", "")
        return f".{self.format}{packed}"


def kind_of(name: str) -> TextKind | None:
    """Return the kind that a file's name says; None where it is no file of text.

    Examples
    --------
    >>> kind_of("a/Questions.JSONL.gz"), kind_of("part-0.parquet")
    (TextKind(format='jsonl', compression='gzip'), None)
    """
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    found = _FORMATS.get(suffixes[-1]) if suffixes else None
    return None if found is None else TextKind(found, compression)


def sniffed_kind(head: bytes) -> TextKind:
    """Return the kind that the first bytes say, of what has no name; compressed bytes are JSON.

    Examples
    --------
    >>> sniffed_kind(b'{"id": 1}').format, sniffed_kind(b"[{").format, sniffed_kind(b"a,b").format
    ('jsonl', 'json', 'csv')
    """
    for magic, compression in ((_GZIP, "gzip"), (_ZSTD, "zstd")):
        if head.startswith(magic):
            return TextKind("jsonl", compression)
    marked = marked_encoding(head)
    text = head.decode(marked or "utf-8", "replace").lstrip()
    if text.startswith("{"):
        return TextKind("jsonl")
    if text.startswith("["):
        return TextKind("json")
    first = text.partition("\n")[0]
    return TextKind("tsv" if first.count("\t") > first.count(",") else "csv")


def known_encoding(name: str) -> str:
    """Return the usual name of an encoding.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=name)  # Not every codec is one of texts.
        return codecs.lookup(name).name
    except LookupError:
        raise ConfigError(f"no encoding {name!r} [QA0104]") from None


def encoding_of(content: bytes, name: str | None) -> str | None:
    """Return the encoding of a whole text: as its mark says, UTF-8 if it is, else as named.

    Raises
    ------
    ConfigError
        If there is none of this name.

    Examples
    --------
    >>> encoding_of("é".encode(), "cp1252"), encoding_of("é".encode("cp1252"), "cp1252")
    (None, 'cp1252')
    """
    known = None if name is None else known_encoding(name)
    marked = marked_encoding(content)
    if marked is not None or known is None:
        return marked
    try:
        is_utf8 = "\0" not in content.decode()
    except UnicodeDecodeError:
        is_utf8 = False
    return None if is_utf8 else known


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding that a byte order mark says; None without one."""
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
