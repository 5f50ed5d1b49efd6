"""What holds for every metric that asks a language model: range or a reason, nulls, neighbors.

Whatever the catalog lists is tested; a new metric is added to the table here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from answer_models import MODEL_METRICS
from helpers import read_scores, run_locally, write_parquet
from llm_server import LlmServer
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS

CHAT_METRICS = [metric for metric in METRICS.values() if "endpoint" in metric.needs]
WORD_METRICS = [metric for metric in METRICS.values() if metric.needs == ("words",)]
each_metric = pytest.mark.parametrize("spec", CHAT_METRICS, ids=lambda spec: spec.name)
PROMPT = "{context}\n{references}\n{question}\n{answer}\nSentence:\n{candidate}"
WORDS = ("Ann", "keeps", "{candidate}", "1987", "?", "灯台", "👍", "")


def given_settings(spec: AnyMetric, folder: Path) -> dict[str, object]:
    """Return what a run of a metric needs besides an endpoint."""
    (folder / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    own: dict[str, dict[str, object]] = {
        "naco": {"expected_complexity": 2},
        "judge": {"prompt_file": str(folder / "prompt.txt")},
    }
    return own[spec.name]


def awkward_rows() -> list[dict[str, Any]]:
    """Return rows with texts of any kind, empty ones and nulls, and some of them twice."""
    chance = np.random.default_rng(3)

    def text() -> str:
        return " ".join(chance.choice(WORDS, size=chance.integers(0, 6)))

    rows: list[dict[str, Any]] = [
        {
            "candidate": text(),
            "question": text(),
            "answer": text(),
            "context": [text() for _ in range(chance.integers(0, 3))],
            "references": [text()],
        }
        for _ in range(40)
    ]
    whole = {**rows[0], "candidate": "Who?", "answer": "Ann", "context": ["Ann."], "question": "?"}
    return [*rows, whole, *rows[:5], *({**whole, role: None} for role in whole)]


def scores_of(
    spec: AnyMetric, rows: list[dict[str, Any]], server: LlmServer, folder: Path
) -> pl.DataFrame:
    """Return the scores of rows, in their order."""
    folder.mkdir()
    source = write_parquet(folder / "input.parquet", pa.Table.from_pylist(rows))
    given = {
        "base_url": server.base_url,
        "model": "m",
        "ledger_path": str(folder / "ledgers"),
        **given_settings(spec, folder),
    }
    settings = {f"{spec.name}.{name}": value for name, value in given.items()}
    paths = {"input.paths": [str(source)], "output.path": str(folder / "out")}
    run_locally({**paths, **settings, "scoring.progress_s": 60})
    return read_scores(folder / "out")


@each_metric
def test_rows_are_scored_or_say_why_not_whatever_stands_beside_them(
    spec: AnyMetric, tmp_path: Path
) -> None:
    """Protects from a fault or an empty text that becomes a number, and from hidden state."""
    rows = awkward_rows()
    with LlmServer(latency_s=0.001) as server:
        there = scores_of(spec, rows, server, tmp_path / "there")
        back = scores_of(spec, rows[::-1], server, tmp_path / "back")
    assert there.drop("id").equals(back.reverse().drop("id"))
    reasons, quarantined = there[f"{spec.name}_reason"], there["quarantine_reason"]
    for score, reason, problem in zip(there[spec.name], reasons, quarantined, strict=True):
        assert (score is None) == (reason is not None or problem is not None)
        assert score is None or spec.low <= score <= spec.high
    nulls = {role for role in rows[0] if f"null_{role}" in set(quarantined)}
    assert nulls == set(spec.roles)
    assert there[spec.name].drop_nulls().len() > 3
    assert any((reason or "").startswith("empty_") for reason in reasons)


def test_every_metric_is_in_a_suite() -> None:
    """Protects from a metric of a new kind, for which nothing is tested."""
    suites = [spec.name for own in (WORD_METRICS, MODEL_METRICS, CHAT_METRICS) for spec in own]
    assert sorted(suites) == sorted(METRICS)
