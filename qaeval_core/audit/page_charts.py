"""Charts of an audit's page: distributions, histories, slices; what does not vary is a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

import numpy as np

from qaeval_core.audit.compare import Row
from qaeval_core.audit.drift import moments_of
from qaeval_core.audit.unusual_runs import MIN_RUNS, Unusual
from qaeval_core.audit.view import AuditView, effect
from qaeval_core.pages import charts as svg
from qaeval_core.pages.axes import Axis
from qaeval_core.pages.html import Passage, Table, block_html, details, figure, left_out, shown
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.histogram import counted_bars

_OPEN_CHARTS = 6


def distributions(own: AuditView) -> Iterator[str]:
    """Yield the bars of both runs, a chart for each column."""
    charts = [
        figure(name, _distribution(name, profiles))
        for name, profiles in islice(own.comparable.items(), own.room.n_charts)
    ]
    yield from _grid(charts, "distributions")
    yield left_out(len(own.comparable) - own.room.n_charts, "distributions")


def _grid(charts: Sequence[str], what: str) -> Iterator[str]:
    """Yield charts, some of them folded: on a phone each is a screen high."""
    first, more = charts[:_OPEN_CHARTS], charts[_OPEN_CHARTS:]
    yield f'<div class="charts">{"".join(first)}</div>'
    if more:
        yield details(f"{len(more):,} {what} more", f'<div class="charts">{"".join(more)}</div>')


def _distribution(name: str, profiles: Sequence[Profile]) -> str:
    labels = ("reference", "this run")[-len(profiles) :]
    constants = [_constant(profile) for profile in profiles]
    if None not in constants:
        return block_html(Passage(_of_one_value(constants), tone="plain"))
    bars = counted_bars(profiles)
    known = list(zip(labels, bars.counted, strict=True))
    series = {label: each.shares for label, each in known if each.n_defined}
    remark = "; ".join(f"{label}: {each.remark}" for label, each in known)
    title = f"Distribution of {name}, as shares of the defined scores"
    chart = svg.histogram(bars.edges, series, title=title, is_share=True) if series else ""
    return chart + block_html(Passage(remark, tone="soft"))


def _of_one_value(values: Sequence[float | None]) -> str:
    if len(set(values)) == 1:
        return f"All values are {shown(values[0])}{', in both runs' if len(values) > 1 else ''}."
    return f"All values were {shown(values[0])} in the reference, and are {shown(values[1])} now."


def _constant(profile: Profile) -> float | None:
    """Return the value that all rows have; None where they vary, or none has one."""
    counts = profile.counts[0].sum(axis=0, dtype=np.int64)[:-1]
    mean, spread = moments_of(profile, 0)
    is_one = np.count_nonzero(counts) == 1 and spread == 0
    return mean if is_one and profile.sums[0, 0].sum() == counts.sum() else None


def history(own: AuditView) -> Iterator[str]:
    """Yield the means of runs, a chart for each column."""
    looked_at, called = own.looked_at, own.runs_by_time
    charts = []
    for name in own.names:
        points = own.means(name)
        if len(points) < 2:
            continue
        known = looked_at.get((name, "mean"))
        if len({y for _, y in points}) == 1:
            said = f"The mean is {shown(points[0][1])} in all {len(points)} runs."
            charts.append(figure(name, block_html(Passage(said, tone="plain"))))
            continue
        chart = svg.curves(
            {"mean of a run": points},
            title=f"Means of {name}, run by run",
            bounds=[(x, known.low, known.high) for x, _ in points[-2:]] if known else [],
            mark=(points[-1][0], "this run"),
            x_axis=Axis(
                shown=_days,
                ticks=[time for time, _ in points],
                titles=lambda times: [called.get(time, "") for time in times],
            ),
        )
        charts.append(figure(name, chart + _expected(known, n_earlier=len(points) - 1)))
    yield from _grid(charts[: own.room.n_charts], "histories")
    yield left_out(len(charts) - own.room.n_charts, "histories")


def _expected(known: Unusual | None, *, n_earlier: int) -> str:
    if known is None:
        said = f"{n_earlier} earlier runs; what is usual is known from {MIN_RUNS} on."
        return block_html(Passage(said, tone="soft"))
    legend = svg.legend([("band", "where this run was expected")])
    return legend + block_html(Passage(known.text, tone="bad" if known.is_alert else "soft"))


def _days(times: Sequence[float]) -> list[str]:
    return [datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d") for time in times]


def slices(own: AuditView) -> Iterator[str]:
    """Yield shifts of means by slice, a chart for each column, and all tests of slices."""
    tests = [row for row in own.outcome.result.rows if row.slice]
    alerted = {(alert.column, alert.slice) for alert in own.outcome.result.alerts}
    charts, left = [], own.room.n_dots
    for name in own.comparable:
        rows = [row for row in tests if row.column == name and row.statistic == "mean"]
        known = [row for row in rows if row.effect is not None]
        left -= len(known)
        if known and left >= 0:
            charts.append(figure(name, _shifts(name, known, alerted)))
    if charts:
        said = (
            "Shifts of means by slice, in standard deviations of the reference. The dashed line is "
            "no shift, and what is shaded is tolerated."
        )
        yield block_html(Passage(said, tone="soft"))
        yield svg.legend([("a", "no alert"), ("b", "alert")])
        yield from _grid(charts, "columns")
    if left < 0:
        said = "Some charts of slices are left out: the page would be too large."
        yield block_html(Passage(said, tone="soft"))
    profile = own.outcome.profile
    if profile is not None and any(len(each) for each in profile.slices.values.values()):
        yield details("All tests by slice", _tests(tests, own.room.n_tests))


def _shifts(name: str, rows: Sequence[Row], alerted: set[tuple[str, str]]) -> str:
    dots = [
        svg.Dot(row.slice, row.effect, row.low, row.high, is_bad=(name, row.slice) in alerted)
        for row in rows
    ]
    tolerance = rows[0].tolerance
    return svg.interval_dots(
        dots,
        title=f"Shift of the mean of {name} by slice, in standard deviations",
        level=0.0,
        band=None if tolerance is None else (-tolerance, tolerance),
    )


def _tests(tests: Sequence[Row], n: int) -> str:
    rows = [
        [
            row.slice,
            row.column,
            row.statistic,
            shown(row.reference),
            shown(row.current),
            effect(row),
            "" if row.p_adjusted is None else f"{row.p_adjusted:.3f}",
            row.status.replace("_", " "),
        ]
        for row in tests[:n]
    ]
    head = ("slice", "column", "statistic", "reference", "this run", "effect", "p", "verdict")
    table = Table("Alerts first; p is adjusted for all tests", head, rows, numbers=range(3, 7))
    return block_html(table) + left_out(len(tests) - n, "tests (audit.parquet has all)")
