"""A sample on the command line: requests, reports, and the verbs that read its OUT."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from helpers import assert_same_scores, qaeval, read_scores, write_parquet
from sampled_rows import NOT_SAMPLED, smallest, some, table
from scoring.test_page import Page

N_ROWS, N_GROUPS = 120, 6
CONTEXTS = some(N_ROWS, 23)
IS_IN = [own in smallest(CONTEXTS, N_GROUPS) for own in CONTEXTS]


def words(source: Path, out: Path, *more: str) -> list[str | Path]:
    """Return a command that scores a sample."""
    given = ["--metrics", "f1", "--column", "references=reference", "--rows-per-shard", "16"]
    sample = ["--set", f"input.sample_groups={N_GROUPS}"]
    return ["score", source, "--out", out, "--ray", *given, *sample, *more]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with ratings, and a few candidates that differ from their references."""
    ratings = [float(n % 5) for n in range(N_ROWS)]
    texts = [f"{n % 3} bees live {n % 5} miles away" for n in range(N_ROWS)]
    rows = table(CONTEXTS, rating=ratings, candidate=texts)
    return write_parquet(tmp_path_factory.mktemp("sampling") / "input.parquet", rows)


@pytest.fixture(scope="module")
def scored(source: Path) -> tuple[Path, str]:
    """An OUT, and what was said of it."""
    out = source.parent / "out"
    return out, qaeval(*words(source, out, "--local", "--carry", "rating"))


def test_the_run_and_its_report_say_how_many_rows(scored: tuple[Path, str]) -> None:
    """Protects from a report that reads like one of all rows."""
    out, output = scored
    n_in = sum(IS_IN)
    assert f"sample: {n_in} of {N_ROWS} rows, those of {N_GROUPS} contexts" in output
    assert f"f1: {N_ROWS} rows: {n_in} scored, {N_ROWS - n_in} not sampled" in output
    assert f"intervals: 95 %, over {N_GROUPS} contexts\n" in output
    assert re.search(rf"^f1 .* {n_in} +0$", output, re.MULTILINE), "none is undefined"
    assert "undefined (" not in output
    run = json.loads((out / "run.json").read_text())
    assert (run["sample"]["n_rows"], run["sample"]["n_contexts"]) == (n_in, N_GROUPS)


def test_the_page_says_that_it_is_a_sample(scored: tuple[Path, str]) -> None:
    """Protects from a page that calls rows scored, or whole, that nobody looked at."""
    text = (scored[0] / "report.html").read_text()
    page, n_in = Page(text), sum(IS_IN)
    assert f'<h1 class="plain">{n_in} of {N_ROWS} rows scored by f1</h1>' in text
    assert f"A sample: {n_in} rows, those of {N_GROUPS} contexts" in text
    n_without = sum(own is None for own in CONTEXTS)
    assert (f"{n_without} rows have no context" in text) == (n_without > 0)
    assert page.row("not_sampled")[2] == f"{N_ROWS - n_in}"
    assert f'Rows</span><b class="plain">{n_in}</b>' in text
    assert 'Scored</span><b class="good">100.0%</b>' in text
    assert "Every row has a score" not in text


def test_correlate_leaves_the_others_out_and_says_so(scored: tuple[Path, str]) -> None:
    """Protects from rows that count as undefined scores of a metric."""
    out, _ = scored
    output = qaeval("correlate", out, "--human", "rating", "--out", out.parent / "study")
    n_in = sum(IS_IN)
    assert f"{N_ROWS - n_in} rows outside of the sample are left out" in output
    found = pl.read_parquet(out.parent / "study" / "correlations.parquet")
    assert found.filter(pl.col("metric") == "f1").height
    assert set(found["n"]) == {n_in}
    assert set(found["n_undefined_metric"]) == {0}


def test_filter_drops_the_others_for_that_reason(scored: tuple[Path, str]) -> None:
    """Protects from rows without a score that count as bad ones, or as quarantined."""
    out, _ = scored
    kept = out.parent / "kept"
    chosen = ["--rank-by", "f1", "--rules", "none", "--share", "0.5", "--local"]
    output = qaeval("filter", out, "--to", kept, *chosen)
    n_out = N_ROWS - sum(IS_IN)
    assert f"{NOT_SAMPLED} {n_out}" in output
    content = json.loads((kept / "filter.json").read_text())
    assert content["reasons"][NOT_SAMPLED] == n_out
    assert "quarantined" not in content["reasons"]
    assert content["eligible"] == sum(IS_IN)
    decisions = pl.read_parquet(kept / "decisions" / "input.parquet")
    assert (decisions["reason"] == NOT_SAMPLED).fill_null(value=False).to_list() == [
        not own for own in IS_IN
    ]


def test_explain_tells_why_a_row_has_no_scores(scored: tuple[Path, str]) -> None:
    """Protects from a row that looks broken because nobody looked at it."""
    out, _ = scored
    page = out.parent / "row.html"
    output = qaeval("explain", out, "--id", str(IS_IN.index(False)), "--html", page)
    assert "not sampled: its context is not in the run's sample" in output
    assert "quarantined" not in output.lower() + page.read_text().lower()
    assert "values equal the stored ones" in qaeval("explain", out, "--id", str(IS_IN.index(True)))


@pytest.mark.parametrize("n_groups", ["0", "-3"])
def test_a_sample_of_nothing_is_a_bad_request(n_groups: str, source: Path) -> None:
    """Protects from a sample that nobody can mean."""
    output = qaeval(
        *words(source, source.parent / "bad"), "--set", f"input.sample_groups={n_groups}", expect=2
    )
    assert "input.sample_groups: " in output
    assert not (source.parent / "bad").exists()


def test_without_contexts_there_is_no_sample(tmp_path: Path) -> None:
    """Protects from a sample of single rows, which is another one."""
    rows = table(CONTEXTS).rename_columns({"context": "story"})
    source = write_parquet(tmp_path / "input.parquet", rows)
    output = qaeval(*words(source, tmp_path / "out", "--local"), expect=2)
    assert "input.sample_groups takes whole contexts" in output
    assert "no column context" in output
    assert "--column context=NAME" in output
    mapped = ["--column", "context=story", "--dry-run"]
    output = qaeval(*words(source, tmp_path / "out", *mapped))
    assert f"sample: {sum(IS_IN)} of {N_ROWS} rows" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.ray
def test_ray_scores_the_same_sample(source: Path, scored: tuple[Path, str], tmp_path: Path) -> None:
    """Protects from workers that were not told of the sample."""
    output = qaeval(*words(source, tmp_path / "out", "--carry", "rating"))
    assert f"{N_ROWS - sum(IS_IN)} not sampled" in output
    assert_same_scores(read_scores(tmp_path / "out"), read_scores(scored[0]), tolerance=0.0)
    assert "nothing to do" in qaeval(*words(source, tmp_path / "out", "--carry", "rating"))
