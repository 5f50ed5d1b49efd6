"""Explain: why one row of a finished run has its scores.

OUT and the name of a row in, an `Explanation` out: the row's texts, scores and reasons, and for
each family that runs a model which tokens its numbers come from, or which replies. Everything is
computed again with the same artifacts, or from committed readings of replies, and must equal what
is stored.

But: the page is made in ``page``, the lines of the terminal in ``text``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qaeval_core.errors import ReconcileError
from qaeval_core.explain.chat import (
    explain_asked,
    read_asked,
    with_asked,
)
from qaeval_core.explain.families import explain_family
from qaeval_core.explain.find import RowPlace, find_row
from qaeval_core.explain.finished_run import (
    FinishedRun,
    changed_files,
    make_same_job,
    quarantine_message,
    read_run,
    read_values,
    stopped_families,
    stored_scores,
    stored_statistics,
)
from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    ScoreLine,
)
from qaeval_core.explain.recompute import (
    OTHER_ROUNDING,
    SAME_ROUNDING,
    Comparison,
    Recomputed,
    SessionCache,
    compare,
    recompute,
)
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.report.report import environment
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.scoring.families.models import ModelFamilyPlan
from qaeval_core.scoring.job import Job

_N_SHOWN_DIFFERENCES = 5


def explain_row(
    out: str | Path,
    *,
    identity: str | None = None,
    place: str | None = None,
    instances: Sequence[str] = (),
    n_threads: int | None = None,
    artifacts: Path | None = None,
    inputs: Sequence[str] = (),
) -> Explanation:
    """Explain one row of a finished run; exports no model, and reads none but artifacts.

    Parameters
    ----------
    out : str or Path
        Where the run wrote to.
    identity : str, optional
        The row's id, or
    place : str, optional
        ``FILE:N``: input file as in ``scores/``, row number from 0.
    instances : sequence of str, default ()
        Compute these again, and no others; () is all.
    n_threads : int, optional
        Of a model's operators; default all CPUs.
    artifacts : Path, optional
        Where artifacts lie; default the cache, whatever the run says.
    inputs : sequence of str, default ()
        Where the input lies; () is where the run had it, if that is on a local file system.

    Raises
    ------
    QAEvalError
        `ConfigError` and `InputError` for a row, instance or input that is not there,
        `ReconcileError` where a value differs from the stored one; its message says why.
    """
    run = read_run(Path(out))
    where = find_row(run.out, identity=identity, place=place)
    job = make_same_job(run, instances, artifacts=artifacts, inputs=inputs)
    values = read_values(job, where, run)
    stored = stored_scores(run, where)
    notes = []
    again, compared = None, None
    families: list[FamilyExplanation] = []
    if stored[QUARANTINE_REASON] is None:
        sessions = SessionCache(n_threads)
        asked = read_asked(run, job, where, values)
        again = with_asked(recompute(job, values, sessions), job, asked)
        compared = _compare(run, job, where, stored, again)
        notes = _notes(run, job, where)
        families = [
            explain_family(own, job, sessions) for own in again.runs if own.plan.family.runs_model
        ]
        notes += [f"{own.family}: {own.note}" for own in families if own.note is not None]
        families += [explain_asked(own, job, again.scores) for own in asked]
    return Explanation(
        out=str(run.out),
        file=where.relative,
        row=where.row,
        id=where.id,
        texts={role: _plain(own[0]) for role, own in values.items()},
        instances=tuple(_instances(run, stored, again)),
        families=tuple(families),
        quarantine_reason=_text(stored[QUARANTINE_REASON]),
        quarantine_message=quarantine_message(run, where),
        is_equal=None if compared is None else True,
        n_compared=compared.n_values if compared else 0,
        max_difference=compared.max_difference if compared else 0.0,
        tolerance=compared.tolerance if compared else 0.0,
        notes=tuple(notes),
        environment=environment(),
    )


def _compare(
    run: FinishedRun, job: Job, where: RowPlace, stored: Mapping[str, object], again: Recomputed
) -> Comparison:
    """Compare everything that was computed again with what is stored; raise where it differs."""
    records = [
        plan.artifact.record for plan in job.run.families if isinstance(plan, ModelFamilyPlan)
    ]
    is_same = run.device == "cpu" and all(record.precision == "fp32" for record in records)
    computed = [plan for plan in job.run.families if plan.key in again.statistics]
    compared = compare(
        stored=stored,
        now=again.scores,
        stored_statistics=stored_statistics(
            run, replace(job, run=replace(job.run, families=tuple(computed))), where
        ),
        statistics=again.statistics,
        tolerance=SAME_ROUNDING if is_same else OTHER_ROUNDING,
    )
    if compared.differences:
        shown = "; ".join(str(item) for item in compared.differences[:_N_SHOWN_DIFFERENCES])
        raise ReconcileError(
            f"{where}: {len(compared.differences)} of {compared.n_values} values are not what is "
            f"stored (tolerance {compared.tolerance:g}): {shown}. Likely reason: "
            f"{_likely_reason(run, job, where)}"
        )
    return compared


def _likely_reason(run: FinishedRun, job: Job, where: RowPlace) -> str:
    if where.relative in changed_files(run, job):
        return f"{where.relative} has changed since the run; score it again"
    otherwise = [
        plan.name
        for plan in job.run.instances
        if str(plan.signature) != run.instances.get(plan.name)
    ]
    if otherwise:
        return f"a file that settings of {', '.join(otherwise)} name has changed since the run"
    if stopped_families(run.out):
        return "the run was resumed, and killed before it wrote scores; run qaeval score again"
    changed = _changed_packages(run)
    if changed:
        return f"other versions than in the run: {', '.join(changed)}"
    return "the commits or the scores were changed by hand, or come from another machine"


def _changed_packages(run: FinishedRun) -> list[str]:
    packages = run.environment.get("packages")
    before: Mapping[str, str] = packages if isinstance(packages, dict) else {}
    now: Mapping[str, str] = environment()["packages"]
    return [
        f"{name} {now.get(name, 'none')} now, {before.get(name, 'none')} then"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _notes(run: FinishedRun, job: Job, where: RowPlace) -> list[str]:
    notes = []
    if where.relative in changed_files(run, job):
        notes.append(f"{where.relative} was written anew since the run; this row is as it was")
    if run.device != "cpu":
        notes.append(f"the run was on {run.device}, this explanation on the CPU")
    notes += [
        f"the run is not complete: {key} ended early: {why}"
        for key, why in stopped_families(run.out).items()
    ]
    return notes


def _instances(
    run: FinishedRun, stored: Mapping[str, object], again: Recomputed | None
) -> list[InstanceExplanation]:
    """Return the scores of every instance of the run, computed again or not."""
    found = []
    now = again.scores if again else {}
    for name, settings in run.config.metrics.items():
        columns = [f"{name}_{output}" if output else name for output in _outputs(settings.metric)]
        found.append(
            InstanceExplanation(
                name=name,
                metric=settings.metric,
                signature=run.instances.get(name, ""),
                reason=_text(stored.get(f"{name}_reason")),
                scores=tuple(
                    ScoreLine(
                        column=column,
                        stored=_score(stored[column]),
                        now=_score(now.get(column)),
                        is_compared=column in now,
                    )
                    for column in columns
                    if column in stored
                ),
            )
        )
    return found


def _outputs(metric: str) -> tuple[str, ...]:
    return tuple(column.name for column in METRICS[metric].columns)


def _score(value: object) -> float | int | str | None:
    return value if isinstance(value, float | int | str) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object) -> object:
    """Return a value as JSON has it; text that is none is shown as its error."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def explanation_content(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data for JSON: NaN and infinity are null."""
    content: dict[str, Any] = _finite(asdict(explanation))
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return value
