"""Page: ``REPORT/audit.html``: the verdict first, then what it rests on; one file, no script.

Made of profiles and tests; of rows only the texts of a few examples are read, where the input is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from qaeval_core.audit import page_charts as charts
from qaeval_core.audit.compare import Row
from qaeval_core.audit.outcome import (
    AuditOutcome,
    column_summary,
    made_of,
    run_summary,
    signatures,
)
from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.plugin_statistics import own_statistics
from qaeval_core.audit.settings import TOLERANCES
from qaeval_core.audit.unusual_runs import Unusual
from qaeval_core.audit.view import AuditRoom, AuditView, effect, means_shown
from qaeval_core.made import HowMade
from qaeval_core.pages.charts import sparkline
from qaeval_core.pages.example_rows import MAX_BYTES, RunExamples, example_lists
from qaeval_core.pages.heading import Tile, heading, link_to
from qaeval_core.pages.html import (
    Fields,
    Markup,
    PageSection,
    Passage,
    Table,
    Tone,
    block_html,
    details,
    escaped,
    fitting,
    left_out,
    page,
    shown,
    within,
)
from qaeval_core.profile.run_profile import N_EXACT, RunProfile
from qaeval_core.profile.run_profile import PAGE as SCORES_PAGE
from qaeval_core.storage.path import AnyPath

PAGE = "audit.html"
_REMARKS, _OPEN_REMARKS = 20, 4
_OPEN_ALERTS = 12
_LINE = 400  # characters that are seen as the page opens
_TONES: Mapping[str, Tone] = {"ok": "good", "first_run": "plain"}


_ROOMS = (
    AuditRoom(100, 400, 12, 300, 200, 20, 2000),
    AuditRoom(50, 200, 8, 150, 100, 5, 400),
    AuditRoom(30, 100, 4, 60, 50, 2, 200),
    AuditRoom(20, 50, 2, 0, 20, 0, 100),
)


def audit_page(
    outcome: AuditOutcome,
    examples: RunExamples | None = None,
    *,
    made: HowMade | None = None,
    where: AnyPath = PAGE,
) -> str:
    """Return the page, of less than 300 kB: what has no room is left out, and that is said.

    Parameters
    ----------
    outcome : AuditOutcome
    examples : RunExamples, optional
        Rows of lowest and highest score; default none are shown.
    made : HowMade, optional
        How the report is made; default now.
    where : StoragePath, Path or str
        The page's own path, from which links lead.
    """
    made = made or made_of(outcome)

    def make(room: AuditRoom) -> str:
        own = AuditView(outcome, room)
        head = list(_head(own, made, where))
        return page(made.tab("audit"), head, list(_sections(own, examples)))

    return fitting(_ROOMS, make, most_bytes=MAX_BYTES)


def _sections(own: AuditView, examples: RunExamples | None) -> Iterator[PageSection]:
    if own.names:
        yield PageSection("Scores", [_columns(own), *_bounds(own)])
        yield PageSection("Distributions", list(charts.distributions(own)))
    if rates := _rates(own):
        yield PageSection("Rows", [rates])
    if own.outcome.share_matched is not None:
        yield PageSection("Rows that both runs have", list(_paired(own)))
    if own.outcome.earlier:
        yield PageSection("Earlier runs", list(charts.history(own)))
    if any(row.slice for row in own.outcome.result.rows):
        yield PageSection("Slices", list(charts.slices(own)))
    if examples is not None:
        yield PageSection("Lowest and highest of this run", list(_examples(own, examples)))
    yield PageSection("How it was made", list(_origin(own)))


def _head(own: AuditView, made: HowMade, where: AnyPath) -> Iterator[str]:
    outcome = own.outcome
    links = []
    if outcome.profile is not None and (to := link_to(where, outcome.out / SCORES_PAGE)):
        links.append(("Scores of this run", to))
    yield from heading(
        "audit",
        _title(outcome),
        made,
        tiles=list(_tiles(own)),
        data=[str(outcome.out)],
        links=links,
        tone=_TONES.get(outcome.status, "bad"),
    )
    if outcome.why:
        yield block_html(Passage(outcome.why, tone="bad"))
    if outcome.result.alerts:
        yield _alerts(own)
    if outcome.result.is_too_few:
        n = outcome.request.settings.min_clusters
        said = f"A run has fewer than {n} clusters: its scores have no verdict."
        yield block_html(Passage(said, tone="bad"))
    notes = [*outcome.notes, *outcome.result.notes]
    first = [within(note, _LINE) for note in notes[:_OPEN_REMARKS]]
    yield from (block_html(Passage(note, tone="soft")) for note in first)
    if notes[:_OPEN_REMARKS] != first or len(notes) > _OPEN_REMARKS:
        whole = [within(note, 1000) for note in notes[:_REMARKS]]
        passages = [block_html(Passage(note, tone="soft")) for note in whole]
        yield details(f"All {len(notes):,} remarks", "".join(passages))
    yield left_out(len(notes) - _REMARKS, "remarks")


def _title(outcome: AuditOutcome) -> str:
    if outcome.cause is not None:
        said = within(outcome.cause.text, _LINE)
        return f"{said[0].upper()}{said[1:]}"
    n_alerts = len(outcome.result.alerts)
    return {
        "ok": "No alert",
        "alert": f"{n_alerts:,} alert{'s' if n_alerts > 1 else ''}",
        "too_few": "Too few clusters for a verdict",
        "first_run": "First run: there is nothing to compare it with",
        "incomplete": "Incomplete",
    }[outcome.status]


def _tiles(own: AuditView) -> Iterator[Tile]:
    outcome = own.outcome
    n_alerts = len(outcome.result.alerts)
    if outcome.reference_profile is not None:
        said = f"{n_alerts:,} alert{'' if n_alerts == 1 else 's'}"
        tone: Tone = _TONES.get(outcome.status, "bad")
        yield Tile("Verdict", outcome.status.replace("_", " "), said, tone)
        tone = "bad" if own.moved else "plain"
        moved = within(", ".join(own.moved), _LINE // 4)
        yield Tile("Columns that moved", f"{len(own.moved):,} of {len(own.names):,}", moved, tone)
    if outcome.profile is not None:
        yield Tile("This run", outcome.run_shown, _size(outcome.profile))
    if outcome.reference_profile is not None:
        yield Tile("Reference", outcome.reference_shown, _size(outcome.reference_profile))
    rows = own.test("", "", "rows")
    if rows is not None and rows.effect is not None:
        edges = f"from {rows.reference:,.0f} to {rows.current:,.0f}"
        yield Tile("Rows", f"{rows.effect:+.1%}", edges, "bad" if rows.alert else "plain")


def _size(profile: RunProfile) -> str:
    known = run_summary("", profile)
    n = known["clusters"]
    clusters = f"{n:,}" if n < N_EXACT else f"about {n:,}"
    return f"{known['rows']:,} rows, {clusters} clusters by {known['cluster']}"


def _alerts(own: AuditView) -> str:
    """Return what must be looked at: a line for each column, and below it each alert, folded."""
    result, cause = own.outcome.result, own.outcome.cause
    lines = [within(line, _LINE) for line in own.outcome.alert_lines]
    parts = [_listed(lines[:_OPEN_ALERTS])]
    if cause is not None and cause.remark:
        parts.append(
            block_html(Passage(f"{cause.remark[0].upper()}{cause.remark[1:]}.", tone="soft"))
        )
    texts = [within(alert.text, 1000) for alert in result.alerts]
    shown_texts = _listed(texts[: own.room.n_alerts])
    left = left_out(len(texts) - own.room.n_alerts, "lines of alerts (audit.json has all)")
    if len(texts) > 1:
        parts.append(details(f"All {len(texts):,} alerts", shown_texts + left))
    return "\n".join(filter(None, parts))


def _listed(lines: Sequence[str]) -> str:
    items = [f'<li class="bad" dir="auto">{escaped(line)}</li>' for line in lines]
    return f"<ul>{''.join(items)}</ul>"


def _columns(own: AuditView) -> str:
    rows = []
    looked_at = own.looked_at
    names = own.names[: own.room.n_columns]
    tests = [own.test(name, "", "mean") for name in names]
    summaries = [column_summary(own.latest(name)) for name in names]
    now = [
        one["mean"] if test is None else test.current
        for one, test in zip(summaries, tests, strict=True)
    ]
    before = [None if test is None else test.reference for test in tests]
    means = means_shown(now, before)
    for i, (name, test) in enumerate(zip(names, tests, strict=True)):
        undefined = own.test(name, "", "undefined")
        rows.append(
            [
                name,
                _verdict(own, name, looked_at),
                Markup(_sparkline(own, name)),
                *(column[i] for column in means),
                "" if test is None else effect(test),
                "" if test is None or test.tolerance is None else f"{test.tolerance:g}",
                _undefined(summaries[i]) if undefined is None else _shares(undefined),
            ]
        )
    # The verdict before the numbers: on a phone it is what can be seen without a swipe.
    head = ("column", "verdict", "history", "mean", "reference", "shift", "tolerance", "undefined")
    caption = "Means of defined scores; shifts in standard deviations of the reference, and 95 %"
    table = block_html(Table(caption, head, rows, numbers=range(3, 8)))
    return table + left_out(len(own.names) - own.room.n_columns, "columns")


def _sparkline(own: AuditView, name: str) -> str:
    values = [y for _, y in own.means(name)]
    return sparkline(values, title=f"Means of {name}, run by run") if len(values) > 1 else ""


def _shares(row: Row) -> str:
    parts = [f"{value:.2%}" if value is not None else "?" for value in (row.reference, row.current)]
    return " → ".join(parts)


def _undefined(summary: dict[str, object]) -> str:
    n, undefined = int(str(summary["n"])), int(str(summary["undefined"]))
    return f"{undefined / (n + undefined):.2%}" if n + undefined else ""


def _verdict(own: AuditView, name: str, looked_at: dict[tuple[str, str], Unusual]) -> str:
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


def _bounds(own: AuditView) -> Iterator[str]:
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


def _rates(own: AuditView) -> str:
    named = ("rows", "quarantined", "truncated", "kept")
    tests = [row for row in own.outcome.result.rows if row.statistic in named and not row.slice]
    rows = []
    for row in tests[: own.room.n_tests]:
        is_count = row.statistic == "rows"
        edges = [
            "" if value is None else f"{value:,.0f}" if is_count else f"{value:.2%}"
            for value in (row.reference, row.current)
        ]
        tolerance = "" if row.tolerance is None else f"{row.tolerance:.3f}"
        what = f"{row.statistic} of {row.column}" if row.column else row.statistic
        rows.append([what, *edges, effect(row), tolerance, row.status.replace("_", " ")])
    if not rows:
        return ""
    head = ("share", "reference", "this run", "change", "tolerance", "verdict")
    return block_html(Table("Rows and shares of them", head, rows, numbers=range(1, 5)))


def _paired(own: AuditView) -> Iterator[str]:
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


def _examples(own: AuditView, examples: RunExamples) -> Iterator[str]:
    if examples.why:
        yield block_html(Passage(f"Without texts: {examples.why}", tone="soft"))
    n = min(examples.n, own.room.n_examples)
    yield left_out(examples.n - n, "rows of each end")
    keys = itertools.count(1)
    lists = list(example_lists(examples.report, examples.texts, n=n, keys=keys))
    # The page of the scores has them open: here they would be higher than all that moved.
    yield details(f"{n} rows of each end", "".join(lists)) if lists else ""


def _origin(own: AuditView) -> Iterator[str]:
    outcome, settings = own.outcome, own.outcome.request.settings
    profile = outcome.profile
    made = [
        ("OUT", str(outcome.out)),
        ("this run", _identified(outcome.run_shown, outcome.run)),
        ("reference", _identified(outcome.reference_shown, outcome.reference)),
    ]
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


def _identified(called: str, run: str) -> str:
    return called if called == run else f"{called}, {run}"


def _way(before: str | None, now: str | None) -> str:
    if before == now or before is None:
        return now or ""
    return f"was {before}; is {now}" if now is not None else f"was {before}"
