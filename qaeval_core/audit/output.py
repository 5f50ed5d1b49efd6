"""Output: what REPORT holds of an audit: audit.json, .parquet, .html and .prom, each whole.

Prometheus' format is that of the node exporter's textfile collector. It refuses two files with the
same series, so that each has the name of its history as a label.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.audit.drift import moments_of
from qaeval_core.audit.outcome import (
    AuditOutcome,
    column_summary,
    columns_of,
    made_of,
    run_summary,
    signatures,
)
from qaeval_core.audit.page import PAGE, audit_page
from qaeval_core.audit.profile_folder import shown_run, time_of
from qaeval_core.audit.run import Audit
from qaeval_core.audit.unusual_runs import MIN_RUNS
from qaeval_core.pages.example_rows import RunExamples
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.store import Store

STATUSES = ("ok", "alert", "too_few", "first_run", "incomplete")
_WEEKS = 52
_MAX_SHOWN = 20
# Labels, and a value.
_Sample = tuple[dict[str, str], float]


def write_report(
    outcome: AuditOutcome, store: Store, *, name: str, examples: RunExamples | None = None
) -> None:
    """Write the files of an audit.

    Parameters
    ----------
    outcome : AuditOutcome
    store : Store
        Of REPORT.
    name : str
        Of the history, for Prometheus.
    examples : RunExamples, optional
        Rows that the page shows.

    Raises
    ------
    StorageError
        If the disk refuses.
    """
    buffer = pa.BufferOutputStream()
    pq.write_table(outcome.result.table(), buffer, compression="zstd")
    store.write(store.out / "audit.parquet", buffer.getvalue().to_pybytes())
    text = "".join(f"{line}\n" for line in prometheus_lines(outcome, name=name))
    store.write(store.out / "audit.prom", text.encode("utf-8", "replace"))
    made, where = made_of(outcome), store.out / PAGE
    text = audit_page(outcome, examples, made=made, where=where)
    store.write(where, text.encode("utf-8", "replace"))
    # The last one: who waits for it finds the others.
    store.write_json(store.out / "audit.json", {"made": made.content(), **content(outcome)})


def content(outcome: AuditOutcome) -> dict[str, Any]:
    """Return what ``audit.json`` holds, alerts first."""
    result, settings = outcome.result, outcome.request.settings
    return {
        "status": outcome.status,
        "why": outcome.why,
        "cause": None if outcome.cause is None else outcome.cause.content(),
        "alerts": [asdict(alert) for alert in result.alerts],
        "too_few": result.is_too_few,
        "false_alarm_in_a_year": false_alarm_in_a_year(outcome),
        "run": run_summary(outcome.run, outcome.profile) | {"out": str(outcome.out)},
        "reference": run_summary(outcome.reference, outcome.reference_profile)
        if outcome.reference
        else None,
        "signatures": signatures(outcome),
        "columns": {name: column_summary(own) for name, own in columns_of(outcome.profile).items()},
        "paired": _paired(outcome),
        "notes": [*outcome.notes, *result.notes],
        "settings": {
            "alpha": settings.alpha,
            "draws": settings.n_draws,
            "seed": settings.seed,
            "min_clusters": settings.min_clusters,
            "tolerances": dict(settings.tolerances),
            "columns": {name: dict(own) for name, own in settings.columns.items()},
        },
        "earlier_runs": [one.run for one in outcome.earlier],
        "tests": [asdict(row) for row in result.rows],
    }


def false_alarm_in_a_year(outcome: AuditOutcome) -> float:
    """Return the chance of at least one false alarm in 52 audits, in [0, 1].

    Each audit may be wrong by alpha, and by alpha again where earlier runs say what is usual.
    """
    n_families = 1 + (len(outcome.earlier) >= MIN_RUNS)
    return 1.0 - (1.0 - outcome.request.settings.alpha) ** (_WEEKS * n_families)


def _paired(outcome: AuditOutcome) -> dict[str, Any] | None:
    """Return what pairs say; None where the rows of the reference are not known."""
    if outcome.share_matched is None:
        return None
    columns = [asdict(own) for own in outcome.paired]
    return {"share": outcome.share_matched, "columns": _numbers(columns)}


def _numbers(content: Any) -> Any:
    """Return content as JSON has it: None for undefined, "inf" and "-inf" for infinite values."""
    if isinstance(content, dict):
        return {key: _numbers(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_numbers(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None if math.isnan(content) else str(content)
    return content


def prometheus_lines(outcome: AuditOutcome, *, name: str) -> Iterator[str]:
    """Yield the gauges of an audit, without line ends."""
    own = {"audit": name}
    yield from _gauge(
        "qaeval_audit_status",
        "1 for the status of the last audit.",
        [({**own, "status": status}, float(status == outcome.status)) for status in STATUSES],
    )
    yield from _gauge(
        "qaeval_audit_timestamp_seconds", "When the last audit ended.", [(own, time.time())]
    )
    if outcome.run:
        yield from _gauge(
            "qaeval_audit_run_timestamp_seconds",
            "When the audited run was complete.",
            [(own, time_of(outcome.run).timestamp())],
        )
    if outcome.status in ("ok", "alert", "too_few"):
        yield from _gauge(
            "qaeval_audit_alerts",
            "Alerts of the last audit.",
            [(own, float(len(outcome.result.alerts)))],
        )
    means, shares = _slice_samples(outcome, own)
    yield from _gauge("qaeval_score_mean", "Mean of the defined scores.", means)
    yield from _gauge("qaeval_score_undefined_share", "Undefined among the scored rows.", shares)
    yield from _gauge(
        "qaeval_score_drift_effect",
        "What is compared with a tolerance: standard deviations, PSI, or shares.",
        [
            (
                {**own, "column": row.column, "slice": row.slice, "statistic": row.statistic},
                row.effect,
            )
            for row in outcome.result.rows
            if row.effect is not None
        ],
    )


def _slice_samples(
    outcome: AuditOutcome, own: dict[str, str]
) -> tuple[list[_Sample], list[_Sample]]:
    """Return the mean, and the share of undefined scores, of each column in each slice."""
    means: list[_Sample] = []
    shares: list[_Sample] = []
    for column, profile in columns_of(outcome.profile).items():
        for code, part in enumerate(outcome.profile.slices.all if outcome.profile else ()):
            labels = {**own, "column": column, "slice": str(part)}
            counts = profile.counts[code].sum(axis=0, dtype="int64")
            if counts.sum():
                shares.append((labels, float(counts[-1] / counts.sum())))
                means.append((labels, moments_of(profile, code)[0]))
    return means, shares


def _gauge(name: str, meaning: str, samples: list[_Sample]) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if not math.isnan(value)]
    if not known:
        return
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    for labels, value in known:
        told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{told}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def outcome_lines(outcome: AuditOutcome, report: StoragePath) -> Iterator[str]:
    """Yield what a person wants to see of an audit."""
    result = outcome.result
    yield _verdict(outcome)
    lines = outcome.alert_lines
    yield from (f"alert: {line}" for line in lines[:_MAX_SHOWN])
    if (n_left := len(lines) - _MAX_SHOWN) > 0:
        yield f"and {n_left:,} more column{'s' if n_left > 1 else ''}, in audit.json"
    if outcome.cause is not None and outcome.cause.remark:
        yield f"note: {outcome.cause.remark}"
    if result.is_too_few:
        yield (
            f"fewer than {outcome.request.settings.min_clusters} clusters: scores have no verdict"
        )
    if outcome.paired:
        yield f"in pairs: {outcome.paired[0].n_pairs:,} rows that both runs have"
    yield from (f"note: {note}" for note in (*outcome.notes, *result.notes)[:_MAX_SHOWN])
    if outcome.status in ("ok", "alert"):
        yield (
            f"note: where nothing moves, {false_alarm_in_a_year(outcome):.0%} of years of weekly "
            f"audits have a false alarm, at alpha {outcome.request.settings.alpha:g}"
        )
    yield f"report: {report / PAGE}"


def _verdict(outcome: AuditOutcome) -> str:
    if outcome.status == "incomplete":
        return f"incomplete: {outcome.why}"
    if outcome.status == "first_run":
        kept = "pinned as the reference" if outcome.request.pin else "the profile is kept"
        return f"first_run: nothing to compare {outcome.run_shown} with; {kept}"
    n_alerts, n_tests = len(outcome.result.alerts), len(outcome.result.rows)
    found = "no alert" if not n_alerts else f"{n_alerts} alert{'s' if n_alerts > 1 else ''}"
    if outcome.cause is not None:
        found = f"{outcome.cause.text}: {found}"
    runs = f"{outcome.run_shown} against {outcome.reference_shown}"
    return f"{outcome.status}: {found} in {n_tests:,} tests of {runs}"


def dry_run_lines(audit: Audit) -> Iterator[str]:
    """Yield what an audit would do."""
    source, like = audit.source, audit.reference
    tasks = source.corpus.tasks()
    n_rows, n_files = source.corpus.n_rows, len(source.corpus.files)
    yield f"{audit.out}: {n_rows:,} rows of {n_files:,} files, in {len(tasks):,} tasks"
    yield f"columns: {', '.join(source.rows.watch) or 'none'}"
    yield f"slices: {', '.join(source.rows.by) or 'none'}; clusters: {source.cluster}"
    run, reference = shown_run(audit.run, audit.name), like.shown
    yield f"run: {run}; reference: {reference or 'none: this would be a first run'}"
    yield from (f"note: {note}" for note in source.notes)
