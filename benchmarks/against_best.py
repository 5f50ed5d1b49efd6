"""Against the best: which metrics of a judged set are shown worse than another of their family.

Hsu's multiple comparisons with the best: each metric is compared with all others of its family, on
the same resamples of contexts, and is shown worse where one of them is better for sure. A metric
stands for its main column, chosen before anybody looks: its own name, else its F1, else its first.

Hsu. Multiple Comparisons: Theory and Methods. Chapman and Hall 1996, chapter 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qaeval_core.metrics.catalog import METRICS
from qaeval_core.pages.example_rows import main_columns

FloatArray = NDArray[np.float64]

# Metrics that can do the same work: of all, of those that compare with a reference, of what is at
# hand without one, and without a model.
FAMILIES: Mapping[str, Callable[[str], bool]] = {
    "all": lambda name: True,
    "reference": lambda name: "references" in METRICS[name].roles,
    "no reference": lambda name: "references" not in METRICS[name].roles,
    "words": lambda name: METRICS[name].needs == ("words",),
}


def behind_best(values: FloatArray, resampled: FloatArray) -> list[tuple[float, float]]:
    """Return of each metric how far it is above the best other one, and how sure that is.

    Parameters
    ----------
    values : float ndarray of shape (n_metrics,)
        Higher is better.
    resampled : float ndarray of shape (n_metrics, n_resamples)
        A column comes from the same rows for all.

    Returns
    -------
    list of (difference, p)
        Below 0 where another one is better. p, in (0, 1], of no other one being better: the one
        that is so most surely, among as many as there are.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(3, 999))
    >>> found = behind_best(np.array([0.0, 9.0, 0.5]), noise + [[0.0], [9.0], [0.5]])
    >>> [(difference, p < 0.05) for difference, p in found]
    [(-9.0, True), (8.5, False), (-8.5, True)]
    """
    found = []
    for i, own in enumerate(values):
        others = np.delete(np.arange(len(values)), i)
        gaps = values[others] - own
        drawn = resampled[others] - resampled[i]
        spread = np.nanstd(drawn, axis=1)
        varies = spread > 0
        if not varies.any():
            found.append((float(-gaps.max()), 1.0))
            continue
        sure = float((gaps[varies] / spread[varies]).max())
        by_chance = (drawn[varies] - gaps[varies, None]) / spread[varies, None]
        n_as_sure = int((np.nanmax(by_chance, axis=0) >= sure).sum())
        found.append((float(-gaps.max()), (n_as_sure + 1) / (drawn.shape[1] + 1)))
    return found


def by_family(
    columns: Mapping[str, str], values: FloatArray, resampled: FloatArray
) -> dict[str, dict[str, list[float]]]:
    """Return `behind_best` of main columns, by family and column.

    Parameters
    ----------
    columns : mapping of score column to metric
    values, resampled
        Of the columns, in their order; NaN where one has none.
    """
    names = list(columns)
    main = main_columns({"instances": dict.fromkeys(columns.values()), "columns": names})
    found = {}
    for family, has in FAMILIES.items():
        own = [name for name in main if has(columns[name]) and _is_known(values, names, name)]
        if len(own) > 1:
            rows = [names.index(name) for name in own]
            compared = behind_best(values[rows], resampled[rows])
            found[family] = {
                name: [round(difference, 4), round(p, 4)]
                for name, (difference, p) in zip(own, compared, strict=True)
            }
    return found


def _is_known(values: FloatArray, names: Sequence[str], name: str) -> bool:
    return bool(np.isfinite(values[names.index(name)]))
