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
from qaeval_core.stats.bootstrap import MaxT

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
    nulls = [None if own.is_few or own.statistic in SHOWN else own.null for own in tests]
    together = MaxT(next((len(null) for null in nulls if null is not None), 0))
    for test, null in zip(tests, nulls, strict=True):
        if null is not None:
            unit = _unit(null)
            # What rounding alone moves tells nothing of others.
            varies = null if unit > ROUNDED else np.zeros_like(null)
            together.add_test(test.observed, varies, unit=max(unit, ROUNDED))
    p_values = iter(together.p_values())
    n_given = sum(map(_is_given, tests))
    return [
        max(test.p, next(p_values))
        if null is not None
        else min(n_given * test.p, 1.0)
        if _is_given(test)
        else math.nan
        for test, null in zip(tests, nulls, strict=True)
    ]


def _is_given(test: Test) -> bool:
    """Return whether a test of enough clusters brings a p of its own."""
    return test.null is None and not test.is_few and not math.isnan(test.given_p)


def _unit(null: FloatArray) -> float:
    """Return the mean of the largest twentieth of draws, at least one; 0 of none."""
    defined = np.sort(null[~np.isnan(null)])
    n = max(round(_LARGEST * len(defined)), 1)
    return float(defined[-n:].mean()) if len(defined) else 0.0
