"""Certificate: how large a share of ranked rows can be kept at a precision, shown by labels.

Rows are ranked, best first, and up to 20 shares of them could be kept. Labels of some rows say how
precise each share is; the largest share whose precision is shown to be above a target is chosen.
Knows labels, places in a ranking and numbers of contexts; reads no file and ranks nothing.

Source
------
Angelopoulos, Bates, Candes, Jordan, Lei. Learn then Test: Calibrating Predictive Algorithms to
Achieve Risk Control. arXiv:2110.01052 (tests of many cuts on the same labels).
Westfall, Young. Resampling-Based Multiple Testing. Wiley 1993 (one level for the smallest p value).
For k good of n labels in a kept share of c rows, against "the precision is at most t"::

    p value = P[K >= k],   K good ones of n rows drawn without replacement from c, floor(t c) good
    level   = the largest a with P[some share's p value <= a] <= delta if every share is at t
    a share is certified if its p value <= level

The level is exact: a walk over shares, smallest first, carries the chance of each number of good
labels and takes out what has a p value at the level or below. It depends on how many labels lie
where, not on which are good. With all shares at the target, more is certified wrongly than with
some below it and others above (`tests/stats/test_guarantee.py` searches for exceptions).

But: a bound on the precision of the rows that the labels were drawn from, ranked as they were then;
it says nothing of other rows. Labels that share contexts are counted by `design_effect`, and then
the level is delta / number of shares (Bonferroni), for no walk is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.stats.design_effect import binomial_bound, binomial_tail, effective_counts
from qaeval_core.stats.hypergeometric import Probabilities, least_good, probabilities, tails

N_SHARES = 20
_NEGLIGIBLE = 1e-18
_ROUNDING = 1e-8

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


class KnownLabels(NamedTuple):
    """Labels that had a part in the ranking: what is known of rows that cannot be drawn any more.

    Arrays of shape (n_known,): `certify`'s ``places`` and ``is_good`` of theirs.
    """

    places: IntArray
    is_good: BoolArray


@dataclass(frozen=True, slots=True)
class ShareCertificate:
    """What the labels say of one kept share of ``n_rows`` rows.

    ``precision`` is that of its labels, None without one; ``deff`` their design effect, 1 where
    they count one by one. ``p_value`` is None where no label lies as deep as the share ends: such
    a share is not tested. ``lower_bound`` is above the target where, and only where, the share is
    certified; with a chance of at least 1 - delta no bound is above its share's precision.
    """

    share: float
    n_rows: int
    n_labels: int
    n_good: int
    precision: float | None
    deff: float
    p_value: float | None
    is_certified: bool
    lower_bound: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the labels say of all shares, tested at ``level`` so that ``delta`` may be wrong.

    ``n_contexts`` is None where labels count one by one.
    """

    target: float
    delta: float
    level: float
    n_labels: int
    n_contexts: int | None
    shares: tuple[ShareCertificate, ...]  # smallest first

    @property
    def chosen(self) -> ShareCertificate | None:
        """The largest certified share, or None."""
        return next((share for share in reversed(self.shares) if share.is_certified), None)


def kept_rows(n_rows: int) -> IntArray:
    """Return how many of ``n_rows`` ranked rows each of 20 shares keeps, if no two rows are equal.

    j / 20 of them, rounded down, 1 at least.

    Examples
    --------
    >>> kept_rows(30)[:4].tolist(), int(kept_rows(30)[-1])
    ([1, 3, 4, 6], 30)
    """
    # Whole numbers: .15 * 20 is not 3.
    least = min(n_rows, 1)
    counts = [max(j * n_rows // N_SHARES, least) for j in range(1, N_SHARES + 1)]
    return np.array(counts, dtype=np.intp)


def certify(
    places: IntArray,
    is_good: BoolArray,
    *,
    counts: Sequence[int] | IntArray,
    target: float,
    delta: float,
    n_rows: int | None = None,
    clusters: IntArray | None = None,
    known: KnownLabels | None = None,
) -> Certificate:
    """Return what labels say of the precision of each kept share, and which one to keep.

    Parameters
    ----------
    places : int ndarray of shape (n_labels,)
        The smallest share that has each labeled row, from 0.
    is_good : bool ndarray of shape (n_labels,)
    counts : sequence of int
        Rows that each share keeps, smallest first. Labels are of the last one's rows.
    target : float
        Precision to exceed, in (0, 1).
    delta : float
        In (0, .5): at most the chance that some share is certified wrongly.
    n_rows : int, optional
        All rows that were ranked; default the last of ``counts``.
    clusters : int ndarray of shape (n_labels,), optional
        Number of each label's context, from 0, where contexts were labeled whole. None where single
        rows were drawn: then labels count one by one, though some may share a context by chance.
    known : KnownLabels, optional
        Labels that the ranking was learned from. They are of none of the rows of ``places``.

    Returns
    -------
    Certificate

    Raises
    ------
    ConfigError
        If target or delta is out of range.
    ValueError
        If a place is no number of a share.

    Notes
    -----
    Labels must be a simple random sample of the rows that ``known`` leaves, or of their contexts.

    Examples
    --------
    >>> places = np.arange(400) % 20
    >>> given = {"counts": kept_rows(100_000), "target": 0.9, "delta": 0.05}
    >>> found = certify(places, places < 12, **given)
    >>> found.chosen.share, found.chosen.n_labels, round(found.level, 3)
    (0.6, 240, 0.014)
    >>> certify(places, places < 2, **given).chosen is None
    True
    """
    check_target(target, delta)
    shares = _Shares(np.asarray(counts, dtype=np.int64), places, is_good, target, known)
    n_tested = int(places.max()) + 1 if len(places) else 0
    if clusters is None:
        p_values, level, bounds = _exact(shares, n_tested, delta)
        deff = np.ones(len(shares))
    else:
        p_values, level, bounds, deff = _by_context(shares, clusters, n_tested, delta)
    total = int(shares.counts[-1]) if n_rows is None and len(shares) else n_rows or 0
    found = tuple(
        ShareCertificate(
            share=int(shares.counts[j]) / total,
            n_rows=int(shares.counts[j]),
            n_labels=int(shares.n[j]),
            n_good=int(shares.k[j]),
            precision=float(shares.k[j] / shares.n[j]) if shares.n[j] else None,
            deff=float(deff[j]),
            p_value=float(p_values[j]) if j < n_tested else None,
            is_certified=bool(j < n_tested and p_values[j] <= level),
            lower_bound=float(bounds[j]) if j < n_tested else 0.0,
        )
        for j in range(len(shares))
    )
    n_contexts = None if clusters is None else len(np.unique(clusters))
    return Certificate(target, delta, level, len(places), n_contexts, found)


class _Shares:
    """Counts of each share, which holds all smaller ones; arrays of shape (n_shares,).

    Attributes
    ----------
    n, k : int ndarray
        Labels and good ones.
    rest, allowed : int ndarray
        Rows without known labels, and how many of them are good at most if the precision of all is
        at most the target.
    n_known_good : int ndarray
    """

    def __init__(
        self,
        counts: NDArray[np.int64],
        places: IntArray,
        is_good: BoolArray,
        target: float,
        known: KnownLabels | None,
    ) -> None:
        m = len(counts)
        for own in (places, known.places if known else places[:0]):
            if len(own) and not 0 <= own.min() <= own.max() < m:
                raise ValueError(f"places must be in 0..{m - 1}")
        self.counts, self.places, self.is_good = counts, places, is_good
        self.n, self.k = _cumulated(places, is_good, m)
        n_known, self.n_known_good = np.zeros((2, m), np.int64)
        if known is not None:
            n_known, self.n_known_good = _cumulated(known.places, known.is_good, m)
        self.rest = counts - n_known
        if (self.n > self.rest).any():
            raise ValueError("more labels than rows")
        # A hair above: 0.29 * 100 is 28.999...
        allowed = np.floor(target * counts * (1 + 1e-12)).astype(np.int64) - self.n_known_good
        self.allowed = np.clip(allowed, 0, self.rest)

    def __len__(self) -> int:
        return len(self.counts)


def _cumulated(
    places: IntArray, is_good: BoolArray, m: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = np.bincount(places, minlength=m).cumsum()
    return n, np.bincount(places[is_good], minlength=m).cumsum()


def _exact(shares: _Shares, n_tested: int, delta: float) -> tuple[FloatArray, float, FloatArray]:
    """Return p values, the level, and lower bounds, of labels that count one by one."""
    own = (shares.n, shares.k, shares.rest, shares.allowed, shares.n_known_good, shares.counts)
    n, k, rest, allowed, n_known_good, counts = (each[:n_tested] for each in own)
    surprise = [
        tails(int(n[j]), n_good=int(allowed[j]), n_rows=int(rest[j])) for j in range(n_tested)
    ]
    level = exact_level(_steps(shares, n_tested), surprise, delta)
    p_values = np.array([values[good] for values, good in zip(surprise, k, strict=True)])
    # Where the truth may be below the target the level is not exact.
    passes = p_values <= level
    least = least_good(
        n, k, n_rows=rest,
        level=np.where(passes, level, delta / max(n_tested, 1)),
        least=np.where(passes, allowed + 1, 0),
        most=np.where(passes, rest, allowed),
    )  # fmt: skip
    return p_values, level, (least + n_known_good) / np.maximum(counts, 1)


def _steps(shares: _Shares, n_tested: int) -> list[Probabilities]:
    """Return how likely each share is to add so many good labels, if all are at the target."""
    found = []
    n_good = n_rows = n = 0
    for j in range(n_tested):
        new_rows, new = int(shares.rest[j]) - n_rows, int(shares.n[j]) - n
        # Known labels may lie so that not all shares can be at the target: as near as they can.
        new_good = min(max(int(shares.allowed[j]) - n_good, 0), new_rows)
        found.append(probabilities(new, n_good=new_good, n_rows=new_rows))
        n_good, n_rows, n = n_good + new_good, n_rows + new_rows, n + new
    return found


def exact_level(
    steps: Sequence[Probabilities], surprise: Sequence[FloatArray], delta: float
) -> float:
    """Return the largest level at which some share is certified with a chance of at most ``delta``.

    Parameters
    ----------
    steps : sequence of Probabilities
        Of each share: how likely it is to add so many good labels.
    surprise : sequence of float ndarray
        Of each share: the p value of each number of good labels in it, from 0.
    delta : float

    Returns
    -------
    float
        From delta / number of shares to delta.
    """
    # What is certified changes at p values alone; the lowest level needs no trial (Bonferroni).
    least = delta / max(len(steps), 1)
    values = np.unique(np.concatenate(surprise)) if surprise else np.empty(0)
    tried = values[(values > least) & (values <= delta)]
    rising = [-own for own in surprise]
    low, high = 0, len(tried)
    while low < high:
        middle = (low + high) // 2
        if _chance_of_any(steps, rising, float(tried[middle])) <= delta:
            low = middle + 1
        else:
            high = middle
    # Below the first that is too high by more than rounding.
    return delta if low == len(tried) else max(least, float(tried[low]) * (1 - _ROUNDING))


def _chance_of_any(
    steps: Sequence[Probabilities], rising: Sequence[FloatArray], level: float
) -> float:
    """Return the chance that some share has a p value at a level or below.

    ``rising`` are the p values of each number of good labels, times -1.
    """
    total, first, chances = 0.0, 0, np.ones(1)
    for (more, step), own in zip(steps, rising, strict=True):
        first, chances = first + more, np.convolve(chances, step)
        # p values fall with the number of good labels: the first number that is certified.
        left = int(own.searchsorted(-level)) - first
        if left < len(chances):
            total += float(chances[max(left, 0) :].sum())
            chances = chances[: max(left, 0)]
        if not len(chances):
            break
        # What is next to impossible takes time and changes nothing.
        kept = (chances > _NEGLIGIBLE).nonzero()[0]
        if len(kept):
            first, chances = first + int(kept[0]), chances[kept[0] : kept[-1] + 1]
    return total


def _by_context(
    shares: _Shares, clusters: IntArray, n_tested: int, delta: float
) -> tuple[FloatArray, float, FloatArray, FloatArray]:
    """Return p values, the level, lower bounds and design effects of labels that share contexts."""
    m = len(shares)
    cells = (len(np.unique(clusters)), m)
    flat = np.unique(clusters, return_inverse=True)[1] * m + shares.places
    counts, good = (
        np.bincount(own, minlength=cells[0] * m).reshape(cells).cumsum(axis=1, dtype=np.float64)
        for own in (flat, flat[shares.is_good])
    )
    n, k, deff = effective_counts(counts, good, delta)
    level = delta / max(n_tested, 1)
    rest = np.maximum(shares.rest, 1)
    p_values = binomial_tail(n, k, shares.allowed / rest)
    precise = binomial_bound(n, k, level) * rest
    bounds = (precise + shares.n_known_good) / np.maximum(shares.counts, 1)
    return p_values, level, bounds, deff


def check_target(target: float, delta: float) -> None:
    """Raise ConfigError if no labels show such a precision, or none at such a confidence."""
    if not 0 < target < 1:
        raise ConfigError(
            f"a precision of {target:g} cannot be certified; it must be above 0 and below 1 "
            "[QA0104]"
        )
    if not 0 < delta < 0.5:
        raise ConfigError(
            f"the confidence is {1 - delta:g}; it must be above 0.5 and below 1 [QA0104]"
        )
