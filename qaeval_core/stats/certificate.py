"""Certificate: how large a share of ranked rows can be kept at a precision, shown by labels.

Rows are ranked, best first, and 20 shares of them could be kept. Labels of some rows say how
precise each share is; the largest share whose precision is shown to be above a target is chosen.
Knows labels, places in a ranking and numbers of contexts; reads no file and ranks nothing.

Source
------
Angelopoulos, Bates, Candes, Jordan, Lei. Learn then Test: Calibrating Predictive Algorithms to
Achieve Risk Control. arXiv:2110.01052 (tests of many cuts on the same labels).
Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scand. J. Statistics 1979.
Clopper, Pearson. The Use of Confidence or Fiducial Limits. Biometrika 1934 (lower bounds).
For k good of n labels in a kept share, against "the precision is at most t"::

    p value = P[Bin(n, t) >= k] = I_t(k, n - k + 1)

and Holm's step-down at delta = 1 - confidence over the shares, so that the chance that any share
is certified whose precision is not above t is at most delta.

Korn, Graubard. Confidence Intervals for Proportions with Small Expected Number of Positive Counts
Estimated from Survey Data. Survey Methodology 1998. Labels of m contexts, n_c of context c, k_c of
them good, with p = k / n::

    v    = m / (m - 1) sum_c (k_c - p n_c)^2 / n^2
    deff = max(1, v n / (p (1 - p)))
    n*   = n / deff (z_delta / t_{m-1, delta})^2,    k* = p n*

and the same incomplete beta function of n* and k*, which need not be whole.

Differs from Korn and Graubard
------------------------------
- deff is at least what one context more, all of it bad, would make it, with s = sum_c n_c^2 / n
  labels. Bad labels come together, and few of them do not show how much so: all good labels show
  nothing (v = 0), and theirs then take deff for 1. Here all good labels of m contexts of one size
  count as m at the most. DECISIONS.md, 103, has what it costs and what else was tried.
- Labels of a single context certify nothing.

But: a bound on the precision of the rows that the labels were drawn from, ranked as they were then;
it says nothing of other rows. Contexts drawn whole are taken to be alike in size: where a few
contexts hold much of the corpus and are worse than others, draw rows, not contexts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qaeval_core.errors import ConfigError

N_SHARES = 20

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


class EffectiveCounts(NamedTuple):
    """Labels and good labels as independent ones would count; ``deff`` >= 1, the design effect."""

    n: float
    n_good: float
    deff: float


@dataclass(frozen=True, slots=True)
class ShareCertificate:
    """What the labels say of one kept share; None where it holds no label.

    ``n_effective`` and ``n_good_effective`` are the numbers that were tested. ``lower_bound`` holds
    for all shares together at the confidence asked for. It may be below the target although the
    share is certified: Holm's procedure certifies more than bounds of all shares at once do.
    """

    share: float
    n_labels: int
    n_good: int
    precision: float | None
    deff: float
    n_effective: float
    n_good_effective: float
    p_value: float
    is_certified: bool
    lower_bound: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the labels say of all shares; ``n_contexts`` is None where labels were drawn by row."""

    target: float
    confidence: float
    n_labels: int
    n_contexts: int | None
    shares: tuple[ShareCertificate, ...]  # smallest first

    @property
    def chosen(self) -> ShareCertificate | None:
        """The largest certified share, or None."""
        return next((share for share in reversed(self.shares) if share.is_certified), None)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a number of labels could certify at best.

    Below ``least_labels`` nothing can pass. ``smallest_share`` is the smallest that would if all
    labels were good and spread evenly, None where none would.
    """

    n_labels: int
    least_labels: int
    smallest_share: float | None


def kept_rows(n_rows: int) -> IntArray:
    """Return how many of ``n_rows`` ranked rows each share keeps: j / 20, rounded down, 1 at least.

    Examples
    --------
    >>> kept_rows(30)[:4].tolist(), int(kept_rows(30)[-1])
    ([1, 3, 4, 6], 30)
    """
    # Whole numbers: .15 * 20 is not 3.
    least = min(n_rows, 1)
    counts = [max(j * n_rows // N_SHARES, least) for j in range(1, N_SHARES + 1)]
    return np.array(counts, dtype=np.intp)


def share_index(ranks: IntArray, *, n_rows: int) -> IntArray:
    """Return the number of the smallest share that keeps a row, 0 to 19.

    Parameters
    ----------
    ranks : int ndarray of shape (n_labels,)
        0 for the best of the rows, ``n_rows`` - 1 for the worst.
    n_rows : int
        All rows that were ranked, not the labeled ones alone.

    Examples
    --------
    >>> share_index(np.array([0, 4, 5, 99]), n_rows=100).tolist()
    [0, 0, 1, 19]
    """
    return np.searchsorted(kept_rows(n_rows), ranks, side="right")


def precision_p_value(n: ArrayLike, k: ArrayLike, target: float) -> FloatArray:
    """Return the chance of ``k`` or more good ones of ``n`` if the precision were the target.

    Parameters
    ----------
    n, k : float, or float ndarray of shape (n_shares,)
        Labels, and good ones of them, k <= n. They need not be whole.
    target : float
        In (0, 1).

    Returns
    -------
    float ndarray of the same shape
        In [0, 1]; lower speaks for a precision above the target. 1 without good labels.

    Examples
    --------
    >>> round(float(precision_p_value(29, 29, 0.9)), 4)  # .9 ** 29
    0.0471
    """
    from scipy import special  # Imported here: it takes time that few commands need.

    n, k = np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
    has_good = k > 0
    good = np.where(has_good, k, 1.0)
    values = special.betainc(good, np.maximum(n - good, 0.0) + 1.0, target)
    return np.where(has_good, values, 1.0)


def lower_bound(n: ArrayLike, k: ArrayLike, delta: float) -> FloatArray:
    """Return Clopper and Pearson's lower bound of the precision: where the p value is ``delta``.

    Parameters
    ----------
    n, k : float, or float ndarray of shape (n_shares,)
        Labels, and good ones of them, k <= n. They need not be whole.
    delta : float
        In (0, 1): the chance of a bound above the precision.

    Returns
    -------
    float ndarray of the same shape
        In [0, 1); 0 without good labels.

    Examples
    --------
    >>> round(float(lower_bound(29, 29, 0.05)), 4)  # .05 ** (1 / 29)
    0.9019
    """
    from scipy import special  # Imported here: it takes time that few commands need.

    n, k = np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
    has_good = k > 0
    good = np.where(has_good, k, 1.0)
    values = special.betaincinv(good, np.maximum(n - good, 0.0) + 1.0, delta)
    return np.where(has_good, values, 0.0)


def holm(p_values: FloatArray, delta: float) -> NDArray[np.bool_]:
    """Return which hypotheses Holm's procedure rejects at a family-wise error rate of ``delta``.

    Examples
    --------
    >>> holm(np.array([0.03, 0.01, 0.02, 0.5]), 0.05).tolist()
    [False, True, False, False]
    """
    order = np.argsort(p_values, kind="stable")
    levels = delta / np.arange(len(p_values), 0, -1)
    is_rejected = np.zeros(len(p_values), dtype=np.bool_)
    # The first that fails ends it.
    is_rejected[order] = np.logical_and.accumulate(p_values[order] <= levels)
    return is_rejected


def least_labels(target: float, delta: float) -> int:
    """Return the fewest labels that can pass one test: all good, target ** n <= delta.

    Examples
    --------
    >>> least_labels(0.9, 0.05), least_labels(0.5, 0.25)
    (29, 2)
    """
    n = math.ceil(math.log(delta) / math.log(target))
    # Rounding of logarithms may be off by one where the quotient is whole.
    return n - 1 if n > 1 and target ** (n - 1) <= delta else n


def outlook(n_labels: int, *, target: float, confidence: float) -> Outlook:
    """Return what so many labels could certify at best, before anybody labels.

    Parameters
    ----------
    n_labels : int
        Rows to label; contexts, where contexts are labeled whole.
    target, confidence : float
        As of `certify`.

    Returns
    -------
    Outlook
        ``least_labels`` is for the first step of Holm's procedure over the 20 shares, which is
        stricter than a single test: delta / 20.

    Raises
    ------
    ConfigError
        If target or confidence is out of range.

    Examples
    --------
    >>> outlook(50, target=0.9, confidence=0.95)
    Outlook(n_labels=50, least_labels=57, smallest_share=None)
    >>> outlook(400, target=0.9, confidence=0.95).smallest_share
    0.1
    """
    delta = _check_delta(target, confidence)
    n_good = kept_rows(n_labels)
    passes = np.flatnonzero(holm(precision_p_value(n_good, n_good, target), delta))
    smallest = (int(passes[0]) + 1) / N_SHARES if len(passes) else None
    return Outlook(n_labels, least_labels(target, delta / N_SHARES), smallest)


def effective_counts(
    is_good: NDArray[np.bool_], clusters: IntArray, delta: float
) -> EffectiveCounts:
    """Return what labels that share contexts count as.

    Parameters
    ----------
    is_good : bool ndarray of shape (n_labels,)
    clusters : int ndarray of shape (n_labels,)
        Number of each label's context, from 0.
    delta : float
        1 - confidence; in (0, .5).

    Returns
    -------
    EffectiveCounts
        The labels as they are where no context has two of them. 0 where there is but one context.

    Examples
    --------
    >>> apart = effective_counts(np.array([True, True, False]), np.arange(3), 0.05)
    >>> apart == (3.0, 2.0, 1.0)
    True
    >>> shared = effective_counts(np.ones(60, dtype=bool), np.repeat(np.arange(20), 3), 0.05)
    >>> round(shared.n, 1), round(shared.deff, 2)  # 20 contexts, not 60 labels
    (17.2, 3.15)
    """
    n_labels = np.bincount(clusters).astype(np.float64)[:, None]
    n_good = np.bincount(clusters, weights=is_good).astype(np.float64)[:, None]
    n, k, deff = _effective(n_labels, n_good, delta)
    return EffectiveCounts(float(n[0]), float(k[0]), float(deff[0]))


def certify(
    places: IntArray,
    is_good: NDArray[np.bool_],
    *,
    target: float,
    confidence: float,
    clusters: IntArray | None = None,
) -> Certificate:
    """Return what labels say of the precision of each kept share, and which one to keep.

    Parameters
    ----------
    places : int ndarray of shape (n_labels,)
        `share_index` of each labeled row among all rows that were ranked.
    is_good : bool ndarray of shape (n_labels,)
    target : float
        Precision to exceed, in (0, 1).
    confidence : float
        In (.5, 1): at least the chance that no share is certified wrongly.
    clusters : int ndarray of shape (n_labels,), optional
        Number of each label's context, from 0. None where single rows were drawn at random: then
        labels are as good as independent, though some may share a context by chance. Labels that
        `learned_rank.is_learning` leaves are of some contexts alone: pass their numbers.

    Returns
    -------
    Certificate

    Raises
    ------
    ConfigError
        If target or confidence is out of range.
    ValueError
        If a place is no number of a share.

    Notes
    -----
    Labels must be a random sample of the ranked rows, or of their contexts, and none of them may
    have had a part in the ranking.

    Examples
    --------
    >>> places = np.arange(400) % 20
    >>> found = certify(places, places < 12, target=0.9, confidence=0.95)
    >>> found.chosen.share, found.chosen.n_labels, found.chosen.p_value < 0.001
    (0.6, 240, True)
    >>> certify(places, places < 2, target=0.9, confidence=0.95).chosen is None
    True
    """
    delta = _check_delta(target, confidence)
    if len(places) and not 0 <= places.min() <= places.max() < N_SHARES:
        raise ValueError(f"places must be in 0..{N_SHARES - 1}")
    rows = np.zeros(len(places), dtype=np.intp) if clusters is None else clusters
    counts, good = _by_context(rows, places, None), _by_context(rows, places, is_good)
    n_labels, n_good = counts.sum(axis=0), good.sum(axis=0)
    if clusters is None:
        n, k, deff = n_labels, n_good, np.ones(N_SHARES)
    else:
        n, k, deff = _effective(counts, good, delta)
    p_values = precision_p_value(n, k, target)
    is_certified = holm(p_values, delta)
    bounds = lower_bound(n, k, delta / N_SHARES)
    shares = tuple(
        ShareCertificate(
            share=(j + 1) / N_SHARES,
            n_labels=int(n_labels[j]),
            n_good=int(n_good[j]),
            precision=float(n_good[j] / n_labels[j]) if n_labels[j] else None,
            deff=float(deff[j]),
            n_effective=float(n[j]),
            n_good_effective=float(k[j]),
            p_value=float(p_values[j]),
            is_certified=bool(is_certified[j]),
            lower_bound=float(bounds[j]),
        )
        for j in range(N_SHARES)
    )
    n_contexts = None if clusters is None else len(np.unique(clusters))
    return Certificate(target, confidence, len(places), n_contexts, shares)


_MAX_GROWTH = 1e6


def labels_needed(certificate: Certificate) -> tuple[int | None, ...]:
    """Return about how many labels in all would certify each share, if its precision stayed.

    Returns
    -------
    tuple of int or None
        One a share: the first step of Holm's procedure would pass. None where the share is
        certified, and where its precision is not above the target: then no number of labels would.

    Notes
    -----
    An estimate from a precision that is itself an estimate: with so many labels, chances are about
    even. The share that needs the fewest is partly the luckiest one.

    Examples
    --------
    >>> places = np.arange(100) % 20
    >>> found = certify(places, places < 19, target=0.9, confidence=0.95)
    >>> found.chosen is None, labels_needed(found)[19]
    (False, 263)
    """
    delta = _check_delta(certificate.target, certificate.confidence) / N_SHARES

    def needed(share: ShareCertificate) -> int | None:
        n, k = share.n_effective, share.n_good_effective
        if share.is_certified or n == 0 or k / n <= certificate.target:
            return None
        low, high = 0.0, _MAX_GROWTH  # times as many labels
        if precision_p_value(high * n, high * k, certificate.target) > delta:
            return None
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            passes = precision_p_value(middle * n, middle * k, certificate.target) <= delta
            low, high = (low, middle) if passes else (middle, high)
        return math.ceil(high * certificate.n_labels)

    return tuple(needed(share) for share in certificate.shares)


def _check_delta(target: float, confidence: float) -> float:
    if not 0 < target < 1:
        raise ConfigError(
            f"a precision of {target:g} cannot be certified: it must be above 0 and below 1"
        )
    if not 0.5 < confidence < 1:
        raise ConfigError(f"the confidence must be above 0.5 and below 1, it is {confidence:g}")
    # 1 - .95 is more than .05, by rounding.
    return round(1 - confidence, 12)


def _by_context(
    clusters: IntArray, places: IntArray, is_good: NDArray[np.bool_] | None
) -> FloatArray:
    """Return how many labels of each context each share holds; shape (n_contexts, 20)."""
    n_contexts = int(clusters.max()) + 1 if len(clusters) else 0
    cells = np.bincount(
        clusters * N_SHARES + places, weights=is_good, minlength=n_contexts * N_SHARES
    )
    # A share holds all smaller ones.
    counts: FloatArray = cells.reshape(n_contexts, N_SHARES).cumsum(axis=1, dtype=np.float64)
    return counts


def _effective(
    counts: FloatArray, good: FloatArray, delta: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return n*, k* and deff of each share, from labels by context, (n_contexts, n_shares)."""
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
    return n * factor, k * factor, deff


def _design_effect(counts: FloatArray, good: FloatArray) -> FloatArray:
    """Return v n / (p (1 - p)); 1 where labels are all good or all bad, or of one context."""
    n, k = counts.sum(axis=0), good.sum(axis=0)
    m = (counts > 0).sum(axis=0)
    is_defined = (m > 1) & (k > 0) & (k < n)
    p = np.divide(k, n, out=np.full_like(n, 0.5), where=is_defined)
    squares = ((good - p * counts) ** 2).sum(axis=0)
    v = m / np.maximum(m - 1, 1) * squares / np.maximum(n, 1.0) ** 2
    return np.where(is_defined, v * n / (p * (1 - p)), 1.0)
