"""Sections: what a study found, as titled tables of words, for a terminal and for a page alike.

The metric that agrees best with people stands first in each table, what is undefined last. Every
number stands beside the rows behind it and those left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from qaeval_core.pages import printed
from qaeval_core.pages.printed import Estimate
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
POINTS = {SEGMENT: "rows", SYSTEM: "systems", DRAWS: "systems in draws"}
StudyCell: TypeAlias = str | int | float | Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One table of a study: of one kind, level, human column and subset.

    Attributes
    ----------
    cells : list of list of str, int, float or Statistic
        As many as in ``head``; the first ``n_left`` columns are words, the others numbers.
    groups : list of list of Statistic
        What each row shows.
    remarks : list of str
        To stand below the table.
    """

    title: str
    head: list[str]
    cells: list[list[StudyCell]]
    groups: list[list[Statistic]]
    n_left: int = 1
    remarks: list[str] = field(default_factory=list)

    @property
    def first(self) -> Statistic:
        """A statistic of the table: all have its level, human column and subset."""
        return self.groups[0][0]

    @property
    def rows(self) -> list[list[str]]:
        """The cells as words."""
        return self.words()

    def words(self, *, percent: bool = False, width: int | None = None) -> list[list[str]]:
        """Return the cells as words, in percent or with so many decimals."""
        return [[_words(own, percent, width) for own in row] for row in self.cells]


def _words(cell: StudyCell, percent: bool, width: int | None) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:.{4 if width is None else width}f}"
    words = number(cell.value, cell.low, cell.high, reason=cell.reason)
    if (percent or width is not None) and not math.isnan(cell.value):
        words = printed.shown(estimate(cell), percent=percent, width=width)
    return words if math.isnan(cell.p_value) else f"{words} p {p_shown(cell)}"


def p_shown(one: Statistic) -> str:
    """Return the p-value of a comparison, in brackets the corrected one; "" where undefined."""
    return "" if math.isnan(one.p_value) else f"{one.p_value:.3f} ({one.p_corrected:.3f})"


def estimate(one: Statistic) -> Estimate:
    """Return a statistic as a number with its interval, None where undefined."""
    value, low, high = (None if math.isnan(own) else own for own in (one.value, one.low, one.high))
    return Estimate(value, low, high)


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


def reason_shown(reason: str | None) -> str:
    """Return in words why a statistic is undefined."""
    return _REASONS.get(reason or "", str(reason))


def _correlations(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = f"{first.level} level, {first.human}, {rows_shown(first)}"
    if first.n_undefined_human:
        title += f"; {first.n_undefined_human:,} rows without a rating left out"
    by_metric = [list(own) for _, own in itertools.groupby(found, lambda one: one.metric)]
    groups = sorted(by_metric, key=lambda own: -own[0].agreement)
    cells: list[list[StudyCell]] = [
        [
            own[0].metric + ("" if own[0].higher_is_better else " (lower is better)"),
            own[0].n,
            own[0].n_undefined,
            *own,
        ]
        for own in groups
    ]
    head = ["metric", f"n {POINTS[first.level]}", "undefined", *COEFFICIENTS]
    return Shown(title=title, head=head, cells=cells, groups=groups, remarks=_shaky(found))


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
    cells: list[list[StudyCell]] = [
        [own[0].metric, own[0].metric_b, own[0].n, *own] for own in groups
    ]
    head = ["A", "B", "n", *COEFFICIENTS]
    return Shown(title=title, head=head, cells=cells, groups=groups, n_left=2)


def _areas(found: Sequence[Statistic]) -> Shown:
    title = f"AUC, positive: {found[0].human}, {rows_shown(found[0])}"
    if found[0].n_undefined_human:
        title += f"; {found[0].n_undefined_human:,} rows without a label left out"
    ordered = sorted(found, key=lambda one: -one.agreement)
    cells: list[list[StudyCell]] = [
        [one.metric, one.n_positive, one.n_negative, one.n_undefined, one] for one in ordered
    ]
    head = ["metric", "positive", "negative", "undefined", "AUC"]
    return Shown(title=title, head=head, cells=cells, groups=[[one] for one in ordered])


def _win_lose(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = (
        f"win-lose, {first.human}, {rows_shown(first)}: {first.n:,} pairs with a gap "
        f"above {first.min_gap:g}; share ranked as people do, a tie is no agreement"
    )
    ordered = sorted(found, key=lambda one: -one.agreement)
    cells: list[list[StudyCell]] = [
        [one.metric, one.n_agree, one.n_tied, one.n_disagree, one.n_undefined, one]
        for one in ordered
    ]
    head = ["metric", "agree", "tied", "disagree", "undefined", "share"]
    return Shown(title=title, head=head, cells=cells, groups=[[one] for one in ordered])


def _selection(found: Sequence[Statistic]) -> Shown:
    first = found[0]
    title = (
        f"forward selection, {first.human}, {rows_shown(first)}: {first.n:,} rows, "
        f"{first.n_undefined:,} with an undefined value left out; held-out errors"
    )
    groups = [list(choices) for _, choices in itertools.groupby(found, lambda one: one.step)]
    cells: list[list[StudyCell]] = []
    for own in groups:
        chosen = ", ".join(f"{one.metric} {one.n_chosen}/{one.n_repeats}" for one in own)
        cells.append([f"{own[0].step}", chosen, own[0].value, own[0].r2])
    head = ["step", "chosen", "MSE", "R2"]
    return Shown(title=title, head=head, cells=cells, groups=groups, n_left=2)


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
