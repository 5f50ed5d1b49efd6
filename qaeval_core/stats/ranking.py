"""Ranking: how often a metric ranks a pair of rows as people do.

The area under a ROC curve is the share of pairs of a positive and a negative row in which the
positive one scores higher, ties counting half. Win-lose agreement is the share of pairs of answers
to one question in which the one that people rate higher scores higher.

Source
------
Mann, Whitney. Annals of Mathematical Statistics 1947 (the area, from ranks).
Lee, Yoon, Dernoncourt, Kim, Bui, Shin, Jung. KPQA: A Metric for Generative Question Answering
Using Keyphrase Weights. NAACL 2021, section 5.4 and table 7: pairs of two systems' answers whose
human ratings differ by more than 2 on a scale of 1 to 5; the share ranked the same way.

Differs from KPQA
-----------------
- It does not say what a tie of the metric counts as. Here a tie is no agreement, and is counted.
- Pairs with an undefined score are left out of the share, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.bootstrap import drawn_rows


def auc(*, positive: NDArray[np.floating], negative: NDArray[np.floating]) -> float:
    """Return the area under the ROC curve; NaN where either side has no defined value.

    Examples
    --------
    >>> auc(positive=np.array([0.9, 0.4]), negative=np.array([0.1, 0.4]))
    0.875
    """
    high = positive[~np.isnan(positive)].astype(np.float64)
    low = negative[~np.isnan(negative)].astype(np.float64)
    if len(high) == 0 or len(low) == 0:
        return float("nan")
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    ranks = stats.rankdata(np.concatenate([high, low]))[: len(high)]
    wins = float(ranks.sum()) - len(high) * (len(high) + 1) / 2
    return wins / (len(high) * len(low))


def weighted_auc(
    scores: NDArray[np.float64], is_positive: NDArray[np.bool_], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the area under the ROC curve of each resample of rows.

    Parameters
    ----------
    scores : float ndarray of shape (n_rows,)
    is_positive : bool ndarray of shape (n_rows,)
    weights : float ndarray of shape (n_rows, n_resamples)
        How often a row was drawn.

    Returns
    -------
    float ndarray of shape (n_resamples,)
        In [0, 1]; 0.5 says nothing. NaN where a resample has no positive or no negative row.
    """
    drawn = ((scores[rows], is_positive[rows]) for rows in drawn_rows(weights))
    return np.array([auc(positive=own[chosen], negative=own[~chosen]) for own, chosen in drawn])


@dataclass(frozen=True, slots=True)
class RankPairs:
    """Pairs of rows of one question whose human ratings differ enough; ``winner`` rated higher."""

    winner: NDArray[np.intp]
    loser: NDArray[np.intp]
    question: NDArray[np.intp]  # number of the question, from 0


@dataclass(frozen=True, slots=True)
class WinLose:
    """Pairs counted. ``share`` = n_agree / (n_agree + n_tied + n_disagree); NaN without pairs."""

    n_agree: int
    n_tied: int
    n_disagree: int
    n_undefined: int
    share: float


def rank_pairs(
    *, human: NDArray[np.float64], questions: NDArray[np.intp], min_gap: float
) -> RankPairs:
    """Return the pairs of a question whose human ratings differ by more than ``min_gap``.

    Parameters
    ----------
    human : float ndarray of shape (n_rows,)
        NaN where there is no rating: such rows form no pair.
    questions : int ndarray of shape (n_rows,)
        Numbers from 0.
    min_gap : float
        Exclusive; >= 0, in units of the rating.

    Examples
    --------
    >>> pairs = rank_pairs(
    ...     human=np.array([1.0, 4.0, 3.0]), questions=np.array([0, 0, 0]), min_gap=2.0
    ... )
    >>> pairs.winner.tolist(), pairs.loser.tolist()
    ([1], [0])
    """
    order = np.argsort(questions, kind="stable")
    order = order[~np.isnan(human[order])]
    bounds = np.flatnonzero(np.diff(questions[order])) + 1
    winners: list[NDArray[np.intp]] = []
    losers: list[NDArray[np.intp]] = []
    for rows in np.split(order, bounds):
        first, second = np.nonzero(np.subtract.outer(human[rows], human[rows]) > min_gap)
        winners.append(rows[first])
        losers.append(rows[second])
    winner, loser = np.concatenate(winners), np.concatenate(losers)
    return RankPairs(winner, loser, questions[winner])


def win_lose(scores: NDArray[np.float64], pairs: RankPairs) -> WinLose:
    """Return how often the winner has the higher score; negate scores where lower is better.

    Examples
    --------
    >>> pairs = RankPairs(np.array([0, 1, 2]), np.array([3, 3, 3]), np.array([0, 0, 0]))
    >>> win_lose(np.array([0.9, 0.2, np.nan, 0.2]), pairs)
    WinLose(n_agree=1, n_tied=1, n_disagree=0, n_undefined=1, share=0.5)
    """
    gap = scores[pairs.winner] - scores[pairs.loser]
    n_agree, n_tied = int((gap > 0).sum()), int((gap == 0).sum())
    n_disagree = int((gap < 0).sum())
    n_defined = n_agree + n_tied + n_disagree
    share = n_agree / n_defined if n_defined else float("nan")
    return WinLose(n_agree, n_tied, n_disagree, len(gap) - n_defined, share)


def weighted_share(
    scores: NDArray[np.float64], pairs: RankPairs, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the share of agreements in each resample of questions.

    Parameters
    ----------
    scores : float ndarray of shape (n_rows,)
    pairs : RankPairs
    weights : float ndarray of shape (n_questions, n_resamples)
        How often a question was drawn; all its pairs count as often.

    Returns
    -------
    float ndarray of shape (n_resamples,)
        In [0, 1]. NaN where a resample has no pair with both scores defined.
    """
    gap = scores[pairs.winner] - scores[pairs.loser]
    n_questions = len(weights)
    agree = np.bincount(pairs.question, weights=gap > 0, minlength=n_questions)
    defined = np.bincount(pairs.question, weights=~np.isnan(gap), minlength=n_questions)
    with np.errstate(invalid="ignore", divide="ignore"):
        share: NDArray[np.float64] = (agree @ weights) / (defined @ weights)
    return share
