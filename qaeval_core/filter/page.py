"""Page: a filter as one HTML page: what was kept and why, and what that says of precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qaeval_core.report.html import Fields, Passage, Table, block_html, details, escaped, page

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 48, 28


def filter_page(content: Mapping[str, Any]) -> str:
    """Return the page of what filter.json says."""
    sections = [
        _head(content),
        _section("Yield", [_yield_chart(content), _yield_table(content)]),
        _section("Reasons", [_reasons(content), *_quotas(content)]),
        _section("Kept and dropped", [_histogram(content), _means(content)]),
        *_learned(content),
        _section("At the margin", _examples(content)),
        details("Request, columns and signatures", _origin(content)),
    ]
    return page("qaeval filter", sections)


def _section(title: str, parts: Sequence[str]) -> str:
    return "\n".join(["<section>", f"<h2>{escaped(title)}</h2>", *parts, "</section>"])


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
                f"confidence for the best {found['share']:.0%} of the rows that reached the last "
                f"stage: {found['precision']:.3f} of their labels are good, the lower bound for "
                f"all shares at once is {found['lower_bound']:.3f}. It holds for "
                f"{found['holds_for']}.",
                tone="good",
            ),
        )
    elif content["certified"] is False:
        remarks.insert(
            0,
            Passage(
                f"Not reachable with these labels: no share of the rows has a precision above "
                f"{found['target']:g} for certain. Nothing is kept.",
                tone="bad",
            ),
        )
    return "\n".join([*lines, *map(block_html, remarks)])


def _yield_chart(content: Mapping[str, Any]) -> str:
    """Return the curve of precision and its bound over kept shares, or of the rank's cut."""
    yields = content["yields"]
    labelled = [own for own in yields if own["precision"] is not None]
    if labelled:
        lines = {
            "precision of labels": [(own["share"], own["precision"]) for own in labelled],
            "lower bound": [
                (own["share"], own["lower_bound"])
                for own in labelled
                if own["lower_bound"] is not None
            ],
        }
        target = (content["certificate"] or {}).get("target")
        return _chart(lines, title="Precision by kept share", low=0.0, high=1.0, level=target)
    name = content["rank"]["name"]
    cuts = [(own["share"], own["cut"]) for own in yields if own["cut"] is not None]
    if not cuts:
        return block_html(Passage("No row reached the last stage.", tone="soft"))
    values = [value for _, value in cuts]
    low, high = min(values), max(values)
    return _chart(
        {f"cut of {name}": cuts},
        title=f"Cut of {name} by kept share",
        low=low,
        high=high if high > low else low + 1.0,
        level=content["cut"],
    )


def _chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    low: float,
    high: float,
    level: float | None,
) -> str:
    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + x * (_WIDTH - _LEFT - 8),
            8 + (1 - (y - low) / (high - low)) * (_HEIGHT - _BOTTOM - 8),
        )

    parts = [_axes(low, high)]
    if level is not None and low <= level <= high:
        (left, y), (right, _) = place(0, level), place(1, level)
        parts.append(
            f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="rgb(var(--down))" stroke-dasharray="4 4"/>'
        )
    for i, (name, points) in enumerate(lines.items()):
        dash = ' stroke-dasharray="2 3"' if i else ""
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(
            f'<polyline points="{shown}" fill="none" stroke="rgb(var(--up))" '
            f'stroke-width="2"{dash}>'
            f"<title>{escaped(name)}</title></polyline>"
        )
    names = " · ".join(f"{name} ({'dotted' if i else 'solid'})" for i, name in enumerate(lines))
    return _svg("".join(parts), title) + block_html(Passage(names, tone="soft"))


def _svg(inner: str, title: str) -> str:
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escaped(title)}" font-size="11" fill="currentColor">{inner}</svg></div>'
    )


def _axes(low: float, high: float) -> str:
    parts = []
    for j in range(5):
        y = 8 + (_HEIGHT - _BOTTOM - 8) * j / 4
        value = high - (high - low) * j / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
        x = _LEFT + (_WIDTH - _LEFT - 8) * j / 4
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{25 * j} %</text>')
    return "".join(parts)


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
        return f"{value:.0%}" if is_share else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _reasons(content: Mapping[str, Any]) -> str:
    rows = [("kept", _shown(content["kept"]))]
    ordered = sorted(content["reasons"].items(), key=lambda item: -item[1])
    rows += [(reason, _shown(n)) for reason, n in ordered]
    rows.append(("all rows", _shown(content["rows"])))
    return block_html(Table("Each row has one reason", ("reason", "rows"), rows, numbers=(1,)))


def _quotas(content: Mapping[str, Any]) -> list[str]:
    if not content["quota"]:
        return []
    rows = [
        [
            own["value"],
            *(_shown(own[name]) for name in ("n_reaching", "n_allowed", "n_kept", "shortfall")),
        ]
        for own in content["quota"]
    ]
    head = (content["columns"]["quota"], "reaching", "allowed", "kept", "short of it")
    return [block_html(Table("Quota", head, rows, numbers=(1, 2, 3, 4)))]


def _histogram(content: Mapping[str, Any]) -> str:
    own = content["histogram"]
    if not own["edges"]:
        return block_html(Passage("No row has a rank value.", tone="soft"))
    most = max(*own["kept"], *own["dropped"], 1)
    n = len(own["kept"])
    width = (_WIDTH - _LEFT - 8) / n
    bars = []
    for i in range(n):
        for j, (name, colour) in enumerate((("kept", "up"), ("dropped", "down"))):
            height = own[name][i] / most * (_HEIGHT - _BOTTOM - 8)
            x, y = _LEFT + i * width + j * width / 2, _HEIGHT - _BOTTOM - height
            span = f"{own['edges'][i]:.4g} to {own['edges'][i + 1]:.4g}"
            bars.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width / 2 - 1:.1f}" height="{height:.1f}" '
                f'fill="rgb(var(--{colour}))">'
                f"<title>{name}, {span}: {own[name][i]:,}</title></rect>"
            )
    ends = (own["edges"][0], own["edges"][-1])
    bars.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{ends[0]:.4g}</text>')
    bars.append(f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 8}" text-anchor="end">{ends[1]:.4g}</text>')
    name = content["rank"]["name"]
    said = f"Rows by {name}: kept (blue) and dropped for whatever reason (orange)"
    return _svg("".join(bars), said) + block_html(Passage(said, tone="soft"))


def _means(content: Mapping[str, Any]) -> str:
    rows = [
        [name, _shown(own["kept"]), _shown(own["dropped"])]
        for name, own in content["means"].items()
    ]
    head = ("metric", "kept", "dropped")
    return block_html(Table("Means where they are defined", head, rows, numbers=(1, 2)))


def _learned(content: Mapping[str, Any]) -> list[str]:
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
    return [_section("Learned rank", [block_html(table)])]


def _examples(content: Mapping[str, Any]) -> list[str]:
    if not content["examples"]:
        return [block_html(Passage("No row is at the margin.", tone="soft"))]
    kept = [own for own in content["examples"] if own["kept"]]
    dropped = [own for own in content["examples"] if not own["kept"]]
    parts = []
    for title, chosen in (("Last that are kept", kept), ("First that are not", dropped)):
        if not chosen:
            continue
        names = list(chosen[0]["texts"])
        chosen.sort(key=lambda own: (own["rank_value"] is None, own["rank_value"] or 0.0))
        rows = [
            [
                str(own["id"]),
                _shown(own["rank_value"]),
                own["reason"] or "",
                *(_text(own["texts"][name]) for name in names),
            ]
            for own in chosen
        ]
        head = ("id", content["rank"]["name"], "reason", *names)
        parts.append(block_html(Table(title, head, rows, numbers=(1,))))
    return parts


_MAX_CHARS = 400


def _text(value: object) -> str:
    text = "\n".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


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
