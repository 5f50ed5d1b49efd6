"""Intervals of a run: what its rows share, whichever files they are in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from scipy import stats

from helpers import qaeval, read_scores, run_locally
from qaeval_core.errors import ConfigError
from qaeval_core.profile.column_profile import N_SUM_BUCKETS
from qaeval_core.scoring.report import summary_lines
from qaeval_core.storage.path import as_path, read_json
from qaeval_core.text.column_hashes import column_hashes

N_CONTEXTS = 40


def rows(seed: int = 0) -> pl.DataFrame:
    """Return answers of contexts of unlike sizes and difficulty; some rows have no context."""
    rng = np.random.default_rng(seed)
    contexts = rng.permutation(np.repeat(np.arange(N_CONTEXTS), rng.integers(1, 15, N_CONTEXTS)))
    ease = rng.random(N_CONTEXTS)[contexts]
    said = [
        " ".join("right" if own < chance else f"wrong{i}" for i, own in enumerate(rng.random(6)))
        for chance in ease
    ]
    none = rng.random(len(contexts)) < 0.05
    passages = [None if is_none else f"c{own}" for is_none, own in zip(none, contexts, strict=True)]
    return pl.DataFrame(
        {
            "id": [f"r{i}" for i in range(len(contexts))],
            "question": [f"q{i % 50}" for i in range(len(contexts))],
            "candidate": said,
            "references": [["right"] for _ in contexts],
            "context": passages,
            "topic": [f"t{own % 5}" for own in contexts],
        }
    )


def scored(folder: Path, table: pl.DataFrame, **given: object) -> dict[str, Any]:
    """Score rows of two files, that share contexts, by words; return the report."""
    source = folder / "source"
    source.mkdir(exist_ok=True, parents=True)
    table[::2].write_parquet(source / "a.parquet", row_group_size=30)
    table[1::2].write_parquet(source / "b.parquet", row_group_size=7)
    defaults = {
        "input.paths": [str(source)],
        "metrics.f1.metric": "f1",
        "metrics.exact_match.metric": "exact_match",
        "output.path": str(folder / "out"),
    }
    outcome, _ = run_locally({**defaults, **given})
    assert outcome.report is not None
    return outcome.report


def expected(folder: Path, table: pl.DataFrame, shared: str) -> list[float]:
    """Return the interval of f1 as a loop over buckets of what rows share."""
    parts = [read_scores(folder / "out", f"{name}.parquet") for name in ("a", "b")]
    joined = pl.concat(parts).select("id", "f1").join(table, on="id")
    joined = joined.with_columns(pl.coalesce(shared, "id").alias("shared"))
    codes, _ = column_hashes(joined.to_arrow()["shared"])
    n_all, mean = joined.height, float(joined["f1"].mean())  # type: ignore[arg-type]
    by_bucket: dict[int, list[float]] = {}
    for code, value in zip(codes % N_SUM_BUCKETS, joined["f1"], strict=True):
        by_bucket.setdefault(int(code), []).append(value)
    n = len(by_bucket)
    squares = sum((sum(own) - mean * len(own)) ** 2 for own in by_bucket.values())
    freedom = n_all**2 / sum(len(own) ** 2 for own in by_bucket.values()) - 1
    half = stats.t.ppf(0.975, freedom) * math.sqrt(n / (n - 1) * squares) / n_all
    return [mean - half, mean + half]


def width(report: Mapping[str, Any], column: str = "f1") -> float:
    low, high = report["columns"][column]["interval_95"]
    return float(high - low)


def test_rows_of_a_context_in_two_files_are_one(tmp_path: Path) -> None:
    """No metric reads the context, and no file holds the whole of one."""
    table = rows().filter(pl.col("context").is_not_null())
    report = scored(tmp_path, table)
    assert report["clusters"] == {"name": "contexts", "n": N_CONTEXTS, "is_estimate": False}
    own = report["columns"]["f1"]
    assert own["mean"] == pytest.approx(
        np.concatenate([read_scores(tmp_path / "out", f"{name}.parquet")["f1"] for name in "ab"])
        .mean(), abs=1e-9,
    )  # fmt: skip
    assert own["interval_95"] == pytest.approx(expected(tmp_path, table, "context"), abs=1e-8)
    alone = scored(tmp_path, table, **{"output.cluster": "none"})
    assert alone["clusters"]["name"] == "rows"
    assert width(report) > 1.5 * width(alone)
    shown = list(summary_lines(report, as_path(tmp_path / "out")))
    low, high = own["interval_95"]
    (line,) = (line for line in shown if line.startswith("f1 "))
    said = f"f1 {own['mean']:.3f} [{low:.3f}, {high:.3f}] {own['n']:,} {own['n_undefined']}"
    assert line.split() == said.split()
    assert f"intervals: 95 %, over {N_CONTEXTS} contexts" in shown
    assert not any("independent" in line for line in shown)


def test_another_cluster_scores_nothing_again(tmp_path: Path) -> None:
    """Only intervals change; the terminal and the page say what they are of."""
    table = rows()
    first = scored(tmp_path, table)
    before = (tmp_path / "out" / "families").rglob("*.parquet")
    times = {path: path.stat().st_mtime_ns for path in before}
    source, out = tmp_path / "source", tmp_path / "out"
    asked = ["score", source, "--out", out, "--metrics", "f1,exact_match", "--local"]
    said = qaeval(*asked, "--cluster", "none")
    assert "note: intervals treat rows as independent" in said
    assert f"intervals: 95 %, over {table.height} rows\n" in said
    assert "take rows as independent" in (out / "report.html").read_text()
    said = qaeval(*asked, "--cluster", "topic")
    assert "intervals: 95 %, over 5 values of topic\n" in said
    assert width(read_json(as_path(out / "report.json")) or {}) > 0
    assert "5 values of topic" in (out / "report.html").read_text()
    said = qaeval(*asked, "--cluster", "topc", expect=2)
    assert "--cluster: no column 'topc'; did you mean 'topic'?" in said
    after = (tmp_path / "out" / "families").rglob("*.parquet")
    assert {path: path.stat().st_mtime_ns for path in after} == times
    assert scored(tmp_path, table) | {"families": 0, "wall_s": 0} == first | {
        "families": 0,
        "wall_s": 0,
    }


def test_the_question_where_there_are_no_contexts(tmp_path: Path) -> None:
    """Where questions do not repeat, that is each row alone."""
    table = rows().drop("context")
    report = scored(tmp_path, table)
    assert report["clusters"]["name"] == "questions" and report["clusters"]["n"] == 50
    found = report["columns"]["f1"]["interval_95"]
    assert found == pytest.approx(expected(tmp_path, table, "question"), abs=1e-8)
    other = tmp_path / "other"
    alone = scored(other, table.drop("question"))
    assert alone["clusters"]["name"] == "rows"
    with pytest.raises(ConfigError, match="'context'.*QA0305"):
        scored(tmp_path, table, **{"output.cluster": "context"})


def test_a_role_and_a_list_are_what_rows_share(tmp_path: Path) -> None:
    """Contexts have other names, and may be lists of passages; some rows have none."""
    table = rows()
    shared = pl.when(pl.col("context").is_not_null()).then(pl.concat_list("context", "topic"))
    named = table.with_columns(passages=shared).drop("context")
    report = scored(tmp_path, named, **{"input.columns.context": "passages"})
    n_without = table["context"].null_count()
    assert n_without
    assert report["clusters"]["name"] == "contexts"
    assert report["clusters"]["n"] == N_CONTEXTS + n_without
    again = scored(tmp_path, named, **{"output.cluster": "passages"})
    assert again["columns"] == report["columns"]
    assert again["clusters"]["name"] == "values of passages"


def test_a_damaged_context_costs_no_id(tmp_path: Path) -> None:
    """No metric reads it: its rows are scored, and each is alone in intervals."""
    table = rows().filter(pl.col("context").is_not_null())
    path = tmp_path / "source" / "in.parquet"
    path.parent.mkdir()
    pq.write_table(
        table.to_arrow(), path, row_group_size=100, use_dictionary=False, write_page_checksum=True
    )
    group = pq.ParquetFile(path).metadata.row_group(1)
    columns = [group.column(i) for i in range(group.num_columns)]
    own = next(column for column in columns if column.path_in_schema == "context")
    content = bytearray(path.read_bytes())
    content[own.data_page_offset + own.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    overrides = {
        "input.paths": [str(path)],
        "metrics.f1.metric": "f1",
        "output.path": str(tmp_path / "out"),
        "output.carry": ["topic"],
    }
    outcome, _ = run_locally(overrides)
    scores = read_scores(tmp_path / "out", "in.parquet")
    assert scores["id"].to_list() == table["id"].to_list()
    assert scores["topic"].to_list() == table["topic"].to_list()
    assert scores["f1"].null_count() == 0
    report = outcome.report
    assert report is not None and report["clusters"]["n"] > N_CONTEXTS
    assert not [note for note in report["notes"] if "damaged" in note]
