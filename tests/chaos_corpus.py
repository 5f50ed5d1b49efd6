"""Rows of words for runs on clusters of tests."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

N_FILES = 4
WORDS = tuple(f"w{i}" for i in range(3_000))


def write_corpus(folder: Path, *, n_rows: int, n_words: int) -> None:
    """Write rows whose texts, and so scores, differ from row to row."""
    folder.mkdir()
    drawn = random.Random(7)
    for file in range(N_FILES):
        ids, ours, theirs = [], [], []
        for i in range(file * n_rows // N_FILES, (file + 1) * n_rows // N_FILES):
            reference = drawn.choices(WORDS, k=drawn.randint(3, n_words))
            candidate = [
                word if drawn.random() < 0.7 else drawn.choice(WORDS) for word in reference
            ]
            ids.append(f"q{i}")
            ours.append(" ".join(candidate[: drawn.randint(1, n_words)]))
            theirs.append(" ".join(reference))
        table = pa.table({"id": ids, "candidate": ours, "reference": theirs})
        pq.write_table(table, folder / f"part{file}.parquet", row_group_size=5_000)
