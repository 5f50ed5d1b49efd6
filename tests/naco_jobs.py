"""Whole jobs of NACo in this process: rows, settings, and what the report says of calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from helpers import write_parquet
from llm_server import LlmServer

CONTEXT = "Ann has kept the bees since 1987. She sells honey at the mill."
TWO_STEPS = "\n".join(["Verdict: natural", "Steps:", "1. a", "2. b", "Answer: <ans>Ann</ans>"])


def table(questions: list[str | None], **columns: list[Any]) -> pa.Table:
    """Return rows with one context and one answer."""
    given = {
        "question": pa.array(questions, pa.string()),
        "context": [CONTEXT] * len(questions),
        "answer": ["Ann"] * len(questions),
    }
    return pa.table({**given, **columns})


def many(n_rows: int) -> pa.Table:
    """Return rows whose questions all differ."""
    return table([f"Who keeps bee number {i}?" for i in range(n_rows)])


def settings(server: LlmServer, folder: Path, rows: pa.Table, **given: Any) -> dict[str, object]:
    """Return the settings of a job whose journal and ledger lie in the folder."""
    source = write_parquet(folder / "input.parquet", rows)
    defaults = {
        "input.paths": [str(source)],
        "output.path": str(folder / "out"),
        "naco.base_url": server.base_url,
        "naco.model": "m",
        "naco.expected_complexity": 2,
        "naco.ledger_path": str(folder / "ledgers"),
        "scoring.progress_s": 60,
    }
    return {**defaults, **{key.replace("__", "."): value for key, value in given.items()}}


def calls(outcome: Any) -> dict[str, Any]:
    """Return what the report says of calls."""
    (family,) = (own for key, own in outcome.report["families"].items() if key.startswith("naco"))
    return family["calls"]
