"""Explain: why rows of a finished run have their scores.

OUT and the names of rows in, an `Explanation` of each out: the row's texts, scores and reasons,
and for each family that runs a model which tokens its numbers come from, or which replies.
Everything is computed again with the same artifacts, or from committed readings of replies, and
must equal what is stored.

But: the page and the lines of the terminal are made in ``page``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from qaeval_core.errors import ConfigError, ReconcileError, nearest
from qaeval_core.explain.chat import read_chats
from qaeval_core.explain.families import explain_chat, explain_family
from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    ScoreLine,
)
from qaeval_core.explain.recompute import (
    OTHER_ROUNDING,
    SAME_ROUNDING,
    FamilyRun,
    RowRun,
    StoredComparison,
    compare,
    recompute,
)
from qaeval_core.explain.standings import standings
from qaeval_core.explain.stored_row import (
    StoredRow,
    changed_files,
    find_row,
    make_same_job,
    quarantine_message,
    read_row,
)
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.unknown import is_known
from qaeval_core.pages.example_rows import N_EXAMPLES, main_by_instance
from qaeval_core.running.score_rows import score_rows
from qaeval_core.schema import POSITION, QUARANTINE_REASON
from qaeval_core.signature import environment
from qaeval_core.storage.path import AnyPath, read_json
from qaeval_core.tables.finished_run import FinishedRun, read_run

_N_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class _Again:
    """A row computed again, and found equal."""

    scores: Mapping[str, object]
    compared: StoredComparison
    families: Sequence[FamilyExplanation]
    notes: Sequence[str]


# Of a quarantined row: nothing is computed.
_NOTHING = _Again({}, StoredComparison(0, 0.0, 0.0, ()), (), ())


def explain_row(
    out: AnyPath,
    *,
    identity: str | None = None,
    place: str | None = None,
    instances: Sequence[str] = (),
    artifacts: Path | None = None,
    inputs: Sequence[str] = (),
) -> Explanation:
    """Explain one row of a finished run, as `explain_rows` does several."""
    (found,) = explain_rows(
        out, [(identity, place)], instances=instances, artifacts=artifacts, inputs=inputs
    )
    return found


def explain_rows(
    out: AnyPath,
    rows: Sequence[tuple[str | None, str | None]],
    *,
    instances: Sequence[str] = (),
    artifacts: Path | None = None,
    inputs: Sequence[str] = (),
) -> list[Explanation]:
    """Explain rows of a finished run; exports no model, and reads none but artifacts.

    Parameters
    ----------
    out : str, Path or StoragePath
        Where the run wrote to.
    rows : sequence of (str or None, str or None)
        Of each its id, or its place ``FILE:N``: input file as in ``scores/``, row number from 0.
    instances : sequence of str, default ()
        Compute these again, and no others; () is all.
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
    run = read_run(out)
    places = [find_row(run.out, identity=identity, place=place) for identity, place in rows]
    job = make_same_job(run, instances, artifacts=artifacts, inputs=inputs)
    found = [read_row(run, job, place) for place in places]
    computed = [row for row in found if job.run.instances and _quarantined(row) is None]
    again = {
        row.place: _checked(row, own)
        for row, own in zip(computed, recompute(job, [row.values for row in computed]), strict=True)
    }
    return [_explanation(row, again.get(row.place)) for row in found]


def _quarantined(row: StoredRow) -> str | None:
    """Return why a row was not scored."""
    return _text(row.scores[QUARANTINE_REASON])


def _explanation(row: StoredRow, computed: _Again | None) -> Explanation:
    """Return what is known of a row, computed again unless it is None."""
    run, again = row.run, computed or _NOTHING
    own = tuple(_instances(row, again.scores))
    places, notes = standings(run.out, own)
    return Explanation(
        out=str(run.out),
        file=row.place.relative,
        row=row.place.row,
        id=row.place.id,
        texts={role: _plain(own[0]) for role, own in row.values.items()},
        instances=own,
        families=tuple(again.families),
        quarantine_reason=_quarantined(row),
        quarantine_message=quarantine_message(run, row.place),
        is_equal=True if computed else None,
        n_compared=again.compared.n_values,
        max_difference=again.compared.max_difference,
        tolerance=again.compared.tolerance,
        notes=(*again.notes, *_not_installed(run), *notes),
        environment=environment(),
        standings=places,
    )


def lowest_rows(out: AnyPath, metric: str) -> list[str]:
    """Return the places of the rows with the lowest scores of a metric, as the report has them.

    Parameters
    ----------
    out : StoragePath, Path or str
    metric : str
        An instance, or its main column.

    Raises
    ------
    ConfigError
        If the report keeps no rows of it.
    """
    report = read_run(out).out / "report.json"
    content = read_json(report) or {}
    try:
        examples = content.get("examples", {})
        column = metric if metric in examples else main_by_instance(content).get(metric, metric)
        if column not in examples:
            raise ConfigError(
                f"--lowest: {report} has no rows of {metric!r}{nearest(metric, examples)} [QA0105]"
            )
        found = [f"{own['file']}:{own['row']}" for own in examples[column]["lowest"][:N_EXAMPLES]]
    except (LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{report} is damaged: {error!r} [QA0514]") from None
    if not found:
        raise ConfigError(f"--lowest: no row has a score of {metric!r} [QA0312]")
    return found


def _checked(row: StoredRow, computed: RowRun) -> _Again:
    """Return a row's families and scores; raise where they are not what is stored."""
    chats = read_chats(row)
    runs, statistics = computed.families, dict(computed.statistics)
    tables = {**statistics, **{own.plan.key: own.statistics for own in chats}}
    (scores,) = score_rows(row.job.run, tables).to_pylist()
    # What is pending is not stored.
    statistics |= {own.plan.key: own.statistics for own in chats if own.committed is not None}
    compared = _compare(row, runs, scores, statistics)
    families = [explain_family(own) for own in runs]
    notes = _notes(row)
    notes += [f"{own.family}: {own.note}" for own in families if own.note is not None]
    families += [explain_chat(own, scores) for own in chats]
    return _Again(scores, compared, families, notes)


def _compare(
    row: StoredRow,
    runs: Sequence[FamilyRun],
    scores: Mapping[str, object],
    statistics: Mapping[str, pa.Table],
) -> StoredComparison:
    """Compare everything that was computed again with what is stored; raise where it differs."""
    is_same = row.run.device == "cpu" and all(
        own.plan.artifact.record.precision == "fp32" for own in runs
    )
    pairs = [(name, row.scores.get(name), value) for name, value in scores.items()]
    for key, table in statistics.items():
        (before,), (after,) = row.statistics(key).to_pylist(), table.to_pylist()
        pairs += [
            (f"{key}.{name}", before.get(name), value)
            for name, value in after.items()
            if name != POSITION
        ]
    compared = compare(pairs, tolerance=SAME_ROUNDING if is_same else OTHER_ROUNDING)
    if compared.differences:
        shown = "; ".join(compared.differences[:_N_SHOWN_DIFFERENCES])
        raise ReconcileError(
            f"{row.place}: {len(compared.differences)} of {compared.n_values} values differ from "
            f"the stored ones (tolerance {compared.tolerance:g}): {shown}. Likely reason: "
            f"{_likely_reason(row)} [QA0518]"
        )
    return compared


def _likely_reason(row: StoredRow) -> str:
    if row.place.relative in changed_files(row.run, row.job):
        return f"{row.place.relative} changed since the run; score it again"
    otherwise = [
        plan.name
        for plan in row.job.run.instances
        if str(plan.signature) != row.run.instances.get(plan.name)
    ]
    if otherwise:
        return f"a file that settings of {', '.join(otherwise)} name changed since the run"
    if row.run.stopped:
        return "the run was resumed, and killed before it wrote scores; run qaeval score again"
    changed = _changed_packages(row.run)
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


def _not_installed(run: FinishedRun) -> list[str]:
    """Say which metrics are not computed again, as nothing here can."""
    return [
        f"{name} is not recomputed: its metric is not installed here"
        for name, settings in run.config.metrics.items()
        if not is_known(settings)
    ]


def _notes(row: StoredRow) -> list[str]:
    notes = []
    if row.place.relative in changed_files(row.run, row.job):
        notes.append(f"{row.place.relative} was rewritten since the run; this row is the same")
    if row.run.device != "cpu":
        notes.append(f"the run was on {row.run.device}, this explanation on the CPU")
    notes += [
        f"the run is not complete: {key} ended early: {why}" for key, why in row.run.stopped.items()
    ]
    return notes


def _instances(row: StoredRow, now: Mapping[str, object]) -> list[InstanceExplanation]:
    """Return the scores of every instance of the run, computed again or not."""
    run, stored = row.run, row.scores
    found = []
    for name, settings in run.config.metrics.items():
        if is_known(settings):
            outputs = [column.name for column in metric_of(settings).columns]
            columns = [f"{name}_{output}" if output else name for output in outputs]
        else:
            columns = row.columns_of(name)
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


def _score(value: object) -> float | int | str | None:
    return value if isinstance(value, float | int | str) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object) -> object:
    """Return a value as JSON has it; text that is none is shown as its error."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)
