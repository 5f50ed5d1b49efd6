"""How far the median moved, and how likely that is where both runs are alike: the median test."""

from __future__ import annotations

import numpy as np
from scipy.stats import fisher_exact

from qaeval_core.audit.plugin_statistics import ColumnView
from qaeval_core.audit.settings import AuditStatistic


def _median(view: ColumnView) -> float:
    counts = np.cumsum(view.counts.sum(axis=0))
    return float(view.values[np.searchsorted(counts, counts[-1] / 2)])


def median_shift(reference: ColumnView, current: ColumnView) -> tuple[float, float]:
    """Return the shift of the median, and the p-value of the median test."""
    middle = _median(reference)
    above = [
        [int(view.counts[:, view.values > middle].sum()) for view in (reference, current)],
        [int(view.counts[:, view.values <= middle].sum()) for view in (reference, current)],
    ]
    return _median(current) - middle, float(fisher_exact(above).pvalue)


MEDIAN_SHIFT = AuditStatistic(measure=median_shift, tolerance=0.1)
