"""Explain: compute some rows' families again, unit by unit, and compare with what is stored.

What the graph returns for a unit is what is explained, and the same numbers, summed by the family's
own code, have to be the stored statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.configure import ModelsSection
from qaeval_core.families.chat.family import is_chat
from qaeval_core.families.contract import Engine, FamilyPlan, statistics_table
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan, UnitRun, is_model
from qaeval_core.families.model_units import Work
from qaeval_core.models.artifact import artifact_root
from qaeval_core.models.session import Session
from qaeval_core.planning.job import Job
from qaeval_core.planning.run_plan import InstancePlan
from qaeval_core.running.passes import load_frequencies

# A row alone against the same row in a padded batch of the run. fp32 on the CPU: differences are
# of rounding, 1e-6 and below. Other precisions or devices round elsewhere, and where two attention
# values are nearly equal the argmax of LRM then takes the other one.
SAME_ROUNDING = 1e-4
OTHER_ROUNDING = 2e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRun:
    """One model family of one row, computed again.

    Attributes
    ----------
    instances : those that read it
    values : mapping of role to value
        Of the row, as the family reads it.
    work : Work
        Laid out and run.
    units : sequence of UnitRun
        In the order in which the family lays them out.
    statistics : pyarrow.Table of one row
    artifacts : Path
        Where other graphs of the same model lie.
    sessions : dict of folder to Session
        Of other graphs, opened so far for any row.
    """

    plan: ModelFamilyPlan
    instances: tuple[InstancePlan, ...]
    values: Mapping[str, object]
    work: Work
    units: tuple[UnitRun, ...]
    statistics: pa.Table
    artifacts: Path
    sessions: dict[Path, Session]

    def statistic(self, name: str) -> NDArray[np.float64]:
        """Return the values of a list column."""
        values = self.statistics.column(name).combine_chunks().flatten()
        return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)

    def per_target(self, name: str, counts: Sequence[int]) -> list[NDArray[np.float64]]:
        """Return the values of a list column by target, given how many each target has."""
        return np.split(self.statistic(name), np.cumsum(counts))[:-1]

    def text(self, role: str) -> str:
        """Return the row's text of a role."""
        return str(self.values[role])

    @property
    def targets(self) -> list[str]:
        """What the candidate is read against: the context, or the references."""
        given = self.values[self.plan.family.target_role]
        return [str(text) for text in given] if isinstance(given, list) else [str(given)]

    def texts(self, name: str) -> list[str | None]:
        """Return the texts of a list column, such as reasons."""
        found: list[str | None] = (
            self.statistics.column(name).combine_chunks().flatten().to_pylist()
        )
        return found


@dataclass(frozen=True, slots=True)
class RowRun:
    """The families of one row, computed again.

    Attributes
    ----------
    families : list of FamilyRun
        Those that run a model, in the order of the job.
    statistics : dict of family key to pyarrow.Table of one row
    """

    families: list[FamilyRun] = field(default_factory=list)
    statistics: dict[str, pa.Table] = field(default_factory=dict)


def recompute(job: Job, rows: Sequence[Mapping[str, Sequence[object]]]) -> list[RowRun]:
    """Compute the families of a job for some rows; those that ask are read, not paid for again.

    One family after another: each model is opened once, and closed before the next one.

    Parameters
    ----------
    rows : sequence of mapping of role to list of one value
    """
    found = [RowRun() for _ in rows]
    # No budgets of the run: there, a batch may have had a GPU.
    engine = Engine(
        models=ModelsSection(),
        n_threads=None,
        load_frequencies=partial(load_frequencies, store=job.store),
    )
    for plan in job.run.families if rows else ():
        given = [{role: values[role] for role in plan.columns} for values in rows]
        if is_model(plan):
            _run_model(job, plan, given, engine, found)
        elif not is_chat(plan):
            runner = plan.open_runner(engine)
            for own, values in zip(found, given, strict=True):
                own.statistics[plan.key] = runner.score(values)
    return found


def _run_model(
    job: Job,
    plan: ModelFamilyPlan,
    given: Sequence[Mapping[str, Sequence[object]]],
    engine: Engine,
    found: Sequence[RowRun],
) -> None:
    """Add to what was found of rows what a family gives."""
    runner, sessions = plan.open_runner(engine), dict[Path, Session]()
    for own, values in zip(found, given, strict=True):
        run = _run_row(job, plan, values, runner, sessions)
        own.statistics[plan.key] = run.statistics
        if plan.family.runs_model:
            own.families.append(run)


def _run_row(
    job: Job,
    plan: ModelFamilyPlan,
    values: Mapping[str, Sequence[object]],
    runner: FamilyRunner,
    sessions: dict[Path, Session],
) -> FamilyRun:
    prepared = runner.layout.prepare(values)
    units: list[UnitRun] = []
    runner.run(prepared, on_unit=units.append)
    return FamilyRun(
        plan=plan,
        instances=instances_of(plan, job),
        values={role: own[0] for role, own in prepared.validated.values.items() if own},
        work=prepared.work,
        units=tuple(units),
        statistics=statistics_table(prepared, first_position=0),
        artifacts=artifact_root(job.config.models.artifacts_path),
        sessions=sessions,
    )


def instances_of(plan: FamilyPlan, job: Job) -> tuple[InstancePlan, ...]:
    """Return the instances that read a family."""
    return tuple(
        own
        for own in job.run.instances
        if any(family.key == plan.key for family in own.families.values())
    )


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """How recomputed values compare with stored ones.

    Attributes
    ----------
    max_difference : float
        Largest |now - stored| / max(1, |stored|).
    differences : tuple of str
        Values that are others now, for people.
    """

    n_values: int
    max_difference: float
    tolerance: float
    differences: tuple[str, ...]


def compare(pairs: Iterable[tuple[str, object, object]], *, tolerance: float) -> StoredComparison:
    """Compare values of a row, given as (name, stored, now)."""
    found = [(name, a, b, _distance(a, b)) for name, a, b in pairs]
    return StoredComparison(
        n_values=len(found),
        max_difference=max((distance for *_, distance in found), default=0.0),
        tolerance=tolerance,
        differences=tuple(
            f"{name} {_shown(now)} now, {_shown(stored)} stored"
            for name, stored, now, distance in found
            if distance > tolerance
        ),
    )


def _distance(stored: object, now: object) -> float:
    """Return the largest relative difference of two values; infinite where they do not compare."""
    if isinstance(stored, list) and isinstance(now, list):
        if len(stored) != len(now):
            return math.inf
        return max((_distance(a, b) for a, b in zip(stored, now, strict=True)), default=0.0)
    if isinstance(stored, dict) and isinstance(now, dict):
        return max((_distance(stored.get(key), now[key]) for key in now), default=0.0)
    if isinstance(stored, int | float) and isinstance(now, int | float):
        if math.isnan(stored) or math.isnan(now):
            return 0.0 if math.isnan(stored) and math.isnan(now) else math.inf
        return abs(now - stored) / max(1.0, abs(stored))
    return 0.0 if stored == now else math.inf


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value[:4]))}{'…' if len(value) > 4 else ''}]"
    return str(value)
