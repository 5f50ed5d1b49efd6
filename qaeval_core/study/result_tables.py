"""Result tables: what a study found, as tables that people paste: Markdown, LaTeX, JSON, CSV.

Of correlations there is one row for each metric. The coefficients with each human column stand
side by side, as papers have them. LaTeX has values alone there, and a mark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qaeval_core.pages.printed import Estimate, ResultCell, ResultTable
from qaeval_core.stats.correlation import COEFFICIENTS
from qaeval_core.study.records import TABLES, Statistic, Study
from qaeval_core.study.sections import (
    POINTS,
    Shown,
    estimate,
    p_shown,
    reason_shown,
    rows_shown,
    sections,
)

MARK = "*"
_MAIN = "correlations"
_OTHERS = tuple(name for name in TABLES if name != _MAIN)
# Columns of records that `low` and `high` belong to.
_WITH_INTERVAL = ("value", "difference", "share")


def result_tables(study: Study, form: str) -> list[ResultTable]:
    """Return everything found, as tables for one of the formats.

    Parameters
    ----------
    form : str
        "markdown" and "latex": a table for each level and subset, and those of every other kind.
        "csv": one wide table of correlations, and a table of records of each other kind. "json":
        records.
    """
    if form == "json":
        return [_records(study, name) for name in TABLES if name == _MAIN or study.of(name)]
    if form == "csv":
        return [_wide_records(study), *(_records(study, own) for own in _OTHERS if study.of(own))]
    is_latex = form == "latex"
    main = [_wide(study.metrics, own, is_latex) for own in _by_place(study)]
    others = [_other(name, own, is_latex) for name in _OTHERS for own in sections(study, name)]
    return main + others


def _by_place(study: Study) -> list[list[Shown]]:
    """Return correlations with each human column, together for each subset and level."""
    found: dict[tuple[str, str], list[Shown]] = {}
    for own in sections(study, _MAIN):
        found.setdefault((own.first.subset, own.first.level), []).append(own)
    return list(found.values())


def _by_metric(shown: Shown) -> dict[str, list[Statistic]]:
    return {own[0].metric: own for own in shown.groups}


def _wide(metrics: Sequence[str], by_human: Sequence[Shown], is_latex: bool) -> ResultTable:
    first = by_human[0].first
    humans = [own.first.human for own in by_human]
    rows: list[list[ResultCell]] = []
    for metric in metrics:
        found = [one for own in by_human for one in _by_metric(own)[metric]]
        name = metric + ("" if found[0].higher_is_better else " (lower is better)")
        rows.append([name, *(_marked(one) if is_latex else estimate(one) for one in found)])
    remarks = _merged({own.first.human: [_counts(own), *_remarks(own)] for own in by_human})
    if any(isinstance(own, Estimate) and own.mark for row in rows for own in row):
        remarks.append(f"{MARK} the 95 % interval leaves out 0")
    return ResultTable(
        _MAIN,
        ["metric", *COEFFICIENTS * len(humans)],
        rows,
        title=f"{first.level} level, {', '.join(humans)}, {rows_shown(first)}",
        remarks=remarks,
        over=["", *(human for human in humans for _ in COEFFICIENTS)],
    )


def _alone(one: Statistic) -> Estimate:
    """Return a statistic without its interval."""
    return replace(estimate(one), low=None, high=None)


def _marked(one: Statistic) -> Estimate:
    leaves_out_0 = one.low > 0 or one.high < 0  # Neither where there is no interval: NaN.
    return replace(_alone(one), mark=MARK if leaves_out_0 else "")


def _merged(remarks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return remarks on human columns: once what is said of all, then each column's own."""
    first, *others = remarks.values()
    shared = [own for own in first if all(own in other for other in others)]
    named = [
        f"{human}: {own}" for human, said in remarks.items() for own in said if own not in shared
    ]
    return shared + named


def _counts(shown: Shown) -> str:
    """Return how many points are behind the coefficients, and what was left out."""
    groups = [own[0] for own in shown.groups]
    least, most = min(one.n for one in groups), max(one.n for one in groups)
    n = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    text = f"{n} {POINTS[shown.first.level]}"
    if shown.first.n_undefined_human:
        text += f"; {shown.first.n_undefined_human:,} rows without a rating left out"
    without = [f"{one.metric} {one.n_undefined:,}" for one in groups if one.n_undefined]
    return text + (f"; rows without a score: {', '.join(without)}" if without else "")


def _remarks(shown: Shown) -> list[str]:
    """Return why cells are empty, and the remarks of the table."""
    undefined = {
        f"{one.metric} - {one.metric_b}" if one.metric_b else one.metric: reason_shown(one.reason)
        for group in shown.groups
        for one in group
        if math.isnan(one.value)
    }
    why = [f"{name} ({reason})" for name, reason in undefined.items()]
    return [*([f"undefined: {', '.join(why)}"] if why else []), *shown.remarks]


def _other(name: str, shown: Shown, is_latex: bool) -> ResultTable:
    if name != "comparisons":
        rows: list[list[ResultCell]] = [
            [estimate(own) if isinstance(own, Statistic) else own for own in row]
            for row in shown.cells
        ]
        return ResultTable(name, shown.head, rows, title=shown.title, remarks=_remarks(shown))
    left = shown.head[: -len(COEFFICIENTS)]
    rows = []
    for cells, group in zip(shown.cells, shown.groups, strict=True):
        row: list[ResultCell] = [own for own in cells if not isinstance(own, Statistic)]
        for one in group:
            row += [_alone(one) if is_latex else estimate(one), p_shown(one)]
        rows.append(row)
    return ResultTable(
        name,
        [*left, *("A - B", "p") * len(COEFFICIENTS)],
        rows,
        title=shown.title,
        remarks=_remarks(shown),
        over=[*("" for _ in left), *(own for own in COEFFICIENTS for _ in range(2))],
    )


def _wide_records(study: Study) -> ResultTable:
    """Return the correlations of all levels and subsets as one table, with counts and reasons."""
    humans = study.request.human
    counted = ["n", "n_undefined_metric", "n_undefined_human"]
    own_head = [*counted, *COEFFICIENTS, "reason"]
    rows: list[list[ResultCell]] = []
    for by_human in _by_place(study):
        groups = {own.first.human: _by_metric(own) for own in by_human}
        for metric in study.metrics:
            one = _by_metric(by_human[0])[metric][0]
            row: list[ResultCell] = [one.level, one.subset, metric, one.higher_is_better]
            for human in humans:
                if human not in groups:  # Too few questions with a rating for draws, for example.
                    row += [None] * len(own_head)
                    continue
                found = groups[human][metric]
                row += [found[0].n, found[0].n_undefined, found[0].n_undefined_human]
                row += [*map(estimate, found), found[0].reason]
            rows.append(row)
    head = ["level", "subset", "metric", "higher_is_better"]
    over = [*("" for _ in head), *(human for human in humans for _ in own_head)]
    return ResultTable(_MAIN, [*head, *own_head * len(humans)], rows, over=over)


def _records(study: Study, name: str) -> ResultTable:
    """Return one table as it is written to Parquet; numbers with an interval are estimates."""
    frame = study.frame(name)
    head = [own for own in frame.columns if own not in ("low", "high")]
    rows = [[_record_cell(own, row) for own in head] for row in frame.to_dicts()]
    return ResultTable(name, head, rows)


def _record_cell(column: str, row: Mapping[str, Any]) -> ResultCell:
    value: ResultCell = row[column]
    if column in _WITH_INTERVAL:
        return Estimate(row[column], row["low"], row["high"])
    return Estimate(row[column]) if column in ("value_a", "value_b") else value
