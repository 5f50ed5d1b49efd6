"""P-values of all tests of an audit together: what one of them gets by chance counts.

Ours share draws, and are adjusted by max-T (``drift``). Statistics of plugins bring a p of their
own and no draws: they are adjusted by Bonferroni among themselves, so that installing one changes
no verdict of ours. The chance of any false alert is then at most alpha for ours and alpha for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qaeval_core.audit.drift import ROUNDED, SHOWN, Test
from qaeval_core.profile.column_profile import FloatArray

# The share of a test's draws whose mean is its unit.
_LARGEST = 0.05


def adjusted(tests: Sequence[Test]) -> list[float]:
    """Return p-values for all tests together, by max-T; NaN where there is no verdict.

    Tests of too few clusters and those that are shown alone are not in the family.

    Returns
    -------
    list of float
        Of each test, in [0, 1], and never below its own p.
    """
    n_given = sum(_is_given(test) for test in tests)
    is_in = [
        test.null is not None and not test.is_few and test.statistic not in SHOWN for test in tests
    ]
    largest: FloatArray | None = None
    measured: list[float] = []
    for test, own in zip(tests, is_in, strict=True):
        measured.append(float("nan"))
        if not own or test.null is None:
            continue
        unit = _unit(test.null)
        if unit <= ROUNDED:
            measured[-1] = np.inf if test.observed > ROUNDED else -np.inf
            continue
        measured[-1] = test.observed / unit
        each = np.nan_to_num(test.null / unit, nan=-np.inf)
        largest = each if largest is None else np.maximum(largest, each)

    def together(test: Test, value: float, is_ours: bool) -> float:
        if _is_given(test):
            return min(n_given * test.p, 1.0)
        return _adjusted(test, value, largest) if is_ours else math.nan

    return [together(*own) for own in zip(tests, measured, is_in, strict=True)]


def _is_given(test: Test) -> bool:
    """Return whether a test of enough clusters brings a p of its own."""
    return test.null is None and not test.is_few and not math.isnan(test.given_p)


def _unit(null: FloatArray) -> float:
    """Return the mean of the largest twentieth of draws, at least one; 0 of none."""
    defined = np.sort(null[~np.isnan(null)])
    n = max(round(_LARGEST * len(defined)), 1)
    return float(defined[-n:].mean()) if len(defined) else 0.0


def _adjusted(test: Test, value: float, largest: FloatArray | None) -> float:
    if largest is None:
        return test.p
    n_as_large = int(np.count_nonzero(largest >= value - ROUNDED))
    return max(test.p, (1 + n_as_large) / (1 + len(largest)))
