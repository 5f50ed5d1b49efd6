"""Shelves: ``shelf://NAME/KEY`` is a file below the folder that the variable SHELVES names."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from qaeval_core.storage.base import Found, Sink, Storage, Tag
from qaeval_core.storage.open_uri import Bucket, StoreKind
from qaeval_core.storage.posix import PosixStorage
from qaeval_core.storage.wary import MOST_BYTES


class Shelf(Storage):
    """A folder that nobody knows to be one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._disk = PosixStorage(Path(os.environ["SHELVES"]) / name)

    def uri(self, name: str) -> str:
        return f"shelf://{self._name}/{name}"

    def put(self, name: str, content: bytes) -> Tag:
        return self._disk.put(name, content)

    def put_new(self, name: str, content: bytes) -> Tag | None:
        return self._disk.put_new(name, content)

    def swap(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        return self._disk.swap(name, content, tag)

    def copy(self, name: str, to: str) -> None:
        self._disk.copy(name, to)

    def fetch(self, name: str, *, most_bytes: int = MOST_BYTES) -> tuple[bytes, Found]:
        return self._disk.fetch(name, most_bytes=most_bytes)

    def read_range(self, name: str, start: int, n_bytes: int, tag: Tag = "") -> bytes:
        return self._disk.read_range(name, start, n_bytes, tag)

    def head(self, name: str) -> Found | None:
        return self._disk.head(name)

    def list(self, folder: str, *, is_deep: bool = False, after: str = "") -> Iterator[Found]:
        return self._disk.list(folder, is_deep=is_deep, after=after)

    def folders(self, folder: str) -> builtins.list[str]:
        return self._disk.folders(folder)

    def delete(self, names: Sequence[str]) -> None:
        self._disk.delete(names)

    def writer(self, name: str, *, is_flushed: bool = True) -> AbstractContextManager[Sink]:
        return self._disk.writer(name, is_flushed=is_flushed)


def _open(bucket: Bucket, query: str) -> Storage:
    return Shelf(bucket.name)


SHELF = StoreKind(_open)
