"""Summary: what a person wants to see of a report, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def summary_lines(report: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yield what a person wants to see of a report.

    Parameters
    ----------
    report : mapping
        Content of report.json.
    out : Path
        Where it lies.
    """
    for name, counts in report["instances"].items():
        yield from _instance_lines(name, counts, report)
    for key, family in report["families"].items():
        if "calls" in family:
            yield _calls_line(key, family)
    yield from (f"note: {note}" for note in report["notes"] if "torn or damaged" in note)
    yield from (f"{key} stopped: {why}" for key, why in report.get("stopped", {}).items())
    for name, column in report["columns"].items():
        if column["mean"] is not None:
            yield _column_line(name, column)
    if report["duplicate_ids"]:
        yield f"duplicate ids inside files: {report['duplicate_ids']:,}"
    yield f"scores: {out / 'scores'}"
    yield f"report: {out / 'report.json'}"


def _instance_lines(
    name: str, counts: Mapping[str, Any], report: Mapping[str, Any]
) -> Iterator[str]:
    parts = [f"{counts['scored']:,} scored"]
    undefined = counts["undefined_by_reason"]
    for kind, by_reason in (
        ("undefined", undefined),
        ("quarantined", report["quarantined_by_reason"]),
    ):
        if counts[kind]:
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in by_reason.items())
            parts.append(f"{counts[kind]:,} {kind} ({reasons})")
    yield f"{name}: {report['rows']:,} rows: {', '.join(parts)}"
    if any(reason.startswith("llm_") for reason in undefined):
        yield "  calls failed (llm_...): --retry-quarantined asks for those rows again"


def _calls_line(key: str, family: Mapping[str, Any]) -> str:
    calls, journal = family["calls"], family.get("journal", {})
    parts = [
        f"{calls['paid']:,} replies paid",
        f"{calls['from_journal']:,} from the journal",
        f"{calls['reminders']:,} reminders",
        f"{sum(calls['failed'].values()):,} calls failed",
    ]
    parts += [f"{n:,} {what}" for what, n in calls.get("noted", {}).items()]
    if journal.get("usd") is not None:
        parts.append(f"${journal['usd']:,.4f} for all replies of the journal")
    return f"{key}: {', '.join(parts)}"


def _column_line(name: str, column: Mapping[str, Any]) -> str:
    corpus = column.get("corpus")
    shown = "" if corpus is None else f", corpus {corpus:.4f}"
    interval = ""
    if column["interval_95"] is not None:  # None of one row, or of rows that are all equal.
        low, high = column["interval_95"]
        interval = f" [{low:.4f}, {high:.4f}]"
    return (
        f"  {name}: mean {column['mean']:.4f}{interval}, n {column['n']:,}, "
        f"undefined {column['n_undefined']:,}{shown}"
    )
