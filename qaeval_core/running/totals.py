"""Totals: what is counted of joined rows for the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qaeval_core.metrics.base import Scores
from qaeval_core.planning.run_plan import InstancePlan


@dataclass(slots=True)
class Totals:
    """What the report needs of all joined rows."""

    n_rows: int = 0
    n_not_sampled: int = 0
    n_duplicate_ids: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    undefined: dict[str, Counter[str]] = field(default_factory=dict)
    n_scored: Counter[str] = field(default_factory=Counter)
    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # by instance
    texts: dict[str, Counter[str]] = field(default_factory=dict)  # by column

    def add(self, other: Totals) -> None:
        """Add what was counted of other rows."""
        self.n_rows += other.n_rows
        self.n_not_sampled += other.n_not_sampled
        self.n_duplicate_ids += other.n_duplicate_ids
        for mine, theirs in (
            (self.quarantined, other.quarantined),
            (self.n_scored, other.n_scored),
        ):
            mine.update(theirs)
        for by_name, others in ((self.undefined, other.undefined), (self.texts, other.texts)):
            for name, counts in others.items():
                by_name.setdefault(name, Counter()).update(counts)
        for name, own in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + own

    def count_instance(self, plan: InstancePlan, scores: Scores) -> None:
        """Count the scores of some rows of an instance."""
        counts = Counter(reason for reason in scores.reasons if reason is not None)
        self.undefined.setdefault(plan.name, Counter()).update(counts)
        self.n_scored[plan.name] += len(scores.reasons) - sum(counts.values())
        for own in plan.columns:
            if own.kind == "word":
                counted = self.texts.setdefault(plan.column(own.name), Counter())
                counted.update(map(str, scores.columns[own.name]))
        if scores.sums is not None:
            own = np.nansum(scores.sums, axis=0)
            self.sums[plan.name] = self.sums.get(plan.name, 0.0) + own
