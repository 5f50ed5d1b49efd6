"""Page: a filter as one HTML page: what was kept and why, and what that says of precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qaeval_core.filter.result import asked_lines, blank_lines, value_name
from qaeval_core.pages import charts as svg
from qaeval_core.pages.axes import Axis, percents
from qaeval_core.pages.html import Fields, Passage, Section, Table, block_html, cut, page


def filter_page(content: Mapping[str, Any]) -> str:
    """Return the page of what filter.json says."""
    sections = [
        Section("Yield", [_yield_chart(content), _yield_table(content)]),
        Section("Reasons", [_reasons(content), *_asked(content), *_quotas(content)]),
        Section("Kept and dropped", [_histogram(content), _means(content)]),
        *_learned(content),
        Section("At the margin", _examples(content)),
        Section("Request, columns and signatures", [_origin(content)]),
    ]
    return page("qaeval filter", [_head(content)], sections)


def _head(content: Mapping[str, Any]) -> str:
    n_rows, n_kept = content["rows"], content["kept"]
    share = n_kept / n_rows if n_rows else 0.0
    lines = [f"<h1>{n_kept:,} of {n_rows:,} rows kept ({share:.1%})</h1>"]
    remarks = [Passage(note, tone="soft") for note in content["notes"]]
    found = content["certificate"]
    if content["certified"]:
        remarks.insert(
            0,
            Passage(
                f"Precision above {found['target']:g} is certified at {found['confidence']:.0%} "
                f"confidence for the best {found['share']:.1%} of the rows that reached the last "
                f"stage. {found['precision']:.1%} of the labels in it are good, and its precision "
                f"is at least {found['lower_bound']:.3f}. Bounds of all shares hold together. It "
                f"holds for {found['holds_for']}. It says nothing of {found['says_nothing_of']}.",
                tone="good",
            ),
        )
    elif content["certified"] is False:
        remarks.insert(
            0,
            Passage(
                f"Not certified with these labels: no share of the rows has a precision above "
                f"{content['request']['precision']:g} for certain. Nothing is kept.",
                tone="bad",
            ),
        )
    if found is not None:
        remarks[1:1] = [Passage(f"{line}.", tone="soft") for line in blank_lines(found)]
    return "\n".join([*lines, *map(block_html, remarks)])


def _yield_chart(content: Mapping[str, Any]) -> str:
    """Return the curve of precision and its bound over kept shares, or of the rank's cut."""
    yields = content["yields"]
    labeled = [own for own in yields if own["precision"] is not None]
    if labeled:
        lines = {
            "precision of labels": [(own["share"], own["precision"]) for own in labeled],
            "lower bound": [
                (own["share"], own["lower_bound"])
                for own in labeled
                if own["lower_bound"] is not None
            ],
        }
        target = (content["certificate"] or {}).get("target")
        title = "Precision by kept share"
        return svg.curves(
            lines,
            title=title,
            y_range=(0.0, 1.0),
            level=None if target is None else (target, "target"),
            x_axis=Axis("kept share", percents),
        )
    name = content["rank"]["name"]
    cuts = [(own["share"], own["cut"]) for own in yields if own["cut"] is not None]
    if not cuts:
        return block_html(Passage("No row reached the last stage.", tone="soft"))
    said = f"Cut of {name} by kept share"
    chart = svg.curves(
        {f"cut of {name}": cuts},
        title=said,
        level=None if content["cut"] is None else (content["cut"], "cut"),
        x_axis=Axis("kept share", percents),
    )
    return chart + block_html(Passage(said, tone="soft"))


def _yield_table(content: Mapping[str, Any]) -> str:
    yields = content["yields"]
    if not yields:
        return ""
    blank = {name for name in yields[0] if all(own[name] is None for own in yields)}
    names = [name for name in yields[0] if name not in blank]
    rows = [[_shown(own[name], is_share=name == "share") for name in names] for own in yields]
    table = Table(
        "Kept shares of the rows that reached the last stage",
        [name.replace("_", " ") for name in names],
        rows,
        numbers=range(1, len(names)),
    )
    return block_html(table)


def _shown(value: object, *, is_share: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1%}" if is_share else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _reasons(content: Mapping[str, Any]) -> str:
    rows = [("kept", _shown(content["kept"]))]
    ordered = sorted(content["reasons"].items(), key=lambda item: -item[1])
    rows += [(reason, _shown(n)) for reason, n in ordered]
    rows.append(("all rows", _shown(content["rows"])))
    return block_html(Table("Each row has one reason", ("reason", "rows"), rows, numbers=(1,)))


def _asked(content: Mapping[str, Any]) -> list[str]:
    return [block_html(Passage(f"{line}.", tone="soft")) for line in asked_lines(content)]


def _quotas(content: Mapping[str, Any]) -> list[str]:
    blocks = []
    for stage, title in (("quota", "Quota"), ("share_per", "Share of each value")):
        found = content[stage]
        if not found or not found["n_values"]:
            continue
        told = [(value_name(own["value"]), own) for own in found["values"]]
        if n_others := found["others"]["n_values"]:
            told.append((f"({n_others:,} other values)", found["others"]))
        names = ("n_reaching", "n_allowed", "n_kept", "shortfall")
        rows = [[value, *(_shown(own[name]) for name in names)] for value, own in told]
        head = (content["columns"][stage], "reaching", "allowed", "kept", "short of it")
        blocks.append(block_html(Table(title, head, rows, numbers=(1, 2, 3, 4))))
    return blocks


def _histogram(content: Mapping[str, Any]) -> str:
    own = content["histogram"]
    if not own["edges"]:
        return block_html(Passage("No row has a rank value.", tone="soft"))
    said = f"Rows by {content['rank']['name']}, kept and dropped for whatever reason"
    series = {name: own[name] for name in ("kept", "dropped")}
    chart = svg.histogram(own["edges"], series, title=said, is_share=False)
    return chart + block_html(Passage(said, tone="soft"))


def _means(content: Mapping[str, Any]) -> str:
    rows = [
        [name, _shown(own["kept"]), _shown(own["dropped"])]
        for name, own in content["means"].items()
    ]
    head = ("metric", "kept", "dropped")
    return block_html(Table("Means where they are defined", head, rows, numbers=(1, 2)))


def _learned(content: Mapping[str, Any]) -> list[Section]:
    found = content["learned"]
    if found is None:
        return []
    rows = [
        [own["name"], f"{own['weight']:+.4g}", _shown(own["single_auc"])]
        for own in found["columns"]
    ]
    rows.append(["combination", "", _shown(found["cv_auc"])])
    table = Table(
        f"Learned on {found['n_rows']:,} labels of {found['n_groups']:,} groups; AUC of groups "
        f"held out, {found['n_folds']} folds",
        ("column", "weight", "AUC"),
        rows,
        numbers=(1, 2),
    )
    return [Section("Learned rank", [block_html(table)])]


def _examples(content: Mapping[str, Any]) -> list[str]:
    if not content["examples"]:
        return [block_html(Passage("No row is at the margin.", tone="soft"))]
    kept = [own for own in content["examples"] if own["kept"]]
    dropped = [own for own in content["examples"] if not own["kept"]]
    sign = 1.0 if content["rank"]["higher_is_better"] else -1.0
    parts = []
    for title, chosen in (("Last that are kept", kept), ("First that are not", dropped)):
        if not chosen:
            continue
        names = list(chosen[0]["texts"])
        chosen.sort(key=lambda own: (own["rank_value"] is None, sign * (own["rank_value"] or 0.0)))
        rows = [
            [
                str(own["id"]),
                _shown(own["rank_value"]),
                own["reason"] or "",
                *(cut(own["texts"][name]) for name in names),
            ]
            for own in chosen
        ]
        head = ("id", content["rank"]["name"], "reason", *names)
        parts.append(block_html(Table(title, head, rows, numbers=(1,))))
    return parts


def _origin(content: Mapping[str, Any]) -> str:
    asked = [(name, str(value)) for name, value in content["request"].items() if value]
    columns = [(name, str(value)) for name, value in content["columns"].items() if value]
    signatures = list(content["signatures"].items())
    blocks = [
        Fields("Asked for", asked),
        Fields("Columns", columns),
        Fields("Signatures", signatures),
    ]
    return "\n".join(map(block_html, blocks))
