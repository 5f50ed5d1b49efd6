"""Intervals of a study: what is drawn, and how often they hold what they say."""

from __future__ import annotations

import math
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks.label_draws import good_rows, passage_codes, read_questions
from helpers import REPOSITORY, qaeval
from qaeval_core.errors import InputError, SchemaError
from qaeval_core.stats.bootstrap import (
    N_RESAMPLES,
    MaxT,
    bootstrap,
    percentile_interval,
    scaled_bootstrap,
)
from qaeval_core.stats.correlation import weighted_correlations
from qaeval_core.stats.ranking import weighted_auc
from qaeval_core.study.output import study_lines
from qaeval_core.study.records import Study, StudyRequest
from qaeval_core.study.run import run_study

N_CONTEXTS = 20


def answers() -> pl.DataFrame:
    """Return five answers to a question about each of 20 contexts; context decides most of all."""
    rng = np.random.default_rng(0)
    context = np.repeat(np.arange(N_CONTEXTS), 5)
    quality = rng.normal(size=N_CONTEXTS)[context] + 0.3 * rng.normal(size=100)
    return pl.DataFrame(
        {
            "id": [f"r{i}" for i in range(100)],
            "passage": [f"This is passage {i} of them all." for i in context],
            "question": [f"What is passage {i}?" for i in context],
            "candidate": [
                f"passage {i} it is" if q > 0 else "no"
                for i, q in zip(context, quality, strict=True)
            ],
            "references": [[f"passage {i}"] for i in context],
            "rating": quality + 0.3 * rng.normal(size=100),
            "good": [int(q > 0) for q in quality],
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an OUT without a column of contexts."""
    folder = tmp_path_factory.mktemp("study")
    table = answers()
    table.head(60).write_parquet(folder / "a.parquet")
    table.tail(40).write_parquet(folder / "b.parquet")
    qaeval("score", folder / "a.parquet", folder / "b.parquet", "--out", folder / "out",
           "--metrics", "f1,rouge_l", "--column", "context=passage", "--carry", "rating,good",
           "--local")  # fmt: skip
    return folder / "out"


def study(*paths: Path, **options: object) -> Study:
    given = {"human": ("rating",), "metrics": ("f1",), "n_resamples": 100, **options}
    return run_study(StudyRequest(scores=tuple(map(str, paths)), **given))  # type: ignore[arg-type]


def width(found: Study) -> float:
    one = found.of("correlations")[0]
    return one.high - one.low


def test_contexts_of_the_input_are_drawn_by_default(out: Path) -> None:
    """Protects from 100 rows that count as independent where 20 contexts are."""
    found = study(out)
    assert found.request.cluster == "context of the input"
    assert any("intervals draw 20 groups of rows, by context" in note for note in found.notes)
    rows = study(out, cluster="none")
    assert any("intervals treat 100 rows as independent" in note for note in rows.notes)
    assert width(found) > 1.5 * width(rows)
    # The same rows with a column of contexts, and columns of an OUT that name a role.
    scores = pl.read_parquet(out / "scores").join(answers().select("id", "passage"), on="id")
    table = out.parent / "carried.parquet"
    scores.write_parquet(table)
    carried = study(table, cluster="passage")
    assert width(carried) == pytest.approx(width(found), rel=0.3)
    assert width(study(out, cluster="question")) == pytest.approx(width(found), rel=0.3)
    shown = "\n".join(study_lines(found))
    assert "note: intervals draw 20 groups of rows, by context; --cluster none" in shown


def test_without_contexts_questions_that_repeat_are_drawn(tmp_path: Path) -> None:
    table = answers().select("id", "question", "rating", f1=pl.col("rating") + 1)
    table.write_parquet(tmp_path / "scores.parquet")
    assert study(tmp_path / "scores.parquet").request.cluster == "question"
    alone = table.with_columns(question=pl.col("id"))
    alone.write_parquet(tmp_path / "alone.parquet")
    found = study(tmp_path / "alone.parquet")
    assert found.request.cluster is None
    assert any("treat 100 rows as independent" in note for note in found.notes)
    with pytest.raises(SchemaError, match="--cluster: no column 'passages'.*QA0305"):
        study(tmp_path / "scores.parquet", cluster="passages")


def test_an_input_that_is_gone_is_said(out: Path, tmp_path: Path) -> None:
    moved = tmp_path / "out"
    table = answers().with_columns(id=pl.col("id") + "x")
    table.write_parquet(tmp_path / "gone.parquet")
    qaeval("score", tmp_path / "gone.parquet", "--out", moved, "--metrics", "f1", "--column",
           "context=passage", "--carry", "rating", "--local")  # fmt: skip
    elsewhere = tmp_path / "elsewhere" / "gone.parquet"
    elsewhere.parent.mkdir()
    (tmp_path / "gone.parquet").rename(elsewhere)
    found = study(moved)
    assert any(
        "resampled one by one, because the input cannot be read" in note for note in found.notes
    )
    with pytest.raises(InputError, match="--cluster context.*QA0301"):
        study(moved, cluster="context")
    found = study(moved, inputs=(str(elsewhere),))
    assert any("intervals draw 20 groups of rows, by context" in note for note in found.notes)


def systems(n_systems: int) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    quality = np.linspace(0, 1, n_systems)
    rows = [
        (f"q{i}", f"s{j:02d}", own + rng.normal(), own + rng.normal())
        for i in range(30)
        for j, own in enumerate(quality)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=["question", "system", "rating", "f1"], orient="row")


def test_intervals_of_systems_say_which_systems_they_are_of(tmp_path: Path) -> None:
    """Systems are not drawn unless asked; a resample of seven says nothing."""
    path = tmp_path / "scores.parquet"
    systems(12).write_parquet(path)
    asked = {"system": "system", "question": "question"}
    own = study(path, **asked)
    both = study(path, draw_systems=True, **asked)
    fixed, drawn = (
        next(one for one in found.of("correlations") if one.level == "system")
        for found in (own, both)
    )
    assert drawn.high - drawn.low > fixed.high - fixed.low
    assert "intervals are for these systems only" in "\n".join(study_lines(own))
    assert "systems are drawn, too" in "\n".join(study_lines(both))
    systems(7).write_parquet(path)
    few = study(path, compare=None, **asked)
    assert all(math.isnan(one.low) for one in few.of("correlations") if one.level == "system")
    assert "no interval: fewer than 8 systems" in "\n".join(study_lines(few))


def test_few_units_make_wider_intervals() -> None:
    """Protects from percentiles that are those of a known variance."""
    rng = np.random.default_rng(2)
    for n_units, least in ((10, 1.21), (22, 1.08), (5000, 0.99)):
        rows = rng.normal(size=n_units)

        mean = partial(weighted_mean, rows=rows)
        plain = bootstrap(mean, n_units, n_resamples=1000, seed=0)
        scaled = scaled_bootstrap(mean, rows.mean()[None], n_units, n_resamples=1000, seed=0)
        ratio = np.std(scaled) / np.std(plain)
        assert least <= ratio <= least * 1.1
        student = stats.t.ppf(0.975, n_units - 1) * stats.sem(rows)
        found = percentile_interval(scaled[0])
        assert (found.high - found.low) / 2 == pytest.approx(student, rel=0.08)
    # Leaving out each unit takes no more memory than resamples do.
    tracemalloc.start()
    rows = rng.normal(size=50_000)
    codes = np.repeat(np.arange(1000), 50)
    own = partial(weighted_mean, rows=rows)
    scaled_bootstrap(own, rows.mean()[None], 50_000, n_resamples=20, seed=0, clusters=codes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6, "rows x units are 400 MB"
    alone = scaled_bootstrap(mean, rows.mean()[None], 5000, n_resamples=9, seed=0,
                             clusters=np.zeros(5000, dtype=np.intp))  # fmt: skip
    assert np.isnan(alone).all()


@pytest.mark.parametrize("n_resamples", [100, 1000])
def test_a_variance_that_few_rows_make_widens_intervals(n_resamples: int) -> None:
    """Of a mean, what a row changes is its distance: its kurtosis tells the degrees of freedom."""
    n = 60
    rows = np.random.default_rng(3).standard_t(3, size=n)
    own = partial(weighted_mean, rows=rows)
    plain = bootstrap(own, n, n_resamples=n_resamples, seed=0)
    scaled = scaled_bootstrap(own, rows.mean()[None], n, n_resamples=n_resamples, seed=0)
    degrees = 2 * n / (stats.kurtosis(rows, fisher=False) - 1)
    assert degrees < 30
    # numpy's quantile lies between two of the draws, which leave out whole shares of B + 1.
    place = (n_resamples - 1) * 0.025 + 1
    widened = stats.t.isf(0.025, degrees) / stats.norm.isf(place / (n_resamples + 1))
    known = max(np.sqrt((n - 1) / n) * stats.sem(rows) / np.std(plain), 1)
    assert np.std(scaled) / np.std(plain) == pytest.approx(
        widened * known * np.sqrt(n / (n - 1)), rel=1e-9
    )


def weighted_mean(weights: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return (rows @ weights / weights.sum(axis=0))[None]


def test_corrected_p_values_are_of_the_largest_of_all() -> None:
    """Twenty comparisons of nothing are wrong in one of twenty draws, not in two thirds."""
    rng = np.random.default_rng(3)
    n_wrong = n_careless = 0
    for _ in range(300):
        together, raw = MaxT(400), []
        # Sums that share a part, as metrics of the same rows do.
        deviations = rng.normal(size=(401, 20)) + rng.normal(size=(401, 1))
        for j in range(20):
            own = deviations[0, j]
            together.add(own, own + deviations[1:, j])
            raw.append(np.mean(np.abs(deviations[1:, j]) >= abs(own)))
        found = together.p_values()
        assert all(0 < p <= 1 for p in found)
        n_wrong += min(found) < 0.05
        n_careless += min(raw) < 0.05
    assert n_wrong / 300 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300) < n_careless / 300
    together = MaxT(10)
    together.add(math.nan, np.full(10, math.nan))
    together.add(0.0, np.zeros(10))
    assert math.isnan(together.p_values()[0]) and together.p_values()[1] == 1.0


# QGEval: how often an interval of some of its passages holds what is true of all


@pytest.fixture(scope="module")
def judged(shared_data: Path) -> pl.DataFrame:
    """Return kept scores, people's ratings and passages."""
    questions = read_questions(shared_data)
    scores = pl.read_parquet(REPOSITORY / "docs/evidence/scores/qgeval.parquet")
    return scores.with_columns(
        rating=questions["answer_consistency"],
        good=pl.Series(good_rows(questions)),
        passage=pl.Series(passage_codes(questions)),
    )


def sampled(
    passages: NDArray[np.intp], n: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of passages drawn with replacement, and which draw each is of."""
    drawn = rng.integers(passages.max() + 1, size=n)
    rows = [np.flatnonzero(passages == own) for own in drawn]
    return np.concatenate(rows), np.repeat(np.arange(n), [len(own) for own in rows])


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("n_contexts", [30, pytest.param(100, marks=pytest.mark.long)])
def test_intervals_hold_the_truth_as_often_as_they_say(
    judged: pl.DataFrame, n_contexts: int
) -> None:
    """Rows as independent hold it in .65 to .84; contexts in .91 to .97."""
    rng = np.random.default_rng(4)
    passages, good = judged["passage"].to_numpy(), judged["good"].to_numpy()
    rating = judged["rating"].cast(pl.Float64).to_numpy()
    samples = [sampled(passages, n_contexts, rng) for _ in range(100)]
    held: dict[str, list[bool]] = {}
    careless: list[bool] = []
    for metric in ("roundtrip_confidence", "bertscore_free_f1"):
        scores = judged[metric].cast(pl.Float64).to_numpy()
        truth = coefficients(np.ones((len(scores), 1)), scores, rating, good)[:, 0]
        for rows, clusters in samples:
            own = partial(coefficients, scores=scores[rows], rating=rating[rows], good=good[rows])
            value = own(np.ones((len(rows), 1)))[:, 0]
            # As many as a study draws by default: an interval of 200 is otherwise in each draw.
            for codes, n_resamples in ((clusters, N_RESAMPLES), (None, 200)):
                resampled = scaled_bootstrap(
                    own, value, len(rows), n_resamples=n_resamples, seed=0, clusters=codes
                )
                found = [percentile_interval(each) for each in resampled]
                are_held = [
                    each.low <= true <= each.high for each, true in zip(found, truth, strict=True)
                ]
                if codes is None:
                    careless += are_held
                    continue
                for name, is_held in zip(("pearson", "spearman", "auc"), are_held, strict=True):
                    held.setdefault(f"{metric} {name}", []).append(is_held)
    rates = {name: float(np.mean(own)) for name, own in held.items()}
    assert all(0.91 <= rate <= 0.98 for rate in rates.values()), rates
    assert 0.91 <= np.mean(list(rates.values())) <= 0.97, rates
    assert np.mean(careless) < 0.88


def coefficients(
    weights: NDArray[np.float64],
    scores: NDArray[np.float64],
    rating: NDArray[np.float64],
    good: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return Pearson, Spearman and the area under the curve of each resample.

    From weights, and not from rows written out as the study's are: many samples in little time.
    """
    total, n_good = weights.sum(axis=0), weights[good].sum(axis=0)
    ranks, own = (weighted_ranks(side, weights) for side in (scores, rating))
    wins = (weights * ranks)[good].sum(axis=0) - n_good**2 / 2
    return np.vstack(
        [
            weighted_pearson(scores[:, None], rating[:, None], weights),
            weighted_pearson(ranks, own, weights),
            wins / (n_good * (total - n_good)),
        ]
    )


def weighted_ranks(
    values: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the rows below each row and half of those that are equal to it."""
    _, starts, codes = np.unique(np.sort(values), return_index=True, return_inverse=True)
    equal = np.add.reduceat(weights[np.argsort(values)], starts)
    middle = equal.cumsum(axis=0) - equal / 2
    places: NDArray[np.intp] = np.empty_like(codes)
    places[np.argsort(values)] = codes
    return middle[places]


def weighted_pearson(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    x, y = (side - (weights * side).sum(axis=0) / weights.sum(axis=0) for side in (x, y))
    squares = (weights * x * x).sum(axis=0) * (weights * y * y).sum(axis=0)
    found: NDArray[np.float64] = (weights * x * y).sum(axis=0) / np.sqrt(squares)
    return found


@pytest.mark.shared_data
def test_coefficients_of_weights_are_the_studys(judged: pl.DataFrame) -> None:
    scores, rating = (judged[own].cast(pl.Float64).to_numpy() for own in ("roundtrip", "rating"))
    good = judged["good"].to_numpy()
    weights = np.random.default_rng(5).integers(0, 4, size=(len(scores), 5)).astype(np.float64)
    found = coefficients(weights, scores, rating, good)
    expected = weighted_correlations(metric=scores, human=rating, weights=weights)[:2]
    assert found[:2] == pytest.approx(expected, abs=1e-12)
    assert found[2] == pytest.approx(weighted_auc(scores, good, weights), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("n_tables", [10, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.shared_data
def test_noise_correlates_no_more_often_than_it_may(
    judged: pl.DataFrame, tmp_path: Path, n_tables: int
) -> None:
    """Eight columns of noise with effects of passages: 23 % left out 0 where rows were drawn."""
    passages = judged["passage"].to_numpy()
    outside, pairs, corrected = [], [], []
    for seed in range(n_tables):
        rng = np.random.default_rng(seed)
        names = [f"noise_{i}" for i in range(8)]
        noise = [rng.normal(size=100)[passages] + rng.normal(size=len(passages)) for _ in names]
        table = judged.select(context="passage", rating="rating").with_columns(
            pl.Series(name, own) for name, own in zip(names, noise, strict=True)
        )
        table.write_parquet(tmp_path / "scores.parquet")
        found = study(
            tmp_path / "scores.parquet", metrics=tuple(names), compare="all", n_resamples=200
        )
        own = [one for one in found.of("correlations") if one.coefficient == "spearman"]
        outside += [one.low > 0 or one.high < 0 for one in own]
        compared = found.of("comparisons")
        pairs += [one.p_value < 0.05 for one in compared if one.coefficient == "spearman"]
        corrected.append(any(one.p_corrected < 0.05 for one in compared))
    allowed = 0.05 + 2 * np.sqrt(0.05 * 0.95 / len(outside))
    assert np.mean(outside) <= allowed and np.mean(pairs) <= allowed
    assert np.mean(corrected) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / len(corrected))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.shared_data
def test_noise_correlates_in_at_most_one_of_twenty_columns(judged: pl.DataFrame) -> None:
    """3,000 columns tell 5 from 6 %, and as many resamples as a study draws by default."""
    passages, good = judged["passage"].to_numpy(), judged["good"].to_numpy()
    rating = judged["rating"].cast(pl.Float64).to_numpy()
    outside = []
    for seed in range(3000):
        rng = np.random.default_rng([6, seed])
        noise = rng.normal(size=100)[passages] + rng.normal(size=len(passages))
        own = partial(coefficients, scores=noise, rating=rating, good=good)
        resampled = scaled_bootstrap(
            own, own(np.ones((len(noise), 1)))[:, 0], len(noise), n_resamples=N_RESAMPLES,
            seed=seed, clusters=passages,
        )  # fmt: skip
        found = [percentile_interval(each) for each in resampled[:2]]
        outside.append([each.low > 0 or each.high < 0 for each in found])
    shares = np.mean(outside, axis=0)
    print(f"noise leaves out 0: Pearson {shares[0]:.3f}, Spearman {shares[1]:.3f}")
    assert (shares <= 0.05).all()
