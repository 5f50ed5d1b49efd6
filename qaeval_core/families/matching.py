"""Match tokens of pairs of texts by their vectors: best cosines, and optimal transport.

Unit vectors of all distinct texts in, numbers per token or per pair out. It knows neither
tokenizers nor models: which tokens may be matched, and what they weigh, is the caller's word.

One product per pair, without padding: measured on one core, 5,000 pairs of 30 x 30 tokens in 384
dimensions take 0.15 s, as batches padded to like sizes do, and no pair can depend on its batch
mates. A pair too large for one product is compared block by block in bounded memory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
VectorArray = NDArray[np.float32]

# Cosines held at once, of 4 bytes: 50,000 x 50,000 of them would take 10 GB.
MAX_ELEMENTS = 4_000_000
# Pivots of the network simplex; POT's own limit is 100,000.
_MAX_PIVOTS = 10_000_000
_POT_BACKENDS = ("PYTORCH", "JAX", "CUPY", "TENSORFLOW")


class BestCosines(NamedTuple):
    """Best cosine of each token; float32 ndarrays, tokens of all pairs one after another."""

    left: VectorArray
    right: VectorArray


def best_cosines(
    *,
    vectors: VectorArray,
    spans: IntArray,
    pair_left: IntArray,
    pair_right: IntArray,
    allowed: BoolArray | None = None,
) -> BestCosines:
    """Return each token's largest cosine with a token of its pair's other text.

    Parameters
    ----------
    vectors : float32 ndarray of shape (n_total_tokens, dim)
        Vectors of unit length: tokens of all distinct texts, one text after another.
    spans : int ndarray of shape (n_texts, 2)
        Where each text's tokens start and stop in ``vectors``; a text may have none.
    pair_left, pair_right : int ndarray of shape (n_pairs,)
        Texts of each pair, by their place in ``spans``.
    allowed : bool ndarray of shape (n_total_tokens,), optional
        Whether a token may be matched *to*; by default all may. Every token gets a best
        cosine of its own, whether it is allowed or not.

    Returns
    -------
    BestCosines
        ``left`` for the tokens of the left texts, pairs in order, and ``right`` for those of the
        right texts; in [-1, 1]. NaN where the other text has no token that is allowed.

    Examples
    --------
    >>> best = best_cosines(
    ...     vectors=np.array([[1, 0], [0.6, 0.8], [0, -1]], dtype=np.float32),
    ...     spans=np.array([[0, 1], [1, 3]]), pair_left=np.array([0]), pair_right=np.array([1]),
    ... )
    >>> best.left.round(4).tolist(), best.right.round(4).tolist()
    ([0.6000000238418579], [0.6000000238418579, 0.0])
    """
    left_spans, right_spans = spans[pair_left], spans[pair_right]
    best = BestCosines(_nothing_yet(left_spans), _nothing_yet(right_spans))
    penalties = None if allowed is None else np.where(allowed, 0, -np.inf).astype(np.float32)
    at_left = at_right = 0
    for left, right in zip(left_spans.tolist(), right_spans.tolist(), strict=True):
        for rows, columns in _blocks(left, right):
            cosine = vectors[slice(*rows)] @ vectors[slice(*columns)].T
            for_left, for_right = cosine, cosine
            if penalties is not None:
                for_left = cosine + penalties[slice(*columns)]
                for_right = cosine + penalties[slice(*rows), np.newaxis]
            _raise_to(best.left, at_left + rows[0] - left[0], for_left.max(axis=1))
            _raise_to(best.right, at_right + columns[0] - right[0], for_right.max(axis=0))
        at_left += left[1] - left[0]
        at_right += right[1] - right[0]
    return BestCosines(_finished(best.left), _finished(best.right))


def _nothing_yet(spans: IntArray) -> VectorArray:
    return np.full(int((spans[:, 1] - spans[:, 0]).sum()), -np.inf, dtype=np.float32)


def _blocks(left: list[int], right: list[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield parts of both spans, at most MAX_ELEMENTS cosines each; none where one is empty."""
    n_rows = min(left[1] - left[0], int(MAX_ELEMENTS**0.5))
    n_columns = MAX_ELEMENTS // max(n_rows, 1)
    for row in range(left[0], left[1], max(n_rows, 1)):
        for column in range(right[0], right[1], n_columns):
            yield (row, min(row + n_rows, left[1])), (column, min(column + n_columns, right[1]))


def _raise_to(best: VectorArray, start: int, found: VectorArray) -> None:
    part = best[start : start + len(found)]
    np.maximum(part, found, out=part)


def _finished(best: VectorArray) -> VectorArray:
    # Vectors of unit length have cosines of 1 + 1e-7 by rounding; a score above 1 would be a bug.
    return np.where(np.isneginf(best), np.float32(np.nan), np.clip(best, -1, 1))


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
        As for `best_cosines`.
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
            costs[i] = _transport_cost(
                distances=_distances(vectors[rows], vectors[columns]),
                supply=_normalised(weights[rows]),
                demand=_normalised(weights[columns]),
            )
    return costs


def _normalised(weights: VectorArray) -> FloatArray:
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


def _transport_cost(*, distances: FloatArray, supply: FloatArray, demand: FloatArray) -> float:
    solver = _transport_solver()
    return float(solver.emd2(supply, demand, distances, numItermax=_MAX_PIVOTS))


@cache
def _transport_solver() -> ModuleType:
    """Import POT without the tensor libraries that it would load, such as torch."""
    switches = {f"POT_BACKEND_DISABLE_{name}": "1" for name in _POT_BACKENDS}
    before = {name: os.environ.get(name) for name in switches}
    os.environ.update(switches)
    try:
        return importlib.import_module("ot")
    except ImportError as error:
        raise ConfigError(
            "moverscore needs POT (optimal transport): pip install 'qaeval[transport]'"
        ) from error
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
