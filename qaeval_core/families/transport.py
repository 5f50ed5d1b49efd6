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

FloatArray = NDArray[np.float64]

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
    return float(_solver().emd2(supply, demand, costs, numItermax=_MAX_PIVOTS))


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
            "moverscore and aggregate=mover need POT (optimal transport): "
            "pip install 'qaeval[transport]'"
        ) from error
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
