"""Page: ``REPORT/audit.html``: the verdict first, then what it rests on; one file, no script.

Made of profiles and tests; of rows only the texts of a few examples are read, where the input is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from qaeval_core.audit.compare import Row
from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.plugin_statistics import own_statistics
from qaeval_core.audit.profile_folder import time_of
from qaeval_core.audit.run import AuditOutcome, column_summary, run_summary, signatures
from qaeval_core.audit.settings import TOLERANCES
from qaeval_core.audit.unusual_runs import MIN_RUNS, Unusual, unusual
from qaeval_core.pages import charts as svg
from qaeval_core.pages.axes import Axis
from qaeval_core.pages.example_rows import MAX_BYTES, RunExamples, example_lists
from qaeval_core.pages.html import (
    Fields,
    Markup,
    Passage,
    Section,
    Table,
    Tone,
    block_html,
    details,
    escaped,
    figure,
    left_out,
    page,
    shown,
    within,
)
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.histogram import counted_bars
from qaeval_core.profile.run_profile import N_EXACT, RunProfile

PAGE = "audit.html"
_REMARKS = 20
_OPEN_ALERTS = 12
_MAX_RUNS = 60  # of the lines of a history


@dataclass(frozen=True, slots=True)
class _AuditRoom:
    """How much of each kind a page may show, so that it stays small."""

    n_alerts: int
    n_columns: int
    n_charts: int
    n_dots: int
    n_tests: int
    n_examples: int
    n_chars: int  # of a signature


_ROOMS = (
    _AuditRoom(100, 400, 12, 300, 200, 20, 2000),
    _AuditRoom(50, 200, 8, 150, 100, 5, 400),
    _AuditRoom(30, 100, 4, 60, 50, 2, 200),
    _AuditRoom(20, 50, 2, 0, 20, 0, 100),
)


def audit_page(outcome: AuditOutcome, examples: RunExamples | None = None) -> str:
    """Return the page, of less than 300 kB: what has no room is left out, and that is said.

    Parameters
    ----------
    outcome : AuditOutcome
    examples : RunExamples, optional
        Rows of lowest and highest score; default none are shown.
    """
    for room in _ROOMS:
        own = _Page(outcome, room)
        text = page("qaeval audit", [_head(own)], list(_sections(own, examples)))
        if len(text.encode()) < MAX_BYTES:
            break
    return text


@dataclass(frozen=True, slots=True)
class _Page:
    outcome: AuditOutcome
    room: _AuditRoom

    @property
    def runs(self) -> list[RunProfile]:
        """The reference and the audited run, as far as there are."""
        both = (self.outcome.reference_profile, self.outcome.profile)
        return [own for own in both if own is not None]

    @property
    def names(self) -> list[str]:
        """Columns, those with alerts first."""
        alerted = {alert.column for alert in self.outcome.result.alerts}
        names = dict.fromkeys(name for run in reversed(self.runs) for name in run.columns)
        return sorted(names, key=lambda name: name not in alerted)

    @property
    def comparable(self) -> dict[str, list[Profile]]:
        """Columns that both runs count in the same cells."""
        found = {}
        for name in self.names:
            own = [run.columns[name] for run in self.runs if name in run.columns]
            if len({profile.cells for profile in own}) == 1:
                found[name] = own
        return found

    @property
    def looked_at(self) -> dict[tuple[str, str], Unusual]:
        """Means and undefined shares beside those of earlier runs."""
        own = self.outcome
        if own.profile is None:
            return {}
        means = [means for _, means in own.earlier]
        found = unusual(means, own.profile, own.request.settings)
        return {(one.column, one.statistic): one for one in found}

    def test(self, column: str, label: str, statistic: str) -> Row | None:
        """Return one line of the tests."""
        for row in self.outcome.result.rows:
            if (row.column, row.slice, row.statistic) == (column, label, statistic):
                return row
        return None


def _sections(own: _Page, examples: RunExamples | None) -> Iterator[Section]:
    if own.names:
        yield Section("Scores", [_columns(own), *_bounds(own)])
        yield Section("Distributions", list(_distributions(own)))
    if rates := _rates(own):
        yield Section("Rows", [rates])
    if own.outcome.share_matched is not None:
        yield Section("Rows that both runs have", list(_paired(own)))
    if own.outcome.earlier:
        yield Section("Earlier runs", list(_history(own)))
    if any(row.slice for row in own.outcome.result.rows):
        yield Section("Slices", list(_slices(own)))
    if examples is not None:
        yield Section("Lowest and highest of this run", list(_examples(own, examples)))
    yield Section("How it was made", list(_origin(own)))


def _head(own: _Page) -> str:
    outcome = own.outcome
    n_alerts = len(outcome.result.alerts)
    titles = {
        "ok": "No alert",
        "alert": f"{n_alerts:,} alert{'s' if n_alerts > 1 else ''}",
        "too_few": "Too few clusters for a verdict",
        "first_run": "First run: there is nothing to compare it with",
        "incomplete": "Incomplete",
    }
    tone: Tone = {"ok": "good", "first_run": "plain"}.get(outcome.status, "bad")  # type: ignore[assignment]
    lines = [f'<h1 class="{tone}">{escaped(titles[outcome.status])}</h1>']
    if outcome.why:
        lines.append(block_html(Passage(outcome.why, tone="bad")))
    for what, name, profile in (
        ("This run", outcome.run, outcome.profile),
        ("Reference", outcome.reference, outcome.reference_profile),
    ):
        if name:
            lines.append(block_html(Passage(f"{what}: {_run(name, profile)}", tone="plain")))
    if outcome.result.alerts:
        lines.append(_alerts(own))
    if outcome.result.is_too_few:
        n = outcome.request.settings.min_clusters
        said = f"A run has fewer than {n} clusters: its scores have no verdict."
        lines.append(block_html(Passage(said, tone="bad")))
    notes = [*outcome.notes, *outcome.result.notes]
    lines += [block_html(Passage(within(note, 1000), tone="soft")) for note in notes[:_REMARKS]]
    lines.append(left_out(len(notes) - _REMARKS, "remarks"))
    return "\n".join(filter(None, lines))


def _run(name: str, profile: RunProfile | None) -> str:
    if profile is None:
        return name
    known = run_summary(name, profile)
    n = known["clusters"]
    clusters = f"{n:,}" if n < N_EXACT else f"about {n:,}"
    return f"{name}, {known['rows']:,} rows, {clusters} clusters by {known['cluster']}"


def _alerts(own: _Page) -> str:
    """Return what must be looked at, a line for each column and slice; the first of them open."""
    items = [
        f'<li class="bad" dir="auto">{escaped(within(line, 1000))}</li>'
        for line in own.outcome.result.alert_lines()
    ]
    first, more = items[:_OPEN_ALERTS], items[_OPEN_ALERTS : own.room.n_alerts]
    lists = [f"<ul>{''.join(first)}</ul>"]
    if more:
        lists.append(details(f"{len(more):,} lines more", f"<ul>{''.join(more)}</ul>"))
    n_left = len(items) - own.room.n_alerts
    return "\n".join([*lists, left_out(n_left, "lines of alerts (audit.json has all)")])


def _columns(own: _Page) -> str:
    rows = []
    looked_at = own.looked_at
    for name in own.names[: own.room.n_columns]:
        mean, undefined = (own.test(name, "", each) for each in ("mean", "undefined"))
        summaries = [column_summary(run.columns[name]) for run in own.runs if name in run.columns]
        now = summaries[-1]
        rows.append(
            [
                name,
                _verdict(own, name, looked_at),
                Markup(_sparkline(own, name)),
                shown(now["mean"]) if mean is None else shown(mean.current),
                "" if mean is None else shown(mean.reference),
                "" if mean is None else _effect(mean),
                "" if mean is None else shown(mean.tolerance),
                _shares(undefined) if undefined is not None else _undefined(now),
            ]
        )
    # The verdict before the numbers: on a phone it is what can be seen without a swipe.
    head = ("column", "verdict", "history", "mean", "reference", "shift", "tolerance", "undefined")
    caption = "Means of defined scores; shifts in standard deviations of the reference, and 95 %"
    table = block_html(Table(caption, head, rows, numbers=range(3, 8)))
    return table + left_out(len(own.names) - own.room.n_columns, "columns")


def _sparkline(own: _Page, name: str) -> str:
    values = [y for _, y in _means(own, name)]
    return svg.sparkline(values, title=f"Means of {name}, run by run") if len(values) > 1 else ""


def _means(own: _Page, name: str) -> list[tuple[float, float]]:
    """Return the means of one way of scoring, by the time of their runs; this run's is the last."""
    outcome = own.outcome
    if outcome.profile is None or name not in outcome.profile.columns:
        return []
    current = outcome.profile.columns[name]
    points = [
        (time_of(run).timestamp(), means[name].mean)
        for run, means in outcome.earlier
        if name in means and means[name].signature == current.signature
    ]
    mean = column_summary(current)["mean"]
    if mean is not None:
        points.append((time_of(outcome.run).timestamp(), mean))
    return [point for point in points if point[1] == point[1]][-_MAX_RUNS:]


def _effect(row: Row) -> str:
    if row.effect is None:
        return ""
    edges = "" if row.low is None or row.high is None else f" [{row.low:+.3f}, {row.high:+.3f}]"
    return f"{row.effect:+.3f}{edges}"


def _shares(row: Row) -> str:
    parts = [f"{value:.2%}" if value is not None else "?" for value in (row.reference, row.current)]
    return " → ".join(parts)


def _undefined(summary: dict[str, object]) -> str:
    n, undefined = int(str(summary["n"])), int(str(summary["undefined"]))
    return f"{undefined / (n + undefined):.2%}" if n + undefined else ""


def _verdict(own: _Page, name: str, looked_at: dict[tuple[str, str], Unusual]) -> str:
    """Return what was found of a column over all rows and, by number, in slices."""
    alerts = [alert for alert in own.outcome.result.alerts if alert.column == name]
    whole = list(dict.fromkeys(alert.kind for alert in alerts if not alert.slice))
    n_slices = len({alert.slice for alert in alerts if alert.slice})
    parts = f"{n_slices} slice{'s' if n_slices > 1 else ''}"
    found = [*whole, *([parts] if n_slices else [])]
    if found:
        return f"alert: {', '.join(found)}"
    tests = [row for row in own.outcome.result.rows if row.column == name and not row.slice]
    if not tests:
        return ""
    if any(row.status == "too_few" for row in tests):
        return "too few clusters"
    open_ones = [row.statistic for row in tests if row.status == "not_excluded"]
    if open_ones:
        return f"no alert, but not excluded: {', '.join(open_ones)}"
    n_runs = max((one.n_runs for key, one in looked_at.items() if key[0] == name), default=0)
    return f"no alert; as in {n_runs} earlier runs" if n_runs else "no alert"


def _bounds(own: _Page) -> Iterator[str]:
    """Yield counts, and what the mean would be if all undefined values were lowest or highest."""
    if own.outcome.profile is None:
        return
    rows = []
    for name, profile in islice(own.outcome.profile.columns.items(), own.room.n_columns):
        known = column_summary(profile)
        reasons = [f"{why}: {n:,}" for why, n in known["undefined_by_reason"].items()]
        bounds = "" if known["bounds"] is None else " to ".join(map(shown, known["bounds"]))
        counts = [shown(known["n"]), shown(known["undefined"]), shown(known["mean"])]
        rows.append([name, *counts, bounds, ", ".join(reasons)])
    head = ("column", "scored", "undefined", "mean", "lowest and highest it could be", "reasons")
    caption = "If all undefined values were the lowest or the highest the metric can give"
    table = Table(caption, head, rows, numbers=(1, 2, 3, 4))
    yield details("What undefined values could do to the means", block_html(table))


def _distributions(own: _Page) -> Iterator[str]:
    charts = []
    for name, profiles in islice(own.comparable.items(), own.room.n_charts):
        bars = counted_bars(profiles)
        labels = ("reference", "this run")[-len(profiles) :]
        series = {
            label: each.shares
            for label, each in zip(labels, bars.counted, strict=True)
            if each.n_defined
        }
        remarks = [
            block_html(Passage(f"{label}: {each.remark}", tone="soft"))
            for label, each in zip(labels, bars.counted, strict=True)
        ]
        title = f"Distribution of {name}, as shares of the defined scores"
        chart = svg.histogram(bars.edges, series, title=title, is_share=True) if series else ""
        charts.append(figure(name, chart + "".join(remarks)))
    yield f'<div class="charts">{"".join(charts)}</div>'
    yield left_out(len(own.comparable) - own.room.n_charts, "distributions")


def _rates(own: _Page) -> str:
    named = ("rows", "quarantined", "truncated", "kept")
    tests = [row for row in own.outcome.result.rows if row.statistic in named and not row.slice]
    rows = []
    for row in tests[: own.room.n_tests]:
        is_count = row.statistic == "rows"
        edges = [
            "" if value is None else f"{value:,.0f}" if is_count else f"{value:.2%}"
            for value in (row.reference, row.current)
        ]
        tolerance = "" if row.tolerance is None else f"{row.tolerance:.3g}"
        what = f"{row.statistic} of {row.column}" if row.column else row.statistic
        rows.append([what, *edges, _effect(row), tolerance, row.status.replace("_", " ")])
    if not rows:
        return ""
    head = ("share", "reference", "this run", "change", "tolerance", "verdict")
    return block_html(Table("Rows and shares of them", head, rows, numbers=range(1, 5)))


def _paired(own: _Page) -> Iterator[str]:
    columns, room = own.outcome.paired, own.room
    said = f"Both runs have {own.outcome.share_matched or 0.0:.1%} of the rows, by their ids"
    if not columns:
        yield block_html(Passage(f"{said}: no pairs were compared.", tone="soft"))
        return
    yield block_html(Passage(f"{said}.", tone="plain"))
    rows = [_pair(column) for column in columns[: room.n_columns]]
    head = ("column", "rows", "difference", "p", "rose", "fell", "appeared", "vanished", "differ")
    caption = "Value by value; differ: though the input and how they are made are the same"
    yield block_html(Table(caption, head, rows, numbers=range(1, len(head))))
    for column in columns[: room.n_charts]:
        for title, changes in (
            (f"Largest changes of {column.column}", column.largest),
            (f"Not reproduced: {column.column}", column.not_reproduced),
        ):
            values = [
                [change.id, shown(change.reference), shown(change.current)]
                for change in changes[: room.n_tests]
            ]
            table = Table(title, ("id", "reference", "this run"), values, numbers=(1, 2))
            yield details(title, block_html(table)) if values else ""


def _pair(column: PairedColumn) -> list[str]:
    edges = f" [{column.low:+.4g}, {column.high:+.4g}]" if column.low == column.low else ""
    difference = f"{column.difference:+.4g}{edges}" if column.n_both else ""
    return [
        column.column,
        f"{column.n_both:,} of {column.n_pairs:,}",
        difference,
        f"{column.p_adjusted:.3f}" if column.p_adjusted == column.p_adjusted else "",
        f"{column.share_up:.2%}",
        f"{column.share_down:.2%}",
        f"{column.n_appeared:,}",
        f"{column.n_vanished:,}",
        f"{column.n_not_reproduced:,} of {column.n_same:,}" if column.n_same else "not known",
    ]


def _history(own: _Page) -> Iterator[str]:
    looked_at = own.looked_at
    charts = []
    for name in own.names:
        points = _means(own, name)
        if len(points) < 2:
            continue
        known = looked_at.get((name, "mean"))
        bounds = [(x, known.low, known.high) for x, _ in points[-2:]] if known is not None else []
        chart = svg.curves(
            {name: points},
            title=f"Means of {name}, run by run",
            bounds=bounds,
            x_axis=Axis(shown=_days, ticks=[time for time, _ in points]),
        )
        charts.append(figure(name, chart + _expected(known, n_earlier=len(points) - 1)))
    yield f'<div class="charts">{"".join(charts[: own.room.n_charts])}</div>'
    yield left_out(len(charts) - own.room.n_charts, "histories")


def _expected(known: Unusual | None, *, n_earlier: int) -> str:
    if known is None:
        said = f"{n_earlier} earlier runs; what is usual is known from {MIN_RUNS} on."
        return block_html(Passage(said, tone="soft"))
    return block_html(Passage(known.text, tone="bad" if known.is_alert else "soft"))


def _days(times: Sequence[float]) -> list[str]:
    return [datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d") for time in times]


def _slices(own: _Page) -> Iterator[str]:
    profile = own.outcome.profile
    tests = [row for row in own.outcome.result.rows if row.slice]
    charts, left = [], own.room.n_dots
    for name in own.comparable:
        rows = [row for row in tests if row.column == name and row.statistic == "mean"]
        known = [row for row in rows if row.effect is not None]
        left -= len(known)
        if known and left >= 0:
            dots = [svg.Dot(row.slice, row.effect or 0.0, row.low, row.high) for row in known]
            title = f"Shift of the mean of {name} by slice, in standard deviations"
            charts.append(figure(name, svg.interval_dots(dots, title=title)))
    if charts:
        said = "Shifts of means by slice, in standard deviations of the reference."
        yield block_html(Passage(said, tone="soft"))
        yield f'<div class="charts">{"".join(charts)}</div>'
    if left < 0:
        said = "Some charts of slices are left out: the page would be too large."
        yield block_html(Passage(said, tone="soft"))
    if profile is not None and any(len(each) for each in profile.slices.values.values()):
        yield details("All tests by slice", _tests(tests, own.room.n_tests))


def _tests(tests: Sequence[Row], n: int) -> str:
    rows = [
        [
            row.slice,
            row.column,
            row.statistic,
            shown(row.reference),
            shown(row.current),
            _effect(row),
            "" if row.p_adjusted is None else f"{row.p_adjusted:.3f}",
            row.status.replace("_", " "),
        ]
        for row in tests[:n]
    ]
    head = ("slice", "column", "statistic", "reference", "this run", "effect", "p", "verdict")
    table = Table("Alerts first; p is adjusted for all tests", head, rows, numbers=range(3, 7))
    return block_html(table) + left_out(len(tests) - n, "tests (audit.parquet has all)")


def _examples(own: _Page, examples: RunExamples) -> Iterator[str]:
    if examples.why:
        yield block_html(Passage(f"Without texts: {examples.why}", tone="soft"))
    n = min(examples.n, own.room.n_examples)
    yield left_out(examples.n - n, "rows of each end")
    keys = itertools.count(1)
    yield from example_lists(examples.report, examples.texts, n=n, keys=keys)


def _origin(own: _Page) -> Iterator[str]:
    outcome, settings = own.outcome, own.outcome.request.settings
    profile = outcome.profile
    made = [("OUT", str(outcome.out)), ("this run", outcome.run), ("reference", outcome.reference)]
    if profile is not None:
        made.append(("clusters", profile.cluster))
        made.append(("slices by", ", ".join(profile.slices.values) or "none"))
    if outcome.request.kept is not None:
        made.append(("kept", outcome.request.kept))
    made += [
        ("alpha", f"{settings.alpha:g}, shared by all tests (max-T)"),
        ("draws", f"{settings.n_draws:,} of clusters, seed {settings.seed}"),
        ("fewest clusters", f"{settings.min_clusters}"),
        ("earlier runs", f"{len(outcome.earlier):,}"),
    ]
    names = [*TOLERANCES, *own_statistics()]
    known = {name: settings.tolerance("", name) for name in names}
    made.append(("tolerances", ", ".join(f"{k} {v:g}" for k, v in known.items() if v is not None)))
    for name, given in settings.columns.items():
        told = ", ".join(f"{statistic} {value:g}" for statistic, value in given.items())
        made.append((f"tolerances of {name}", told))
    yield block_html(Fields("Settings", made))
    ways = [
        (name, within(_way(found["reference"], found["current"]), own.room.n_chars))
        for name, found in signatures(outcome).items()
    ]
    if ways:
        ways = ways[: own.room.n_columns]
        yield details("Signatures", block_html(Fields("How each score is made", ways)))


def _way(before: str | None, now: str | None) -> str:
    if before == now or before is None:
        return now or ""
    return f"was {before}; is {now}" if now is not None else f"was {before}"
