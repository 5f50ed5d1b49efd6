"""Statistics of plugins: each maps two profiles of a column to an effect and a p-value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from qaeval_core.audit.drift import SHOWN, Pair, Test
from qaeval_core.audit.settings import STATISTICS, TOLERANCES
from qaeval_core.errors import RunError
from qaeval_core.profile.column_profile import FloatArray, IntArray, Profile


@dataclass(frozen=True, slots=True)
class ColumnView:
    """The values of one column in one run and slice, counted.

    Attributes
    ----------
    values : float ndarray of shape (n_cells,)
        What the values of each cell are taken for, ascending; both runs have the same cells.
    counts : int ndarray of shape (n_buckets, n_cells)
        Rows by bucket and cell. Rows of one cluster, such as a context, share a bucket.
    n_undefined : int
        Rows without a value.
    """

    values: FloatArray
    counts: IntArray
    n_undefined: int


def own_statistics() -> Iterator[str]:
    """Yield the names of plugins' statistics; those that are ours are left to us."""
    ours = (*TOLERANCES, *SHOWN)
    yield from (name for name in STATISTICS if name not in ours)


def plugin_tests(pair: Pair, name: str, codes: tuple[int, int], blank: Test) -> Iterator[Test]:
    """Yield the tests of one column in one slice, one a statistic.

    Parameters
    ----------
    pair : Pair
    name : str
        Of the column.
    codes : pair of int
        Of the slice, in the reference and in the current run.
    blank : Test
        Column, slice and whether there are too few clusters.

    Raises
    ------
    RunError
        If a statistic fails, or returns no effect and p-value.
    """
    for statistic in own_statistics():
        runs = (pair.reference, pair.current)
        views = [_view(run.columns[name], code) for run, code in zip(runs, codes, strict=True)]
        test = replace(blank, statistic=statistic)
        if all(view.counts.any() for view in views):
            effect, p = _measured(statistic, name, views[0], views[1])
            test = replace(test, effect=effect, given_p=p)
        yield test


def _view(profile: Profile, code: int) -> ColumnView:
    counts = profile.counts[code].astype(np.int64)
    return ColumnView(profile.cells.centers, counts[:, :-1], int(counts[:, -1].sum()))


def _measured(
    statistic: str, column: str, before: ColumnView, now: ColumnView
) -> tuple[float, float]:
    where = f"the statistic {statistic} of {STATISTICS.package_of(statistic)}"
    try:
        effect, p = map(float, STATISTICS[statistic].measure(before, now))
    except Exception as error:
        raise RunError(
            f"{where} failed on {column}: {type(error).__name__}: {error} [QA0803]"
        ) from error
    if not (math.isfinite(effect) and 0 <= p <= 1):
        raise RunError(
            f"{where} returned effect {effect:g} and p {p:g} for {column}, which is not a test "
            "[QA0803]"
        )
    return effect, p
