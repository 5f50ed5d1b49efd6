"""Rows of contexts to sample from, and which of them a sample has, told without qaeval."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

NOT_SAMPLED = "not_sampled"


def hash_of(context: str) -> int:
    """Return 64 bits of BLAKE2b of a context's text."""
    digest = hashlib.blake2b(context.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def smallest(contexts: Iterable[str | None], n: int) -> set[str]:
    """Return the distinct contexts of smallest hash."""
    return set(sorted({own for own in contexts if own is not None}, key=hash_of)[:n])


def table(contexts: Sequence[str | None], **columns: list[Any]) -> pa.Table:
    """Return rows whose candidates are their references, all different."""
    texts = [f"{n} bees live behind mill {n % 7}, each named Ann" for n in range(len(contexts))]
    given = {
        "id": list(map(str, range(len(contexts)))),
        "candidate": texts,
        "reference": texts,
        "context": pa.array(contexts, pa.string()),
    }
    return pa.table({**given, **columns})


def some(n_rows: int, n_contexts: int, *, week: int = 0) -> list[str | None]:
    """Return a context for each row, spread over all of them; those of another week are new."""
    return [f"Passage {n * 7 % n_contexts} of week {week}: a mill." for n in range(n_rows)]


def request(source: Path | Sequence[Path], out: Path, **given: Any) -> dict[str, Any]:
    """Return the settings of a job of words with a sample."""
    paths = [source] if isinstance(source, Path) else source
    defaults = {
        "metrics.f1.metric": "f1",
        "input.paths": [str(path) for path in paths],
        "input.columns.references": "reference",
        "input.sample_groups": 5,
        "output.path": str(out),
        "scoring.rows_per_shard": 16,
    }
    return {**defaults, **{key.replace("__", "."): value for key, value in given.items()}}
