"""AUC: how often a positive scores higher than a negative, ties counting half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.ordered import Ordered, weight_by_value


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

    statistic = stats.mannwhitneyu(high, low, method="asymptotic").statistic
    return float(statistic) / (len(high) * len(low))


def weighted_auc(
    scores: Ordered, is_positive: NDArray[np.bool_], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the area under the ROC curve of each resample.

    Parameters
    ----------
    scores : Ordered
        Of n_rows rows.
    is_positive : bool ndarray of shape (n_rows,)
    weights : float ndarray of shape (n_rows, n_resamples)
        How often a row was drawn.

    Returns
    -------
    float ndarray of shape (n_resamples,)
        In [0, 1]; 0.5 says nothing. NaN where a resample has no positive or no negative row.

    Examples
    --------
    >>> from qaeval_core.stats.ordered import make_ordered
    >>> scores = make_ordered(np.array([0.9, 0.4, 0.1, 0.4]))
    >>> weighted_auc(scores, np.array([True, True, False, False]), np.ones((4, 1))).tolist()
    [0.875]
    """
    if len(scores.values) == 0:
        return np.full(weights.shape[1], np.nan)
    positive = weight_by_value(scores, weights * is_positive[:, None])
    negative = weight_by_value(scores, weights * ~is_positive[:, None])
    below = np.cumsum(negative, axis=0) - negative / 2
    n_pairs = positive.sum(axis=0) * negative.sum(axis=0)
    wins = np.einsum("ij,ij->j", positive, below)
    with np.errstate(invalid="ignore", divide="ignore"):
        share: NDArray[np.float64] = wins / n_pairs
    return share
