"""Report: what a run scored, what it could not and why, and what it cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from qaeval_core.codes import code_of_reason
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.llm.journal import JournalTotals
from qaeval_core.llm.reply_body import CUT
from qaeval_core.metrics.targets import NO_REFERENCES
from qaeval_core.planning.columns import ROWS
from qaeval_core.planning.run_plan import CompiledRun, InstancePlan
from qaeval_core.running.totals import Totals
from qaeval_core.scoring.answerability import answerability_lines
from qaeval_core.scoring.result_table import result_text
from qaeval_core.scoring.summary import Overview
from qaeval_core.signature import environment
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.sample import Sample

_MAX_REASONS = 5
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def make_report(
    run: CompiledRun,
    totals: Totals,
    *,
    columns: Mapping[str, Mapping[str, Any]],
    committed: Mapping[str, PassStats],
    this_run: Mapping[str, PassStats],
    wall_s: Mapping[str, float],
    stopped: Mapping[str, str],
    journals: Mapping[str, JournalTotals],
    notes: list[str],
) -> dict[str, Any]:
    """Return the report as plain data.

    Parameters
    ----------
    columns : mapping of column to plain data
        Of `report_columns`.
    committed : mapping of family key to PassStats
        Counts of all commits, whichever run made them.
    this_run : mapping of family key to PassStats
        Counts and seconds of this run alone.
    wall_s : mapping of family key to float
        Wall time of each family in this run; ``total`` for all.
    stopped : mapping of family key to str
        Families that ended before all rows were asked, and why.
    journals : mapping of family key to JournalTotals
        What the journals of families that ask hold, whichever run paid for it.
    """
    n_quarantined = sum(totals.quarantined.values())
    return {
        "rows": totals.n_rows,
        "quarantined": n_quarantined,
        "quarantined_by_reason": dict(totals.quarantined.most_common()),
        "not_sampled": totals.n_not_sampled,
        "duplicate_ids": totals.n_duplicate_ids,
        "instances": {
            plan.name: {
                "signature": str(plan.signature),
                "scored": totals.n_scored[plan.name],
                "undefined": sum(totals.undefined.get(plan.name, {}).values()),
                "quarantined": n_quarantined,
                "not_sampled": totals.n_not_sampled,
                "undefined_by_reason": dict(totals.undefined.get(plan.name, {})),
                **_text_counts(plan, totals),
            }
            for plan in run.instances
        },
        "columns": columns,
        "families": {
            plan.key: plan.report(committed[plan.key])
            | _this_run(this_run.get(plan.key), wall_s.get(plan.key, 0.0))
            | {"signature": str(plan.signature), **plan.describe(), **_journal(plan, journals)}
            for plan in run.families
        },
        "stopped": dict(stopped),
        "wall_s": round(wall_s.get("total", 0.0), 3),
        "notes": notes,
        "environment": environment(),
    }


def report_columns(
    run: CompiledRun, totals: Totals, overview: Overview
) -> dict[str, dict[str, Any]]:
    """Return what the report says of columns of scores: all from what was counted of them."""
    return {
        plan.column(own.name): _column(plan, own.name, totals, overview)
        for plan in run.instances
        for own in plan.columns
        if own.is_score
    }


def _column(plan: InstancePlan, output: str, totals: Totals, overview: Overview) -> dict[str, Any]:
    """Return what the report says of one column of scores."""
    name = plan.column(output)
    content = asdict(overview.mean(name))
    counts = overview.values[name]
    points = counts.quantiles(QUANTILES) if counts.n else []
    content["quantiles"] = {f"{q:g}": own for q, own in zip(QUANTILES, points, strict=False)}
    content["signature"] = str(plan.signature)
    content["is_share"] = plan.is_share(output)
    if output == "" and plan.name in totals.sums:
        corpus = float(plan.metric.corpus(plan.settings, totals.sums[plan.name]))
        content["corpus"] = None if math.isnan(corpus) else corpus
    return content


def sample_content(sample: Sample) -> dict[str, Any]:
    """Return what the report says of a sample: which rows were scored."""
    return {
        "groups": sample.n_groups,
        "contexts": sample.n_contexts,
        "rows": sample.n_rows,
        "rows_without_context": sample.n_without,
        "column": sample.column,
    }


def _text_counts(plan: InstancePlan, totals: Totals) -> dict[str, dict[str, int]]:
    """Return how often each word of an instance's columns of words occurs."""
    return {
        own.name: dict(totals.texts[plan.column(own.name)].most_common())
        for own in plan.columns
        if plan.column(own.name) in totals.texts
    }


def _journal(plan: FamilyPlan, journals: Mapping[str, JournalTotals]) -> dict[str, Any]:
    """Return what all replies of a family's journal cost, also of other runs and metrics."""
    if plan.key not in journals:
        return {}
    totals = journals[plan.key]
    return {
        "journal": {
            "replies": totals.n_replies,
            "prompt_tokens": totals.n_prompt_tokens,
            "completion_tokens": totals.n_completion_tokens,
            "usd": totals.usd if plan.counts_money else None,
        }
    }


def _this_run(this_run: PassStats | None, wall_s: float) -> dict[str, Any]:
    """Return what the shards of this run cost; nothing where it had none."""
    if this_run is None or not this_run.n_rows:
        return {}
    content: dict[str, Any] = {
        "rows": this_run.n_rows,
        "wall_s": round(wall_s, 3),
        "rows_per_s": round(this_run.n_rows / wall_s, 2) if wall_s else None,
        "tokens_per_s": round(this_run.n_tokens / wall_s, 1) if wall_s else None,
        "seconds": {name: round(value, 3) for name, value in this_run.seconds.items()},
    }
    if this_run.devices:
        content["devices"] = this_run.devices
    return {"this_run": content}


def summary_lines(
    report: Mapping[str, Any],
    out: StoragePath,
    *,
    form: str = "text",
    percent: bool = False,
    width: int | None = None,
) -> Iterator[str]:
    """Yield what a person wants to see of a report.

    Parameters
    ----------
    report : mapping
        Content of report.json.
    out : StoragePath
        Where it lies.
    form : str, default "text"
        Another one has its table apart.
    percent : bool, default False
        Show shares times 100.
    width : int, optional
        Decimals; default two digits of half the interval.
    """
    for name, counts in report["instances"].items():
        if counts["scored"] < report["rows"]:
            yield from _instance_lines(name, counts, report)
    for key, family in report["families"].items():
        if "calls" in family:
            yield _calls_line(key, family)
    yield from (f"note: {note}" for note in report["notes"] if "torn or damaged" in note)
    yield from (f"{key} stopped: {why}" for key, why in report.get("stopped", {}).items())
    if form == "text" and report["columns"]:
        yield from result_text(report, form, percent=percent, width=width).split("\n")
    yield from answerability_lines(report.get("answerability", {}))
    has_mean = any(own["mean"] is not None for own in report["columns"].values())
    if has_mean and report["clusters"]["name"] == ROWS:
        yield "note: intervals treat rows as independent"
    if report["duplicate_ids"]:
        yield f"duplicate ids inside files: {report['duplicate_ids']:,}"
    yield f"scores: {out / 'scores'}"
    yield f"report: {out / 'report.html'}"


def no_score_line(report: Mapping[str, Any]) -> str | None:
    """Return why a run with rows has not one score; None where it has one, or no rows.

    Parameters
    ----------
    report : mapping
        Content of report.json.
    """
    n_rows = report["rows"] - report["not_sampled"]
    instances = report["instances"].values()
    if n_rows == 0 or any(counts["scored"] for counts in instances):
        return None
    reasons = Counter(report["quarantined_by_reason"])
    for counts in instances:
        reasons.update(counts["undefined_by_reason"])
    why = ", ".join(reason for reason, _ in reasons.most_common(_MAX_REASONS))
    return f"none of {n_rows:,} rows has a score: {why}"


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
            reasons = ", ".join(_counted(reason, n) for reason, n in by_reason.items())
            parts.append(f"{counts[kind]:,} {kind} ({reasons})")
    if counts["not_sampled"]:
        parts.append(f"{counts['not_sampled']:,} not sampled")
    yield f"{name}: {report['rows']:,} rows: {', '.join(parts)}"
    if any(reason.startswith("llm_") for reason in undefined):
        yield "  some calls failed (llm_...); --retry-quarantined repeats them"
    if NO_REFERENCES in undefined:
        yield (
            "  note: rows without references are undefined; where an empty list says that there is "
            "no answer, as in SQuAD 2.0: --unanswerable empty"
        )
    if CUT in undefined:
        yield (
            f"  replies were cut ({CUT}): give them more tokens, --set {name}.max_tokens=N, or "
            "where they have over 64 kB ask for shorter ones"
        )


def _counted(reason: str, n: int) -> str:
    code = code_of_reason(reason)
    return f"{reason} {n:,} [{code}]" if code else f"{reason} {n:,}"


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
