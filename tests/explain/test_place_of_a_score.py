"""Where a row lies among all rows: against polars on the scores of a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from filter_corpora import questions
from helpers import run_locally
from qaeval_core.explain.page import explanation_page
from qaeval_core.explain.parts import InstanceExplanation, ScoreLine
from qaeval_core.explain.row import explain_row
from qaeval_core.explain.standings import standing, standings
from qaeval_core.profile.cells import Cells
from qaeval_core.profile.column_profile import Places, Profile


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores by words of 300 questions, one of them quarantined."""
    folder = tmp_path_factory.mktemp("standing")
    row = pl.int_range(pl.len())
    asked = pl.when(row == 3).then(None).otherwise(pl.col("question"))
    table = questions(300).with_columns(asked.alias("question"))
    table.write_parquet(folder / "q.parquet")
    run_locally(
        {
            "metrics.f1.metric": "f1",
            "metrics.cider.metric": "cider",
            "input.paths": [str(folder / "q.parquet")],
            "input.columns.references": "reference",
            "output.path": str(folder / "out"),
        }
    )
    return folder / "out"


@pytest.mark.parametrize("row", [0, 17, 123, 299])
def test_rows_below_and_above_are_those_of_the_scores(out: Path, row: int) -> None:
    """Counts are exact but for rows of the same cell; F1 has known ends, CIDEr has not."""
    scores = pl.read_parquet(out / "scores" / "q.parquet")
    found = {own.column: own for own in explain_row(out, place=f"q.parquet:{row}").standings}
    assert list(found) == ["f1", "cider"]
    for name, own in found.items():
        values = scores[name].drop_nulls().cast(pl.Float64).to_numpy()
        value = float(scores[name][row])
        assert own.value == value
        assert own.n_lower + own.n_higher + own.n_beside == len(values) == sum(own.counts)
        assert own.n_lower <= (values < value).sum() <= own.n_lower + own.n_beside - 1
        assert own.n_higher <= (values > value).sum() <= own.n_higher + own.n_beside - 1
        near = np.abs(values - value) <= own.cell_width
        assert (np.abs(values - value) == 0).sum() <= own.n_beside <= near.sum()
        assert own.edges[0] <= value <= own.edges[-1]


def test_a_row_without_a_score_has_no_chart(out: Path) -> None:
    """A mark at 0 would be a score that nobody gave."""
    explanation = explain_row(out, place="q.parquet:3")
    assert explanation.quarantine_reason == "null_candidate" and explanation.standings == ()
    assert "<svg" not in explanation_page(explanation)


@pytest.mark.parametrize("stored", [None, math.inf, math.nan, "a text"])
def test_only_numbers_stand_somewhere(out: Path, stored: float | str | None) -> None:
    """Undefined, infinite and textual columns have no place between bars; the next one may."""
    lines = [
        ScoreLine(column="f1", stored=stored, now=None, is_compared=False),
        ScoreLine(column="not_in_the_profile", stored=0.5, now=None, is_compared=False),
        ScoreLine(column="cider", stored=0.5, now=None, is_compared=False),
    ]
    own = InstanceExplanation(name="f1", metric="f1", signature="", reason=None, scores=(*lines,))
    found, notes = standings(out, [own])
    assert ([one.column for one in found], notes) == (["cider"], [])


def test_an_older_run_has_no_chart_and_a_damaged_profile_says_so(out: Path) -> None:
    """Protects from a row that cannot be explained for want of what only a chart needs."""
    path = out / "profile.parquet"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:100])
        explanation = explain_row(out, place="q.parquet:0")
        assert explanation.standings == ()
        assert any("profile.parquet is damaged" in note for note in explanation.notes)
        path.unlink()
        explanation = explain_row(out, place="q.parquet:0")
        assert (explanation.standings, explanation.notes) == ((), ())
        assert "<svg" not in explanation_page(explanation)
    finally:
        path.write_bytes(content)


def test_a_value_at_an_end_of_one_row_stands_alone() -> None:
    """The only row of a run has none below and none above."""
    profile = Profile(Cells(0.0, 1.0), 1)
    profile.add(np.array([1.0]), Places(1, [np.zeros(1, np.intp)]))
    own = standing("f1", 1.0, profile)
    assert (own.n_lower, own.n_higher, own.n_beside, sum(own.counts)) == (0, 0, 1, 1)
