"""A disk that is full: exit 1 in one line, nothing that looks whole, and the same bytes later."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from filter_corpora import files_of, filtered, scored
from helpers import REPOSITORY, full_disk
from qaeval_core.errors import StorageError


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"))


def test_a_full_disk_leaves_nothing_that_looks_whole(out: Path, tmp_path: Path) -> None:
    filtered(out, tmp_path / "kept", share="0.5")
    before = files_of(tmp_path / "kept")
    with full_disk(3000), pytest.raises(StorageError, match="File too large.*QA0507") as raised:
        filtered(out, tmp_path / "kept", share="0.25")
    # No setting of another command's is named.
    assert "scoring." not in str(raised.value)
    assert not (tmp_path / "kept" / "_SUCCESS").exists()
    assert not list((tmp_path / "kept").glob(".work-*"))
    filtered(out, tmp_path / "kept", share="0.5")
    assert files_of(tmp_path / "kept") == before


# Sees a disk of its own, which is full at some file of KEPT, and then has room.
ON_SMALL_DISKS = """
import subprocess, sys
from pathlib import Path
sys.path[:0] = ["tests", "tests/filter"]
from filter_corpora import files_of, filtered
from qaeval_core.errors import StorageError
out, expected, disk = map(Path, sys.argv[1:4])
for size in sys.argv[4:]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", disk], check=True)
    try:
        filtered(out, disk / "kept", share="0.5")
        print(size, "no error")
    except StorageError as error:
        left = [path for path in disk.rglob("*") if path.name.startswith(("_SUCCESS", ".work-"))]
        print(size, "No space left on device" in str(error), left)
    subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
    filtered(out, disk / "kept", share="0.5")
    print(size, files_of(disk / "kept") == files_of(expected))
    subprocess.run(["umount", disk], check=True)
"""


def can_mount() -> bool:
    """Whether this process may mount a disk that it alone sees."""
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="no disk can be mounted here")
def test_no_space_is_left_on_a_real_disk(out: Path, tmp_path: Path) -> None:
    """The limit on a file's size, which stands for it elsewhere, is another error."""
    disk = tmp_path / "disk"
    disk.mkdir()
    expected_files = tmp_path / "expected" / "kept"  # as deep as on the disk: links are relative
    filtered(out, expected_files, share="0.5")
    n_kib = sum(len(content) for content in files_of(expected_files).values()) / 1024
    sizes = [str(4 * round(part * n_kib / 4)) for part in (0.1, 0.3, 0.5, 0.7, 0.9)]
    done = subprocess.run(
        [*("unshare", "--mount", sys.executable, "-c", ON_SMALL_DISKS),
         *(out, expected_files, disk), *sizes],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )  # fmt: skip
    expected = [line for size in sizes for line in (f"{size} True []", f"{size} True")]
    assert done.stdout.splitlines() == expected, done.stderr
