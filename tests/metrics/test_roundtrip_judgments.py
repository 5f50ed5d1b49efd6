"""What the shipped reader is worth: on passages held back, and beside people's verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers import as_table
from qaeval_core import Scorer
from qaeval_core.stats.ranking import auc
from recipes.reader_minilm.passages import split_passages

pytestmark = [pytest.mark.slow, pytest.mark.shared_data]


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """Roundtrip by the shipped reader."""
    return Scorer(["roundtrip"])


@pytest.mark.long
def test_it_finds_answers_in_passages_that_it_has_not_seen(
    scorer: Scorer, shared_data: Path
) -> None:
    """Protects from an adapter of other weights than its card says: there F1 is .731."""
    judged = pl.read_parquet(shared_data / "qgeval/qgeval_squad.parquet")["passage"].to_list()
    squad = pl.read_parquet(shared_data / "squad/squad_v2_dev.parquet")
    _, dev, n_left_out = split_passages(squad, judged)
    assert (n_left_out, len(dev)) == (66, 1_176)
    answerable = dev.filter(pl.col("answers").list.len() > 0)[:200]
    rows = answerable.select(
        candidate="question", context="context", answer=pl.col("answers").list.first()
    )
    found = as_table(scorer.score(rows))["roundtrip_answer"]
    best = as_table(
        Scorer(["f1"]).score(
            pl.DataFrame({"candidate": found, "references": answerable["answers"]})
        )
    )
    assert best["f1"].mean() > 0.66


@pytest.mark.long
def test_it_tells_questions_that_people_found_good(scorer: Scorer, shared_data: Path) -> None:
    """Protects from a number that has nothing to do with the answer: of all rows AUC is .700."""
    table = pl.read_parquet(shared_data / "qgeval/qgeval_squad.parquet").gather_every(3)
    rated = ("answerability", "consistency", "answer_consistency")
    is_good = np.all([table[name].to_numpy() >= 2.5 for name in rated], axis=0)
    scores = as_table(
        scorer.score(table.select(candidate="question", context="passage", answer="answer"))
    )
    roundtrip = scores["roundtrip"].to_numpy()
    assert auc(positive=roundtrip[is_good], negative=roundtrip[~is_good]) > 0.65
