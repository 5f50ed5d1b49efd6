"""MoverScore: what it costs to move the candidate's tokens onto the reference's.

Costs of optimal transport in, scores out. Solves nothing itself.

Source
------
Zhao, Peyrard, Liu, Gao, Meyer, Eger. MoverScore: Text Generation Evaluating with Contextualized
Embeddings and Earth Mover Distance. EMNLP 2019, arXiv:1909.02622, section 3, eq. 1-3 for unigrams.
With token vectors x_i, y_j of unit length and weights p_i, q_j that sum to 1 on each side, in
proportion to idf or equal::

    C_ij = || x_i - y_j ||
    WMD = min_F sum_ij F_ij C_ij,  F_ij >= 0,  sum_j F_ij = p_i,  sum_i F_ij = q_j
    MoverScore = 1 - WMD

Differs from the authors' program (moverscore_v2)
-------------------------------------------------
- It leaves out punctuation and later word pieces and keeps [CLS] and [SEP]; here the caller's
  weights say what counts.

But: no bigrams, and one layer's vectors instead of power means over layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qaeval_core.metrics.base import Metric, Read, Scores, columns
from qaeval_core.metrics.bertscore import TokenSettings, token_read
from qaeval_core.metrics.targets import Targets

FloatArray = NDArray[np.float64]


def moverscore(*, transport_cost: FloatArray) -> FloatArray:
    """Return 1 - WMD of pairs.

    Parameters
    ----------
    transport_cost : float ndarray of shape (n_pairs,)
        WMD: the least mean distance of unit vectors, in [0, 2]; NaN where undefined.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [-1, 1], higher is better: 1 for equal vectors, below 0 for those over 60 degrees apart.
        NaN where the cost is.

    Examples
    --------
    >>> moverscore(transport_cost=np.array([0.0, 0.75, 2.0]))
    array([ 1.  ,  0.25, -1.  ])
    """
    return 1.0 - transport_cost


class MoverScoreSettings(TokenSettings):
    """Settings of ``moverscore``."""


class MoverScore(Metric[MoverScoreSettings]):
    """MoverScore."""

    name = "moverscore"
    title = "1 less the cost of moving one text's tokens onto the other's"
    source = "Zhao et al. MoverScore. EMNLP 2019, arXiv:1909.02622, section 3"
    settings = MoverScoreSettings
    needs = ("encoder",)
    columns = columns("")
    low = -1.0
    is_symmetric = True

    def reads(self, settings: MoverScoreSettings) -> tuple[Read, ...]:
        """Return the costs."""
        return (token_read("token_transport", settings, {"idf": settings.idf}),)

    def score(self, settings: MoverScoreSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        pairs = read["token_transport"]
        best = pairs.best(moverscore(transport_cost=pairs["transport_cost"]))
        return Scores({"": best}, pairs.reasons(best))
