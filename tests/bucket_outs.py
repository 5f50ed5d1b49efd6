"""An OUT in a bucket, read as tests compare it with a folder's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.storage.path import StoragePath, as_path
from word_jobs import request, run


def scores(out: str | Path) -> pa.Table:
    """Return the scores of ``input.parquet``."""
    return pq.read_table((as_path(out) / "scores" / "input.parquet").source())


def names(out: StoragePath) -> list[str]:
    """Return the names of all files below OUT."""
    return sorted(found.name for found in out.list(is_deep=True))


def commits_of(out: str | Path) -> dict[str, tuple[str, float]]:
    """Return the version and time of every commit."""
    found = (as_path(out) / "families").list(is_deep=True)
    return {own.name: (own.tag, own.modified_s) for own in found if own.name.endswith(".parquet")}


def is_as_local(uri: str, source: Path, folder: Path, **given: object) -> bool:
    """Whether OUT in a bucket holds what a folder of the same request holds, value for value."""
    run({**request(source, folder), **given})
    own, other = as_path(uri), as_path(folder)
    assert _unnumbered(names(own)) == _unnumbered(names(other))
    assert scores(uri).equals(scores(folder), check_metadata=True)
    for name in ("report.json", "run.json"):
        mine, its = (json.loads((out / name).read_bytes()) for out in (own, other))
        assert mine.keys() == its.keys()
    mine, its = (json.loads((out / "report.json").read_bytes()) for out in (own, other))
    return bool(mine["instances"] == its["instances"] and mine["quarantined"] == its["quarantined"])


def _unnumbered(found: list[str]) -> list[str]:
    """Return names without the numbers of manifests, which count what runs wrote on their way.

    A run that was frozen may write one more part when it wakes.
    """
    return sorted({re.sub(r"(manifest/.*/)\d{8}", r"\1n", name) for name in found})
