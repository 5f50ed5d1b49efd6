"""The page of a comparison: a head that says what was compared, and a size that stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from helpers import qaeval, write_parquet
from qaeval_core.compare.counts import FarUnit
from qaeval_core.compare.output import tables_of
from qaeval_core.compare.page import MAX_BYTES, compare_page
from qaeval_core.compare.request import CompareRequest
from qaeval_core.compare.result import MetricResult, SystemMean
from qaeval_core.compare.run import SystemComparison
from qaeval_core.tables.score_tables import ScoreColumn
from scoring.test_page import ATTACK, Page, assert_links_lead_nowhere_else


def make_large_comparison(
    *, n_systems: int, n_metrics: int, name: str = "system", n_by: int = 2
) -> SystemComparison:
    """Return a comparison of so many systems, whose names are long where the name is."""
    names = [f"{name} {i}" for i in range(n_systems)]
    means = [
        SystemMean(
            own, 0.5 - i / 1000, 0.4 - i / 1000, 0.6, i + 1, -i / 1000, -0.1, 0.1, 0.2, 3, 4, 5
        )
        for i, own in enumerate(names)
    ]
    values = tuple(i / n_systems for i in range(n_systems))
    far = [FarUnit(f"{name} row {i}", 1.0, values, (i,) * n_systems) for i in range(20)]
    groups = {f"{name} by {i}": {f"v{j} {name}": means for j in range(50)} for i in range(n_by)}
    metrics = [
        MetricResult(f"{i} {name}", f"{name}|v:1", ScoreColumn(), 99, names[0], means, groups, far)
        for i in range(n_metrics)
    ]
    text = {"context": "long " * 9999, "candidate": ATTACK}
    return SystemComparison(
        request=CompareRequest(scores=tuple((own, f"/runs/{own}") for own in names)),
        systems=names, metrics=metrics, n_units=99, n_rows=dict.fromkeys(names, 100),
        n_left_out=dict.fromkeys(names, 1), unit="rows", on="id", clusters="99 rows",
        sentence="Differences are paired. " * 20,
        texts={(i, row): text for i in range(n_systems) for row in range(20)},
        notes=[f"note {i} {name}" for i in range(300)],
    )  # fmt: skip


def large_page(**given: object) -> str:
    found = make_large_comparison(**given)
    return compare_page(found, {own.metric: tables_of(found, own) for own in found.metrics})


@pytest.mark.parametrize(
    ("n_systems", "n_metrics", "name", "n_by"),
    [
        (500, 2, "system", 2),
        (2, 200, "system", 1),
        pytest.param(40, 9, "W" * 300, 13, marks=pytest.mark.slow),
    ],
)
def test_a_page_is_small_whatever_is_compared(
    n_systems: int, n_metrics: int, name: str, n_by: int
) -> None:
    """Five hundred systems, or two hundred metrics, made pages of many megabytes."""
    text = large_page(n_systems=n_systems, n_metrics=n_metrics, name=name, n_by=n_by)
    assert len(text.encode()) < MAX_BYTES < 2_000_000
    assert "are left out: the page would be too large" in text
    page = Page(text)
    assert_links_lead_nowhere_else(page.attributes)
    assert f'<b class="plain">{n_systems}</b>' in text
    assert ("More metrics" in text) == (n_metrics > 6)


def test_names_and_texts_of_others_are_shown_and_never_run() -> None:
    text = large_page(n_systems=3, n_metrics=2, name=ATTACK)
    page = Page(text)
    assert "<script" not in text and "\u202e" not in text and "\x07" not in text
    assert not {name for name, _ in page.attributes} & {"src", "srcset", "onerror", "onclick"}


def test_the_head_says_who_is_best_and_links_to_the_runs(tmp_path: Path) -> None:
    for name, answers in (("base", ["x", "b", "x"]), ("large", ["a", "b", "x c"])):
        frame = pl.DataFrame(
            {"id": list("pqr"), "candidate": answers, "references": [["a"], ["b"], ["c"]]}
        )
        path = write_parquet(tmp_path / f"{name}.parquet", frame.to_arrow())
        qaeval("score", path, "--out", tmp_path / name, "--metrics", "f1", "--local")
    out = tmp_path / "compared"
    qaeval("compare", tmp_path / "base", tmp_path / "large", "--out", out, "--name", "March")
    text = (out / "compare.html").read_text()
    assert "qaeval compare · March" in text and "2026-01-01 00:00 UTC" in text
    assert "Best by f1" in text and '<b class="plain">large</b>' in text
    links = re.findall('href="([^#"]+)"', text)
    assert links == ["../base/report.html", "../large/report.html"]
    means = [row[2] for row in Page(text).rows if "[" in row[2]]
    decimals = {len(own.split(" ")[0].partition(".")[2]) for own in means}
    assert len(means) == 2 and len(decimals) == 1, "numbers of a column do not align"
    whole = json.loads((out / "compare.json").read_text())
    assert whole["made"]["name"] == "March"
