"""Sections: what a study found, as titled tables of words, for a terminal and for a page alike.

The strongest correlation of each table stands first. Every number stands beside the rows behind
it and those left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from qaeval_core.stats.correlation import COEFFICIENTS
from qaeval_core.study.correlations import MIN_SYSTEMS
from qaeval_core.study.records import ALL_ROWS, DRAWS, SEGMENT, SYSTEM, Statistic, Study

_REASONS = {
    "too_few": "too few",
    "constant_metric": "constant",
    "constant_human": "constant rating",
    "one_label": "one label alone",
    "no_pairs": "no pairs",
}
_POINTS = {SEGMENT: "rows", SYSTEM: "systems", DRAWS: "systems in draws"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One table of a study: of one kind, level, human column and subset.

    Attributes
    ----------
    rows : list of list of str
        Cells, as many as in ``head``; the first ``n_left`` columns are words, the others numbers.
    groups : list of list of Statistic
        What each row shows.
    remarks : list of str
        To stand below the table.
    """

    title: str
    head: list[str]
    rows: list[list[str]]
    groups: list[list[Statistic]]
    n_left: int = 1
    remarks: list[str] = field(default_factory=list)

    @property
    def first(self) -> Statistic:
        """A statistic of the table: all have its level, human column and subset."""
        return self.groups[0][0]


def sections(study: Study, table: str) -> Iterator[Shown]:
    """Yield the tables of one kind, a key of ``TABLES``, in the order of the study."""
    places = itertools.groupby(study.of(table), lambda one: (one.level, one.human, one.subset))
    for _, group in places:
        shown = _SHOWN[table](list(group))
        if shown.first.level == SYSTEM:
            shown.remarks.append(_systems_remark(shown, has_drawn=study.request.draw_systems))
        yield shown


def _systems_remark(shown: Shown, *, has_drawn: bool) -> str:
    n_systems = min(one.n for group in shown.groups for one in group)
    if n_systems < MIN_SYSTEMS:
        return f"no interval: fewer than {MIN_SYSTEMS} systems"
    if has_drawn:
        return "intervals are for systems like these: systems are drawn, too"
    return "intervals are for these systems only; --draw-systems draws systems, too"


def number(value: float, low: float, high: float, *, reason: str | None) -> str:
    """Return a value with its interval, or why it is undefined.

    Examples
    --------
    >>> number(0.5, 0.4, 0.6, reason=None)
    ' 0.500 [ 0.400,  0.600]'
    >>> number(math.nan, math.nan, math.nan, reason="constant_metric")
    'undefined (constant)'
    """
    if math.isnan(value):
        return f"undefined ({reason_shown(reason)})"
    if math.isnan(low):
        return f"{value:6.3f}"
    return f"{value:6.3f} [{low:6.3f}, {high:6.3f}]"


def _number(one: Statistic) -> str:
    return number(one.value, one.low, one.high, reason=one.reason)


def reason_shown(reason: str | None) -> str:
    """Return in words why a statistic is undefined."""
    return _REASONS.get(reason or "", str(reason))


def _correlations(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = f"{first.level} level, {first.human}, {rows_shown(first)}"
    if first.n_undefined_human:
        title += f"; {first.n_undefined_human:,} rows without a rating left out"
    by_metric = [list(own) for _, own in itertools.groupby(found, lambda one: one.metric)]
    groups = sorted(by_metric, key=lambda own: -own[0].strength)
    rows = [
        [
            own[0].metric + ("" if own[0].higher_is_better else " (lower is better)"),
            f"{own[0].n:,}",
            f"{own[0].n_undefined:,}",
            *(_number(one) for one in own),
        ]
        for own in groups
    ]
    head = ["metric", f"n {_POINTS[first.level]}", "undefined", *COEFFICIENTS]
    return Shown(title=title, head=head, rows=rows, groups=groups, remarks=_shaky(found))


def _shaky(found: Sequence[Statistic]) -> list[str]:
    if found[0].level == DRAWS:
        return ["no interval: draws share rows"]
    counts = {
        one.metric: f"{one.n_undefined_resamples:,} of {one.n_resamples:,}"
        for one in found
        if one.n_undefined_resamples and not math.isnan(one.value)
    }
    return [f"resamples undefined: {name} {count}" for name, count in counts.items()]


def _comparisons(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = (
        f"paired bootstrap, {first.level} level, {first.human}, {rows_shown(first)}: "
        "difference of correlations A - B, p two-sided, in brackets corrected for all of this table"
    )
    pairs = itertools.groupby(found, lambda one: (one.metric, one.metric_b))
    groups = [list(own) for _, own in pairs]
    rows = []
    for group in groups:
        p_values = [
            "" if math.isnan(one.p_value) else f" p {one.p_value:.3f} ({one.p_corrected:.3f})"
            for one in group
        ]
        cells = [_number(one) + shown for one, shown in zip(group, p_values, strict=True)]
        rows.append([group[0].metric, group[0].metric_b, f"{group[0].n:,}", *cells])
    head = ["A", "B", "n", *COEFFICIENTS]
    return Shown(title=title, head=head, rows=rows, groups=groups, n_left=2)


def _areas(found: Sequence[Statistic]) -> Shown:
    title = f"AUC, positive: {found[0].human}, {rows_shown(found[0])}"
    if found[0].n_undefined_human:
        title += f"; {found[0].n_undefined_human:,} rows without a label left out"
    ordered = sorted(found, key=lambda one: -one.strength)
    rows = [
        [
            one.metric,
            f"{one.n_positive:,}",
            f"{one.n_negative:,}",
            f"{one.n_undefined:,}",
            _number(one),
        ]
        for one in ordered
    ]
    head = ["metric", "positive", "negative", "undefined", "AUC"]
    return Shown(title=title, head=head, rows=rows, groups=[[one] for one in ordered])


def _win_lose(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = (
        f"win-lose, {first.human}, {rows_shown(first)}: {first.n:,} pairs with a gap "
        f"above {first.min_gap:g}; share ranked as people do, a tie is no agreement"
    )
    ordered = sorted(found, key=lambda one: -one.strength)
    rows = [
        [
            one.metric,
            f"{one.n_agree:,}",
            f"{one.n_tied:,}",
            f"{one.n_disagree:,}",
            f"{one.n_undefined:,}",
            _number(one),
        ]
        for one in ordered
    ]
    head = ["metric", "agree", "tied", "disagree", "undefined", "share"]
    return Shown(title=title, head=head, rows=rows, groups=[[one] for one in ordered])


def _selection(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = (
        f"forward selection, {first.human}, {rows_shown(first)}: {first.n:,} rows, "
        f"{first.n_undefined:,} with an undefined value left out; held-out errors"
    )
    groups = [list(choices) for _, choices in itertools.groupby(found, lambda one: one.step)]
    rows = []
    for own in groups:
        chosen = ", ".join(f"{one.metric} {one.n_chosen}/{one.n_repeats}" for one in own)
        rows.append([f"{own[0].step}", chosen, f"{own[0].value:.4f}", f"{own[0].r2:.4f}"])
    head = ["step", "chosen", "MSE", "R2"]
    return Shown(title=title, head=head, rows=rows, groups=groups, n_left=2)


_SHOWN: dict[str, Callable[[Sequence[Statistic]], Shown]] = {
    "correlations": _correlations,
    "comparisons": _comparisons,
    "auc": _areas,
    "win_lose": _win_lose,
    "forward_selection": _selection,
}


def rows_shown(one: Statistic) -> str:
    """Return which rows a statistic is of."""
    return "all rows" if one.subset == ALL_ROWS else one.subset
