"""Questions of QGEval that people judged, ranked by peers: the truth that labels are drawn of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.stats.certificate import Certificate, KnownLabels, certify, kept_rows
from qaeval_core.stats.label_plan import best_part
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


class RankedRows:
    """Rows in an order, with shares that end where values differ, as a filter cuts them.

    Attributes
    ----------
    counts : int ndarray of shape (n_shares,)
        Rows of each share.
    places : int ndarray of shape (n_rows,)
        The smallest share that has each row.
    precisions : float ndarray of shape (n_shares,)
        How many rows of each share are good.
    """

    def __init__(self, values: NDArray[np.float64], is_good: NDArray[np.bool_]) -> None:
        self.is_good = is_good
        worse = -np.nan_to_num(values, nan=-np.inf)
        ordered = np.sort(worse)
        ends = np.searchsorted(ordered, ordered[kept_rows(len(worse)) - 1], side="right")
        self.counts = np.unique(ends)
        self.places = np.searchsorted(ordered[self.counts - 1], worse)
        self.precisions = np.cumsum(is_good[np.argsort(worse)])[self.counts - 1] / self.counts

    def certify(
        self,
        rows: NDArray[np.intp],
        *,
        target: float,
        delta: float,
        last: int | None = None,
        clusters: NDArray[np.intp] | None = None,
        learned_from: NDArray[np.intp] | None = None,
    ) -> Certificate:
        """Return what labels of some rows say; ``last`` is the largest share that they are of."""
        known = None
        if learned_from is not None:
            known = KnownLabels(self.places[learned_from], self.is_good[learned_from])
        return certify(
            self.places[rows],
            self.is_good[rows],
            counts=self.counts if last is None else self.counts[: last + 1],
            n_rows=len(self.places),
            target=target,
            delta=delta,
            clusters=clusters,
            known=known,
        )

    def second_sheet(
        self, pilot: Certificate, n_labels: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], int]:
        """Return rows drawn where a pilot's labels say, and the largest share that they are of."""
        last = best_part(pilot, n_labels)
        inside = np.flatnonzero(self.places <= last)
        return rng.choice(inside, min(n_labels, len(inside)), replace=False), last

    def is_missed(self, found: Certificate) -> bool:
        """Return whether a share was certified that is no more precise than the target."""
        if found.chosen is None:
            return False
        place = int(np.searchsorted(self.counts, found.chosen.n_rows))
        return bool(self.precisions[place] <= found.target)


def learned_by_peers(questions: pl.DataFrame) -> RankedRows:
    """Return questions as peers' scores rank them, learned from other passages' verdicts."""
    is_good = good_rows(questions)
    logits = learned_elsewhere(
        peer_scores(questions), is_good=is_good, passages=passage_codes(questions)
    )
    return RankedRows(logits, is_good)
