"""Forward selection: which metrics add to a linear prediction of the human rating.

Source
------
Wang, Liu, Tang, Wu. QRelScore. EMNLP 2022, appendix D, after Hessel et al. (CLIPScore, EMNLP
2021) and Thompson (1995): start with no metric, add the one that predicts best together with those
chosen so far, until all are in; 5-fold cross-validation, repeated ten times.

Differs from the papers
-----------------------
- Neither says what "best" is. Here: the smallest mean squared error on held-out folds.
- MSE and R2 come from the held-out predictions of all folds together, so a fold in which all
  ratings are equal does no harm. R2 is 1 - MSE / variance of the rating; below 0 it is worse than
  the mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError

# Rows to fit on, and rows held out, of each fold.
Folds = Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]]
N_REPEATS = 10
N_FOLDS = 5


@dataclass(frozen=True, slots=True)
class SelectionStep:
    """One step, over all repeats: means on held-out folds, and how often each metric was chosen."""

    step: int
    mse: float
    r2: float
    n_chosen: dict[str, int]  # most often first; sums to the number of repeats


def forward_selection(
    names: Sequence[str],
    *,
    metrics: NDArray[np.float64],
    human: NDArray[np.float64],
    seed: int,
    n_repeats: int = N_REPEATS,
    n_folds: int = N_FOLDS,
) -> list[SelectionStep]:
    """Return the steps of greedy forward selection.

    Parameters
    ----------
    names : sequence of str
        Of the metrics; equal errors go to the earlier name.
    metrics : float ndarray of shape (n_rows, n_metrics)
        No NaN. Scale and direction do not matter: the regression is linear.
    human : float ndarray of shape (n_rows,)
        No NaN, at least two different values, at least ``n_folds`` rows.
    seed : int
        Of the folds. Each repeat has folds of its own.

    Returns
    -------
    list of SelectionStep
        One a metric; ``mse`` in squared units of the rating, lower is better; ``r2`` <= 1.

    Raises
    ------
    ConfigError
        If scikit-learn is not installed.

    Notes
    -----
    n_repeats * n_folds * n_metrics * (n_metrics + 1) / 2 least-squares fits.
    """
    check_sklearn()
    from sklearn.model_selection import KFold

    variance = float(human.var())
    runs = []
    for repeat in range(n_repeats):
        folds = KFold(n_folds, shuffle=True, random_state=seed + repeat)
        runs.append(_one_run(metrics, human, list(folds.split(human))))
    steps = []
    for step, choices in enumerate(zip(*runs, strict=True), start=1):
        mse = float(np.mean([error for _, error in choices]))
        counts = Counter(names[chosen] for chosen, _ in choices)
        steps.append(SelectionStep(step, mse, 1 - mse / variance, dict(counts.most_common())))
    return steps


def _one_run(
    metrics: NDArray[np.float64], human: NDArray[np.float64], folds: Folds
) -> list[tuple[int, float]]:
    """Return (index of the metric chosen, error with it) of each step."""
    left = list(range(metrics.shape[1]))
    chosen: list[int] = []
    steps = []
    while left:
        errors = [_held_out_mse(metrics[:, [*chosen, one]], human, folds) for one in left]
        best = int(np.argmin(errors))
        steps.append((left[best], errors[best]))
        chosen.append(left.pop(best))
    return steps


def _held_out_mse(features: NDArray[np.float64], human: NDArray[np.float64], folds: Folds) -> float:
    from sklearn.linear_model import LinearRegression

    squares = 0.0
    for train, test in folds:
        fitted = LinearRegression().fit(features[train], human[train])
        squares += float(((fitted.predict(features[test]) - human[test]) ** 2).sum())
    return squares / len(human)


def check_sklearn() -> None:
    """Raise ConfigError, saying what to install, if there is no scikit-learn."""
    try:
        import sklearn.linear_model  # noqa: F401
    except ImportError:
        raise ConfigError(
            "forward selection needs scikit-learn: pip install 'qaeval[correlate]'"
        ) from None
