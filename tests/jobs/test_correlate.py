"""``qaeval correlate`` as people use it: tables in, a table, Parquet, JSON and a page out."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from helpers import qaeval
from qaeval.correlate import correlate
from qaeval_core.metrics.catalog import corpus_score
from scoring.test_page import Page, assert_stands_alone

N_QUESTIONS = 40
SYSTEMS = ("a", "b", "c", "d")


def _table() -> pl.DataFrame:
    """Return answers of four systems to forty questions, two good metrics, and some holes."""
    rng = np.random.default_rng(0)
    n = N_QUESTIONS * len(SYSTEMS)
    quality = np.tile(np.arange(len(SYSTEMS)), N_QUESTIONS)
    rating = np.clip(np.round(1 + quality + rng.normal(scale=1.0, size=n)), 1, 5)
    good = rating + rng.normal(scale=1.0, size=n)
    return pl.DataFrame(
        {
            "id": [f"row {i}" for i in range(n)],
            "question": [f"q{i // len(SYSTEMS)}" for i in range(n)],
            "system": [SYSTEMS[i % len(SYSTEMS)] for i in range(n)],
            "rating": [None if i % 40 == 3 else value for i, value in enumerate(rating)],
            "good": [math.nan if i % 40 == 5 else value for i, value in enumerate(good)],
            "distance": -good + rng.normal(scale=0.5, size=n),
            "flat": np.zeros(n),
            "is_odd": np.arange(n) % 2,
        }
    )


def _both_defined() -> pl.DataFrame:
    return _table().with_columns(pl.col("good").fill_nan(None)).drop_nulls(["rating", "good"])


def _described(path: Path, frame: pl.DataFrame, columns: dict[str, dict[str, object]]) -> Path:
    """Write a table as ``qaeval score`` does, with what its columns are."""
    table = frame.to_arrow()
    metadata = {b"qaeval.columns": json.dumps(columns).encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT of a run with four described columns, one of them lower is better."""
    out = tmp_path_factory.mktemp("out")
    (out / "run.json").write_text("{}")
    columns = {
        name: {
            "metric": name,
            "output": "",
            "higher_is_better": name != "distance",
            "signature": f"{name}|v:1",
        }
        for name in ("good", "distance", "flat")
    }
    _described(out / "scores" / "input.parquet", _table(), columns)
    return out


@pytest.fixture(scope="module")
def study(scores: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One study with everything in it: what it printed, and its folder."""
    out = tmp_path_factory.mktemp("study")
    options = "--human rating --subset distance<-3 --by system --system system --question question"
    options += " --draws 20 --questions-per-draw 10 --auc rating>=4 --win-lose question --min-gap 2"
    options += " --compare all --forward-selection --resamples 100"
    return qaeval("correlate", scores, *options.split(), "--out", out), out


def _records(out: Path, name: str, **wanted: object) -> list[dict[str, object]]:
    rows = pl.read_parquet(out / f"{name}.parquet").to_dicts()
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_described_scores_are_judged_and_undefined_rows_counted(study: tuple[str, Path]) -> None:
    """Protects from undefined rows that vanish: 4 of 160 rows have no rating, 4 no score."""
    shown, out = study
    assert "160 rows, metrics: good, distance, flat" in shown
    assert "this run is not complete" in shown
    assert "4 rows without a rating left out" in shown
    place = {"level": "segment", "subset": "all", "coefficient": "spearman"}
    record = _records(out, "correlations", metric="good", **place)[0]
    expected = _both_defined().select(pl.corr("good", "rating", method="spearman")).item()
    assert record["value"] == pytest.approx(expected)
    assert (record["n"], record["n_undefined_metric"], record["n_undefined_human"]) == (152, 4, 4)
    assert record["low"] < expected < record["high"]
    assert record["n_resamples"] == 100
    assert record["signature"] == "good|v:1"


def test_a_constant_column_is_undefined_everywhere(study: tuple[str, Path]) -> None:
    """Protects from 0, which reads as `no agreement`, and from 0.5 as an area."""
    shown, out = study
    assert "undefined (constant)" in shown
    flat = _records(out, "correlations", metric="flat")
    assert {row["value"] for row in flat} == {None}
    assert {row["reason"] for row in flat} == {"constant_metric"}
    assert _records(out, "auc", metric="flat", subset="all")[0]["value"] is None


def test_subsets_levels_and_groups_are_there(study: tuple[str, Path]) -> None:
    """Protects from a subset that is not what its condition says."""
    shown, out = study
    table = pl.read_parquet(out / "correlations.parquet")
    assert set(table["level"]) == {"segment", "system", "draws"}
    assert set(table["subset"]) == {"all", "distance<-3", *(f"system={s}" for s in SYSTEMS)}
    assert set(table.filter(pl.col("subset") == "system=a")["level"]) == {"segment"}
    chosen = _table().filter(pl.col("distance") < -3, pl.col("rating").is_not_null())
    place = {"level": "segment", "subset": "distance<-3", "coefficient": "pearson"}
    record = _records(out, "correlations", metric="distance", **place)[0]
    assert record["n"] == chosen.height
    assert record["value"] == pytest.approx(chosen.select(pl.corr("distance", "rating")).item())
    assert "segment level, rating, distance<-3" in shown


def test_system_level_correlates_means_and_draws_all_points(study: tuple[str, Path]) -> None:
    """Protects from a system score over other rows than its human mean."""
    _, out = study
    place = {"subset": "all", "metric": "good", "coefficient": "pearson"}
    means = _both_defined().group_by("system").agg(pl.col("good").mean(), pl.col("rating").mean())
    system = _records(out, "correlations", level="system", **place)[0]
    assert system["value"] == pytest.approx(means.select(pl.corr("good", "rating")).item())
    assert (system["n"], system["aggregation"]) == (4, "mean")
    assert (system["low"], system["n_resamples"]) == (None, 0), "of four systems"
    draws = _records(out, "correlations", level="draws", **place)[0]
    assert (draws["n"], draws["low"], draws["n_resamples"]) == (20 * 4, None, 0)


def test_metrics_are_compared_in_their_own_direction(study: tuple[str, Path]) -> None:
    """Protects from a distance that loses because it falls where people's ratings rise."""
    shown, out = study
    assert "distance (lower is better)" in shown
    place = {"level": "segment", "subset": "all", "coefficient": "pearson"}
    record = _records(out, "comparisons", metric_a="good", metric_b="distance", **place)[0]
    both = pl.corr("good", "rating") + pl.corr("distance", "rating")
    expected = _both_defined().select(both).item()
    assert record["difference"] == pytest.approx(expected)
    assert record["n"] == 152
    assert record["value_b"] > 0
    area = _records(out, "auc", metric="distance", subset="all")[0]
    assert area["value"] > 0.6
    won = _records(out, "win_lose", metric="distance", subset="all")[0]
    assert won["share"] > 0.6
    assert won["n_pairs"] == won["n_agree"] + won["n_tied"] + won["n_disagree"]
    flat = _records(out, "win_lose", metric="flat", subset="all")[0]
    assert (flat["share"], flat["n_tied"]) == (0.0, flat["n_pairs"])


def test_files_hold_all_of_it(study: tuple[str, Path]) -> None:
    """Protects from a table on the terminal that nothing can read again."""
    shown, out = study
    report = json.loads((out / "report.json").read_text())
    assert report["rows"] == 160
    assert report["request"]["n_draws"] == 20
    assert report["environment"]["packages"]["scipy"]
    for name in ("correlations", "comparisons", "auc", "win_lose", "forward_selection"):
        assert len(report[name]) == pl.read_parquet(out / f"{name}.parquet").height > 0
    chosen = [row for row in report["forward_selection"] if row["subset"] == "all"]
    assert sum(row["n_chosen"] for row in chosen if row["step"] == 1) == 10
    page = (out / "correlate.html").read_text()
    assert_stands_alone(page)
    own = _records(out, "correlations", metric="good", subset="all", coefficient="kendall")[0]
    assert f"good: {own['value']:.4g} [{own['low']:.4g}, {own['high']:.4g}]" in Page(page).titles
    assert str(out / "correlate.html") in shown


def _run(*words: object) -> tuple[int, str]:
    """Run the verb in this process: a Python of its own for each error would take minutes."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(correlate)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--human ratin", "no column 'ratin'; did you mean 'rating'?"),
        ("--human rating --metrics god", "did you mean 'good'?"),
        ("--human system", "column 'system' is String"),
        ("--human ,", "at least one column of human ratings"),
        ("--human rating --by sistem", "did you mean 'system'?"),
        ("--human rating --subset goood>1", "did you mean 'good'?"),
        ("--human rating --subset good>", "--subset 'good>': unable to parse"),
        ("--human rating --subset good+1", "QA0316"),
        ("--human rating --by id --with ratings.csv", "QA0103"),
        ("--human rating --draws 5 --system system", "--draws needs --system"),
        ("--human rating --compare good", "takes 'all' or two metrics"),
        ("--human rating --compare good,god", "did you mean 'good'?"),
        ("--human rating --auc good", "not only 0 and 1; give a condition"),
        ("--human rating --resamples 0", "--resamples is 0"),
        ("--human rating --min-gap -1", "--min-gap is -1"),
        (
            "--human rating --win-lose question --min-gap nan",
            "--min-gap is nan; it must be 0 or more [QA0104]",
        ),
        ("--human rating --with missing.csv --on id", "missing.csv: no table there"),
        ("--human rating --labels missing.csv", "missing.csv: no table there"),
        ("--human rating --labels a.csv --with b.csv --on id", "give one of them"),
    ],
)
def test_bad_request_exits_2_and_says_what_to_write(
    scores: Path, options: str, message: str
) -> None:
    """Protects from a typo that judges something else, and from traces in place of answers."""
    code, shown = _run(scores, *options.split())
    assert (code, message in shown) == (2, True), shown


def test_a_missing_package_is_named_before_anything_is_computed(
    scores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from minutes of resamples that end in an import error."""
    for name in ("sklearn", "sklearn.linear_model"):
        monkeypatch.setitem(sys.modules, name, None)
    code, shown = _run(scores, "--human", "rating", "--forward-selection")
    assert code == 2
    assert "pip install scikit-learn" in shown


def test_a_table_without_metadata_needs_metrics_and_lists_what_there_is(tmp_path: Path) -> None:
    """Protects from ids and labels judged as scores."""
    path = tmp_path / "plain.csv"
    _table().select("id", "good", "rating").write_csv(path)
    code, shown = _run(path, "--human", "rating")
    assert code == 2
    assert "name some with --metrics. Numeric columns: good, rating" in shown
    code, shown = _run(path, "--human", "rating", "--metrics", "good", "--resamples", "20")
    assert code == 0
    assert "segment level, rating" in shown


def test_ratings_of_a_second_table_are_joined_and_losses_said(tmp_path: Path) -> None:
    """Protects from rows lost without a word, and from ids that are numbers in one table alone."""
    left, right = tmp_path / "scores.jsonl", tmp_path / "ratings.csv"
    frame = pl.DataFrame({"id": range(10), "good": np.arange(10.0)})
    frame.write_ndjson(left)
    ratings = pl.DataFrame({"key": ["5", "6", "7", "8", "9", "x"], "rating": [1, 2, 3, 5, 4, 1]})
    ratings.write_csv(right)
    words = (left, "--with", right, "--on", "id=key", "--human", "rating", "--metrics", "good")
    code, shown = _run(*words, "--resamples", "20")
    assert code == 0
    assert "5 rows of 10 have ratings, 5 left out; 1 ratings unused" in shown
    assert "0.900" in shown
    pl.concat([ratings, ratings[:1]]).write_csv(right)
    code, shown = _run(*words)
    assert code == 2
    assert "key '5' exists more than once" in shown


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_labels_are_joined_by_id_as_text_and_losses_said(tmp_path: Path, suffix: str) -> None:
    """Protects from ids read as numbers, 007 as 7, and from labels that vanish without a word."""
    scores, labels = tmp_path / "scores.parquet", tmp_path / f"labels{suffix}"
    ids = [f"{i:03d}" for i in range(10)]
    pl.DataFrame({"id": ids, "good": np.arange(10.0)}).write_parquet(scores)
    frame = pl.DataFrame(
        {"id": [*ids[5:], "999", None], "rating": [1, 2, 3, 5, 4, 1, 1]},
        schema_overrides={"id": pl.String},
    )
    write = {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}
    write[suffix](labels)
    words = (scores, "--labels", labels, "--human", "rating", "--metrics", "good")
    code, shown = _run(*words, "--resamples", "20")
    assert code == 0, shown
    assert "5 rows of 10 have ratings, 5 left out; 1 ratings unused" in shown
    assert f"{labels}: 1 rows without id are left out" in shown
    assert "0.900" in shown


def test_labels_with_numbers_for_ids_meet_a_run_with_numbers(tmp_path: Path) -> None:
    """Protects from `7` in one file that is not 7 in the other."""
    scores, labels = tmp_path / "scores.csv", tmp_path / "labels.csv"
    scores.write_text("id,good\n007,1\n008,2\n009,3\n", encoding="utf-8")
    labels.write_text("id,rating\n007,1\n008,2\n009,4\n", encoding="utf-8")
    words = (scores, "--labels", labels, "--human", "rating", "--metrics", "good")
    code, shown = _run(*words, "--resamples", "20")
    assert (code, "3 rows of 3 have ratings" in shown) == (0, True), shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ids,rating\nrow 1,2\n", "no column 'id'; did you mean 'ids'?"),
        ("id,rating\nrow 1,2\nrow 2,3\nrow 1,4\n", "id 'row 1' exists more than once"),
        ("id,rating\nx,2\ny,3\n", "['row 0', 'row 1'] here"),
    ],
)
def test_labels_that_cannot_be_joined_exit_2(
    scores: Path, tmp_path: Path, text: str, message: str
) -> None:
    """Protects from a rating that counts for the wrong row, or for two."""
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    code, shown = _run(scores, "--labels", path, "--human", "rating")
    assert (code, message in shown) == (2, True), shown


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_a_table_with_few_rows_is_undefined_and_no_error(tmp_path: Path, n_rows: int) -> None:
    """Protects from a trace, or a correlation of 1, where there is nothing to correlate."""
    path = tmp_path / "few.parquet"
    _table()[:n_rows].write_parquet(path)
    options = "--human rating --metrics good,distance --system system --question question --draws 3"
    options += " --auc is_odd --win-lose question --compare all --forward-selection --by system"
    code, shown = _run(path, *options.split(), "--out", tmp_path / "study")
    assert code == 0, shown
    assert "undefined (too few)" in shown
    assert "no draws" in shown
    table = pl.read_parquet(tmp_path / "study" / "correlations.parquet")
    assert table["value"].null_count() == table.height > 0
    assert "too few" in (tmp_path / "study" / "correlate.html").read_text()


def test_corpus_scores_of_systems_come_from_sums_of_statistics(tmp_path: Path) -> None:
    """Protects BLEU at system level from a mean over rows."""
    rng = np.random.default_rng(1)
    frame = _table().drop_nulls("rating")
    n = frame.height
    totals = np.tile([8.0, 7.0, 6.0, 5.0], (n, 1))
    matches = rng.integers(1, 6, size=(n, 4)).clip(max=totals)
    statistics = np.column_stack([np.full((n, 2), 8.0), matches, totals])
    frame = frame.with_columns(
        bleu_4=pl.Series(rng.random(n)), bleu_4_statistics=pl.Series(statistics.tolist())
    )
    columns = {"bleu_4": {"metric": "bleu_4", "settings": {}, "over_examples": "sum_of_statistics"}}
    path = _described(tmp_path / "bleu.parquet", frame, columns)
    words = (path, "--human", "rating", "--system", "system", "--resamples", "20")
    code, shown = _run(*words, "--out", tmp_path / "study")
    assert code == 0, shown
    place = {"level": "system", "coefficient": "pearson"}
    record = _records(tmp_path / "study", "correlations", metric="bleu_4", **place)[0]
    systems = frame["system"].to_numpy()
    bleu = [corpus_score("bleu_4", {}, statistics[systems == s].sum(axis=0)) for s in SYSTEMS]
    ratings = [frame["rating"].to_numpy()[systems == s].mean() for s in SYSTEMS]
    assert record["value"] == pytest.approx(np.corrcoef(np.array(bleu), ratings)[0, 1])
    assert record["aggregation"] == "sum_of_statistics"
    _described(path, frame.drop("bleu_4_statistics"), columns)
    assert "no statistics to sum, so systems have means of rows: bleu_4" in _run(*words)[1]
