"""Teacher: a larger sentence encoder -> vectors, near pairs, and scores on people's scale."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from export.training.progress import duration, say
from qaeval_core.errors import ConfigError

__all__ = ["Teacher", "fit_scale", "near_pairs"]

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
    """Yield (row, its neighbour of a rank) for each row and rank; rank 1 is the nearest.

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
