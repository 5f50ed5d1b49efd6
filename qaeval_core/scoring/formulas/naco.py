"""NACo: readings of replies to the columns of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.metrics.naco import naco, naturalness
from qaeval_core.metrics.naco_settings import NacoSettings
from qaeval_core.scoring.families.naco import UNPARSABLE
from qaeval_core.scoring.formulas.columns import InstanceScores, score_column
from qaeval_core.scoring.plans import InstancePlan

PENDING = "pending"


def score_naco(
    plan: InstancePlan, settings: NacoSettings, statistics: Mapping[str, pa.Table]
) -> InstanceScores:
    """Return the scores of NACo; see `score_instance`."""
    table = statistics[plan.families["naco"].key]
    n_runs = settings.runs
    problems = table.column("problem").to_pylist()
    is_counted = np.array(
        [[_at(own, run, PENDING) is None for run in range(n_runs)] for own in problems], dtype=bool
    ).reshape(-1, n_runs)
    parts = {
        name: _by_run(table, name, n_runs) for name in ("is_question", "is_natural", "n_steps")
    }
    assert isinstance(settings.expected_complexity, float)
    scores = naco(
        naturalness=naturalness(
            is_question=parts["is_question"] > 0,
            is_natural=parts["is_natural"] > 0,
            profile=settings.profile,
        ),
        answerability=_by_run(table, "answer_f1", n_runs),
        n_steps=parts["n_steps"],
        is_counted=is_counted,
        expected_complexity=settings.expected_complexity,
        weights=settings.weights.as_tuple,
    )
    outputs = {
        "": score_column(scores.naco),
        "naturalness": score_column(scores.naturalness),
        "answerability": score_column(scores.answerability),
        "complexity": score_column(scores.complexity),
        "steps": score_column(scores.steps),
        "predicted_answer": _first_answers(table, is_counted),
        "runs": score_column(scores.n_runs),
    }
    return InstanceScores(outputs, _reasons(table, problems, np.isnan(scores.naco)))


def _at(values: list[Any] | None, run: int, missing: Any) -> Any:
    """Return a row's value of a run; a row that was not asked has none."""
    return values[run] if values else missing


def _by_run(table: pa.Table, name: str, n_runs: int) -> NDArray[np.float64]:
    """Return a list column as float ndarray of shape (n_rows, n_runs), 0 where there is none."""
    rows = table.column(name).to_pylist()
    values = [[float(_at(own, run, 0) or 0) for run in range(n_runs)] for own in rows]
    return np.array(values, dtype=np.float64).reshape(-1, n_runs)


def _first_answers(table: pa.Table, is_counted: NDArray[np.bool_]) -> pa.Array:
    """Return the answer of each row's first run that counts and gave one."""
    rows = table.column("answer").to_pylist()
    found = []
    for own, counted in zip(rows, is_counted.tolist(), strict=True):
        answers = [answer for answer, is_in in zip(own or [], counted, strict=False) if is_in]
        found.append(next((answer for answer in answers if answer is not None), None))
    return pa.array(found, pa.string())


def _reasons(
    table: pa.Table, problems: list[list[str | None] | None], is_undefined: NDArray[np.bool_]
) -> list[str | None]:
    """Return why a row has no score.

    A fault before an unreadable reply: a row that a fault took has not been judged at all.
    """
    own_reasons = table.column("reason").to_pylist()
    reasons: list[str | None] = [None] * len(problems)
    for i in np.flatnonzero(is_undefined).tolist():
        own = problems[i]
        if own is None:
            reasons[i] = PENDING
        elif own_reasons[i] is not None:
            reasons[i] = own_reasons[i]
        else:
            faults = [problem for problem in own if problem != UNPARSABLE]
            reasons[i] = faults[0] if faults else UNPARSABLE
    return reasons
