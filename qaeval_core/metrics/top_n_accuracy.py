"""Top-n accuracy: 1 where one of the first n predicted spans overlaps a gold span.

Character offsets in, scores out; texts are not compared.

Source
------
Risch et al. Semantic Answer Similarity for Evaluating Question Answering Models. MRQA 2021,
arXiv:2108.06130, section 1: "any positional overlap between the ground-truth answer and one of the
first n model predictions". A question without gold span is answered right by predicting none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
NO_OVERLAP = -1


def first_overlap(predicted: Sequence[Span], gold: Sequence[Span]) -> int:
    """Return the place (from 0) of the first predicted span that overlaps a gold one, else -1.

    Spans are [start, end): touching ones do not overlap, an empty one overlaps nothing. Without
    gold spans the place is 0 if nothing is predicted either.

    Examples
    --------
    >>> first_overlap([(0, 4), (10, 14)], [(12, 20)]), first_overlap([(0, 4)], [(4, 8)])
    (1, -1)
    """
    if not gold:
        return 0 if not predicted else NO_OVERLAP
    for place, (start, end) in enumerate(predicted):
        if any(max(start, g_start) < min(end, g_end) for g_start, g_end in gold):
            return place
    return NO_OVERLAP


def top_n_accuracy(*, first_overlap: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Return 1 where the first overlap is among the first n spans, else 0.

    Examples
    --------
    >>> top_n_accuracy(first_overlap=np.array([0, 4, 5, -1]), n=5)
    array([1., 1., 0., 0.])
    """
    return ((first_overlap >= 0) & (first_overlap < n)).astype(np.float64)
