"""Effects: how far two distributions over the same cells are from each other.

All take counts or shares on their last axis, so that draws of a bootstrap are one call.

Source
------
Population stability index (relative entropy both ways, Jeffreys 1946), with half a row added to
each of B bins, so that an empty one is finite::

    PSI = sum_b (c_b - r_b) ln(c_b / r_b),   r_b = (count_b + 1/2) / (n + B / 2)

Wasserstein's distance is the area between two distribution functions (Vallender 1974), each cell's
mass taken to lie at its center; it and KS differ from those of raw values by no more than the
width, or the mass, of one cell.

Differs from evidently 0.7
--------------------------
- PSI bins come from the reference alone. Theirs come from both tables: the same number of a
  column depends on what it is compared with.
- The Jensen-Shannon distance is in base 2 and in [0, 1]. Theirs is in nats, .833 times this one.
- Undefined values are a bin of PSI. Theirs are dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qaeval_core.profile.cells import Cells
from qaeval_core.profile.column_profile import CountArray, FloatArray

_N_QUANTILES = 10
_BIN_SHARE = 0.05


def ks(difference: FloatArray) -> FloatArray:
    """Return the largest gap of two distribution functions, in [0, 1].

    Parameters
    ----------
    difference : float ndarray of shape (..., n_cells)
        Of the functions at the end of each ordered cell.
    """
    largest: FloatArray = np.abs(difference).max(axis=-1, initial=0.0)
    return largest


def wasserstein(difference: FloatArray, centers: FloatArray) -> FloatArray:
    """Return the area between two distribution functions, in units of the values.

    Parameters
    ----------
    difference : float ndarray of shape (..., n_cells)
    centers : float ndarray of shape (n_cells,)
        Ascending.

    Examples
    --------
    >>> float(wasserstein(np.array([1.0, 0.5, 0.0]), np.array([0.0, 2.0, 3.0])))
    2.5
    """
    area: FloatArray = np.abs(difference[..., :-1]) @ np.diff(centers)
    return area


def js_distance(reference: NDArray[np.number], current: NDArray[np.number]) -> float:
    """Return the Jensen-Shannon distance of counts, base 2, in [0, 1]; NaN where one has none.

    Examples
    --------
    >>> js_distance(np.array([1, 0]), np.array([0, 3])), js_distance(np.ones(2), np.ones(2))
    (1.0, 0.0)
    """
    if not reference.sum() or not current.sum():
        return float("nan")
    shares = [counts / counts.sum() for counts in (reference, current)]
    middle = (shares[0] + shares[1]) / 2
    divergence = 0.0
    for own in shares:
        there = own > 0
        divergence += float((own[there] * np.log2(own[there] / middle[there])).sum()) / 2
    return float(np.sqrt(min(max(divergence, 0.0), 1.0)))


def psi_bins(cells: Cells, reference: CountArray | FloatArray) -> NDArray[np.intp]:
    """Return the PSI bin of each cell: tenths of the reference, frequent values, undefined ones.

    A value with a bin of its own has at least 5 % of the reference. One of 1 % is an atom because
    it was frequent there: it is rarer in the next run by chance alone, and draws of fixed bins do
    not know.

    Parameters
    ----------
    cells : Cells
    reference : ndarray of shape (n_cells,)
        Counts of the reference.

    Returns
    -------
    int ndarray of shape (n_cells,)
        Numbers from 0, without gaps.
    """
    mass = np.asarray(reference, dtype=np.float64).copy()
    atoms = cells.codes(np.array(cells.atoms, dtype=np.float64))
    atoms = atoms[mass[atoms] >= _BIN_SHARE * mass.sum()]
    mass[atoms] = mass[-1] = 0.0
    before = np.cumsum(mass) - mass
    tenths = np.floor(_N_QUANTILES * before / max(mass.sum(), 1.0))
    bins = np.clip(tenths, 0, _N_QUANTILES - 1).astype(np.intp)
    bins[atoms] = _N_QUANTILES + np.arange(len(atoms))
    bins[-1] = _N_QUANTILES + len(atoms)
    return np.unique(bins, return_inverse=True)[1].astype(np.intp)


def smoothed(counts: FloatArray) -> FloatArray:
    """Return shares of counts on the last axis, half a row added to each."""
    n: FloatArray = counts.sum(axis=-1, keepdims=True)
    shares: FloatArray = (counts + 0.5) / (n + 0.5 * counts.shape[-1])
    return shares


def psi(reference: FloatArray, current: FloatArray) -> FloatArray:
    """Return the stability index of positive shares.

    Examples
    --------
    >>> shares = smoothed(np.array([[49.5, 49.5], [24.5, 74.5]]))
    >>> float(psi(shares[0], shares[1]).round(4))  # -.25 ln(.5) + .25 ln(1.5)
    0.2747
    """
    index: FloatArray = ((current - reference) * np.log(current / reference)).sum(axis=-1)
    return index
