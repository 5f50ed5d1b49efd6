"""What is said of the metrics' worth: pages and ``qaeval metrics`` say what was measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validity_page import PAGE, load_record, mark, page
from qaeval_core.metrics.advice import GUIDE, Advice
from qaeval_core.metrics.catalog import METRICS

RECORD = load_record()
SETS: dict[str, Any] = RECORD["sets"]


def test_the_page_is_what_was_measured() -> None:
    """Protects from figures that somebody wrote by hand."""
    assert page(RECORD) == PAGE.read_text(encoding="utf-8"), "run benchmarks.validity --only page"


def test_every_metric_is_in_the_page_measured_or_said_not_to_be() -> None:
    """Protects from a metric of which nothing is known, and nobody says so."""
    text, _, rest = PAGE.read_text(encoding="utf-8").partition("## Not measured")
    measured = {own["metric"] for judged in SETS.values() for own in judged["columns"].values()}
    told = set(re.findall(r"^\| `(\w+)` \|", rest, re.MULTILINE))
    assert told == set(METRICS) - measured
    assert {name for name in told if "endpoint" in METRICS[name].needs} == {"naco", "judge"}
    for name, judged in SETS.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        lines = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
        assert sorted(lines) == sorted(judged["columns"]), name


def test_every_figure_has_an_interval_around_it() -> None:
    """Protects from intervals of other rows than the figure's."""
    for name, judged in SETS.items():
        for column, own in judged["columns"].items():
            figures = {key: value for key, value in own.items() if isinstance(value, list)}
            assert figures or own["auc"] is None, (name, column)
            for key, (value, low, high) in figures.items():
                assert low <= value <= high, (name, column, key)
                assert key not in ("falls", "beats_wrong") or 0 <= low <= high <= 1, (name, column)


def test_rates_are_there_for_all_that_was_judged() -> None:
    """Protects from a set that was judged and never timed."""
    for name, judged in SETS.items():
        metrics = {own["metric"] for own in judged["columns"].values()}
        assert set(RECORD["speed"][name]) == metrics
        assert all(own["rows_per_s"] > 0 for own in RECORD["speed"][name].values())


@pytest.mark.parametrize("advice", GUIDE, ids=lambda advice: advice.job)
def test_figures_of_the_guide_are_those_of_the_page(advice: Advice) -> None:
    """Protects from a figure that was measured once, and from one that training made."""
    (name,) = {figure.judged_set for figure in advice.figures}
    (statistic,) = {figure.statistic for figure in advice.figures}
    columns = SETS[name]["columns"]
    metrics = [columns[figure.column]["metric"] for figure in advice.figures]
    assert metrics[0] in advice.use
    assert set(metrics[1:]) <= set(advice.rather_than)
    for figure in advice.figures:
        values = (figure.value, figure.low, figure.high)
        assert values == pytest.approx(columns[figure.column][statistic], abs=6e-4)
        # The star: trained on texts of the set.
        assert "*" not in mark(name, SETS[name], columns[figure.column]["metric"])


@pytest.mark.parametrize("advice", GUIDE, ids=lambda advice: advice.job)
def test_a_line_of_the_guide_says_no_more_than_comparisons(advice: Advice) -> None:
    """Protects from `rather than` where another set, or the next draw of passages, says otherwise.

    No metric to use is shown worse than the best of its family; the others are, on two sets.
    """
    first, statistic = advice.figures[0].judged_set, advice.figures[0].statistic
    sets = [first, *([advice.also_on] if advice.rather_than else [])]
    assert bool(advice.rather_than) == bool(advice.also_on)
    for name in sets:
        found = SETS[name]["behind_best"][statistic][advice.family]
        columns = SETS[name]["columns"]
        p_values = {columns[column]["metric"]: p for column, (_, p) in found.items()}
        assert all(p_values[metric] >= 0.05 for metric in advice.use), name
        assert all(p_values[metric] < 0.05 for metric in advice.rather_than), name
        # The first figure is of the best one to use.
        differences = {columns[column]["metric"]: own for column, (own, _) in found.items()}
        best = max(advice.use, key=differences.__getitem__)
        if name == first:
            assert columns[advice.figures[0].column]["metric"] == best
            others = [differences[metric] for metric in advice.rather_than]
            shown = [differences[columns[own.column]["metric"]] for own in advice.figures[1:]]
            assert shown == ([max(others)] if others else [])
            rates = [RECORD["speed"][name][metric]["rows_per_s"] for metric in advice.use]
            assert rates == sorted(rates, reverse=True)


def test_the_guide_is_short_and_leaves_no_metric_out() -> None:
    """Protects from a metric that is recommended for nothing, and not said to be."""
    assert len(GUIDE) <= 12
    measured = {own["metric"] for judged in SETS.values() for own in judged["columns"].values()}
    assert {name for line in GUIDE for name in (*line.use, *line.rather_than)} == measured


@pytest.mark.slow
@pytest.mark.shared_data
def test_what_the_page_says_of_words_is_found_again(shared_data: Path) -> None:
    """Protects from a page of other rows, labels or formulas than those of today."""
    from benchmarks.judged_sets import SETS as JUDGED
    from benchmarks.validity import agreement, score

    judged = JUDGED["sas"]()
    metrics = [name for name in METRICS if METRICS[name].needs == ("words",)]
    metrics = [name for name in metrics if name in SETS["sas"]["columns"]]
    assert {"f1", "rouge_l", "meteor"} <= set(metrics)
    scores = score(judged, metrics=metrics, n_threads=1)
    found = agreement(judged, scores, metrics=metrics, n_resamples=20)
    for key in ("n_rows", "n_clusters", "share_good"):
        assert found[key] == SETS["sas"][key]
    for column, own in found["columns"].items():
        for key in ("pearson", "spearman", "auc"):
            wanted = SETS["sas"]["columns"][column][key]
            assert own[key][0] == pytest.approx(wanted[0], abs=1e-3), (column, key)
