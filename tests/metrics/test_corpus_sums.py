"""Corpus scores: sums over shards are sums over the whole, and the formula's value of the texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from helpers import read_scores, run_locally, write_parquet
from oracles import Words, n_clipped, random_rows, split_row
from qaeval_core.metrics.catalog import METRICS

Row = dict[str, Any]
N_ROWS = 30
SUMMED = [spec.name for spec in METRICS.values() if spec.over_examples == "sum_of_statistics"]
SHARD_SIZES = (1, 4, 1_000)
SMOOTHED = {"metric": "bleu_4", "smoothing": "floor"}
SINGLE = {"metric": "bleu_2", "over_references": "max"}


def bonus_rows() -> list[Row]:
    """Return rows of which some have a bonus, some no reference, and one is null."""
    rows: list[Row] = random_rows(N_ROWS, vocabulary="ab", seed=31)
    for i, row in enumerate(rows):
        row["answer_type"] = ("yes_no", "entity", None)[i % 3]
        row["candidate_opinion"] = "Yes"
        row["reference_opinions"] = ["yes", "no", "yes", "no"][: len(row["references"])]
        row["entities"] = ["a b", "b"]
    rows[7]["candidate"] = None
    return rows


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[pl.DataFrame, dict]]:
    """Scores and report of runs that differ in their shards alone, by rows of a shard."""
    folder = tmp_path_factory.mktemp("sums")
    write_parquet(folder / "input.parquet", pa.Table.from_pylist(bonus_rows()))
    words = {"tokenizer": "whitespace"}
    job: dict[str, object] = {
        "input.paths": [str(folder / "input.parquet")],
        "output.statistics": True,
        **{f"metrics.{name}": words for name in SUMMED},
        "metrics.smoothed": {**SMOOTHED, **words},
        "metrics.single": {**SINGLE, **words},
    }
    found = {}
    for size in SHARD_SIZES:
        out = folder / f"out-{size}"
        outcome, _ = run_locally({**job, "scoring.rows_per_shard": size, "output.path": str(out)})
        assert outcome.report is not None
        found[size] = read_scores(out), outcome.report
    return found


@pytest.mark.parametrize("name", [*SUMMED, "smoothed", "single"])
def test_sum_of_shard_statistics_is_that_of_the_whole(
    runs: dict[int, tuple[pl.DataFrame, dict]], name: str
) -> None:
    """Protects from a mean of means, and from statistics that depend on the shard."""
    whole, report = runs[1_000]
    column = f"{name}_statistics"
    rows = whole[column].to_list()
    is_scored = whole[name].is_not_null().to_list()
    assert [row is not None for row in rows] == is_scored
    for size in SHARD_SIZES[:2]:
        scores, own_report = runs[size]
        for mine, other in zip(rows, scores[column].to_list(), strict=True):
            assert mine == (other if other is None else pytest.approx(other, abs=1e-12))
        corpora = (own["columns"][name]["corpus"] for own in (report, own_report))
        assert next(corpora) == pytest.approx(next(corpora), abs=1e-12)


def _scored_rows() -> list[Row]:
    return [row for row in bonus_rows() if row["references"] and row["candidate"] is not None]


def _rewarded(row: Row) -> tuple[float, Sequence[Words]]:
    """Return the weight of a row's bonus, and what its n-grams are looked up in."""
    if row["answer_type"] == "yes_no":
        pairs = zip(split_row(row)[1], row["reference_opinions"], strict=True)
        return 2.0, [words for words, opinion in pairs if opinion == "yes"]
    if row["answer_type"] == "entity":
        return 1.0, [entity.split() for entity in row["entities"]]
    return 0.0, ()


def _reference_sums(*, has_bonus: bool, is_single: bool = False) -> list[float]:
    """Add up c, r, m_1..4 and t_1..4 of all rows, from their texts."""
    sums = np.zeros(10)
    for row in _scored_rows():
        candidate, references = split_row(row)
        if is_single:
            bleu = [_reference_corpus_bleu(_one(candidate, [own]), order=2) for own in references]
            references = [references[int(np.argmax(np.round(bleu, 12)))]]
        weight, rewarded = _rewarded(row) if has_bonus else (0.0, ())
        sums += _one(candidate, references, weight, rewarded)
    return sums.tolist()


def _one(
    candidate: Words, references: list[Words], weight: float = 0.0, rewarded: Sequence[Words] = ()
) -> list[float]:
    closest = min((abs(len(words) - len(candidate)), len(words)) for words in references)[1]
    bonus = [weight * n_clipped(candidate, rewarded, n) for n in (1, 2, 3, 4)]
    matches = [n_clipped(candidate, references, n) for n in (1, 2, 3, 4)]
    totals = [max(len(candidate) - n + 1, 0) for n in (1, 2, 3, 4)]
    return [
        len(candidate),
        closest,
        *(m + b for m, b in zip(matches, bonus, strict=True)),
        *(t + b for t, b in zip(totals, bonus, strict=True)),
    ]


def _reference_corpus_bleu(sums: list[float], *, order: int) -> float:
    c, r, matches, totals = sums[0], sums[1], sums[2:6], sums[6:10]
    if c == 0 or 0 in matches[:order]:
        return float(c == r == 0)
    product = math.prod(matches[n] / totals[n] for n in range(order))
    return math.exp(min(0.0, 1 - r / c)) * product ** (1 / order)


def _reference_corpus(name: str, scores: pl.DataFrame) -> float:
    if name == "cider":
        values = [value for value in scores["cider"].to_list() if value is not None]
        return sum(values) / len(values)
    sums = _reference_sums(has_bonus=name == "adapted_bleu_4", is_single=name == "single")
    order = {"smoothed": 4, "single": 2}.get(name) or int(name[-1])
    return _reference_corpus_bleu(sums, order=order)


@pytest.mark.parametrize("name", [*SUMMED, "smoothed", "single"])
def test_corpus_score_of_the_report_is_that_of_the_texts(
    runs: dict[int, tuple[pl.DataFrame, dict]], name: str
) -> None:
    """Protects from rows that are undefined or quarantined in the sums, or scored ones left out."""
    scores, report = runs[4]
    found = report["columns"][name]["corpus"]
    assert found == pytest.approx(_reference_corpus(name, scores), abs=1e-12)
    mean = scores[name].mean()
    assert name == "cider" or abs(found - mean) > 1e-3  # A mean of rows is another number.


def test_statistics_are_the_documented_ones(
    runs: dict[int, tuple[pl.DataFrame, dict]],
) -> None:
    """Protects from columns in another order than what sums them up expects."""
    scores, report = runs[1]
    found = np.sum([row for row in scores["adapted_bleu_4_statistics"].to_list() if row], axis=0)
    assert found.tolist() == pytest.approx(_reference_sums(has_bonus=True))
    plain = np.sum([row for row in scores["bleu_1_statistics"].to_list() if row], axis=0)
    assert plain.tolist() == pytest.approx(_reference_sums(has_bonus=False))
    kinds = Counter(scores["adapted_bleu_4_bonus"].drop_nulls().to_list())
    assert report["instances"]["adapted_bleu_4"]["bonus"] == dict(kinds)


def test_metrics_that_are_means_have_no_corpus_score(tmp_path: Path) -> None:
    """Protects from a corpus value that nobody defined."""
    write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist(random_rows(5)))
    outcome, _ = run_locally(
        {
            "input.paths": [str(tmp_path / "input.parquet")],
            "output.path": str(tmp_path / "out"),
            "output.statistics": True,
            "metrics.f1": {},
        }
    )
    assert outcome.report is not None
    assert "corpus" not in outcome.report["columns"]["f1"]
    assert "f1_statistics" not in read_scores(tmp_path / "out").columns
