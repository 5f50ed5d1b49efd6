"""Arrow: what PyArrow reads: tables of bytes, and storages that it has no filesystem for.

Read alone: what is written goes through ``path``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from qaeval_core.storage.base import Found
from qaeval_core.storage.path import StoragePath, as_path


def table_of(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table of a Parquet file in memory, read by this thread alone.

    A thread of PyArrow's that lets go of the bytes last needs the interpreter for it, and ends the
    process by an abort where that one has ended meanwhile: with 134 after all was done.

    Raises
    ------
    OSError, pa.ArrowException
        If it is no Parquet file.
    """
    with pq.ParquetFile(pa.BufferReader(content), pre_buffer=False) as file:
        return file.read(None if columns is None else list(columns), use_threads=False)


def table_at(path: StoragePath, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table of a Parquet file; of one that is no local file by this thread alone.

    Such a file is read by way of Python, so that what `table_of` says of its threads holds.

    Raises
    ------
    OSError, pa.ArrowException
        If it cannot be read, or is no Parquet file.
    """
    source = path.source()
    with pq.ParquetFile(source, pre_buffer=False) as file:
        return file.read(
            None if columns is None else list(columns), use_threads=isinstance(source, str)
        )


def open_as_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """Return a filesystem of the bucket of a URI, and the path there: ``bucket/name``.

    Raises
    ------
    ConfigError
        If the URI is none of a store that is known and installed.

    Examples
    --------
    >>> filesystem, path = open_as_filesystem("memory://bucket/a/b")
    >>> path, filesystem.get_file_info(path).type
    ('bucket/a/b', <FileType.NotFound: 0>)
    """
    found = as_path(uri)
    root = StoragePath(found.storage, "")
    bucket = root.place.rstrip("/").rpartition("/")[2]
    return fs.PyFileSystem(_Handler(root, bucket)), f"{bucket}/{found.key}".rstrip("/")


class _Handler(fs.FileSystemHandler):  # type: ignore[misc]
    """What PyArrow asks of a filesystem, answered by a storage; paths begin with the bucket."""

    def __init__(self, root: StoragePath, bucket: str) -> None:
        self._root, self._bucket = root, bucket

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and self._root == other._root

    def __hash__(self) -> int:
        return hash(self._root)

    def get_type_name(self) -> str:
        """Return a name for people."""
        return "storage"

    def normalize_path(self, path: str) -> str:
        """Return a path as it is."""
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Look at some paths."""
        return [self._look(path) for path in paths]

    def _look(self, path: str) -> fs.FileInfo:
        own = self._own(path)
        found = own.head() if own.key else None
        if found is not None:
            return _file(path, found)
        kind = fs.FileType.Directory if own.is_dir() else fs.FileType.NotFound
        return fs.FileInfo(path, kind)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """List a folder."""
        base = selector.base_dir.rstrip("/")
        own = self._own(base)
        infos = [
            _file(f"{base}/{found.name}", found) for found in own.list(is_deep=selector.recursive)
        ]
        if not selector.recursive:
            folders = own.folders()
            infos += [fs.FileInfo(f"{base}/{name}", fs.FileType.Directory) for name in folders]
        if not infos and not selector.allow_not_found:
            raise FileNotFoundError(2, f"there is no {own}")
        return infos

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open an object that is read anywhere."""
        source = self._own(path).source()
        return pa.OSFile(source) if isinstance(source, str) else source

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open an object that is read from its start on."""
        return self.open_input_file(path)

    def _own(self, path: str) -> StoragePath:
        return self._root / path.removeprefix(self._bucket).strip("/")

    def _refuse(self, *args: object, **given: object) -> NoReturn:
        raise NotImplementedError("a storage is written to through its paths")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def _file(path: str, found: Found) -> fs.FileInfo:
    mtime_ns = round(found.modified_s * 1e9)
    return fs.FileInfo(path, fs.FileType.File, size=found.size, mtime_ns=mtime_ns)
