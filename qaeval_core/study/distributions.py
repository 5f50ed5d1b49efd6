"""Distributions: the scores of rows at each human rating, as boxes and as a table."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from qaeval_core.pages.chart_grids import Box

MAX_LEVELS = 10  # of a rating, before it is cut into bins
N_BINS = 5
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def rating_boxes(scores: NDArray[np.float64], human: NDArray[np.float64]) -> list[Box]:
    """Return how a metric's scores lie at each rating, over rows that have both.

    Parameters
    ----------
    scores, human : float ndarray of shape (n_rows,)
        NaN where undefined. More than ``MAX_LEVELS`` different ratings are cut into ``N_BINS``
        bins of equal width.

    Examples
    --------
    >>> box, _ = rating_boxes(np.array([0.0, 1.0, np.nan]), np.array([3.0, 3.0, 4.0]))
    >>> box.name, box.n, box.quantiles, box.mean
    ('3', 2, (0.05, 0.25, 0.5, 0.75, 0.95), 0.5)
    """
    labels, groups = rating_groups(human)
    return [
        _box(label, scores[rows & ~np.isnan(scores)])
        for label, rows in zip(labels, groups, strict=True)
    ]


def _box(label: str, values: NDArray[np.float64]) -> Box:
    if not len(values):
        return Box(label, 0)
    low, first, median, third, high = np.quantile(values, _LEVELS).tolist()
    return Box(label, len(values), (low, first, median, third, high), float(values.mean()))


def rating_groups(
    human: NDArray[np.float64],
) -> tuple[list[str], list[NDArray[np.bool_]]]:
    """Return a label and the rows of each rating, or of each bin where there are many ratings.

    Examples
    --------
    >>> labels, groups = rating_groups(np.array([0.0, 2.0, np.nan, 0.0]))
    >>> labels, [rows.tolist() for rows in groups]
    (['0', '2'], [[True, False, False, True], [False, True, False, False]])
    >>> labels, groups = rating_groups(np.arange(101.0))
    >>> labels[0], labels[-1], [int(rows.sum()) for rows in groups]
    ('0 to 20', '80 to 100', [20, 20, 20, 20, 21])
    """
    levels = np.unique(human[~np.isnan(human)])
    if len(levels) <= MAX_LEVELS:
        return [f"{level:g}" for level in levels], [human == level for level in levels]
    edges = np.linspace(levels[0], levels[-1], N_BINS + 1)
    bins = np.clip(np.searchsorted(edges, human, side="right") - 1, 0, N_BINS - 1)
    labels = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(edges)]
    defined = ~np.isnan(human)
    return labels, [defined & (bins == i) for i in range(N_BINS)]
