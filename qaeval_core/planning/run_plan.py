"""Run plan: what a compiled run computes: instances, families, and passes over the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.families.plan import FamilyPlan
from qaeval_core.metrics.base import AnyMetric, Column, Settings
from qaeval_core.signature import Signature


def pass_title(families: Sequence[FamilyPlan]) -> str:
    """Return what a progress line shows of the families of one pass."""
    return families[0].title if len(families) == 1 else families[0].name


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One metric instance of a run and the families its formula reads."""

    name: str
    metric: AnyMetric
    settings: Settings  # resolved
    families: Mapping[str, FamilyPlan]  # by the name that the metric reads them by
    signature: Signature

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that it writes, in order."""
        return self.metric.shown_columns(self.settings)

    def column(self, output: str) -> str:
        """Return the name of a column in the scores."""
        return f"{self.name}_{output}" if output else self.name

    @property
    def reason_column(self) -> str:
        """Column that says why a score is undefined."""
        return f"{self.name}_reason"

    @property
    def statistics_column(self) -> str:
        """Column of the statistics that corpus scores are summed from."""
        return f"{self.name}_statistics"


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """All families (each once) and instances of a run."""

    families: tuple[FamilyPlan, ...]
    instances: tuple[InstancePlan, ...]

    @property
    def passes(self) -> tuple[tuple[FamilyPlan, ...], ...]:
        """Families by pass over the rows: those of words together, each other one alone."""
        alone = [(plan,) for plan in self.families if plan.resources != "words"]
        sharing = [plan for plan in self.families if plan.resources == "words"]
        first = tuple(plan for plan in sharing if not plan.after)
        second = tuple(plan for plan in sharing if plan.after)
        return (*(group for group in (first, second) if group), *alone)
