"""Questions of QGEval that people judged, ranked by peers: the truth that labels are drawn of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.stats.certificate import share_index
from qaeval_core.stats.learned_rank import fit_rank

_MUST_BE_GOOD = ("answerability", "consistency", "answer_consistency")
# Scores that need no reference question.
_PEERS = (
    "peer_QRelScore",
    "peer_BARTScore-src",
    "peer_RQUGE",
    "peer_GPTScore-src.answer_consistency",
    "peer_UniEval.answer_consistency",
    "peer_UniEval.answerability",
)
_N_FOLDS = 10


def read_questions(shared_data: Path) -> pl.DataFrame:
    """Return the 1,500 questions about 100 passages."""
    return pl.read_parquet(shared_data / "qgeval" / "qgeval_squad.parquet")


def good_rows(questions: pl.DataFrame) -> NDArray[np.bool_]:
    """Return which questions people found answerable, consistent and fit for their answer."""
    is_good = pl.all_horizontal(pl.col(name) >= 2.5 for name in _MUST_BE_GOOD)
    return questions.select(is_good).to_series().to_numpy()


def peer_scores(questions: pl.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Return the six scores by name."""
    scores = {}
    for name in _PEERS:
        column, _, field = name.partition(".")
        values = questions[column].struct.field(field) if field else questions[column]
        scores[name] = values.to_numpy()
    return scores


def passage_codes(questions: pl.DataFrame) -> NDArray[np.intp]:
    """Return a number of each question's passage, from 0."""
    return np.unique(questions["passage"].to_numpy(), return_inverse=True)[1]


def learned_elsewhere(
    scores: dict[str, NDArray[np.float64]],
    *,
    is_good: NDArray[np.bool_],
    passages: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Return a logit of each row by a combination that never saw its passage."""
    features = np.column_stack(list(scores.values()))
    logits = np.empty(len(features))
    for fold in range(_N_FOLDS):
        own = passages % _N_FOLDS == fold
        learned = fit_rank(
            features[~own],
            dict.fromkeys(scores, ""),
            is_good=is_good[~own],
            groups=passages[~own],
            seed=0,
        )
        logits[own] = learned.score(features[own])
    return logits


def ranked_places(questions: pl.DataFrame) -> NDArray[np.intp]:
    """Return the share that first keeps each question, as peers' scores rank it."""
    logits = learned_elsewhere(
        peer_scores(questions), is_good=good_rows(questions), passages=passage_codes(questions)
    )
    ranks = np.empty(len(logits), dtype=np.intp)
    ranks[np.argsort(-logits, kind="stable")] = np.arange(len(logits))
    return share_index(ranks, n_rows=len(logits))
