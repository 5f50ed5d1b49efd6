"""Transport: the cheapest way to move the weight of some tokens onto others, by POT.

Costs and weights in, plans or their cost out. Which costs and weights is the caller's matter.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.families.blas_threads import one_blas_thread

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
VectorArray = NDArray[np.float32]

# Pivots of the network simplex; POT's own limit is 100,000.
_MAX_PIVOTS = 10_000_000
_POT_BACKENDS = ("PYTORCH", "JAX", "CUPY", "TENSORFLOW")


def transport_cost(*, costs: FloatArray, supply: FloatArray, demand: FloatArray) -> float:
    """Return what the cheapest plan costs.

    Parameters
    ----------
    costs : float ndarray of shape (n_left, n_right)
        Of moving one unit of weight.
    supply : float ndarray of shape (n_left,)
    demand : float ndarray of shape (n_right,)
        Each sums to 1.

    Raises
    ------
    ConfigError
        If POT, which solves it, is not installed.
    """
    # Supply and demand sum to 1, and duals are not asked for: to look at both takes
    # longer than to solve a pair of answers (93 us against 40 with 1 to 7 tokens; costs are equal).
    return float(
        _solver().emd2(
            supply, demand, costs, numItermax=_MAX_PIVOTS, check_marginals=False, center_dual=False
        )
    )


def transport_plan(*, costs: FloatArray, supply: FloatArray, demand: FloatArray) -> FloatArray:
    """Return how much goes from where to where, shape (n_left, n_right); as `transport_cost`.

    Examples
    --------
    >>> half = np.array([0.5, 0.5])
    >>> transport_plan(costs=np.array([[0.0, 1.0], [1.0, 0.0]]), supply=half, demand=half)
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    plan: FloatArray = _solver().emd(supply, demand, costs, numItermax=_MAX_PIVOTS)
    return plan


@one_blas_thread()
def transport_costs(
    *,
    vectors: VectorArray,
    spans: IntArray,
    pair_left: IntArray,
    pair_right: IntArray,
    weights: VectorArray,
) -> FloatArray:
    """Return what it costs to move each left text's weight onto its right text.

    Parameters
    ----------
    vectors, spans, pair_left, pair_right
        As for `token_match.best_cosines`.
    weights : float ndarray of shape (n_total_tokens,)
        Weight of each token, >= 0; each text's are divided by their sum. Tokens of weight 0
        take no part.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        The least mean Euclidean distance between unit vectors, in [0, 2]; lower is better. NaN
        where a text has no positive weight.

    Raises
    ------
    ConfigError
        If POT, which solves it, is not installed.

    Notes
    -----
    The exact optimum by network simplex (POT). Each pair takes 8 bytes per pair of tokens; 500 x
    500 tokens take some 0.05 s.

    Examples
    --------
    >>> transport_costs(
    ...     vectors=np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32),
    ...     spans=np.array([[0, 2], [2, 3]]), pair_left=np.array([0]), pair_right=np.array([1]),
    ...     weights=np.array([3, 1, 1], dtype=np.float32),
    ... ).round(4).tolist()
    [0.3536]
    """
    costs = np.full(len(pair_left), np.nan)
    weighty = [np.flatnonzero(weights[start:stop] > 0) + start for start, stop in spans.tolist()]
    for i, (left, right) in enumerate(zip(pair_left.tolist(), pair_right.tolist(), strict=True)):
        rows, columns = weighty[left], weighty[right]
        if len(rows) and len(columns):
            costs[i] = transport_cost(
                costs=_distances(vectors[rows], vectors[columns]),
                supply=_normalized(weights[rows]),
                demand=_normalized(weights[columns]),
            )
    return costs


def _normalized(weights: VectorArray) -> FloatArray:
    exact = weights.astype(np.float64)
    shares: FloatArray = exact / exact.sum()
    return shares


def _distances(left: VectorArray, right: VectorArray) -> FloatArray:
    # Subtle: not 2 - 2 x.y. Rounded to 32 bits a unit vector's length is off by 1e-7, and the root
    # of that would put equal tokens 4e-4 apart.
    x, y = left.astype(np.float64), right.astype(np.float64)
    squares = (x**2).sum(axis=1)[:, np.newaxis] + (y**2).sum(axis=1) - 2 * x @ y.T
    distances: FloatArray = np.sqrt(np.maximum(squares, 0.0))
    return distances


@cache
def _solver() -> ModuleType:
    """Import POT without the tensor libraries that it would load, such as torch."""
    switches = {f"POT_BACKEND_DISABLE_{name}": "1" for name in _POT_BACKENDS}
    before = {name: os.environ.get(name) for name in switches}
    os.environ.update(switches)
    try:
        return importlib.import_module("ot")
    except ImportError as error:
        raise ConfigError(
            "moverscore and aggregate=mover need POT (optimal transport): pip install pot [QA0004]"
        ) from error
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
