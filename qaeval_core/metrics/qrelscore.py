"""QRelScore: relevance of a question to its context from an encoder and a causal LM.

Raw statistics of model passes in, scores out: layer-wise matching precisions (LRM) and context
likelihoods with and without the question as a prompt (GRG). Loads no model, reads no file.

Source
------
Liu et al. QRelScore: Better Evaluating Generated Questions with Deeper Understanding of
Context-aware Relevance. EMNLP 2022, arXiv:2204.13921, section 2. For one window::

    LRM = ( mean_l Prec_l^p )^(1/p)                                        eq. 3
    GRG = max( (conf_prompt - conf_base) / |conf_base|, 0 )                eq. 9
    rescaled = (raw - b) / (1 - b), clipped to [0, 1]                      eq. 5
    QRelScore = 2 LRM GRG / (LRM + GRG)                                    eq. 1
    Ref-QRelScore = ( QRelScore(X, C) + max_r QRelScore(X, r) ) / 2        eq. 10

Raw LRM and raw GRG are averaged over windows before they are rescaled.

Differs from the authors' code (evalpackage/qrelscore)
------------------------------------------------------
- GRG there is a ratio of mean token probabilities, EOS included: profile ``authors``.
- Its combination adds 1e-8 to the denominator; here 0 where either part is <= 0.
- It has no windows and no baselines: constants are commented out there.

But: eq. 2 and 4 are reduced inside the graph (``export.graphs.relevance_matching``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError

FloatArray = NDArray[np.float64]
LAYERS = ("all", "first", "middle", "last", "specific")


def layer_indices(layers: str, *, n_layers: int) -> list[int]:
    """Return the layers (from 0) that a choice names.

    Parameters
    ----------
    layers : {"all", "first", "middle", "last", "specific"}
        First, middle and last third, or four layers spread from the first to the last.
    n_layers : int
        Layers of the encoder.

    Returns
    -------
    list of int
        Ascending, without repeats.

    Examples
    --------
    >>> layer_indices("specific", n_layers=12)
    [0, 3, 7, 11]
    >>> layer_indices("specific", n_layers=6)
    [0, 2, 3, 5]
    >>> layer_indices("middle", n_layers=12)
    [4, 5, 6, 7]
    """
    third = n_layers / 3
    match layers:
        case "all":
            return list(range(n_layers))
        case "first":
            return list(range(0, max(round(third), 1)))
        case "middle":
            return list(range(round(third), max(round(2 * third), round(third) + 1)))
        case "last":
            return list(range(min(round(2 * third), n_layers - 1), n_layers))
        case "specific" if n_layers == 12:
            return [0, 3, 7, 11]  # The paper's M5; the general rule below would give 4, not 3.
        case "specific":
            return sorted({round(i * (n_layers - 1) / 3) for i in range(4)})
    raise ConfigError(f"layers is {layers!r}; choose one of {', '.join(LAYERS)}")


def lrm_per_window(
    layer_precision: FloatArray, *, layers: Sequence[int], exponent: float
) -> FloatArray:
    """Return raw LRM of each window: the power mean of Prec_l over layers (eq. 3).

    Parameters
    ----------
    layer_precision : float ndarray of shape (n_windows, n_layers)
        Prec_l, in [-1, 1].
    layers : sequence of int
        Layers that count, from 0.
    exponent : float
        p > 0. With p != 1 negative precisions count as 0.

    Returns
    -------
    float ndarray of shape (n_windows,)

    Examples
    --------
    >>> lrm_per_window(np.array([[0.6, 0.8]]), layers=[0, 1], exponent=1.0)
    array([0.7])
    """
    chosen = np.asarray(layer_precision, dtype=np.float64)[:, list(layers)]
    if exponent == 1.0:
        return np.asarray(chosen.mean(axis=1))
    powered = np.maximum(chosen, 0.0) ** exponent
    return np.asarray(powered.mean(axis=1) ** (1.0 / exponent))  # eq. 3


def grg_per_window(
    base: FloatArray, prompted: FloatArray, *, profile: str, gain: str
) -> FloatArray:
    """Return raw GRG of each window.

    Parameters
    ----------
    base, prompted : float ndarray of shape (n_windows,)
        Profile ``paper``: summed log-probabilities of the context, in nats, <= 0, without and
        with the candidate as a prompt. Profile ``authors``: mean token probabilities, in (0, 1].
    profile : {"paper", "authors"}
    gain : {"ratio", "absolute"}
        ``absolute`` (ablation M9) is the difference alone, unbounded.

    Returns
    -------
    float ndarray of shape (n_windows,)
        NaN where the base is 0 and a ratio is asked for.

    Examples
    --------
    >>> grg_per_window(np.array([-100.0]), np.array([-90.0]), profile="paper", gain="ratio")
    array([0.1])
    """
    base, prompted = np.asarray(base, dtype=np.float64), np.asarray(prompted, dtype=np.float64)
    if gain == "absolute":
        return prompted - base  # M9
    scale = np.abs(base) if profile == "paper" else base
    scale = np.where(scale == 0.0, np.nan, scale)
    return np.maximum((prompted - base) / scale, 0.0)  # eq. 9


def mean_over_windows(values: FloatArray, n_windows: NDArray[np.int64]) -> FloatArray:
    """Return the mean of each text's windows; NaN where a text has no window.

    Parameters
    ----------
    values : float ndarray of shape (n_windows,)
        All windows of all texts, in order.
    n_windows : int ndarray of shape (n_texts,)
        Windows of each text; may be 0.

    Returns
    -------
    float ndarray of shape (n_texts,)

    Examples
    --------
    >>> mean_over_windows(np.array([1.0, 3.0, 5.0]), np.array([2, 0, 1]))
    array([ 2., nan,  5.])
    """
    owner = np.repeat(np.arange(len(n_windows)), n_windows)
    total = np.bincount(owner, weights=values, minlength=len(n_windows))
    return np.where(n_windows > 0, total / np.maximum(n_windows, 1), np.nan)


def rescale(raw: FloatArray, baseline: float | None) -> FloatArray:
    """Return (raw - b) / (1 - b) clipped to [0, 1] (eq. 5); raw itself without a baseline.

    Examples
    --------
    >>> rescale(np.array([0.9, 0.5]), 0.6)
    array([0.75, 0.  ])
    """
    if baseline is None:
        return raw
    return np.clip((raw - baseline) / (1.0 - baseline), 0.0, 1.0)


def combine(lrm: FloatArray, grg: FloatArray) -> FloatArray:
    """Return the harmonic mean (eq. 1), 0 where either part is <= 0, NaN where either is NaN.

    Examples
    --------
    >>> combine(np.array([0.5, 0.5]), np.array([0.5, 0.0]))
    array([0.5, 0. ])
    """
    positive = (lrm > 0) & (grg > 0)
    safe_lrm, safe_grg = np.where(positive, lrm, 1.0), np.where(positive, grg, 1.0)
    harmonic = 2 * safe_lrm * safe_grg / (safe_lrm + safe_grg)  # eq. 1
    score = np.where(positive, harmonic, 0.0)
    return np.where(np.isnan(lrm) | np.isnan(grg), np.nan, score)
