"""Exact match: 1 where candidate and reference are equal after normalisation.

Equality of normalised texts in, scores out; the normalisation is the tokeniser's
(``text.tokenise``, rule ``squad``).

Source
------
Rajpurkar et al. SQuAD. EMNLP 2016, arXiv:1606.05250, section 6.1, and the evaluation script v1.1.
Several references: the best one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def exact_match(*, is_equal: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return 1 for equal pairs and 0 for others.

    Parameters
    ----------
    is_equal : bool ndarray of shape (n_pairs,)

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In {0, 1}, higher is better.

    Examples
    --------
    >>> exact_match(is_equal=np.array([True, False]))
    array([1., 0.])
    """
    return is_equal.astype(np.float64)
