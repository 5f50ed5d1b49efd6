"""Filesystems: of a path or URI, whoever speaks to its store.

PyArrow's own clients, object stores of ours, and those of fsspec, such as ``hf://``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from qaeval_core.errors import ConfigError
from qaeval_core.storage.arrow import open_as_filesystem
from qaeval_core.storage.open_uri import STORES, check_endpoint

# What PyArrow has no name for, as it has none for those of plugins; its own are its own clients.
_STORAGE_SCHEMES = ("az", "memory")


def open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a path or URI, and the path there.

    Raises
    ------
    OSError, pyarrow.ArrowInvalid
        If the store does not answer, or there is no such scheme.
    """
    if "://" not in uri:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
    try:
        scheme = uri.partition("://")[0]
        if scheme in _STORAGE_SCHEMES or STORES.package_of(scheme) is not None:
            return open_as_filesystem(uri)
        check_endpoint(uri)
    except ConfigError as error:
        raise pa.ArrowInvalid(str(error)) from None
    with _as_os_error(uri):
        filesystem, path = fs.FileSystem.from_uri(uri)
    if isinstance(filesystem, fs.PyFileSystem):
        filesystem = fs.PyFileSystem(_OneErrorHandler(filesystem.handler.fs))
    return filesystem, path


@contextlib.contextmanager
def _as_os_error(name: str) -> Iterator[None]:
    """Raise what a library of others raises for its network as an OSError of one line."""
    try:
        yield
    except (FileNotFoundError, PermissionError, pa.ArrowException):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OSError(errno.EIO, said, name) from None


class _OneErrorHandler(fs.FSSpecHandler):  # type: ignore[misc]
    """A filesystem of fsspec, such as ``hf://``, whose errors are all of one kind."""

    def _name(self, path: str = "") -> str:
        protocol = self.fs.protocol
        return f"{protocol if isinstance(protocol, str) else protocol[0]}://{path}"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        with _as_os_error(self._name(*paths[:1])):
            return list(super().get_file_info(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        with _as_os_error(self._name(selector.base_dir)):
            return list(super().get_file_info_selector(selector))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        with _as_os_error(self._name(path)):
            return super().open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with _as_os_error(self._name(path)):
            return super().open_input_file(path)


def store_of(uri: str) -> str:
    """Return the part of a path or URI that fails and recovers as one.

    Examples
    --------
    >>> store_of("s3://bucket/a/b.parquet?region=eu-north-1"), store_of("/data/a/b.parquet")
    ('s3://bucket', '/data/a')
    """
    if "://" not in uri:
        return str(Path(uri).parent)
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}"


def local_stamp(path: str) -> str:
    """Return device, inode and time of the last change of a local file's inode."""
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}:{found.st_ctime_ns}"


def remote_stamp(opened: pa.NativeFile) -> str:
    """Return the ETag that an object had when it was opened; "" where its store gives none."""
    try:
        told = opened.metadata()
    except NotImplementedError:
        return ""
    etags = [value for name, value in told.items() if name.lower() == "etag"]
    return etags[0].decode(errors="replace") if etags else ""
