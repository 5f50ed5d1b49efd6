"""Page: ``OUT/report.html``: what was scored and how, how the scores lie, and what that cost.

Made of what a run wrote about itself: report.json, run.json and its profile; no score is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qaeval_core.made import HowMade
from qaeval_core.pages import charts as svg
from qaeval_core.pages.example_rows import (
    MAX_BYTES,
    N_EXAMPLES,
    Texts,
    columns_by_instance,
    example_lists,
    main_by_instance,
    main_columns,
    row_list,
)
from qaeval_core.pages.heading import Tile, heading
from qaeval_core.pages.html import (
    Fields,
    PageSection,
    Passage,
    Table,
    Tone,
    aligned,
    block_html,
    details,
    escaped,
    figure,
    fitting,
    left_out,
    page,
    shown,
    within,
)
from qaeval_core.planning.columns import ROWS
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.histogram import counted_bars
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.schema import NOT_SAMPLED, QUARANTINE_REASON
from qaeval_core.scoring.result_table import cluster_count

_INPUTS = 20
_MAX_OPEN_DOTS = 300  # of slices; more would make the page high
_MAX_FOLDED = 6  # charts of the other columns of a metric


@dataclass(frozen=True, slots=True)
class Content:
    """What a page is made of.

    Attributes
    ----------
    report, run : mapping
        Content of report.json and run.json.
    profile : RunProfile, optional
        None if a version wrote none.
    texts : mapping of place to mapping of role to text, optional
        Of examples; None: no text is shown.
    by : tuple of str
        Columns of slices.
    n_examples : int
        Rows at each end of a metric's main column.
    """

    report: Mapping[str, Any]
    run: Mapping[str, Any]
    profile: RunProfile | None
    texts: Texts | None
    by: tuple[str, ...]
    n_examples: int


@dataclass(frozen=True, slots=True)
class _RunRoom:
    """How much of each kind a page may show, so that it stays small."""

    n_examples: int
    n_charts: int  # metrics with a card
    n_slices: int  # lines of all tables of slices, times columns
    n_notes: int  # such as one of each file that cannot be read
    n_chars: int  # of a signature, or of a note


_ROOMS = (
    _RunRoom(20, 24, 1200, 40, 4000),
    _RunRoom(5, 24, 600, 40, 1000),
    _RunRoom(2, 16, 200, 40, 400),
    _RunRoom(0, 8, 0, 20, 200),
)


def report_page(
    report: Mapping[str, Any],
    run: Mapping[str, Any],
    profile: RunProfile | None,
    texts: Texts | None = None,
    *,
    by: Sequence[str] | None = None,
    n_examples: int = N_EXAMPLES,
) -> str:
    """Return the page, of less than 300 kB: what has no room is left out, and that is said.

    Parameters
    ----------
    report, run : mapping
        Content of report.json and run.json.
    profile : RunProfile or None
        None if a version wrote none.
    texts : mapping of place to mapping of role to text, optional
        Of examples; default no text is shown.
    by : sequence of str, optional
        Columns of slices; default all that have some.
    n_examples : int
        Rows at each end of a metric's main column.
    """
    slices = report.get("slices", {})
    chosen = [name for name, own in slices.items() if own] if by is None else by
    content = Content(report, run, profile, texts, tuple(chosen), n_examples)
    made = HowMade.of(run.get("made"), "OUT")

    def make(room: _RunRoom) -> str:
        head = _head(content, made, room)
        return page(made.tab("report"), head, list(_sections(content, room)))

    return fitting(_ROOMS, make, most_bytes=MAX_BYTES)


def _sections(content: Content, room: _RunRoom) -> Iterator[PageSection]:
    keys = itertools.count(1)
    yield PageSection("Scores", [*_cards(content, room), details("All columns", _columns(content))])
    yield PageSection("Lowest and highest", list(_examples(content, room, keys)))
    yield PageSection("Without a score", list(_reasons(content, room, keys)))
    if content.by:
        yield PageSection("Means by slice", list(_slices(content, room)))
    yield PageSection("Work", list(_work(content)))
    yield PageSection("How it was made", list(_origin(content, room)))


def _head(content: Content, made: HowMade, room: _RunRoom) -> list[str]:
    report, run = content.report, content.run
    n_rows, n_left_out = report["rows"], _n_not_sampled(report)
    n = f"{n_rows - n_left_out:,} of {n_rows:,}" if n_left_out else f"{n_rows:,}"
    own = heading(
        "report",
        f"{n} rows scored by {within(', '.join(report['instances']), room.n_chars)}",
        made,
        tiles=list(_tiles(report)),
        data=list(map(str, run.get("config", {}).get("input", {}).get("paths", []))),
    )
    remarks = [
        Passage(f"{key} ended early; its other rows are pending: {why}", tone="bad")
        for key, why in report.get("stopped", {}).items()
    ]
    remarks += [
        Passage(f"{name}: no row has a score", tone="bad")
        for name, counts in report["instances"].items()
        if not counts["scored"]
    ]
    remarks += [Passage(said, tone="plain") for said in _sample(report)]
    if report["duplicate_ids"]:
        said = f"{report['duplicate_ids']:,} ids are repeats inside their files"
        remarks.append(Passage(said, tone="plain"))
    notes = report["notes"]
    remarks += [Passage(within(note, room.n_chars), tone="soft") for note in notes[: room.n_notes]]
    more = left_out(len(notes) - room.n_notes, "notes (report.json has all)")
    return [*own, *map(block_html, remarks), more]


def _tiles(report: Mapping[str, Any]) -> Iterator[Tile]:
    """Yield the numbers that are seen first."""
    n_rows = report["rows"] - _n_not_sampled(report)
    yield Tile("Rows", f"{n_rows:,}")
    if n_rows and report["instances"]:
        name, own = min(report["instances"].items(), key=lambda item: item[1]["scored"])
        n = own["scored"]
        shown_share = f"{n / n_rows:.1%}"
        # Of a million rows one without a score is no 100 %.
        shown_share = "99.9%" if shown_share == "100.0%" and n < n_rows else shown_share
        yield Tile("Scored", shown_share, name if n < n_rows else "", _tone(n, n_rows))
        undefined = {
            key: sum(one["undefined_by_reason"].values())
            for key, one in report["instances"].items()
        }
        name, n = max(undefined.items(), key=lambda item: item[1])
        yield Tile("Undefined", f"{n:,}", name if n else "")
    n = report["quarantined"]
    yield Tile("Quarantined", f"{n:,}", tone="bad" if n else "plain")
    money = [own["calls"]["usd"] for own in report["families"].values() if "calls" in own]
    if known := [usd for usd in money if usd is not None]:
        yield Tile("Cost", f"${sum(known):,.2f}", "of paid calls")
    yield Tile("Time", f"{report['wall_s']:,.1f} s", "of the last run")


def _tone(n_scored: int, n_rows: int) -> Tone:
    return "good" if n_scored == n_rows else "plain" if n_scored else "bad"


def _n_not_sampled(report: Mapping[str, Any]) -> int:
    """Return how many rows a sample left out; a version without samples says nothing of it."""
    n: int = report.get("not_sampled", 0)
    return n


def _sample(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the sample is, if the rows are one."""
    sample = report.get("sample")
    if not sample:
        return
    said = f"A sample: {sample['rows']:,} rows, those of {sample['contexts']:,} contexts"
    n_without = sample["rows_without_context"]
    yield f"{said}; {n_without:,} rows have no context and are not sampled" if n_without else said


def _columns(content: Content) -> str:
    columns = content.report["columns"]
    own = list(columns.values())
    points = [_scores([one["quantiles"].get(key) for one in own]) for key in ("0", "0.5", "1")]
    cells = {
        "column": list(columns),
        "mean": _scores([one["mean"] for one in own]),
        "95 % interval": _intervals([one["interval_95"] for one in own]),
        "scored": [f"{one['n']:,}" for one in own],
        "undefined": [f"{one['n_undefined']:,}" for one in own],
        **dict(zip(("lowest", "median", "highest"), points, strict=True)),
        "corpus": _scores([one.get("corpus") for one in own]),
    }
    rows = list(zip(*cells.values(), strict=True))
    return block_html(
        Table(_caption(content.report), list(cells), rows, numbers=range(1, len(cells)))
    )


def _scores(values: Sequence[float | None]) -> list[str]:
    return aligned([None if own is None else float(own) for own in values], n_least=3)


def _intervals(values: Sequence[Sequence[float] | None]) -> list[str]:
    ends = [aligned([own[i] if own else None for own in values], n_least=3) for i in (0, 1)]
    return [f"[{low}, {high}]" if low else "" for low, high in zip(*ends, strict=True)]


def _caption(report: Mapping[str, Any]) -> str:
    if "clusters" not in report or report["clusters"]["name"] == ROWS:
        return "Intervals take rows as independent of each other"
    return f"Intervals are of {cluster_count(report)}: rows that share one are not independent"


def _cards(content: Content, room: _RunRoom) -> Iterator[str]:
    """Yield a card for each metric: its mean, how its scores lie, its other columns folded."""
    profiles = content.profile.columns if content.profile is not None else {}
    if content.profile is None:
        said = "No distributions: the version that wrote these scores kept no profile of them."
        yield block_html(Passage(said, tone="soft"))
    columns = columns_by_instance(content.report)
    cards = []
    for instance, name in main_by_instance(content.report).items():
        others = [own for own in columns[instance] if own != name]
        cards.append(_card(content, instance, name, others, profiles))
    yield f'<div class="cards">{"".join(cards[: room.n_charts])}</div>'
    yield left_out(len(cards) - room.n_charts, "metrics (all columns are below)")


def _card(
    content: Content,
    instance: str,
    name: str,
    others: Sequence[str],
    profiles: Mapping[str, Profile],
) -> str:
    own = content.report["columns"][name]
    (mean,), (interval,) = _scores([own["mean"]]), _intervals([own["interval_95"]])
    title = instance if name == instance else f"{instance} ({name})"
    parts = [
        f"<h3>{escaped(title)}</h3>",
        f'<p class="mean">{mean or "no score"} <span class="soft">{interval}</span></p>',
    ]
    if name in profiles:
        parts.append(_distribution(name, profiles[name], own["mean"]))
    if others:
        known = [content.report["columns"][one] for one in others]
        means = _scores([found["mean"] for found in known])
        intervals = _intervals([found["interval_95"] for found in known])
        rows = list(zip(others, means, intervals, strict=True))
        table = Table(f"Other columns of {instance}", ("column", "mean", "95 %"), rows, (1, 2))
        drawn = [one for one in others if one in profiles][:_MAX_FOLDED]
        charts = [figure(one, _distribution(one, profiles[one])) for one in drawn]
        n = f"{len(others)} more column{'s' if len(others) > 1 else ''}"
        parts.append(details(n, block_html(table) + "".join(charts)))
    return f'<div class="card">{"".join(parts)}</div>'


def _distribution(name: str, profile: Profile, mean: float | None = None) -> str:
    bars = counted_bars([profile])
    (own,) = bars.counted
    if not own.n_defined:
        said = f"No row has a score here ({own.n_undefined:,} undefined)."
        return block_html(Passage(said, tone="soft"))
    remark = block_html(Passage(own.remark, tone="soft"))
    if len(bars.edges) < 3:  # A chart would be a block.
        same = "" if mean is None else f"All scores are {mean:.4g}, or next to it."
        return block_html(Passage(same, tone="plain")) + remark
    chart = svg.histogram(
        bars.edges,
        {name: own.counts},
        title=f"Distribution of {name}",
        is_share=False,
        mark=None if mean is None else (mean, f"mean {mean:.4g}"),
    )
    return chart + remark


def _reasons(content: Content, room: _RunRoom, keys: Iterator[int]) -> Iterator[str]:
    report = content.report
    rows = [
        [reason, "quarantined: scored by no metric", f"{n:,}"]
        for reason, n in report["quarantined_by_reason"].items()
    ]
    rows += [
        [reason, f"undefined: {name}", f"{n:,}"]
        for name, own in report["instances"].items()
        for reason, n in own["undefined_by_reason"].items()
    ]
    if n := _n_not_sampled(report):
        rows.append([NOT_SAMPLED, "not in the sample: scored by no metric", f"{n:,}"])
    if not rows:
        yield block_html(Passage("Every row has a score of every metric.", tone="good"))
        return
    table = Table("Rows by reason", ("reason", "what that is", "rows"), rows, numbers=(2,))
    yield block_html(table)
    n_shown = min(content.n_examples, room.n_examples)
    for column, reasons in report.get("reason_examples", {}).items():
        what = "quarantined" if column == QUARANTINE_REASON else column.removesuffix("_reason")
        for reason, found in reasons.items():
            if found[:n_shown]:
                listed = row_list(f"{what}: {reason}", found[:n_shown], content.texts, keys)
                yield details(f"{what}: {reason}, the first rows", listed)


def _slices(content: Content, room: _RunRoom) -> Iterator[str]:
    names = main_columns(content.report)
    left, n_open = room.n_slices, _MAX_OPEN_DOTS
    for by in content.by:
        own = content.report["slices"][by]
        left -= len(own) * len(names)
        if left < 0:
            said = f"{by} is left out: the page would be too large. report.json has its means."
            yield block_html(Passage(said, tone="soft"))
            continue
        yield f"<h3>{escaped(by)}</h3>"
        n_open -= len(own) * len(names)
        charts = f'<div class="charts">{"".join(_dots(own, name) for name in names)}</div>'
        yield charts if n_open >= 0 else details(f"{by} as charts", charts)
        columns = {
            by: [_label(one) for one in own],
            "rows": [f"{one['rows']:,}" for one in own],
            **{name: _means([one["columns"][name] for one in own]) for name in names},
        }
        table = Table(
            "Mean, its 95 % interval, and rows with a score",
            list(columns),
            list(zip(*columns.values(), strict=True)),
            numbers=range(1, len(columns)),
        )
        yield details(f"{by} as a table", block_html(table))


def _dots(slices: Sequence[Mapping[str, Any]], name: str) -> str:
    dots = [
        svg.Dot(_label(one), own["mean"], *(own["interval_95"] or (None, None)))
        for one in slices
        if (own := one["columns"][name])["mean"] is not None
    ]
    if not dots:
        return ""
    return figure(name, svg.interval_dots(dots, title=f"Mean of {name} by slice"))


def _label(one: Mapping[str, Any]) -> str:
    return "(null)" if one["value"] is None else one["value"] or "(empty)"


def _means(own: Sequence[Mapping[str, Any]]) -> list[str]:
    means = _scores([one["mean"] for one in own])
    intervals = _intervals([one["interval_95"] for one in own])
    return [
        " ".join(filter(None, [mean, interval, f"of {one['n']:,}"])) if mean else "none"
        for mean, interval, one in zip(means, intervals, own, strict=True)
    ]


def _examples(content: Content, room: _RunRoom, keys: Iterator[int]) -> Iterator[str]:
    n = min(content.n_examples, room.n_examples)
    if not content.n_examples or "examples" not in content.report:
        yield block_html(Passage("No rows were kept for this, or none are wanted.", tone="soft"))
        return
    said = "qaeval explain OUT --id ID shows how a row got its scores."
    yield block_html(Passage(said, tone="soft"))
    yield left_out(content.n_examples - n, "rows of each end")
    yield from example_lists(content.report, content.texts, n=n, keys=keys)


def _work(content: Content) -> Iterator[str]:
    families = content.report["families"]
    computed = {key: own for key, own in families.items() if "forward_sequences" in own}
    asked = {key: own for key, own in families.items() if "calls" in own}
    if computed:
        head = ("family", "rows", "units run", "shared", "tokens", "padding", "truncated")
        rows = [
            [
                key,
                shown(own["rows"]),
                shown(own["forward_sequences"]),
                _share_avoided(own),
                shown(own["tokens"]),
                f"{own['padding_share']:.1%}",
                shown(own["truncated"]),
            ]
            for key, own in computed.items()
        ]
        caption = "All that is committed; shared: units that equal others and were not run again"
        yield block_html(Table(caption, head, rows, numbers=range(1, len(head))))
    if asked:
        yield _calls(asked)
    speeds = {key: own["this_run"] for key, own in families.items() if "this_run" in own}
    if speeds:
        titles = ("family", "rows", "seconds", "rows/s", "tokens/s")
        fields = ("rows", "wall_s", "rows_per_s", "tokens_per_s")
        rows = [[key, *(shown(own[name]) for name in fields)] for key, own in speeds.items()]
        yield block_html(Table("The last run alone", titles, rows, numbers=(1, 2, 3, 4)))
    wall_s = content.report["wall_s"]
    yield block_html(Passage(f"{wall_s:,.1f} seconds for all passes of the last run.", tone="soft"))


def _share_avoided(own: Mapping[str, Any]) -> str:
    n = own["forward_sequences"] + own["forward_sequences_avoided"]
    return f"{own['forward_sequences_avoided'] / n:.1%}" if n else ""


def _calls(families: Mapping[str, Mapping[str, Any]]) -> str:
    fields = ("paid", "from_journal", "prompt_tokens", "completion_tokens", "reminders")
    head = ("family", "requests shared", *(name.replace("_", " ") for name in fields))
    rows = []
    for key, own in families.items():
        calls = own["calls"]
        failed, usd = sum(calls["failed"].values()), own.get("journal", {}).get("usd")
        money = ["" if one is None else f"{one:,.4f}" for one in (calls["usd"], usd)]
        numbers = [own["requests_avoided"], *(calls[name] for name in fields), failed]
        rows.append([key, *map(shown, numbers), *money])
    head = (*head, "failed", "USD", "USD of the journal")
    return block_html(Table("Calls of language models", head, rows, numbers=range(1, len(head))))


def _origin(content: Content, room: _RunRoom) -> Iterator[str]:
    report, run = content.report, content.run
    config = run.get("config", {})
    paths = config["input"]["paths"]
    given = [(f"input {i + 1}", str(path)) for i, path in enumerate(paths[:_INPUTS])]
    if (n_more := len(paths) - _INPUTS) > 0:
        given.append(("more inputs", f"{n_more:,}, named in run.json"))
    columns = [(f"column of {role}", str(name)) for role, name in run.get("columns", {}).items()]
    carried = [("carried", ", ".join(config["output"]["carry"]))]
    yield block_html(Fields("Read", [*given, *columns, *carried]))
    signatures = [
        (name, within(own["signature"], room.n_chars)) for name, own in report["instances"].items()
    ]
    yield block_html(Fields("Signatures: how each score is made", signatures))
    families = [
        (key, within(" ".join(_made(own)), room.n_chars)) for key, own in report["families"].items()
    ]
    made = [("device", str(run.get("device")))]
    for key, value in report["environment"].items():
        packages = value.items() if isinstance(value, dict) else [(key, value)]
        made += [(name, str(version)) for name, version in packages]
    yield details("Families and models", block_html(Fields("Statistics", families)))
    yield details("Environment", block_html(Fields("Where it ran", made)))


def _made(own: Mapping[str, Any]) -> Iterator[str]:
    yield own["signature"]
    yield from (f"{name}: {own[name]}" for name in ("artifact", "precision") if name in own)
