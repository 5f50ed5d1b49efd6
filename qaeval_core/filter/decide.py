"""Decide: the stages that need all rows: duplicates, top-k, quotas, and shares.

Cuts are found without copies, so that temporary arrays do not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from qaeval_core.filter.corpus_rows import NO_TWIN, STEP, CorpusRows
from qaeval_core.filter.groups import decide_groups
from qaeval_core.filter.order import Cut, at_or_before
from qaeval_core.filter.quotas import CountedValues, apply_quota, apply_share
from qaeval_core.filter.request import FilterRequest


def drop_found_duplicates(
    rows: CorpusRows, found: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> None:
    """Drop rows that were found to be near-duplicates: pairs of arrays, rows and their twins.

    No pair is kept: all together take sixteen bytes a duplicate.
    """
    assert rows.twin is not None
    rows.twin[:] = NO_TWIN
    for duplicates, twins in found:
        rows.twin[duplicates] = twins
        rows.drop(duplicates, "duplicate")


def keep_best(rows: CorpusRows, cut: Cut | None) -> None:
    """Drop the rows that are left behind a cut; without one, all."""
    last = rows.stages.last
    for start in range(0, len(rows), STEP):
        own = slice(start, min(start + STEP, len(rows)))
        dropped = rows.is_eligible(own)
        if cut is not None:
            numbers = np.arange(own.start, own.stop)
            dropped &= ~at_or_before(cut, rows.rank[own], rows.tie[own], numbers)
        rows.drop(start + np.flatnonzero(dropped), last)


def decide(
    rows: CorpusRows,
    request: FilterRequest,
    *,
    near_duplicates: Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]],
) -> dict[str, CountedValues]:
    """Run the stages before the last one.

    Parameters
    ----------
    near_duplicates : callable
        Finds near-duplicates by ROUGE-L, if they are asked for.

    Returns
    -------
    mapping of str to CountedValues
        What ``quota`` and ``share_per`` did to values, as far as they are asked for.
    """
    stages = rows.stages
    kind, size = stages.duplicates.kind, request.n_or_share
    if kind == "rouge_l":
        drop_found_duplicates(rows, near_duplicates())
    if kind == "exact" or request.top_k is not None:
        decide_groups(rows, has_exact=kind == "exact", top_k=request.top_k)
    found: dict[str, CountedValues] = {}
    if request.quotas is not None and stages.quota is not None:
        found["quota"] = apply_quota(rows, stages.quota, request.quotas, size)
    if stages.share_per is not None and size is not None:
        found["share_per"] = apply_share(
            rows, stages.share_per, size, seed=request.seed, reason=request.size_reason
        )
    return found
