"""Label plan: how many labels to draw, where in a ranking, and what looks at them may cost.

What is likely to be certified, by curves of precision that agree with the labels at hand. Knows
numbers alone; nothing here certifies: that is `certificate`.

Source
------
The precision at place x of a ranking, 0 for the best and 1 for the worst, is taken to be
1 / (1 + exp(-(b_0 + b_1 (2 x - 1)))). Draws of (b_0, b_1) are normal about the best fit to the
labels, with the curvature there (Laplace) and a weak prior of precisions .05 and .2; each gives a
precision p of a kept share, and labels n of it certify the share with the chance::

    Phi((p - t) / sqrt(t (1 - t) / n) - z)

for a target t and a level whose normal quantile is z. So a share that was lucky counts for little,
and what the labels do not tell widens the draws.

But: precision may fall otherwise than along such a curve, and labels may turn out otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.stats.certificate import Certificate, certify, check_target, kept_rows

CHANCE = 0.8
_N_CURVES = 400
_PRIOR = np.diag([0.05, 0.2])
_N_NEWTON_STEPS = 12
_LARGEST_STEP = 2.0
_GROWTH = 1.02

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a number of labels could certify at best.

    Below ``least_labels`` nothing can pass. ``smallest_share`` is the smallest that would if all
    labels were good and spread evenly, None where none would.
    """

    n_labels: int
    least_labels: int
    smallest_share: float | None


def least_labels(target: float, delta: float) -> int:
    """Return the fewest labels that can pass a test: all good, target ** n <= delta.

    Examples
    --------
    >>> least_labels(0.9, 0.05), least_labels(0.5, 0.25)
    (29, 2)
    """
    n = math.ceil(math.log(delta) / math.log(target))
    # Rounding of logarithms may be off by one where the quotient is whole.
    return n - 1 if n > 1 and target ** (n - 1) <= delta else n


def outlook(n_labels: int, *, n_rows: int, target: float, delta: float) -> Outlook:
    """Return what so many labels could certify at best, before anybody labels.

    Parameters
    ----------
    n_labels : int
        Rows to label; contexts, where contexts are labeled whole.
    n_rows : int
        All rows that are ranked.
    target, delta : float
        As of `certify`.

    Raises
    ------
    ConfigError
        If target or delta is out of range.

    Examples
    --------
    >>> outlook(20, n_rows=10_000, target=0.9, delta=0.05)
    Outlook(n_labels=20, least_labels=29, smallest_share=None)
    >>> outlook(400, n_rows=10_000, target=0.9, delta=0.05).smallest_share
    0.15
    """
    check_target(target, delta)
    n_labels = min(n_labels, n_rows)
    places = np.searchsorted(kept_rows(n_labels), np.arange(n_labels), side="right")
    good = np.ones(n_labels, dtype=np.bool_)
    found = certify(places, good, counts=kept_rows(n_rows), target=target, delta=delta)
    passes = [own.share for own in found.shares if own.is_certified]
    return Outlook(n_labels, least_labels(target, delta), min(passes, default=None))


def look_deltas(planned: Sequence[int], delta: float) -> tuple[float, ...]:
    """Return what each planned look at labels may be wrong: in proportion to its labels.

    They add up to ``delta``, so that all looks together are wrong no more often (union bound).

    Examples
    --------
    >>> [round(own, 4) for own in look_deltas([200, 400, 800], 0.07)]
    [0.01, 0.02, 0.04]
    """
    return tuple(delta * n / sum(planned) for n in planned)


def best_part(found: Certificate, n_labels: int) -> int:
    """Return which share to draw labels in, by its number, so that most of the rows are kept.

    Parameters
    ----------
    found : Certificate
        Of the labels at hand, which tell where precision is, as far as they do.
    n_labels : int
        Labels that will all lie in that share; those at hand do not count beside them.
    """
    rows = np.array([own.n_rows for own in found.shares], dtype=np.float64)
    chances = _chances(found, _curves(found), np.full(len(rows), float(n_labels)), found.delta)
    return int(np.argmax(chances.mean(axis=0) * rows))


def labels_needed(found: Certificate, delta_of: Callable[[int], float]) -> int | None:
    """Return how many labels in all certify some share with a chance of .8.

    The chance is that of labels, if precision is the mean of the curves.

    Parameters
    ----------
    found : Certificate
        Of the labels at hand.
    delta_of : callable
        Takes a number of labels, returns what a look at so many may be wrong.

    Returns
    -------
    int or None
        More than there are. None where no number of labels has that chance.

    Examples
    --------
    >>> places = np.arange(100) % 20
    >>> given = {"counts": kept_rows(10_000), "target": 0.8, "delta": 0.05}
    >>> good = certify(places, np.arange(100) % 7 > 0, **given)
    >>> bad = certify(places, places % 2 == 0, **given)
    >>> labels_needed(good, lambda _: 0.05), labels_needed(good, lambda n: 0.05 * n / (n + 100))
    (754, 785)
    >>> labels_needed(bad, lambda _: 0.05) is None
    True
    """
    if not found.n_labels:
        return None
    precise = _curves(found).mean(axis=0, keepdims=True)
    rows = np.array([own.n_rows for own in found.shares], dtype=np.float64)
    n_labels: float = found.n_labels
    while n_labels * _GROWTH < rows[-1]:
        n_labels *= _GROWTH
        n = math.ceil(n_labels)
        chances = _chances(found, precise, n * rows / rows[-1], delta_of(n))
        if chances.max() >= CHANCE:
            return n
    return None


def _chances(
    found: Certificate, precise: FloatArray, n_labels: FloatArray, delta: float
) -> FloatArray:
    """Return how likely each share is certified, shape (n_curves, n_shares).

    Parameters
    ----------
    precise : float ndarray of shape (n_curves, n_shares)
    n_labels : float ndarray of shape (n_shares,)
        Labels in each share.
    """
    rows = np.array([own.n_rows for own in found.shares], dtype=np.float64)
    deff = np.array([own.deff for own in found.shares])
    left = 1 - np.minimum(n_labels / rows, 1.0)  # Of a share that is labeled whole all is known.
    variance = found.target * (1 - found.target) * deff * left / np.maximum(n_labels, 1e-9)
    z = _normal_quantile(1 - delta * found.level / found.delta)
    return _normal_cdf((precise - found.target) / np.sqrt(np.maximum(variance, 1e-12)) - z)


def _curves(found: Certificate) -> FloatArray:
    """Return draws of each share's precision, shape (n_curves, n_shares); the same at each call."""
    rows = np.diff([own.n_rows for own in found.shares], prepend=0).astype(np.float64)
    n, k = (
        np.diff([getattr(own, name) for own in found.shares], prepend=0).astype(np.float64)
        for name in ("n_labels", "n_good")
    )
    deff = found.shares[-1].deff
    n, k = n / deff, k / deff
    ends = np.cumsum(rows)
    x = 2 * (ends - rows / 2) / ends[-1] - 1
    design = np.column_stack([np.ones_like(x), x])
    b = np.array([math.log((k.sum() + 1) / (n.sum() - k.sum() + 1)), 0.0])
    for _ in range(_N_NEWTON_STEPS):
        q = 1 / (1 + np.exp(-design @ b))
        curvature = (design * (n * q * (1 - q))[:, None]).T @ design + _PRIOR
        step = np.linalg.solve(curvature, design.T @ (k - n * q) - _PRIOR @ b)
        b = b + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
    spread = np.linalg.cholesky(np.linalg.inv(curvature))
    normal = np.random.default_rng(0).standard_normal((2, _N_CURVES))
    q = 1 / (1 + np.exp(-design @ (b[:, None] + spread @ normal)))
    precise: FloatArray = ((q * rows[:, None]).cumsum(axis=0) / ends[:, None]).T
    return precise


def _normal_cdf(x: FloatArray) -> FloatArray:
    from scipy import special  # Imported here: it takes time that few commands need.

    return np.asarray(special.ndtr(x))


def _normal_quantile(p: float) -> float:
    from scipy import special  # Imported here: it takes time that few commands need.

    return float(special.ndtri(p))
