"""AUC: how often a positive scores higher than a negative, ties counting half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats


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
    statistic = stats.mannwhitneyu(high, low, method="asymptotic").statistic
    return float(statistic) / (len(high) * len(low))
