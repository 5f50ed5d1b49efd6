"""Design effect: how many independent labels the labels of a few contexts are worth.

Knows labels and numbers of contexts; certifies nothing: that is `certificate`.

Source
------
Korn, Graubard. Confidence Intervals for Proportions with Small Expected Number of Positive Counts
Estimated from Survey Data. Survey Methodology 1998. Labels of m contexts, n_c of context c, k_c of
them good, with p = k / n::

    v    = m / (m - 1) sum_c (k_c - p n_c)^2 / n^2
    deff = max(1, v n / (p (1 - p)))
    n*   = n / deff (z_delta / t_{m-1, delta})^2,    k* = p n*

and the tail of the binomial for n* and k*, which need not be whole.

Differs from Korn and Graubard
------------------------------
- deff is at least what one context more, all of it bad, would make it, with s = sum_c n_c^2 / n
  labels. Bad labels come together, and few of them do not show how much so: all good labels show
  nothing (v = 0), and theirs then take deff for 1. Here all good labels of m contexts of one size
  count as m at the most. DECISIONS.md, 103, has what it costs and what else was tried.
- Labels of a single context count as none.

But: contexts drawn whole are taken to be alike in size: where a few contexts hold much of the
corpus and are worse than others, draw rows, not contexts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


class EffectiveCounts(NamedTuple):
    """Labels and good labels as independent ones would count, and ``deff`` >= 1.

    Arrays of shape (n_shares,).
    """

    n: FloatArray
    n_good: FloatArray
    deff: FloatArray


def effective_counts(counts: FloatArray, good: FloatArray, delta: float) -> EffectiveCounts:
    """Return what labels that share contexts count as.

    Parameters
    ----------
    counts, good : float ndarray of shape (n_contexts, n_shares)
        Labels of each context in each share, and good ones.
    delta : float
        1 - confidence; in (0, .5).

    Returns
    -------
    EffectiveCounts
        The labels as they are where no context has two of them. 0 where there is but one context.

    Examples
    --------
    >>> twenty = np.full((20, 1), 3.0)  # 20 contexts of 3 labels each, all good
    >>> found = effective_counts(twenty, twenty, 0.05)
    >>> found.n.round(1).tolist(), found.deff.round(2).tolist()
    ([17.2], [3.15])
    """
    from scipy import special  # Imported here: it takes time that few commands need.

    n, k = counts.sum(axis=0), good.sum(axis=0)
    m = (counts > 0).sum(axis=0)
    size = np.divide((counts**2).sum(axis=0), n, out=np.ones_like(n), where=n > 0)  # s
    one_more = np.vstack([counts, size]), np.vstack([good, np.zeros_like(size)])
    deff = np.maximum(1.0, np.maximum(_design_effect(counts, good), _design_effect(*one_more)))
    degrees = np.maximum(m - 1, 1)
    shrink = (special.ndtri(delta) / special.stdtrit(degrees, delta)) ** 2
    shares_contexts = n > m
    deff = np.where(shares_contexts, deff, 1.0)
    factor = np.where(shares_contexts, np.where(m > 1, shrink / deff, 0.0), 1.0)
    return EffectiveCounts(n * factor, k * factor, deff)


def _design_effect(counts: FloatArray, good: FloatArray) -> FloatArray:
    """Return v n / (p (1 - p)); 1 where labels are all good or all bad, or of one context."""
    n, k = counts.sum(axis=0), good.sum(axis=0)
    m = (counts > 0).sum(axis=0)
    is_defined = (m > 1) & (k > 0) & (k < n)
    p = np.divide(k, n, out=np.full_like(n, 0.5), where=is_defined)
    squares = ((good - p * counts) ** 2).sum(axis=0)
    v = m / np.maximum(m - 1, 1) * squares / np.maximum(n, 1.0) ** 2
    return np.where(is_defined, v * n / (p * (1 - p)), 1.0)


def binomial_tail(n: FloatArray, k: FloatArray, chance: FloatArray) -> FloatArray:
    """Return the chance of ``k`` or more of ``n``, which need not be whole; 1 where ``k`` is 0.

    P[Bin(n, t) >= k] = I_t(k, n - k + 1), the incomplete beta function.

    Examples
    --------
    >>> float(binomial_tail(np.array(29.0), np.array(29.0), np.array(0.9)).round(4))  # .9 ** 29
    0.0471
    """
    from scipy import special  # Imported here: it takes time that few commands need.

    has_good = k > 0
    k = np.where(has_good, k, 1.0)
    values = special.betainc(k, np.maximum(n - k, 0.0) + 1.0, chance)
    return np.where(has_good, values, 1.0)


def binomial_bound(n: FloatArray, k: FloatArray, level: float) -> FloatArray:
    """Return Clopper and Pearson's lower bound: the chance whose tail is ``level``.

    Examples
    --------
    >>> float(binomial_bound(np.array(29.0), np.array(29.0), 0.05).round(4))  # .05 ** (1 / 29)
    0.9019
    """
    from scipy import special  # Imported here: it takes time that few commands need.

    has_good = k > 0
    k = np.where(has_good, k, 1.0)
    values = special.betaincinv(k, np.maximum(n - k, 0.0) + 1.0, level)
    return np.where(has_good, values, 0.0)
