"""The page of a study: charts say what tables say, and it stands alone, small and escaped."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, run_locally
from qaeval_core.study.page import rating_boxes, study_page
from qaeval_core.study.records import Statistic, Study, StudyRequest
from qaeval_core.study.run import run_study
from qaeval_core.study.sections import sections
from qaeval_core.terminal import visible
from scoring.test_page import ATTACK, Page, assert_stands_alone
from study.test_pinned_study import score_table, write_tables

ENVIRONMENT = {"python": "3.11", "packages": {"scipy": "1.17"}}


def page_of(study: Study) -> Page:
    text = study_page(study, ENVIRONMENT)
    assert_stands_alone(text)
    return Page(text)


def request(scores: Path | str, **given: object) -> StudyRequest:
    defaults = {"human": ("rating",), "n_resamples": 20}
    return StudyRequest(scores=(str(scores),), **{**defaults, **given})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study with every section; a metric is constant, and another one lower is better."""
    paths = write_tables(tmp_path_factory.mktemp("study"))
    return run_study(
        request(
            paths["scores"],
            subsets=("distance < -3",),
            system="system",
            question="question",
            n_draws=5,
            questions_per_draw=5,
            auc="rating >= 4",
            win_lose="question",
            compare="all",
            forward_selection=True,
        )
    )


def test_dots_are_the_numbers_of_the_tables(study: Study) -> None:
    """Every correlation, area and share: once as a dot, once as a cell, undefined ones too."""
    page = page_of(study)
    cells = {cell for row in page.rows for cell in row}
    found = [one for table in ("correlations", "auc", "win_lose") for one in study.of(table)]
    assert len(found) > 50
    for one in found:
        if math.isnan(one.value):
            assert f"{one.metric}: undefined (constant)" in page.titles
            assert "undefined (constant)" in cells
            continue
        has_interval = not math.isnan(one.low)
        edges = f" [{one.low:.4g}, {one.high:.4g}]" if has_interval else ""
        assert f"{one.metric}: {one.value:.4g}{edges}" in page.titles
        shown = f" [{one.low:.3f}, {one.high:.3f}]" if has_interval else ""
        assert f"{one.value:.3f}{shown}" in cells


def test_rows_of_a_chart_are_those_of_its_table(study: Study) -> None:
    """Protects from a chart of other metrics, or in another order, than the table below it."""
    text = study_page(study, ENVIRONMENT)
    part = text[text.index("<h3>rating, all rows, segment level</h3>") :]
    chart, table = part[: part.index("<table>")], part[part.index("<table>") :]
    names = [row[0].split(" (")[0] for row in Page(table[: table.index("</table>")]).rows[1:]]
    assert len(names) == len(study.metrics) == 4
    for drawn in chart.split("<svg")[1:]:
        titles = Page(f"<svg{drawn[: drawn.index('</svg>')]}</svg>").titles
        assert [title for title in titles if title in names] == names


def test_signs_of_the_grid_are_the_p_values(study: Study) -> None:
    """A sign at p of 0.3 would be a finding out of chance."""
    text = study_page(study, ENVIRONMENT)
    for one in study.of("comparisons"):
        if math.isnan(one.value):
            continue
        if math.isnan(one.p_value):  # Of too few systems.
            continue
        chance = f"p {one.p_value:.3f} ({one.p_corrected:.3f})"
        said = f"{one.metric} - {one.metric_b}: {one.value:.3f}, {chance}"
        inner = [part[: part.index("</g>")] for part in text.split(f"<g><title>{said}</title>")[1:]]
        assert len(inner) >= 2
        signs = {sign for part in inner for sign in "+−" if f">{sign}<" in part}
        assert signs == ({"+", "−"} if one.p_corrected < 0.05 else set()), said


def test_boxes_are_quantiles_of_the_rows_of_a_rating(study: Study) -> None:
    """Against polars, over the rows that have both."""
    page = page_of(study)
    table = score_table().with_columns(pl.col("good").fill_nan(None)).drop_nulls(["rating", "good"])
    for (rating,), own in table.group_by("rating"):
        values = own["good"]
        points = [values.quantile(at, "linear") for at in (0.05, 0.25, 0.5, 0.75, 0.95)]
        numbers = [f"{x:.4g}" for x in (values.mean(), *points)]
        assert ["good", f"{rating:g}", str(own.height), *numbers] in page.rows
        mean, low, first, median, third, high = numbers
        assert (
            f"{rating:g}: {own.height} values, median {median}, mean {mean}, "
            f"half in {first} to {third}, 90 % in {low} to {high}"
        ) in page.titles


def test_what_agrees_best_is_first_and_undefined_last(tmp_path: Path) -> None:
    """By absolute r the worst metric stood beside the best."""
    rating = np.arange(20.0)
    noise = np.random.default_rng(0).normal(scale=4, size=20)
    frame = pl.DataFrame(
        {"rating": rating, "bad": -rating + noise / 2, "flat": np.ones(20), "good": rating + noise,
         "distance": -rating}
    )  # fmt: skip
    told = {
        name: {"metric": name, "higher_is_better": name != "distance"}
        for name in ("bad", "flat", "good", "distance")
    }
    metadata = {b"qaeval.columns": json.dumps(told).encode()}
    pq.write_table(frame.to_arrow().replace_schema_metadata(metadata), tmp_path / "in.parquet")
    study = run_study(request(tmp_path / "in.parquet", auc="rating > 9"))
    for table in ("correlations", "auc"):
        (shown,) = sections(study, table)
        names = [own[0].metric for own in shown.groups]
        assert names == ["distance", "good", "bad", "flat"], table
    text = study_page(study, ENVIRONMENT)
    assert "Best for rating" in text and "r -1.000 [" in text
    charts = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert charts[-4:] == ["distance", "good", "bad", "flat"], "boxes are in the same order"


def test_the_head_says_what_was_read_and_links_to_the_run(tmp_path: Path) -> None:
    frame = pl.DataFrame({"question": ["a b", "b", "c", "d"], "references": [["a"]] * 4})
    rated = frame.with_columns(rating=pl.Series([4, 1, 1, 2]), id=pl.Series(list("wxyz")))
    rated.write_parquet(tmp_path / "q.parquet")
    out = tmp_path / "runs" / "out"
    run_locally(
        {
            "metrics.f1.metric": "f1",
            "input.paths": [str(tmp_path / "q.parquet")],
            "output.path": str(out),
            "output.carry": ["rating"],
        }
    )
    words = ("--human", "rating", "--out", tmp_path / "study", "--name", "March", "--resamples", 20)
    qaeval("correlate", out, *map(str, words))
    text = (tmp_path / "study" / "correlate.html").read_text()
    assert_stands_alone(text)
    assert "qaeval correlate · March" in text and "2026-01-01 00:00 UTC" in text
    assert f"<dd>{out}</dd>" in text and 'href="../runs/out/report.html"' in text
    assert json.loads((tmp_path / "study" / "report.json").read_text())["made"]["name"] == "March"


def test_many_ratings_are_cut_into_bins_that_hold_every_row_once() -> None:
    """Protects from rows at the edge of two bins that count twice or not at all."""
    human = np.append(np.linspace(0, 1, 101), np.nan)
    boxes = rating_boxes(human.copy(), human)
    assert [box.name for box in boxes][::4] == ["0 to 0.2", "0.8 to 1"]
    assert sum(box.n for box in boxes) == 101


def test_names_of_others_are_shown_and_never_run(tmp_path: Path) -> None:
    """Columns, subsets and paths come from anybody."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({name: rng.normal(size=30) for name in ("m", "k", "f")})
    frame = frame.rename({"m": ATTACK, "k": f"{ATTACK}2", "f": f"{ATTACK}3"})
    frame = frame.with_columns(pl.Series(f"{ATTACK} human", rng.integers(0, 3, 30)))
    frame = frame.with_columns(pl.Series("group", [ATTACK, "b"] * 15))
    frame.write_parquet(tmp_path / "in.parquet")
    study = run_study(
        request(
            tmp_path / "in.parquet", human=(f"{ATTACK} human",), by="group", compare="all",
            metrics=(ATTACK, f"{ATTACK}2", f"{ATTACK}3"),
        )
    )  # fmt: skip
    page = page_of(study)
    shown = visible(ATTACK)
    assert any(title.startswith(f"{shown}: ") for title in page.titles)
    assert any(row[0] == shown for row in page.rows)


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_a_page_of_few_rows_says_that_they_are_too_few(tmp_path: Path, n_rows: int) -> None:
    """Protects from nan as a coordinate, and from a page that fails where the study does not."""
    frame = pl.DataFrame({"m": np.arange(3.0), "rating": [1.0, 2.0, 3.0], "label": [1, 0, 1]})
    frame[:n_rows].write_parquet(tmp_path / "in.parquet")
    study = run_study(request(tmp_path / "in.parquet", metrics=("m",), auc="label", compare="all"))
    text = study_page(study, ENVIRONMENT)
    page = page_of(study)
    assert "m: undefined (too few)" in page.titles
    assert '"nan' not in text and "nan " not in text
    assert ("No row has a rating." in text) == (n_rows == 0)


def make_large_study(name: str, n_metrics: int, n_subsets: int, n_human: int) -> Study:
    """Return a study of so many metrics, whose names are long where the name is."""
    rng = np.random.default_rng(1)
    metrics = [f"{i} {name}" for i in range(n_metrics)]
    human = tuple(f"{i} rating {name}" for i in range(n_human))
    study = Study(
        request("in.parquet", human=human),
        50,
        metrics,
        scores={metric: rng.normal(size=50) for metric in metrics},
        ratings={own: rng.integers(0, 9, 50).astype(float) for own in human},
        notes=[f"note {i} {name}" for i in range(500)],
    )
    for own, i in itertools.product(human, range(n_subsets)):
        place = {"subset": f"{i} {name}" if i else "all", "human": own, "level": "segment"}
        study.statistics += [
            Statistic(
                table="correlations", metric=metric, coefficient=coefficient, value=0.5, low=0.25,
                high=0.75, n=50, signature=f"{name}|v:1", **place,
            )
            for metric in metrics
            for coefficient in ("pearson", "spearman", "kendall")
        ]  # fmt: skip
        study.statistics += [
            Statistic(
                table="comparisons", metric=a, metric_b=b, coefficient="pearson", value=0.125,
                low=0.0, high=0.25, p_value=0.04, n=50, **place,
            )
            for a, b in itertools.combinations(metrics[:20], 2)
        ]  # fmt: skip
    return study


@pytest.mark.parametrize(
    "name", ["metric", pytest.param("長い名前の列" * 40, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("n_metrics", "n_subsets", "n_human"), [(40, 60, 1), (12, 3, 10), (200, 2, 2)]
)
def test_a_page_is_small_and_says_what_it_leaves_out(
    name: str, n_metrics: int, n_subsets: int, n_human: int
) -> None:
    """Sixty subsets of forty metrics: report.json has megabytes, a page has not."""
    text = study_page(make_large_study(name, n_metrics, n_subsets, n_human), ENVIRONMENT)
    assert_stands_alone(text)
    assert any(title.endswith(": 0.5 [0.25, 0.75]") for title in Page(text).titles)
    for what in ("notes", "tables of subsets"):
        assert f"more {what} are left out: the page would be too large" in text
