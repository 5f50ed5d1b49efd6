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

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
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


# Rows to fit on, and rows held out, of each fold.
Folds = Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]]
N_REPEATS = 10
N_FOLDS = 5


@dataclass(frozen=True, slots=True)
class SelectionStep:
    """One step, over all repeats: means on held-out folds, and how often each metric was chosen."""

    step: int
    mse: float
    r2: float
    n_chosen: dict[str, int]  # most often first; sums to the number of repeats


def forward_selection(
    names: Sequence[str],
    *,
    metrics: NDArray[np.float64],
    human: NDArray[np.float64],
    seed: int,
    n_repeats: int = N_REPEATS,
    n_folds: int = N_FOLDS,
) -> list[SelectionStep]:
    """Return the steps of greedy forward selection.

    Parameters
    ----------
    names : sequence of str
        Of the metrics; equal errors go to the earlier name.
    metrics : float ndarray of shape (n_rows, n_metrics)
        No NaN. Scale and direction do not matter: the regression is linear.
    human : float ndarray of shape (n_rows,)
        No NaN, at least two different values, at least ``n_folds`` rows.
    seed : int
        Of the folds. Each repeat has folds of its own.

    Returns
    -------
    list of SelectionStep
        One a metric; ``mse`` in squared units of the rating, lower is better; ``r2`` <= 1.

    Raises
    ------
    ConfigError
        If scikit-learn is not installed.

    Notes
    -----
    n_repeats * n_folds * n_metrics * (n_metrics + 1) / 2 least-squares fits.
    """
    check_sklearn("forward selection")
    from sklearn.model_selection import KFold

    variance = float(human.var())
    runs = []
    for repeat in range(n_repeats):
        folds = KFold(n_folds, shuffle=True, random_state=fold_seed(seed + repeat))
        runs.append(_one_run(metrics, human, list(folds.split(human))))
    steps = []
    for step, choices in enumerate(zip(*runs, strict=True), start=1):
        mse = float(np.mean([error for _, error in choices]))
        counts = Counter(names[chosen] for chosen, _ in choices)
        steps.append(SelectionStep(step, mse, 1 - mse / variance, dict(counts.most_common())))
    return steps


def _one_run(
    metrics: NDArray[np.float64], human: NDArray[np.float64], folds: Folds
) -> list[tuple[int, float]]:
    """Return (index of the metric chosen, error with it) of each step."""
    left = list(range(metrics.shape[1]))
    chosen: list[int] = []
    steps = []
    while left:
        errors = [_held_out_mse(metrics[:, [*chosen, one]], human, folds) for one in left]
        best = int(np.argmin(errors))
        steps.append((left[best], errors[best]))
        chosen.append(left.pop(best))
    return steps


def _held_out_mse(features: NDArray[np.float64], human: NDArray[np.float64], folds: Folds) -> float:
    from sklearn.linear_model import LinearRegression

    squares = 0.0
    for train, test in folds:
        fitted = LinearRegression().fit(features[train], human[train])
        squares += float(((fitted.predict(features[test]) - human[test]) ** 2).sum())
    return squares / len(human)


def fold_seed(seed: int) -> int:
    """Return a seed as scikit-learn takes it, which has 32 bits for one; small ones stay.

    Examples
    --------
    >>> fold_seed(7), fold_seed(2**32 + 7)
    (7, 7)
    """
    return seed % 2**32


def check_sklearn(what: str) -> None:
    """Raise ConfigError, saying what to install for ``what``, if there is no scikit-learn."""
    try:
        import sklearn.linear_model  # noqa: F401
    except ImportError:
        raise ConfigError(f"{what} needs scikit-learn: pip install scikit-learn [QA0004]") from None
