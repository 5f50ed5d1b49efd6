"""Levels: scores of systems from scores of their rows, and draws of questions.

At segment level a point of a correlation is a row. At system level it is a system: its score over
its rows against the mean of its human ratings. A score over rows is a mean, or comes from summed
statistics as for BLEU; the caller passes the function that makes it.

Source
------
Yang, Liu, Liu, Lyu, Li. Adaptations of ROUGE and BLEU to Better Evaluate Machine Reading
Comprehension Task. MRQA 2018, section 4.2 (draws: 30 questions, the same for all systems, 100
times; one correlation over draws x systems points).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# (rows, weights of shape (len(rows), n_sets)) -> score of each set, NaN where undefined
Aggregator = Callable[[NDArray[np.intp], NDArray[np.float64]], NDArray[np.float64]]
# Sums of statistics of shape (n_sets, n_statistics) -> score of each set
ScoreOfSums = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows of each group; ``names`` in ascending order, ``rows`` in the same order."""

    names: list[str]
    rows: list[NDArray[np.intp]]


def make_grouping(names: NDArray[np.str_]) -> Grouping:
    """Return the rows of each name.

    Examples
    --------
    >>> grouping = make_grouping(np.array(["b", "a", "b"]))
    >>> grouping.names, [rows.tolist() for rows in grouping.rows]
    (['a', 'b'], [[1], [0, 2]])
    """
    found, codes = np.unique(names, return_inverse=True)
    rows = [np.flatnonzero(codes == code) for code in range(len(found))]
    return Grouping([str(name) for name in found], rows)


def mean_of(values: NDArray[np.float64]) -> Aggregator:
    """Return the aggregator that takes the mean of defined rows.

    Examples
    --------
    >>> mean_of(np.array([1.0, 2.0, np.nan]))(np.array([0, 1, 2]), np.ones((3, 1))).tolist()
    [1.5]
    """
    defined = (~np.isnan(values)).astype(np.float64)
    filled = np.nan_to_num(values, nan=0.0)

    def aggregate(rows: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: NDArray[np.float64] = (filled[rows] @ weights) / (defined[rows] @ weights)
        return mean

    return aggregate


def complete_rows(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows hold no NaN; bool ndarray of shape (n_rows,)."""
    return np.asarray(~np.isnan(values).any(axis=1), dtype=np.bool_)


def score_of_sums(statistics: NDArray[np.float64], score: ScoreOfSums) -> Aggregator:
    """Return the aggregator that sums statistics over rows and scores the sums.

    Parameters
    ----------
    statistics : float ndarray of shape (n_rows, n_statistics)
        NaN in rows without statistics; they are left out.
    score : callable
        From sums of shape (n_sets, n_statistics) to scores of shape (n_sets,).
    """
    is_defined = complete_rows(statistics)
    defined = is_defined.astype(np.float64)
    filled = np.where(is_defined[:, None], statistics, 0.0)

    def aggregate(rows: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        has_rows = defined[rows] @ weights > 0
        scores = np.full(weights.shape[1], np.nan)
        if has_rows.any():
            scores[has_rows] = score((weights.T @ filled[rows])[has_rows])
        return scores

    return aggregate


def group_scores(
    grouping: Grouping, aggregate: Aggregator, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return each group's score in each set of rows.

    Parameters
    ----------
    grouping : Grouping
    aggregate : Aggregator
    weights : float ndarray of shape (n_rows, n_sets)
        How often a row counts in a set: ones, a resample, or the rows of drawn questions.

    Returns
    -------
    float ndarray of shape (n_groups, n_sets)
        NaN where a group has no defined row in a set.
    """
    if not grouping.rows:
        return np.empty((0, weights.shape[1]))
    return np.stack([aggregate(rows, weights[rows]) for rows in grouping.rows])


def common_questions(
    *, systems: NDArray[np.str_], questions: NDArray[np.str_], usable: NDArray[np.bool_]
) -> NDArray[np.str_]:
    """Return the questions for which every system has a usable row, in ascending order.

    Examples
    --------
    >>> common_questions(
    ...     systems=np.array(["a", "a", "b"]),
    ...     questions=np.array(["q", "r", "q"]),
    ...     usable=np.array([True, True, True]),
    ... ).tolist()
    ['q']
    """
    pairs = set(zip(systems[usable].tolist(), questions[usable].tolist(), strict=True))
    n_systems = len(np.unique(systems))
    names, counts = np.unique([question for _, question in pairs], return_counts=True)
    return np.asarray(names[counts == n_systems], dtype=np.str_)


def draw_weights(
    questions: NDArray[np.str_],
    candidates: NDArray[np.str_],
    *,
    n_draws: int,
    questions_per_draw: int,
    seed: int,
) -> NDArray[np.float64]:
    """Return which rows belong to each draw of questions.

    Questions of a draw are different ones, and the same for all systems. Draws are independent.

    Parameters
    ----------
    questions : str ndarray of shape (n_rows,)
    candidates : str ndarray
        The questions to draw from, see `common_questions`; at least ``questions_per_draw``.

    Returns
    -------
    float ndarray of shape (n_rows, n_draws)
        1 where the row's question was drawn, else 0.

    Examples
    --------
    >>> rows = np.array(["q", "r", "q", "r", "s"])
    >>> draws = draw_weights(rows, np.array(["q", "r"]), n_draws=4, questions_per_draw=1, seed=0)
    >>> draws.shape, draws.sum(axis=0).tolist(), draws[4].tolist()
    ((5, 4), [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0])
    """
    rng = np.random.default_rng(seed)
    draws = [
        np.isin(questions, rng.choice(candidates, size=questions_per_draw, replace=False))
        for _ in range(n_draws)
    ]
    return np.stack(draws, axis=1).astype(np.float64)
