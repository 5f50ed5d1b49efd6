"""Corpus: the score of many rows from their summed statistics, by the metric's own formula.

For metrics whose corpus score is no mean of rows. Statistics of a row, in this order: BLEU and
adapted BLEU: words of candidate and reference, then m_i, then t_i, i = 1..4; CIDEr: score and 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.bleu import MAX_ORDER, bleu

FloatArray = NDArray[np.float64]


def corpus_score(metric: str, settings: Mapping[str, object], sums: FloatArray) -> FloatArray:
    """Return the score of corpora.

    Parameters
    ----------
    metric : str
        Of the catalogue, with ``over_examples`` "sum_of_statistics".
    settings : mapping
        The instance's settings.
    sums : float ndarray of shape (..., n_statistics)
        Statistics summed over rows.

    Returns
    -------
    float ndarray of shape (...)
        NaN where there is no row to sum.

    Raises
    ------
    ConfigError
        If the metric's corpus score is a mean of rows.

    Examples
    --------
    >>> corpus_score("cider", {}, np.array([7.5, 3.0]))
    array(2.5)
    """
    if metric == "cider":
        n_rows = sums[..., 1]
        return np.where(n_rows > 0, sums[..., 0] / np.maximum(n_rows, 1), np.nan)
    if metric.startswith("bleu_") or metric == "adapted_bleu_4":
        score = bleu(
            matches=sums[..., 2 : 2 + MAX_ORDER],
            totals=sums[..., 2 + MAX_ORDER : 2 + 2 * MAX_ORDER],
            n_candidate=sums[..., 0],
            n_reference=sums[..., 1],
            order=int(metric[-1]),
            smoothing=str(settings.get("smoothing", "none")),
        )
        has_words = (sums[..., 0] > 0) | (sums[..., 1] > 0)
        return np.where(has_words, score, np.nan)
    raise ConfigError(f"the corpus score of {metric} is the mean over rows")
