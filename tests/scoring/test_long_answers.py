"""Texts of 50,000 words as answers: bounded time, and what is cut is counted."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest

from answer_models import AnswerModels, make_row
from helpers import as_table
from qaeval_core.metrics.catalog import METRICS

N_WORDS = 50_000
# CPU seconds and MB beside the models, of all five metrics together; measured: 10 s and 245 MB.
MAX_CPU_S, MAX_MB = 60.0, 800


def peak_mb() -> float:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def long_text(*words: str) -> str:
    """Return so many words in turns."""
    return " ".join(words * (N_WORDS // len(words)))


@pytest.mark.slow
def test_a_text_of_50_000_words_is_scored_or_says_why_not(answer_models: AnswerModels) -> None:
    """Protects from a crash or a run without end for one row, and from a text cut in silence."""
    names = ("sas", "bi_encoder", "bertscore", "kpqa", "moverscore")
    scorer = answer_models.scorer({name: answer_models.settings(name) for name in names})
    long, other = long_text("the", "sea"), long_text("a", "mill", "closed")
    rows: list[dict[str, Any]] = [
        make_row(METRICS["kpqa"], *pair) for pair in ((long, "the sea"), ("the sea", long))
    ]
    rows += [make_row(METRICS["kpqa"], "the sea", "sea"), make_row(METRICS["sas"], long, other)]
    rows[-1]["question"] = long
    started, before = time.process_time(), peak_mb()
    scores = as_table(scorer.score(rows))
    assert time.process_time() - started < MAX_CPU_S
    assert peak_mb() - before < MAX_MB
    assert {name: scores[f"{name}_reason"].to_pylist() for name in names} == {
        **dict.fromkeys(("sas", "bi_encoder", "bertscore"), [None] * 4),
        "kpqa": [None, None, None, "question_too_long"],
        "moverscore": [None, None, None, "too_long_to_transport"],
    }
    assert scores["sas_truncated"].to_pylist() == [1, 1, 0, 1]
    assert scores["bi_encoder_truncated"].to_pylist() == [1, 1, 0, 2]
    # The same two texts, once each way.
    for there, back in (("bertscore_precision", "bertscore_recall"), ("kpqa_bertscore",) * 2):
        assert scores[there][0].as_py() == pytest.approx(scores[back][1].as_py(), abs=1e-5)
    alone = as_table(scorer.score(rows[2:3])).to_pylist()[0]
    assert scores.to_pylist()[2] == pytest.approx(alone, abs=1e-5)
