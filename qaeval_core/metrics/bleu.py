"""BLEU-1 of one pair as coco-caption computes it: clipped unigram precision, brevity penalty.

Word lists in, a number out. It serves the overlap filter of ``qaeval calibrate``.

Source
------
Papineni et al. BLEU. ACL 2002. With c candidate words, r reference words and m clipped matches::

    BLEU-1 = (m / c) exp(min(0, 1 - r / c))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def bleu_1(*, candidate: Sequence[str], reference: Sequence[str]) -> float:
    """Return BLEU-1 of a candidate against one reference, in [0, 1]; 0 where either is empty.

    Examples
    --------
    >>> round(bleu_1(candidate=["a", "b"], reference=["a", "c", "d"]), 4)
    0.3033
    """
    if not candidate or not reference:
        return 0.0
    clipped = Counter(candidate) & Counter(reference)
    precision = clipped.total() / len(candidate)  # m / c
    return precision * math.exp(min(0.0, 1 - len(reference) / len(candidate)))
