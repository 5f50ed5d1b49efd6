"""What lies in a shared folder under the name of a file and is none: refused, never waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.storage.wary import UnfitFileError, read_given

READS: dict[str, Callable[[StoragePath], object]] = {
    "read_bytes": lambda path: path.read_bytes(),
    "fetch": lambda path: path.fetch(),
    "open": lambda path: path.open(),
    "source": lambda path: path.source(),
    "range": lambda path: path.storage.read_range(path.key, 0, 5),
    "copy": lambda path: path.copy(path.with_name("copy")),
    "given": lambda path: read_given(str(path)),
}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("make", [pipe, endless, listener])
def test_no_reader_waits_for_what_is_no_file(
    tmp_path: Path, make: Callable[[Path], None], read: str
) -> None:
    make(tmp_path / "it")
    with pytest.raises(OSError, match="it") as refused:
        READS[read](as_path(tmp_path / "it"))
    # A socket cannot even be opened.
    assert isinstance(refused.value, UnfitFileError) or make is listener


@pytest.mark.parametrize("read", ["read_bytes", "fetch", "given"])
def test_what_is_read_whole_has_a_limit(tmp_path: Path, read: str) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(UnfitFileError, match=r"more than [\d,]+ bytes"):
        READS[read](as_path(tmp_path / "large"))
    (tmp_path / "small").write_bytes(b"12345")
    path = as_path(tmp_path / "small")
    assert path.read_bytes(most_bytes=5) == b"12345"
    with pytest.raises(UnfitFileError, match="more than 4 bytes"):
        path.read_bytes(most_bytes=4)


def test_objects_have_the_same_limit() -> None:
    path = as_path("memory://wary/a")
    path.put(b"12345")
    assert path.read_bytes(most_bytes=5) == b"12345"
    with pytest.raises(UnfitFileError, match="more than 4 bytes"):
        path.read_bytes(most_bytes=4)
