"""Runs for tests of audits: weeks of scored questions, and the audit of one as people run it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from typer.testing import CliRunner

from filter_corpora import questions
from helpers import run_locally
from qaeval.cli import app

N_ROWS = 900


def week(folder: Path, number: int, *, spoiled: str | None = None, **options: Any) -> Path:
    """Score a week of questions into folder/out<number>; return it.

    Parameters
    ----------
    spoiled : str, optional
        Topics whose references are of words that no question has.
    **options
        ``table`` instead of the week's own; ``carry``; ``columns`` of roles; other metrics by name.
    """
    carry = options.pop("carry", ("topic",))
    columns = {"references": "reference", **options.pop("columns", {})}
    table = options.pop("table", None)
    if table is None:
        table = a_table(number, spoiled=spoiled)
    source = folder / f"source{number}"
    source.mkdir(parents=True)
    half = table.height // 2
    for i, own in enumerate((table[:half], table[half:])):
        own.write_parquet(source / f"part{i}.parquet", row_group_size=200)
    out = folder / f"out{number}"
    run_locally(
        {
            **{f"metrics.{name}.metric": own for name, own in (options or {"f1": "f1"}).items()},
            "input.paths": [str(source)],
            **{f"input.columns.{role}": name for role, name in columns.items()},
            "output.path": str(out),
            "output.carry": list(carry),
        }
    )
    # A week apart, whatever the clock of the test.
    time = 1.7e9 + number * 7 * 86_400
    os.utime(out / "_SUCCESS", (time, time))
    return out


def a_table(number: int, *, spoiled: str | None = None, n_rows: int = N_ROWS) -> pl.DataFrame:
    """Return a week's questions; its contexts are its own."""
    table = questions(n_rows, seed=number)
    return table.with_columns(
        context=pl.format("week {}: {}", pl.lit(number), pl.col("context")),
        reference=pl.when(pl.col("topic").is_in((spoiled or "").split()))
        .then(pl.lit("quite another text"))
        .otherwise(pl.col("reference")),
    )


def audited(
    out: Path, folder: Path, *words: str | Path, expect: int = 0
) -> tuple[dict[str, Any], str]:
    """Run the command in this process; return audit.json (none of a bad request) and what it said.

    The history is folder/history and the report folder/report.
    """
    given: Sequence[str | Path] = [
        "audit", out, "--history", folder / "history", "--to", folder / "report", *words
    ]  # fmt: skip
    done = CliRunner().invoke(app, [str(word) for word in given])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == expect, done.output
    path = folder / "report" / "audit.json"
    content = json.loads(path.read_text()) if path.exists() and expect != 2 else {}
    return content, done.output
