"""A job of metrics that judge answers by models: shards, resuming, what is computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from answer_models import ANSWER_METRICS, AnswerModels
from helpers import assert_same_scores, read_scores, run_locally, write_parquet

N_ROWS = 14
METRICS_BY_MODELS = [metric.name for metric in ANSWER_METRICS]


def answers(n_rows: int = N_ROWS) -> pa.Table:
    """Return rows of predicted answers, some repeated, empty, long or without a reference."""
    chance = np.random.default_rng(4)
    words = ["Anna", "painted", "the", "sea", "every", "day", "since", "1874", "灯台", "👍"]
    pool = ["", *(" ".join(chance.choice(words, size=n)) for n in (1, 1, 2, 4, 8, 30, 500))]
    rows = [
        {
            "question": f"What did Anna paint in {1870 + i % 4}?",
            "candidate": str(chance.choice(pool)),
            "references": [str(text) for text in chance.choice(pool, size=i % 4)],
            "context": " ".join(chance.choice(words, size=40)),
            "answer": "the sea",
        }
        for i in range(n_rows)
    ]
    return pa.Table.from_pylist(rows)


class Jobs:
    """Runs jobs on one input file into one OUT."""

    def __init__(self, models: AnswerModels, folder: Path) -> None:
        self._models = models
        self.folder = folder
        self.out = folder / "out"

    def run(self, metrics: dict[str, dict[str, object]], **options: object) -> dict[str, Any]:
        """Run a job of instances, models filled in; return its report."""
        own = {
            name: self._models.settings(str(given.get("metric", name)), **given)
            for name, given in metrics.items()
        }
        job = {
            **self._models.overrides(own),
            "input.paths": [str(self.folder / "input.parquet")],
            "output.path": str(self.out),
            "scoring.rows_per_shard": 5,
            **options,
        }
        report = run_locally(job)[0].report
        assert report is not None
        return report

    def n_computed(self, metrics: dict[str, dict[str, object]], **options: object) -> dict:
        """Run a job; return the rows that each family computed."""
        return {
            key.split("-")[0]: family.get("this_run", {}).get("rows", 0)
            for key, family in self.run(metrics, **options)["families"].items()
        }


@pytest.fixture
def jobs(answer_models: AnswerModels, tmp_path: Path) -> Jobs:
    write_parquet(tmp_path / "input.parquet", answers())
    return Jobs(answer_models, tmp_path)


@pytest.mark.slow
def test_local_jobs_of_any_shard_size_score_as_the_scorer(
    jobs: Jobs, answer_models: AnswerModels
) -> None:
    """Protects from neighbors in a shard, and from idf counted in a shard and not in all."""
    metrics: dict[str, dict[str, object]] = {name: {} for name in METRICS_BY_MODELS}
    metrics["bertscore_idf"] = {"metric": "bertscore", "idf": True}
    metrics["kpqa_authors"] = {"metric": "kpqa", "profile": "authors"}
    own = {n: answer_models.settings(str(g.get("metric", n)), **g) for n, g in metrics.items()}
    expected = pl.DataFrame(pl.from_arrow(answer_models.scorer(own).score(answers())))
    for rows_per_shard in (3, 1000):
        jobs.out = jobs.folder / f"out-{rows_per_shard}"
        jobs.run(metrics, **{"scoring.rows_per_shard": rows_per_shard})
        assert_same_scores(read_scores(jobs.out).drop("id"), expected)


def test_equal_texts_are_encoded_once_and_equal_pairs_scored_once(jobs: Jobs) -> None:
    """Protects from paying for every copy of "yes"."""
    row = {
        "question": "What did Anna paint?",
        "candidate": "the sea",
        "references": ["sea", "the sea"],
        "context": "Anna painted the sea.",
        "answer": "the sea",
    }
    write_parquet(jobs.folder / "input.parquet", pa.Table.from_pylist([row] * 6))
    report = jobs.run({name: {} for name in METRICS_BY_MODELS}, **{"scoring.rows_per_shard": 3})
    families = {key.split("-")[0]: value for key, value in report["families"].items()}
    # Distinct texts or pairs of a row, and all of them; two shards of three rows.
    for name, (n_distinct, n_all) in {
        "sas": (2, 2),
        "bi_encoder": (2, 4),
        "token_match": (2, 4),
        "token_transport": (2, 4),
        "token_match_context": (2, 2),
        "kpqa_weights": (2, 4),
        "answer_span": (1, 1),
    }.items():
        assert families[name]["forward_sequences"] == 2 * n_distinct, name
        assert families[name]["forward_sequences_avoided"] == 6 * n_all - 2 * n_distinct, name


def test_one_metric_more_computes_its_own_families_alone(jobs: Jobs) -> None:
    """Protects from paying for a model pass again: KPQA and BERTScore share their vectors."""
    metrics: dict[str, dict[str, object]] = {"sas": {}}
    assert jobs.n_computed(metrics) == {"sas": N_ROWS}
    metrics["bertscore"] = {}
    assert jobs.n_computed(metrics) == {"sas": 0, "token_match": N_ROWS}
    metrics["kpqa"] = {}
    expected = {"sas": 0, "token_match": 0, "kpqa_weights": N_ROWS}
    assert jobs.n_computed(metrics) == expected


def test_what_is_arithmetic_runs_no_model(jobs: Jobs, tmp_path: Path) -> None:
    """Protects from a pass for an activation, a rescaling, plain weights or beta."""
    jobs.run({"sas": {}, "bertscore": {}, "kpqa": {}})
    before = read_scores(jobs.out)
    baseline = tmp_path / "baseline.tsv"
    baseline.write_text("LAYER,P,R,F\n1,0.1,0.1,0.1\n2,0.2,0.25,0.5\n")
    changed = {
        "sas": {"activation": "identity"},
        "bertscore": {"baseline": str(baseline)},
        "kpqa": {"weights": "plain", "beta": 1.0},
    }
    assert set(jobs.n_computed(changed).values()) == {0}
    after = read_scores(jobs.out)
    for part, b in {"precision": 0.2, "recall": 0.25, "f1": 0.5}.items():
        raw, rescaled = (one[f"bertscore_{part}"].to_numpy() for one in (before, after))
        np.testing.assert_allclose(rescaled, (raw - b) / (1 - b), atol=1e-6)
    logit = after["sas"].to_numpy()
    np.testing.assert_allclose(before["sas"].to_numpy(), 1 / (1 + np.exp(-logit)), atol=1e-6)
    assert not before["kpqa_bleu_1"].equals(after["kpqa_bleu_1"])


def test_idf_is_of_the_whole_corpus_and_is_counted_anew_when_rows_are(jobs: Jobs) -> None:
    """Protects from scores weighed by a corpus that is not this one any more."""
    rows = answers().to_pylist()
    rows[7]["references"] = None
    write_parquet(jobs.folder / "input.parquet", pa.Table.from_pylist(rows))
    idf = {"bertscore": {"idf": True}}
    assert jobs.n_computed(idf) == {"token_frequencies": N_ROWS, "token_match": N_ROWS}
    # One shard has the quarantined row; what was weighed by the corpus is weighed anew in all.
    again = jobs.n_computed(idf, **{"scoring.retry_quarantined": True})
    assert again == {"token_frequencies": 5, "token_match": N_ROWS}
    # Half of the rows are another corpus, whose tokens are listed already.
    half = jobs.n_computed(idf, **{"input.limit": 10})
    assert half == {"token_frequencies": 0, "token_match": 10}
