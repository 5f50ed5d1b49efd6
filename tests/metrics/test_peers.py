"""Peers: on real rows, the numbers that other programs printed and papers published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from helpers import as_table
from qaeval_core import Scorer
from qaeval_core.metrics.catalog import corpus_score
from qaeval_core.running.score_rows import score_instance
from qaeval_core.stats.correlation import correlate

pytestmark = pytest.mark.shared_data

NLTK = {"tokenizer": "whitespace", "lowercase": False}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def score(metrics: dict[str, dict[str, object]], rows: list[dict[str, object]]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(as_table(Scorer(metrics).score(rows))))


def coefficients(metric: NDArray[np.float64], human: NDArray[np.float64]) -> list[float]:
    """Return Pearson, Spearman and Kendall; zeros where the metric is constant, as printed."""
    if np.ptp(metric) == 0:
        return [0.0, 0.0, 0.0]
    return correlate(metric=metric, human=human).values.tolist()


@pytest.fixture(scope="module")
def sas(shared_data: Path) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """The 942 answer pairs; the second answer is the reference, as for the published BLEU."""
    pairs = read_lines(shared_data / "sas" / "squad_pairs.jsonl")
    rows = [{"candidate": row["answer1"], "references": [row["answer2"]]} for row in pairs]
    metrics = {
        "f1": {},
        "rouge_l": {},
        "rouge_l_cut": {"metric": "rouge_l", "cut_decimals": 16},
        "bleu_4": NLTK,
        "meteor": {},
    }
    return pairs, score(metrics, rows)


def peer(pairs: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([row["peer"][name] for row in pairs], dtype=np.float64)


@pytest.mark.parametrize(("metric", "name"), [("f1", "f1"), ("rouge_l", "rouge_l")])
def test_f1_and_rouge_l_equal_the_peers_on_every_answer_pair(
    sas: tuple[list[dict[str, Any]], pl.DataFrame], metric: str, name: str
) -> None:
    """Protects from another normalization than SQuAD's or tokenization than rouge-score's."""
    pairs, found = sas
    assert len(pairs) == 942
    assert np.abs(found[metric].to_numpy() - peer(pairs, name)).max() < 1e-12


def test_bleu_equals_nltk_on_every_answer_pair(
    sas: tuple[list[dict[str, Any]], pl.DataFrame],
) -> None:
    """Protects from smoothing that nobody asked for."""
    pairs, found = sas
    assert np.abs(found["bleu_4"].to_numpy() - peer(pairs, "bleu")).max() < 1e-12


def test_published_correlations_of_answer_pairs_are_met(
    shared_data: Path, sas: tuple[list[dict[str, Any]], pl.DataFrame]
) -> None:
    """Protects from correlating other rows or scores than the paper did.

    The published ROUGE-L was cut after 16 decimals: that tells apart scores that are equal as
    fractions, and Kendall's tau sees it (.455; .456 without the cut).
    """
    pairs, found = sas
    tables = json.loads((shared_data / "sas" / "published_tables.json").read_text("utf-8"))
    published = tables["table3_SQuAD"]
    labels = np.array([row["label"] for row in pairs], dtype=np.float64)
    is_zero = peer(pairs, "f1") == 0
    for subset, mask in (("F1=0", is_zero), ("F1!=0", ~is_zero)):
        for metric, name in (("f1", "f1"), ("rouge_l_cut", "rouge_l"), ("bleu_4", "bleu")):
            own = coefficients(found[metric].to_numpy()[mask], labels[mask])
            gaps = np.abs(np.array(own) - published[subset][name])
            assert (gaps <= 0.00051).all(), (subset, metric, own)
        own = coefficients(found["meteor"].to_numpy()[mask], labels[mask])
        assert np.abs(np.array(own) - published[subset]["meteor"]).max() < 0.001, (subset, own)


def test_cut_rouge_l_equals_the_published_column_to_the_last_digit(
    sas: tuple[list[dict[str, Any]], pl.DataFrame],
) -> None:
    """Protects from ties that are not those of the published column; one row of 942 differs."""
    pairs, found = sas
    assert int((found["rouge_l_cut"].to_numpy() == peer(pairs, "rouge_l")).sum()) == 941


def test_generated_questions_score_as_rouge_score_and_nltk_do(shared_data: Path) -> None:
    """Protects from other stems than rouge-score's and another floor than NLTK's method1."""
    table = pl.read_parquet(shared_data / "qgeval" / "qgeval_squad.parquet")
    rows = table.select(candidate="question", references="reference").to_dicts()
    found = score(
        {"rouge_l": {"stemming": "porter"}, "bleu_4": {**NLTK, "smoothing": "floor"}}, rows
    )
    for metric, name in (("rouge_l", "peer_ROUGE-L"), ("bleu_4", "peer_BLEU-4")):
        is_equal = np.abs(found[metric].to_numpy() - table[name].to_numpy()) <= 0.5001e-4
        assert is_equal.mean() >= 0.99, metric


# MS-MARCO has one reference a row; NarrativeQA has two, and its published BLEU takes the better.
@pytest.mark.parametrize(
    ("name", "over_references"), [("marco_unilm", "standard"), ("nrqa_mhpgm", "max")]
)
def test_generated_answers_correlate_as_coco_caption_does(
    shared_data: Path, name: str, over_references: str
) -> None:
    """Protects from other words than the Penn Treebank's without punctuation."""
    pairs = [
        row
        for row in read_lines(shared_data / "kpqa" / "human_judgments.jsonl")
        if row["file"] == name
    ]
    assert len(pairs) == 500
    bleu = {"tokenizer": "coco", "smoothing": "coco", "over_references": over_references}
    found = score(
        {
            "bleu_1": bleu,
            "bleu_4": bleu,
            "rouge_l": {"tokenizer": "coco", "beta": 1.2},
            "cider": {"tokenizer": "coco"},
        },
        [{"candidate": row["answer"], "references": row["references"]} for row in pairs],
    )
    human = np.array([row["human_score"] for row in pairs], dtype=np.float64)
    names = {"bleu_1": "BLEU-1", "bleu_4": "BLEU-4", "rouge_l": "ROUGE-L", "cider": "CIDEr"}
    for metric, other in names.items():
        own = coefficients(found[metric].to_numpy(), human)[:2]
        theirs = coefficients(peer(pairs, other), human)[:2]
        assert np.abs(np.subtract(own, theirs)).max() < 0.01, (metric, own, theirs)


@pytest.mark.slow
def test_ms_marco_self_test_gives_the_printed_corpus_values(shared_data: Path) -> None:
    """Protects from a corpus score that is a mean of rows."""
    folder = shared_data / "ms_marco"
    expected = json.loads((folder / "eval_small_cases.json").read_text("utf-8"))["expected"]
    table = pl.read_parquet(folder / "eval_dev_pairs.parquet")
    words = {"tokenizer": "spacy", "smoothing": "coco"}
    metrics = {f"bleu_{order}": words for order in (1, 2, 3, 4)}
    scorer = Scorer({**metrics, "rouge_l": {"tokenizer": "spacy", "beta": 1.2}})
    values = {
        "candidate": table["candidate"].to_list(),
        "references": table["references"].to_list(),
    }
    run = scorer.compile({role: role for role in values})
    statistics = scorer.statistics(run, values)
    printed = expected["eval_dev_pairs.parquet"]
    for plan in run.instances:
        found = score_instance(plan, statistics)
        # As the evaluator does, questions without an answer are left out.
        assert found.reasons.count("no_references") == len(table) - 9754
        if found.sums is None:
            own = float(np.nanmean(found.columns[""]))
        else:
            settings = plan.settings.model_dump()
            own = float(corpus_score(plan.name, settings, np.nansum(found.sums, axis=0)))
        assert own == pytest.approx(float(printed[plan.name]), abs=0.003), plan.name
