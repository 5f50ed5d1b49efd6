"""Explain: compute one row's families again, unit by unit, and compare with what is stored.

One unit a batch: what the graph returns for it is what is explained, and the same numbers, summed
by the family's own code, have to be the stored statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.models.artifact import Artifact
from qaeval_core.models.session import Session
from qaeval_core.schema import POSITION
from qaeval_core.scoring.families.base import ReadsFrequencies
from qaeval_core.scoring.families.models import ModelFamilyPlan
from qaeval_core.scoring.families.words.family import WordsFamilyPlan
from qaeval_core.scoring.frequencies import load_frequencies
from qaeval_core.scoring.job import Job
from qaeval_core.scoring.join import score_rows
from qaeval_core.scoring.plans import Engine, InstancePlan
from qaeval_core.scoring.prepared import statistics_table
from qaeval_core.scoring.runner import prepare_rows
from qaeval_core.text.encode import TextEncoder

# A row alone against the same row in a padded batch of the run. fp32 on the CPU: differences are
# of rounding, 1e-6 and below. Other precisions or devices round elsewhere, and where two attention
# values are nearly equal the argmax of LRM then takes the other one.
SAME_ROUNDING = 1e-4
OTHER_ROUNDING = 2e-2


@dataclass(frozen=True, slots=True)
class UnitRun:
    """One unit as the graph saw it, and what the graph returned."""

    inputs: Mapping[str, NDArray[np.int64]]
    output: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FamilyRun:
    """One model family of one row, computed again.

    Attributes
    ----------
    values : mapping of role to value
        Of the row, as the family reads it.
    units : sequence of UnitRun
        In the order in which the family lays them out.
    statistics : pyarrow.Table of one row
    """

    plan: ModelFamilyPlan
    values: Mapping[str, object]
    units: tuple[UnitRun, ...]
    statistics: pa.Table

    def statistic(self, name: str) -> NDArray[np.float64]:
        """Return the values of a list column."""
        values = self.statistics.column(name).combine_chunks().flatten()
        return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)

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


Sessions = Callable[[Artifact], Session]


@dataclass(slots=True)
class SessionCache:
    """Sessions by artifact, each opened once; on the CPU, for one row is little work."""

    n_threads: int | None = None
    _open: dict[str, Session] = field(default_factory=dict)

    def __call__(self, artifact: Artifact) -> Session:
        """Return the session of an artifact."""
        key = str(artifact.folder)
        if key not in self._open:
            self._open[key] = Session(artifact, n_threads=self.n_threads)
        return self._open[key]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A row computed again.

    Attributes
    ----------
    runs : model families, in the order of the job
    statistics : mapping of family key to table of one row
    scores : mapping of column to value
    """

    runs: tuple[FamilyRun, ...]
    statistics: Mapping[str, pa.Table]
    scores: Mapping[str, object]


def recompute(job: Job, values: Mapping[str, Sequence[object]], sessions: Sessions) -> Recomputed:
    """Compute the families of a job for one row, and the scores of instances that need no other.

    Families that ask are left out: they are read, not paid for again.

    Parameters
    ----------
    values : mapping of role to list of one value
    """
    runs: list[FamilyRun] = []
    statistics: dict[str, pa.Table] = {}
    for plan in job.run.families:
        own = {role: values[role] for role in plan.columns}
        if isinstance(plan, ModelFamilyPlan):
            runs.append(_run_units(job, plan, own, sessions))
            statistics[plan.key] = runs[-1].statistics
        elif isinstance(plan, WordsFamilyPlan):
            statistics[plan.key] = _run_words(job, plan, own)
    whole = [
        instance
        for instance in job.run.instances
        if all(family.key in statistics for family in instance.families.values())
    ]
    scores: dict[str, object] = {}
    if whole:
        used = replace(job.run, instances=tuple(whole))
        (scores,) = score_rows(used, statistics).to_pylist()
    return Recomputed(tuple(runs), statistics, scores)


def _run_units(
    job: Job, plan: ModelFamilyPlan, values: Mapping[str, Sequence[object]], sessions: Sessions
) -> FamilyRun:
    encoder = TextEncoder(plan.artifact.tokenizer_path)
    scorer = plan.family.scorer(plan.artifact, encoder, plan.options)
    if plan.frequencies_path:
        assert isinstance(scorer, ReadsFrequencies)
        scorer.use_frequencies(load_frequencies(plan, job.store.out))
    prepared = prepare_rows(plan, scorer, values)
    units = []
    for i in range(len(prepared.work.lengths)):
        inputs = prepared.work.make_inputs([i])
        output = sessions(plan.artifact).run(inputs)
        prepared.work.take([i], output)
        units.append(UnitRun(inputs, output))
    found = prepared.validated.values
    return FamilyRun(
        plan,
        {role: own[0] for role, own in found.items() if own},
        tuple(units),
        statistics_table(prepared, first_position=0),
    )


def instances_of(run: FamilyRun, job: Job) -> list[InstancePlan]:
    """Return the instances that read a family."""
    return [
        plan
        for plan in job.run.instances
        if any(family.key == run.plan.key for family in plan.families.values())
    ]


def _run_words(job: Job, plan: WordsFamilyPlan, values: Mapping[str, Sequence[object]]) -> pa.Table:
    engine = Engine(
        models=job.config.models, load_frequencies=partial(load_frequencies, out=job.store.out)
    )
    return plan.open_runner(engine).score(values)


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is another one now."""

    name: str
    stored: object
    now: object

    def __str__(self) -> str:
        return f"{self.name} {_shown(self.now)} now, {_shown(self.stored)} stored"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How recomputed values compare with stored ones.

    Attributes
    ----------
    max_difference : float
        Largest |now - stored| / max(1, |stored|).
    """

    n_values: int
    max_difference: float
    tolerance: float
    differences: tuple[Difference, ...]


def compare(
    *,
    stored: Mapping[str, object],
    now: Mapping[str, object],
    stored_statistics: Mapping[str, pa.Table],
    statistics: Mapping[str, pa.Table],
    tolerance: float,
) -> Comparison:
    """Compare scores and statistics of a row with what is stored."""
    pairs = [(name, stored.get(name), value) for name, value in now.items()]
    for key, table in statistics.items():
        (before,), (after,) = stored_statistics[key].to_pylist(), table.to_pylist()
        pairs += [
            (f"{key}.{name}", before.get(name), value)
            for name, value in after.items()
            if name != POSITION
        ]
    found = [(name, a, b, _distance(a, b)) for name, a, b in pairs]
    return Comparison(
        n_values=len(found),
        max_difference=max((distance for *_, distance in found), default=0.0),
        tolerance=tolerance,
        differences=tuple(
            Difference(name, a, b) for name, a, b, distance in found if distance > tolerance
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
        return (
            "[" + ", ".join(_shown(item) for item in value[:4]) + ("…]" if len(value) > 4 else "]")
        )
    return str(value)
