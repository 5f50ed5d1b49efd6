"""Family ``function``: what a plain function returns of each row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pyarrow as pa

from qaeval_core.errors import RowFailedError
from qaeval_core.families.contract import (
    Context,
    DocumentFrequencies,
    Engine,
    Family,
    FamilyPlan,
    Layout,
    OnBatch,
    Prepared,
    Resources,
    Runner,
    ShardTexts,
    forward_report,
)
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.function import FAMILY, FunctionMetric
from qaeval_core.signature import Signature
from qaeval_core.store.pass_stats import PassStats

_ROWS_PER_SHARD = 16_384
_TELL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPlan(FamilyPlan):
    """One function over the rows; it shares the pass of words."""

    score: Callable[..., Any]
    shown: str  # how messages name it
    low: float
    high: float

    @property
    def facts(self) -> PassFacts:
        """What a metric may know of the pass."""
        return PassFacts(version=FunctionFamily.version, settings=self.options)

    @property
    def title(self) -> str:
        """What a progress line shows."""
        return self.shown

    @property
    def resources(self) -> Resources:
        """What its pass needs."""
        return "words"

    def open_layout(self, frequencies: DocumentFrequencies | None = None) -> FunctionLayout:
        """Return what validates rows."""
        return FunctionLayout(self)

    def open_runner(self, engine: Engine) -> FunctionRunner:
        """Return what calls the function."""
        return FunctionRunner(self)

    def report(self, committed: PassStats) -> dict[str, Any]:
        """Return what all its commits cost."""
        return forward_report(committed)


class FunctionFamily(Family):
    """The function of a metric that is one."""

    name = FAMILY
    version = "1"

    def plan(self, read: Read, context: Context) -> tuple[FamilyPlan, ...]:
        """Return the function with the columns that it reads."""
        metric = metric_of(context.config.metrics[context.instance])
        assert isinstance(metric, FunctionMetric)
        columns = context.columns_of(read.roles)
        plan = FunctionPlan(
            name=self.name,
            options=metric.identity,
            columns=columns,
            signature=Signature(self.name, {**metric.identity, "columns": columns}, self.version),
            rows_per_shard={"cpu": _ROWS_PER_SHARD, "cuda": _ROWS_PER_SHARD},
            score=metric.function,
            shown=metric.shown_function,
            low=metric.low,
            high=metric.high,
        )
        return (plan,)


class FunctionWork:
    """A shard's rows, and what the function returned of them.

    Parameters
    ----------
    values : mapping of role to values
        One value per good row.
    """

    n_units = n_units_unshared = n_truncated = 0  # Calls are not shared, so none are counted.

    def __init__(self, values: Mapping[str, Sequence[Any]]) -> None:
        self.values = values
        self.scores: list[float] = []

    def statistics(self) -> Mapping[str, pa.Array]:
        """Return the scores; NaN where the function has none."""
        return {"score": pa.array(self.scores, pa.float64())}


class FunctionLayout(Layout[FunctionWork]):
    """Validates rows; there is nothing to lay out."""

    def lay_out(
        self, values: Mapping[str, Sequence[Any]], texts: ShardTexts | None
    ) -> FunctionWork:
        """Return the work of good rows."""
        return FunctionWork(values)


class FunctionRunner(Runner):
    """Calls the function, row by row."""

    def __init__(self, plan: FunctionPlan) -> None:
        self.plan: FunctionPlan = plan
        self.layout = plan.open_layout()

    def run(self, prepared: Prepared[Any], on_batch: OnBatch | None = None) -> None:
        """Score a shard.

        Raises
        ------
        RowFailedError
            If the function raises, or returns what is no score.
        """
        started = time.perf_counter()
        work, rows = prepared.work, prepared.validated.good
        roles, told_s, n_told = list(work.values), started, 0
        # A row's values, role by role: no argument is looked up by its number.
        each = zip(*work.values.values(), strict=True)
        for i, given in enumerate(each):
            work.scores.append(self._score(dict(zip(roles, given, strict=True)), rows[i]))
            if on_batch is not None and time.perf_counter() - told_s > _TELL_EVERY_S:
                on_batch(0, 0, (i + 1 - n_told) / len(rows))
                told_s, n_told = time.perf_counter(), i + 1
        if on_batch is not None and rows:
            on_batch(0, 0, (len(rows) - n_told) / len(rows))
        prepared.stats.n_batches += 1
        prepared.stats.spend("run", time.perf_counter() - started)

    def _score(self, given: dict[str, Any], row: int) -> float:
        plan = self.plan
        try:
            found = plan.score(**given)
        except Exception as error:
            why = f"{plan.shown} failed: {type(error).__name__}: {error}"
            raise RowFailedError(why, row) from error
        if found is None:
            return math.nan
        if not isinstance(found, Real):
            kind = type(found).__name__
            raise RowFailedError(f"{plan.shown} returned no number, but a {kind}", row)
        score = float(found)
        if math.isinf(score) or not (math.isnan(score) or plan.low <= score <= plan.high):
            raise RowFailedError(
                f"{plan.shown} returned {score:g}, outside {plan.low:g} to {plan.high:g}", row
            )
        return score
