"""System scores: those of systems from scores of their rows, and draws of questions.

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

import numpy as np
from numpy.typing import NDArray

# Sums of statistics of shape (n_sets, n_statistics) -> score of each set
ScoreOfSums = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def group_rows(names: NDArray[np.str_]) -> list[NDArray[np.intp]]:
    """Return the rows of each name, names in ascending order.

    Examples
    --------
    >>> [rows.tolist() for rows in group_rows(np.array(["b", "a", "b"]))]
    [[1], [0, 2]]
    """
    found, codes = np.unique(names, return_inverse=True)
    return [np.flatnonzero(codes == code) for code in range(len(found))]


def mean_statistics(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the statistics whose sums `mean_of_sums` scores: a value and 1, shape (n_rows, 2)."""
    return np.column_stack([values, np.ones(len(values))])


def mean_of_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of sets of rows, from sums of shape (n_sets, 2)."""
    means: NDArray[np.float64] = sums[:, 0] / sums[:, 1]
    return means


def complete_rows(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows hold no NaN; bool ndarray of shape (n_rows,)."""
    return np.asarray(~np.isnan(values).any(axis=1), dtype=np.bool_)


def group_scores(
    groups: list[NDArray[np.intp]],
    statistics: NDArray[np.float64],
    score: ScoreOfSums,
    *,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return each group's score in each set of rows: statistics summed over rows, then scored.

    Parameters
    ----------
    groups : list of int ndarray
        Rows of each group.
    statistics : float ndarray of shape (n_rows, n_statistics)
        NaN in rows without statistics; they are left out.
    score : callable
    weights : float ndarray of shape (n_rows, n_sets)
        How often a row counts in a set: ones, a resample, or the rows of drawn questions.

    Returns
    -------
    float ndarray of shape (n_groups, n_sets)
        NaN where a group has no defined row in a set.
    """
    is_complete = complete_rows(statistics)
    scores = np.full((len(groups), weights.shape[1]), np.nan)
    for i, rows in enumerate(groups):
        own = rows[is_complete[rows]]
        drawn = weights[own]
        has_rows = drawn.any(axis=0)
        if has_rows.any():
            # Contiguous: strided values are summed in another order, and a last digit breaks ties.
            columns = np.ascontiguousarray(statistics[own].T)
            sums = np.stack([column @ drawn for column in columns], axis=1)
            scores[i, has_rows] = score(sums[has_rows])
    return scores


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
