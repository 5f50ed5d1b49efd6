"""Correlations against nested loops, scipy and published tables; undefined where meaningless."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from qaeval_core.stats.bootstrap import resample_weights
from qaeval_core.stats.correlation import (
    COEFFICIENTS,
    correlate,
    row_correlations,
    weighted_correlations,
)

# Few different values, so that ties are common.
sides = st.integers(3, 25).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(-4, 4), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.1, 0.25, 0.5, 2.0, 7.0]), min_size=n, max_size=n),
        st.lists(st.integers(0, 3), min_size=n, max_size=n),
    )
)


def _reference_pearson(x: list[float], y: list[float]) -> float:
    n = len(x)
    x_mean, y_mean = math.fsum(x) / n, math.fsum(y) / n
    covariance = math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    x_squares = math.fsum((a - x_mean) ** 2 for a in x)
    return covariance / math.sqrt(x_squares * math.fsum((b - y_mean) ** 2 for b in y))


def _reference_ranks(values: list[float]) -> list[float]:
    """Rank of a value: those below it, and half of those equal to it, itself included."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def _reference_kendall(x: list[float], y: list[float]) -> float:
    concordant = discordant = x_only = y_only = 0
    for i in range(len(x)):
        for j in range(i):
            product = (x[i] - x[j]) * (y[i] - y[j])
            concordant += product > 0
            discordant += product < 0
            x_only += x[i] != x[j] and y[i] == y[j]
            y_only += y[i] != y[j] and x[i] == x[j]
    x_untied, y_untied = concordant + discordant + x_only, concordant + discordant + y_only
    return (concordant - discordant) / math.sqrt(x_untied * y_untied)


def _reference(coefficient: str, x: list[float], y: list[float]) -> float:
    if coefficient == "kendall":
        return _reference_kendall(x, y)
    if coefficient == "spearman":
        return _reference_pearson(_reference_ranks(x), _reference_ranks(y))
    return _reference_pearson(x, y)


@given(sides)
@settings(max_examples=60, deadline=None)
def test_each_coefficient_is_its_nested_loop(
    drawn: tuple[list[float], list[float], list[int]],
) -> None:
    """Protects from wrong ties: human ratings have few values, so most pairs are tied."""
    x, y, _ = drawn
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    found = correlate(metric=np.array(x, float), human=np.array(y))
    expected = [_reference(name, x, y) for name in COEFFICIENTS]
    assert found.values == pytest.approx(expected, abs=1e-12)


@given(sides)
@settings(max_examples=60, deadline=None)
def test_a_weighted_resample_is_the_resample_written_out(
    drawn: tuple[list[float], list[float], list[int]],
) -> None:
    """Protects the bootstrap: a row drawn twice must count as two equal rows."""
    x, y, counts = drawn
    weights = np.array([counts], float).T
    found = weighted_correlations(metric=np.array(x, float), human=np.array(y), weights=weights)
    long_x = [value for value, n in zip(x, counts, strict=True) for _ in range(n)]
    long_y = [value for value, n in zip(y, counts, strict=True) for _ in range(n)]
    if len(long_x) < 3 or len(set(long_x)) == 1 or len(set(long_y)) == 1:
        assert np.isnan(found).all()
    else:
        expected = [_reference(name, long_x, long_y) for name in COEFFICIENTS]
        assert found[:, 0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n_values", [2, 5, 400])
def test_resamples_of_many_rows_are_those_of_few(
    monkeypatch: pytest.MonkeyPatch, n_values: int
) -> None:
    """Many rows are written out, few are weighed: the same coefficients, whatever the scale."""
    rng = np.random.default_rng(4)
    human = rng.integers(0, n_values, size=60).astype(float)
    metric = 1e6 + human + rng.normal(size=60).round(1)
    metric[0] = 1e40  # A resample without it has its own scale.
    weights = next(resample_weights(60, n_resamples=50, seed=2))
    weights[:, 0], weights[:, 1] = 0.0, weights[:, 2] * (np.arange(60) < 2)
    given = {"metric": metric, "human": human, "weights": weights}
    few = weighted_correlations(**given)
    monkeypatch.setattr("qaeval_core.stats.correlation._MAX_AT_ONCE", 59)
    many = weighted_correlations(**given)
    assert (np.isnan(few) == np.isnan(many)).all() and np.isnan(few[:, 0]).all()
    assert few == pytest.approx(many, abs=1e-9, nan_ok=True)
    assert few[2] == pytest.approx(many[2], abs=1e-15, nan_ok=True)


def test_large_continuous_columns_agree_with_scipy() -> None:
    """Protects what nested loops are too slow to check."""
    rng = np.random.default_rng(3)
    metric = rng.normal(size=3_000) + 1e6
    human = metric + rng.normal(size=3_000)
    expected = [
        stats.pearsonr(metric, human).statistic,
        stats.spearmanr(metric, human).statistic,
        stats.kendalltau(metric, human).statistic,
    ]
    assert correlate(metric=metric, human=human).values == pytest.approx(expected, abs=1e-9)


NAN = float("nan")


@pytest.mark.parametrize(
    ("metric", "human", "reason", "n", "n_undefined"),
    [
        ([], [], "too_few", 0, 0),
        ([0.1], [1.0], "too_few", 1, 0),
        ([0.1, 0.2, NAN, 0.3], [1.0, 2.0, 3.0, NAN], "too_few", 2, 2),
        ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], "constant_metric", 3, 0),
        ([0.1, 0.2, 0.3], [1.0, 1.0, 1.0], "constant_human", 3, 0),
        ([0.1, 0.1, 0.1, 0.9], [1.0, 2.0, 3.0, NAN], "constant_metric", 3, 1),
    ],
)
def test_undefined_has_a_reason_and_left_out_rows_are_counted(
    metric: list[float], human: list[float], reason: str, n: int, n_undefined: int
) -> None:
    """Protects from 0 for a constant column, which reads as `no agreement`."""
    found = correlate(metric=np.array(metric), human=np.array(human))
    assert np.isnan(found.values).all()
    assert (found.reason, found.n, found.n_undefined) == (reason, n, n_undefined)


def test_a_nearly_constant_resample_of_rounding_errors_is_undefined() -> None:
    """Protects from a variance of 1e-33 where a column of 0.1 was drawn: not 0, and not a value."""
    values = np.array([0.1, 0.1, 0.1, 0.7])
    human = np.array([1.0, 2.0, 3.0, 4.0])
    weights = np.array([[3.0], [2.0], [1.0], [0.0]])
    assert np.isnan(weighted_correlations(metric=values, human=human, weights=weights)).all()


def test_rows_of_points_agree_with_one_by_one() -> None:
    """Protects system level, where each resample has scores of its own."""
    rng = np.random.default_rng(5)
    metric = rng.integers(0, 4, size=(40, 6)).astype(float)
    human = rng.normal(size=(40, 6))
    metric[7], metric[9, 2], human[11] = 1.0, NAN, 2.0
    found = row_correlations(metric=metric, human=human)
    for i in range(40):
        if i in (7, 9, 11):
            assert np.isnan(found[:, i]).all()
        else:
            x, y = metric[i].tolist(), human[i].tolist()
            expected = [_reference(name, x, y) for name in COEFFICIENTS]
            assert found[:, i] == pytest.approx(expected, abs=1e-12)


def _sas(shared_data: Path, subset: str) -> pl.DataFrame:
    rows = pl.read_ndjson(shared_data / "sas/squad_pairs.jsonl", infer_schema_length=None)
    is_zero = pl.col("f1") == 0
    return rows.unnest("peer").filter(is_zero if subset == "F1=0" else ~is_zero)


def _values(frame: pl.DataFrame, column: str) -> NDArray[np.float64]:
    return frame[column].cast(pl.Float64).to_numpy()


@pytest.mark.shared_data
@pytest.mark.parametrize("subset", ["F1=0", "F1!=0"])
def test_published_table_of_answer_similarity_is_reproduced(shared_data: Path, subset: str) -> None:
    """Mustafazade and Ebbinghaus 2022, table 3: all cells; a printed 0 is an undefined one."""
    tables = json.loads((shared_data / "sas/published_tables.json").read_text())
    frame = _sas(shared_data, subset)
    for metric, printed in tables["table3_SQuAD"][subset].items():
        found = correlate(metric=_values(frame, metric), human=_values(frame, "label"))
        if 0 in printed:
            assert set(printed) == {0}
            assert found.reason == "constant_metric", metric
        else:
            assert found.values.round(3).tolist() == printed, metric


@pytest.mark.shared_data
def test_correlations_of_generated_answers_are_those_of_their_source(shared_data: Path) -> None:
    """KPQA's own scores on MS-MARCO answers of UniLM; values of the data's description."""
    path = shared_data / "kpqa/human_judgments.jsonl"
    rows = pl.read_ndjson(path, infer_schema_length=None).filter(pl.col("file") == "marco_unilm")
    frame = rows.select("human_score", "peer").unnest("peer")
    for metric, pearson, spearman in (
        ("BLEU-1", 0.369, 0.337),
        ("BLEU-4", 0.173, 0.224),
        ("ROUGE-L", 0.317, 0.289),
        ("CIDEr", 0.261, 0.256),
    ):
        found = correlate(metric=_values(frame, metric), human=_values(frame, "human_score"))
        assert found.values[:2].round(3).tolist() == [pearson, spearman], metric
