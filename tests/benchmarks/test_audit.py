"""The runs that audits are timed on: whole to whoever reads them, and the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from audit_weeks import audited
from benchmarks.audit import N_SYSTEMS, SCORES, generate


@pytest.mark.slow
def test_generated_runs_are_audited_as_scored_ones(tmp_path: Path) -> None:
    """Protects from figures of files that no run would have."""
    before, now = generate(tmp_path, 4_000)
    words = ("--cluster", "passage", "--by", "system")
    first, _ = audited(before, tmp_path, *words, "--pin")
    assert (first["status"], first["run"]["rows"], first["run"]["clusters"] > 700) == (
        "first_run",
        4_000,
        True,
    )
    assert set(first["columns"]) == set(SCORES)
    found, _ = audited(now, tmp_path, *words)
    assert (found["status"], found["alerts"]) == ("ok", [])
    slices = {test["slice"] for test in found["tests"]}
    assert len(slices - {""}) == N_SYSTEMS
    tables = [pq.read_table(out / "scores" / "rows-000.parquet") for out in (before, now)]
    assert not set(tables[0]["id"].to_pylist()) & set(tables[1]["id"].to_pylist())
    assert generate(tmp_path, 4_000) == [before, now]
