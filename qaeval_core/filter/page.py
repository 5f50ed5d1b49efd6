"""Page: a filter as one HTML page: what was kept and why, and what that says of precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from qaeval_core.filter.facts import RULE_REASONS
from qaeval_core.filter.result import asked_lines, blank_lines, value_name
from qaeval_core.made import HowMade
from qaeval_core.pages import charts as svg
from qaeval_core.pages.axes import Axis, percents
from qaeval_core.pages.example_rows import row_cards
from qaeval_core.pages.heading import Tile, heading
from qaeval_core.pages.html import (
    Fields,
    PageSection,
    Passage,
    Table,
    aligned,
    block_html,
    details,
    escaped,
    left_out,
    page,
    within,
)

_MAX_NOTES, _MAX_CHARS = 40, 600
_MAX_METRICS = 100
_Keys: TypeAlias = Iterator[int]  # numbers of rows of the page


def filter_page(
    content: Mapping[str, Any],
    made: HowMade,
    *,
    data: str = "",
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page of what filter.json says.

    Parameters
    ----------
    made : HowMade
    data : str
        What was filtered.
    links : sequence of (title, address)
        Pages beside it.
    """
    found, keys = content["certificate"], itertools.count(1)
    sections = [
        PageSection("From all rows to those kept", [_funnel(content), *_asked(content)]),
        PageSection("Kept and dropped", [_histogram(content), _means(content)]),
        PageSection("Yield", [_yield_chart(content), details("As a table", _yield_table(content))]),
        PageSection("Rows of each reason", list(_reason_examples(content, keys))),
        *(
            [PageSection("Labeled bad, and kept", _wrong(content, keys))]
            if found is not None
            else []
        ),
        *_learned(content),
        PageSection("At the margin", _margin(content, keys)),
        *_quotas(content),
        PageSection("How it was made", [_origin(content)]),
    ]
    head = _head(content, made, data, links)
    return page(made.tab("filter"), head, sections)


def _head(
    content: Mapping[str, Any], made: HowMade, data: str, links: Sequence[tuple[str, str]]
) -> list[str]:
    n_rows, n_kept = content["rows"], content["kept"]
    title = f"{n_kept:,} of {n_rows:,} rows kept"
    tiles, own = list(_tiles(content)), [data] if data else []
    notes = content["notes"]
    remarks = [
        *_certified(content),
        *(Passage(within(note, _MAX_CHARS), tone="soft") for note in notes[:_MAX_NOTES]),
    ]
    return [
        *heading("filter", title, made, tiles=tiles, data=own, links=links),
        *map(block_html, remarks),
        left_out(len(notes) - _MAX_NOTES, "notes (filter.json has all)"),
    ]


def _tiles(content: Mapping[str, Any]) -> Iterator[Tile]:
    n_rows, n_kept, found = content["rows"], content["kept"], content["certificate"]
    share = n_kept / n_rows if n_rows else 0.0
    yield Tile("Kept", f"{n_kept:,}", f"{share:.1%} of all rows")
    yield Tile("Dropped", f"{n_rows - n_kept:,}")
    if content["groups_kept"] is not None:
        yield Tile("Groups kept", f"{content['groups_kept']:,}")
    if content["cut"] is not None:
        sign = "≥" if content["rank"]["higher_is_better"] else "≤"
        name = within(content["rank"]["name"], 60)
        yield Tile("Cut", f"{sign} {content['cut']:.4g}", f"of {name}")
    if content["certified"]:
        more = f"at {found['confidence']:.0%} confidence"
        yield Tile("Precision", f"≥ {found['lower_bound']:.3f}", more, "good")
    elif content["certified"] is False:
        target = content["request"]["precision"]
        yield Tile("Precision", "not certified", f"target {target:g}", "bad")


def _certified(content: Mapping[str, Any]) -> Iterator[Passage]:
    """Yield what is certified, and for what that holds."""
    found = content["certificate"]
    if content["certified"]:
        said = (
            f"Precision above {found['target']:g} is certified at {found['confidence']:.0%} "
            f"confidence for the best {found['share']:.1%} of the rows that reached the last "
            f"stage. {found['precision']:.1%} of the labels in it are good, and its precision "
            f"is at least {found['lower_bound']:.3f}. Bounds of all shares hold together. It "
            f"holds for {found['holds_for']}. It says nothing of {found['says_nothing_of']}."
        )
        yield Passage(said, tone="good")
    elif content["certified"] is False:
        yield Passage(
            f"Not certified with these labels: no share of the rows has a precision above "
            f"{content['request']['precision']:g} for certain. Nothing is kept.",
            tone="bad",
        )
    if found is not None:
        yield from (Passage(f"{line}.", tone="soft") for line in blank_lines(found))


def _steps(content: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each stage that dropped rows, and how many; rules are one stage."""
    n_rules = sum(content["reasons"].get(name, 0) for name in RULE_REASONS)
    for reason, n in content["reasons"].items():
        if reason not in RULE_REASONS:
            yield reason, n
        elif n_rules:
            yield "rules", n_rules
            n_rules = 0


def _funnel(content: Mapping[str, Any]) -> str:
    """Return what is left after each stage, in the order of stages, with percent."""
    n_rows = n_left = content["rows"]
    items = [_bar("all rows", n_rows, n_rows)]
    for name, n in _steps(content):
        n_left -= n
        items.append(_bar(f"after {name.replace('_', ' ')}", n_left, n_rows, f"{n:,} dropped"))
    if n_left != content["kept"]:  # A precision that is not certified keeps nothing.
        items.append(_bar("kept", content["kept"], n_rows))
    rows = [(reason, f"{n:,}", _percent(n, n_rows)) for reason, n in content["reasons"].items()]
    rows += [("kept", f"{content['kept']:,}", _percent(content["kept"], n_rows))]
    rows += [("all rows", f"{n_rows:,}", "")]
    table = Table("Each row has one reason", ("reason", "rows", "share"), rows, numbers=(1, 2))
    return f'<ol class="funnel">{"".join(items)}</ol>{block_html(table)}'


def _bar(name: str, n: int, n_rows: int, more: str = "") -> str:
    said = escaped(" · ".join(filter(None, [_percent(n, n_rows), more])))
    share = n / n_rows if n_rows else 0.0
    return (
        f'<li>{escaped(within(name, 80))}: <b>{n:,}</b> <span class="soft">{said}</span>'
        f'<span class="bar" style="--share:{share:.4f}"></span></li>'
    )


def _percent(n: int, n_rows: int) -> str:
    return f"{n / n_rows:.1%}" if n_rows else ""


def _yield_chart(content: Mapping[str, Any]) -> str:
    """Return the curve of precision and its bound over kept shares, or of the rank's cut."""
    yields, found = content["yields"], content["certificate"] or {}
    x_axis = Axis("kept share", percents)
    labeled = [own for own in yields if own["precision"] is not None]
    if labeled:
        bounded = [own for own in labeled if own["lower_bound"] is not None]
        lines = {
            "precision of labels": [(own["share"], own["precision"]) for own in labeled],
            "lower bound": [(own["share"], own["lower_bound"]) for own in bounded],
        }
        target, share = found.get("target"), found.get("share")
        lowest = min([y for line in lines.values() for _, y in line] + [target or 1.0])
        return svg.at_both_widths(
            lambda width: svg.curves(
                lines,
                title="Precision by kept share",
                x_axis=x_axis,
                y_label="precision",
                y_range=(min(int(lowest * 10) / 10, 0.9), 1.0),
                level=None if target is None else (target, f"target {target:g}"),
                mark=None if share is None else (share, f"chosen share {share:.1%}"),
                width=width,
            )
        )
    name = within(content["rank"]["name"], 60)
    cuts = [(own["share"], own["cut"]) for own in yields if own["cut"] is not None]
    if not cuts:
        return block_html(Passage("No row reached the last stage.", tone="soft"))
    cut = content["cut"]
    return svg.at_both_widths(
        lambda width: svg.curves(
            {f"cut of {name}": cuts},
            title=f"Cut of {name} by kept share",
            x_axis=x_axis,
            y_label=name,
            level=None if cut is None else (cut, f"cut {cut:.4g}"),
            width=width,
        )
    )


def _yield_table(content: Mapping[str, Any]) -> str:
    yields = content["yields"]
    if not yields:
        return ""
    names = [name for name in yields[0] if any(own[name] is not None for own in yields)]
    columns = {name: _column([own[name] for own in yields], name) for name in names[:_MAX_METRICS]}
    table = Table(
        "Kept shares of the rows that reached the last stage",
        [name.replace("_", " ") for name in columns],
        list(zip(*columns.values(), strict=True)),
        numbers=range(1, len(columns)),
    )
    return block_html(table) + left_out(len(names) - len(columns), "columns")


def _column(values: Sequence[Any], name: str) -> list[str]:
    if name == "share":
        return [f"{own:.1%}" for own in values]
    if any(isinstance(own, bool) for own in values):
        return ["" if own is None else "yes" if own else "no" for own in values]
    return aligned(values)


def _asked(content: Mapping[str, Any]) -> list[str]:
    return [block_html(Passage(f"{line}.", tone="soft")) for line in asked_lines(content)]


def _quotas(content: Mapping[str, Any]) -> list[PageSection]:
    blocks = []
    for stage, title in (("quota", "Quota"), ("share_per", "Share of each value")):
        found = content[stage]
        if not found or not found["n_values"]:
            continue
        told = [(value_name(own["value"]), own) for own in found["values"]]
        if n_others := found["others"]["n_values"]:
            told.append((f"({n_others:,} other values)", found["others"]))
        names = ("n_reaching", "n_allowed", "n_kept", "shortfall")
        rows = [[value, *(f"{own[name]:,}" for name in names)] for value, own in told]
        head = (content["columns"][stage], "reaching", "allowed", "kept", "short of it")
        blocks.append(block_html(Table(title, head, rows, numbers=(1, 2, 3, 4))))
    return [PageSection("Quotas", blocks)] if blocks else []


def _histogram(content: Mapping[str, Any]) -> str:
    own, name = content["histogram"], within(content["rank"]["name"], 60)
    if not own["edges"]:
        return block_html(Passage("No row has a rank value.", tone="soft"))
    cut = content["cut"]
    return svg.at_both_widths(
        lambda width: svg.histogram(
            own["edges"],
            {key: own[key] for key in ("kept", "dropped")},
            title=f"Rows by {name}, kept and dropped for whatever reason",
            is_share=False,
            is_stacked=True,
            mark=None if cut is None else (cut, f"cut {cut:.4g}"),
            x_label=name,
            width=width,
        )
    )


def _means(content: Mapping[str, Any]) -> str:
    means = content["means"]
    rows = [
        [name, *aligned([own["kept"], own["dropped"]])]
        for name, own in list(means.items())[:_MAX_METRICS]
    ]
    head = ("metric", "kept", "dropped")
    table = block_html(Table("Means where they are defined", head, rows, numbers=(1, 2)))
    return table + left_out(len(means) - len(rows), "metrics")


def _learned(content: Mapping[str, Any]) -> list[PageSection]:
    found = content["learned"]
    if found is None:
        return []
    own = found["columns"]
    weights, areas = (aligned([one[key] for one in own]) for key in ("weight", "single_auc"))
    names = [one["name"] for one in own]
    rows = [list(row) for row in zip(names, weights, areas, strict=True)]
    rows.append(["combination", "", *aligned([found["cv_auc"]])])
    table = Table(
        f"Learned on {found['n_rows']:,} labels of {found['n_groups']:,} groups; AUC of groups "
        f"held out, {found['n_folds']} folds",
        ("column", "weight", "AUC"),
        rows,
        numbers=(1, 2),
    )
    return [PageSection("Learned rank", [block_html(table)])]


def _reason_examples(content: Mapping[str, Any], keys: _Keys) -> Iterator[str]:
    found = content["reason_examples"]
    if not found:
        yield block_html(Passage("No row was dropped.", tone="good"))
    for reason, rows in found.items():
        n = content["reasons"][reason]
        title = f"{reason.replace('_', ' ')}: {len(rows)} of {n:,} rows"
        yield details(within(title, _MAX_CHARS), _rows(rows, content, keys))


def _wrong(content: Mapping[str, Any], keys: _Keys) -> list[str]:
    """Return the rows that are labeled bad and yet kept: what the certificate allows for."""
    found = content["bad_and_kept"]
    n = found["n"]
    if not n:
        return [block_html(Passage("No kept row is labeled bad.", tone="good"))]
    said = f"{n:,} kept row{'s are' if n > 1 else ' is'} labeled bad."
    shown = details(f"The first {len(found['rows']):,}", _rows(found["rows"], content, keys))
    return [block_html(Passage(said, tone="plain")), shown]


def _margin(content: Mapping[str, Any], keys: _Keys) -> list[str]:
    if not content["examples"]:
        return [block_html(Passage("No row is at the margin.", tone="soft"))]
    sign = 1.0 if content["rank"]["higher_is_better"] else -1.0
    parts = []
    for title, is_kept in (("Last that are kept", True), ("First that are not", False)):
        chosen = [own for own in content["examples"] if own["kept"] == is_kept]
        chosen.sort(key=lambda own: (own["rank_value"] is None, sign * (own["rank_value"] or 0.0)))
        # What lies nearest to the cut first.
        chosen = chosen if is_kept else chosen[::-1]
        if chosen:
            parts.append(f"<div><h3>{title}</h3>{_rows(chosen[:5], content, keys)}</div>")
    return [f'<div class="ends">{"".join(parts)}</div>']


def _rows(rows: Sequence[Mapping[str, Any]], content: Mapping[str, Any], keys: _Keys) -> str:
    """Return rows with their texts; of a duplicate also what it repeats."""
    name, cards = within(content["rank"]["name"], 60), []
    for own in rows:
        value, texts = own["rank_value"], dict(own["texts"])
        if repeats := own.get("repeats"):
            texts["repeats"] = f"{repeats['id']}: {repeats['question'] or ''}"
        said = ["" if value is None else f"{name} {value:.4g}", own["reason"] or ""]
        cards.append((str(own["id"]), " · ".join(filter(None, said)), texts))
    return row_cards(cards, keys)


def _origin(content: Mapping[str, Any]) -> str:
    asked = [(name, str(value)) for name, value in content["request"].items() if value]
    columns = [(name, str(value)) for name, value in content["columns"].items() if value]
    signatures = list(content["signatures"].items())
    blocks = [
        Fields("Asked for", [(name, within(value, _MAX_CHARS)) for name, value in asked]),
        Fields("Columns", columns),
        Fields("Signatures", signatures[:_MAX_METRICS]),
    ]
    shown = "\n".join(map(block_html, blocks))
    return shown + left_out(len(signatures) - _MAX_METRICS, "signatures")
