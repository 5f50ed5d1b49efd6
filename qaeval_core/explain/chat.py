"""Explain NACo: which replies a row's scores come from, as the commits and the journal have them.

Nothing is asked and no key is read. Readings of replies are those that are committed; from them and
the row's texts the family's statistics and the scores are made again. Where the journal still has a
reply's text, it is read again as well: a parser that reads it otherwise by now is a note, for the
scores do not come from that reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from qaeval_core.explain.find import RowPlace
from qaeval_core.explain.finished_run import FinishedRun, stopped_families, stored_statistics
from qaeval_core.explain.naco_parts import NacoFormula, NacoRun
from qaeval_core.explain.parts import FamilyExplanation, TargetParts
from qaeval_core.explain.recompute import Recomputed
from qaeval_core.explain.replies import KeptReplies
from qaeval_core.metrics.naco import PENDING, UNPARSABLE, NacoSettings
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.scoring.asking import endpoint_of, prepare_asked, read_entry
from qaeval_core.scoring.families.asked import AskedFamilyPlan
from qaeval_core.scoring.families.chat.naco_prompt import Message, reminder_prompt
from qaeval_core.scoring.families.chat.naco_reply import Reply
from qaeval_core.scoring.families.naco import STATISTICS_SCHEMA, RunReading
from qaeval_core.scoring.job import Job
from qaeval_core.scoring.join import score_rows
from qaeval_core.scoring.plans import InstancePlan
from qaeval_core.scoring.prepared import statistics_table

_READINGS = ("is_question", "is_natural", "n_steps", "answer", "says_unanswerable")


@dataclass(frozen=True, slots=True)
class AskedRun:
    """One family that asked, for one row.

    Attributes
    ----------
    messages : sequence of Message
        The prompt; empty where a row is not asked.
    gold : str or None
        The gold answer.
    committed : mapping of column to value, or None
        Statistics of the row; None where the row is pending.
    statistics : pyarrow.Table of one row
        Made again from committed readings and the row's texts; nulls where the row is pending.
    """

    plan: AskedFamilyPlan
    messages: Sequence[Message]
    gold: str | None
    committed: Mapping[str, Any] | None
    statistics: pa.Table

    def key(self, run: int, *, is_reminder: bool) -> str:
        """Return the name that the journal knows a reply by."""
        messages = reminder_prompt(self.messages) if is_reminder else self.messages
        return endpoint_of(self.plan).request_key(messages, run_index=run)


def read_asked(
    run: FinishedRun, job: Job, where: RowPlace, values: Mapping[str, Sequence[object]]
) -> list[AskedRun]:
    """Return what the families of a job that asked have of a row; nothing is asked.

    Raises
    ------
    ReconcileError
        If a family has no commit with the row, and did not end early either.
    """
    return [
        _read(run, job, where, plan, {role: values[role] for role in plan.columns})
        for plan in job.run.families
        if isinstance(plan, AskedFamilyPlan)
    ]


def _read(
    run: FinishedRun,
    job: Job,
    where: RowPlace,
    plan: AskedFamilyPlan,
    values: Mapping[str, Sequence[object]],
) -> AskedRun:
    committed = _committed(run, job, where, plan)
    prepared = prepare_asked(plan, values)
    request = next(iter(prepared.work.requests), None)
    given = prepared.validated.values.get("answer")
    asked = AskedRun(
        plan,
        messages=request.messages if request is not None else (),
        gold=str(given[0]) if given else None,
        committed=committed,
        statistics=_nothing(),
    )
    if committed is None:
        return asked
    if request is not None:
        n_runs = len(committed["problem"] or ())
        prepared.work.take(request, [_reading(asked, committed, i) for i in range(n_runs)])
    return replace(asked, statistics=statistics_table(prepared, first_position=where.row))


def _committed(
    run: FinishedRun, job: Job, where: RowPlace, plan: AskedFamilyPlan
) -> Mapping[str, Any] | None:
    """Return the committed statistics of a row, None where the family ended before it."""
    if plan.key in stopped_families(run.out):
        ranges = job.store.committed(plan.key).get(run.file_ids[where.relative], [])
        if not any(rows.start <= where.row < rows.stop for rows in ranges):
            return None
    alone = replace(job, run=replace(job.run, families=(plan,)))
    found: Mapping[str, Any] = stored_statistics(run, alone, where)[plan.key].to_pylist()[0]
    return found


def _nothing() -> pa.Table:
    """Return the statistics of a pending row."""
    nulls = {field.name: pa.nulls(1, field.type) for field in STATISTICS_SCHEMA}
    return pa.table({QUARANTINE_REASON: pa.nulls(1, pa.string()), **nulls})


def _reading(asked: AskedRun, committed: Mapping[str, Any], run: int) -> RunReading:
    """Return a committed reading, under the name that the row's prompt has now."""
    key = committed["key"][run]
    if key is not None:
        is_reminder = key == asked.key(run, is_reminder=True)
        key = asked.key(run, is_reminder=is_reminder)
    return RunReading(
        reply=_reply(committed, run),
        problem=committed["problem"][run],
        message=committed["message"][run],
        key=key,
    )


def _reply(committed: Mapping[str, Any], run: int) -> Reply | None:
    """Return what was read of a reply, None where there was none."""
    if committed["key"][run] is None:
        return None
    is_readable = committed["problem"][run] != UNPARSABLE
    return Reply(
        is_readable=is_readable,
        problem=None if is_readable else committed["message"][run],
        **{name: committed[name][run] for name in _READINGS},
    )


def with_asked(again: Recomputed, job: Job, asked: Sequence[AskedRun]) -> Recomputed:
    """Return a row computed again, together with what comes of readings of replies."""
    tables = {own.plan.key: own.statistics for own in asked}
    instances = [
        plan
        for plan in job.run.instances
        if any(family.key in tables for family in plan.families.values())
    ]
    if not instances:
        return again
    (scores,) = score_rows(replace(job.run, instances=tuple(instances)), tables).to_pylist()
    kept = {own.plan.key: own.statistics for own in asked if own.committed is not None}
    return replace(
        again,
        statistics={**again.statistics, **kept},
        scores={**again.scores, **scores},
    )


def explain_asked(asked: AskedRun, job: Job, scores: Mapping[str, object]) -> FamilyExplanation:
    """Return the replies that a row's scores come from, and how.

    Parameters
    ----------
    scores : mapping of column to value
        Of the row, computed again.
    """
    plan, committed = asked.plan, asked.committed
    instances = [
        own
        for own in job.run.instances
        if any(family.key == plan.key for family in own.families.values())
    ]
    kept = KeptReplies(Path(plan.journal_path or "").expanduser().absolute())
    n_runs = len(committed["problem"] or ()) if committed is not None else 0
    runs = [_run(asked, committed, i, kept) for i in range(n_runs) if committed is not None]
    return FamilyExplanation(
        key=plan.key,
        family=plan.name,
        signature=str(plan.signature),
        model=str(plan.settings.model),
        artifact=None,
        endpoint=plan.settings.base_url,
        instances=tuple(own.name for own in instances),
        target_role="answer",
        targets=(
            TargetParts(
                target=0,
                reason=committed["reason"] if committed is not None else PENDING,
                parts=(*runs, *(_formula(own, scores) for own in instances)),
                statistics={},
            ),
        ),
    )


def _run(asked: AskedRun, committed: Mapping[str, Any], run: int, kept: KeptReplies) -> NacoRun:
    key = committed["key"][run]
    if key is not None:
        is_reminder = key == asked.key(run, is_reminder=True)
    else:
        # A call that got no reply was the reminder if the first one got what cannot be read.
        first = kept.find(asked.key(run, is_reminder=False))
        is_reminder = first is not None and not read_entry(first).is_readable
    entry, notes = kept.of_reading(key, _reply(committed, run))
    return NacoRun(
        run=run + 1,
        n_runs=asked.plan.settings.runs,
        problem=committed["problem"][run],
        message=committed["message"][run],
        **{name: committed[name][run] for name in _READINGS},
        answer_f1=committed["answer_f1"][run] if key is not None else None,
        gold_answer=asked.gold,
        prompt=tuple(reminder_prompt(asked.messages) if is_reminder else asked.messages),
        is_reminder=is_reminder,
        key=key,
        reply=entry.text if entry is not None else None,
        finish_reason=entry.finish_reason if entry is not None else None,
        notes=notes,
    )


def _formula(plan: InstancePlan, scores: Mapping[str, Any]) -> NacoFormula:
    settings = plan.settings
    assert isinstance(settings, NacoSettings)
    assert isinstance(settings.expected_complexity, float)
    names = ("naturalness", "answerability", "complexity", "steps")
    return NacoFormula(
        instance=plan.name,
        profile=settings.profile,
        expected_complexity=settings.expected_complexity,
        weights=settings.weights.as_tuple,
        n_counted=int(scores[plan.column("runs")] or 0),
        score=scores[plan.column("")],
        reason=scores[plan.reason_column],
        **{name: scores[plan.column(name)] for name in names},
    )
