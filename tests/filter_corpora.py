"""Corpora for tests of filters: a scored run of words, and what its filter does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from helpers import run_locally
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import FilterResult
from qaeval_core.filter.run import filter_corpus
from qaeval_core.running.range_executor import RangeExecutor
from qaeval_core.storage.path import AnyPath, StoragePath
from qaeval_core.storage.probe import PROBES
from qaeval_core.tables.corpus import Corpus
from qaeval_core.tables.open_corpus import open_corpus

# How long filters try a disk that refuses.
RETRY_S = 0.0
WORDS = ["ash", "bay", "cod", "dew", "elm", "fog", "gum", "hay", "ivy", "jar"]


def questions(n_rows: int, *, seed: int = 0) -> pl.DataFrame:
    """Return rows whose F1 spreads: questions and references of the same ten words."""
    rng = np.random.default_rng(seed)

    def text(n: int) -> str:
        return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=n))

    return pl.DataFrame(
        {
            "id": [f"q{i}" for i in range(n_rows)],
            "question": [text(int(rng.integers(4, 9))) + "?" for _ in range(n_rows)],
            "context": [f"passage {i // 5}" for i in range(n_rows)],
            "answer": [f"answer {i}" for i in range(n_rows)],
            "reference": [text(7) for _ in range(n_rows)],
            "topic": [WORDS[int(i)] for i in rng.integers(3, size=n_rows)],
        }
    )


def scored(folder: Path, n_rows: int = 120, n_files: int = 2, **metrics: str) -> Path:
    """Score questions into folder/out; return it."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    table = questions(n_rows)
    step = -(-n_rows // n_files)
    for i in range(n_files):
        own = table[i * step : (i + 1) * step]
        own.write_parquet(source / f"part{i}.parquet", row_group_size=17)
    score_again(folder, **metrics)
    return folder / "out"


def score_again(folder: Path, **metrics: str) -> None:
    """Run the same job again."""
    chosen = metrics or {"f1": "f1"}
    run_locally(
        {
            **{f"metrics.{name}.metric": metric for name, metric in chosen.items()},
            "input.paths": [str(folder / "source")],
            "input.columns.references": "reference",
            "output.path": str(folder / "out"),
        }
    )


def filtered(
    out: AnyPath, kept: AnyPath, *, executor: RangeExecutor | None = None, **options: Any
) -> tuple[FilterResult, list[str]]:
    """Filter an OUT; return the result and what was said."""
    said: list[str] = []
    inputs = options.pop("inputs", ())
    request = FilterRequest(**{"rules": "none", **options})
    found = opened(out, request, inputs)
    result = filter_corpus(
        request, found, kept, executor=executor, say=said.append, retry_s=RETRY_S
    )
    return result, said


def opened(out: AnyPath, request: FilterRequest, inputs: tuple[str, ...] = ()) -> Corpus:
    """Return a corpus as a request wants it."""
    return open_corpus(out, columns=request.columns, partial=request.partial, inputs=inputs)


_MADE = re.compile(rb"<dt>(?:Made|Data|Command)</dt><dd>.*?</dd>", re.DOTALL)


def _told(name: str, content: bytes) -> bytes:
    return _MADE.sub(b"", content) if name.endswith(".html") else content


def files_of(kept: AnyPath) -> dict[str, bytes]:
    """Return all files of KEPT but its lock, by name; temporary ones, too.

    In a bucket, what a killed process wrote to look whether it may stays for an hour, too. When and
    of what, by what words, a page was made is left out: that differs by design.
    """
    if isinstance(kept, StoragePath):
        names = sorted(found.name for found in kept.list(is_deep=True))
        names = [name for name in names if name != ".lock" and not name.startswith(PROBES)]
        return {name: _told(name, (kept / name).read_bytes()) for name in names}
    kept = Path(kept)
    return {
        path.relative_to(kept).as_posix(): _told(path.name, path.read_bytes())
        for path in sorted(kept.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
