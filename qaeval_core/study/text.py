"""Study text: what a study found, as lines for a terminal.

The strongest correlation of each table stands first. Every number stands beside the rows behind
it and those left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from qaeval_core.stats.correlation import COEFFICIENTS
from qaeval_core.study.records import (
    ALL_ROWS,
    DRAWS,
    SEGMENT,
    SYSTEM,
    AucRecord,
    ComparisonRecord,
    CorrelationRecord,
    Study,
    WinLoseRecord,
)

_REASONS = {
    "too_few": "too few",
    "constant_metric": "constant",
    "constant_human": "constant rating",
    "one_label": "one label alone",
    "no_pairs": "no pairs",
}
_POINTS = {SEGMENT: "rows", SYSTEM: "systems", DRAWS: "systems in draws"}


def study_lines(study: Study) -> list[str]:
    """Return everything found, as text."""
    lines = [f"{study.n_rows:,} rows, metrics: {', '.join(study.metrics)}"]
    lines += [f"note: {note}" for note in study.notes]
    by_place = itertools.groupby(study.correlations, lambda r: (r.level, r.human, r.subset))
    for _, correlations in by_place:
        lines += ["", *_correlation_lines(list(correlations))]
    for _, compared in itertools.groupby(study.comparisons, lambda r: (r.level, r.human, r.subset)):
        lines += ["", *_comparison_lines(list(compared))]
    for _, areas in itertools.groupby(study.auc, lambda r: r.subset):
        lines += ["", *_auc_lines(list(areas))]
    for _, won in itertools.groupby(study.win_lose, lambda r: (r.human, r.subset)):
        lines += ["", *_win_lose_lines(list(won))]
    return [*lines, *_selection_lines(study)]


def number(
    value: float | None, low: float | None, high: float | None, *, reason: str | None
) -> str:
    """Return a value with its interval, or why it is undefined.

    Examples
    --------
    >>> number(0.5, 0.4, 0.6, reason=None)
    ' 0.500 [ 0.400,  0.600]'
    >>> number(None, None, None, reason="constant_metric")
    'undefined (constant)'
    """
    if value is None:
        return f"undefined ({_REASONS.get(reason or '', reason)})"
    if low is None or high is None:
        return f"{value:6.3f}"
    return f"{value:6.3f} [{low:6.3f}, {high:6.3f}]"


def _correlation_lines(records: Sequence[CorrelationRecord]) -> list[str]:
    first = records[0]
    title = f"{first.level} level, {first.human}, {_rows(first.subset)}"
    if first.n_undefined_human:
        title += f"; {first.n_undefined_human:,} rows without a rating left out"
    by_metric = {
        name: list(own) for name, own in itertools.groupby(records, lambda record: record.metric)
    }
    ordered = sorted(by_metric.values(), key=lambda own: -abs(own[0].value or 0.0))
    rows = [
        [
            own[0].metric + ("" if own[0].higher_is_better else " (lower is better)"),
            f"{own[0].n:,}",
            f"{own[0].n_undefined_metric:,}",
            *(number(one.value, one.low, one.high, reason=one.reason) for one in own),
        ]
        for own in ordered
    ]
    head = ["metric", f"n {_POINTS[first.level]}", "undefined", *COEFFICIENTS]
    return [title, *table_lines(head, rows), *_shaky(records, first.level)]


def _shaky(records: Iterable[CorrelationRecord], level: str) -> list[str]:
    if level == DRAWS:
        return ["no interval: draws share rows"]
    counts = {
        record.metric: f"{record.n_undefined_resamples:,} of {record.n_resamples:,}"
        for record in records
        if record.n_undefined_resamples and record.value is not None
    }
    return [f"resamples undefined: {name} {count}" for name, count in counts.items()]


def _comparison_lines(records: Sequence[ComparisonRecord]) -> list[str]:
    first = records[0]
    title = (
        f"paired bootstrap, {first.level} level, {first.human}, {_rows(first.subset)}: "
        "difference of correlations A - B, p two-sided, not corrected for many comparisons"
    )
    rows = []
    for _, group in itertools.groupby(records, lambda record: (record.metric_a, record.metric_b)):
        own = list(group)
        cells = [
            number(one.difference, one.low, one.high, reason=one.reason)
            + ("" if one.p_value is None else f" p {one.p_value:.3f}")
            for one in own
        ]
        rows.append([own[0].metric_a, own[0].metric_b, f"{own[0].n:,}", *cells])
    return [title, *table_lines(["A", "B", "n", *COEFFICIENTS], rows, n_left=2)]


def _auc_lines(records: Sequence[AucRecord]) -> list[str]:
    title = f"AUC, positive: {records[0].label}, {_rows(records[0].subset)}"
    if records[0].n_undefined_label:
        title += f"; {records[0].n_undefined_label:,} rows without a label left out"
    rows = [
        [
            one.metric,
            f"{one.n_positive:,}",
            f"{one.n_negative:,}",
            f"{one.n_undefined_metric:,}",
            number(one.value, one.low, one.high, reason=one.reason),
        ]
        for one in sorted(records, key=lambda record: -abs(record.value or 0.0))
    ]
    return [title, *table_lines(["metric", "positive", "negative", "undefined", "AUC"], rows)]


def _win_lose_lines(records: Sequence[WinLoseRecord]) -> list[str]:
    first = records[0]
    title = (
        f"win-lose, {first.human}, {_rows(first.subset)}: {first.n_pairs:,} pairs with a gap "
        f"above {first.min_gap:g}; share ranked as people do, a tie is no agreement"
    )
    rows = [
        [
            one.metric,
            f"{one.n_agree:,}",
            f"{one.n_tied:,}",
            f"{one.n_disagree:,}",
            f"{one.n_undefined:,}",
            number(one.share, one.low, one.high, reason=one.reason),
        ]
        for one in sorted(records, key=lambda record: -(record.share or 0.0))
    ]
    head = ["metric", "agree", "tied", "disagree", "undefined", "share"]
    return [title, *table_lines(head, rows)]


def _selection_lines(study: Study) -> list[str]:
    lines: list[str] = []
    places = itertools.groupby(study.forward_selection, lambda r: (r.human, r.subset))
    for (human, subset), group in places:
        records = list(group)
        rows = []
        for step, choices in itertools.groupby(records, lambda record: record.step):
            own = list(choices)
            chosen = ", ".join(f"{one.metric} {one.n_chosen}/{one.n_repeats}" for one in own)
            rows.append([f"{step}", chosen, f"{own[0].mse:.4f}", f"{own[0].r2:.4f}"])
        title = (
            f"forward selection, {human}, {_rows(subset)}: {records[0].n:,} rows, "
            f"{records[0].n_undefined:,} with an undefined value left out; held-out errors"
        )
        lines += ["", title, *table_lines(["step", "chosen", "MSE", "R2"], rows, n_left=2)]
    return lines


def _rows(subset: str) -> str:
    return "all rows" if subset == ALL_ROWS else subset


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1
) -> list[str]:
    """Return a table whose first columns are words and the others numbers.

    Examples
    --------
    >>> table_lines(["metric", "n"], [["f1", "942"]])
    ['  metric    n', '  f1      942']
    """
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(("  " + "  ".join(words[:n_left] + numbers[n_left:])).rstrip())
    return lines
