"""Explain: an explanation as one HTML page that needs nothing else: no script, no font, no link.

All text of rows is escaped here, and a policy in the page forbids whatever might still load.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from qaeval_core.explain.parts import (
    NO_PIECE,
    Block,
    Explanation,
    FamilyExplanation,
    Fields,
    InstanceExplanation,
    Part,
    Passage,
    ScoreLine,
    Strip,
    Table,
    number,
    short,
)
from qaeval_core.terminal import visible

# Stronger colour would make the text on it hard to read in one of the two schemes.
_MAX_ALPHA = 0.55
_MIN_ALPHA = 0.04

# Colours of tokens are blue and orange: told apart by nearly everybody, readable in both schemes.
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #ffffff; --soft: #5c5c66;
  --line: #d5d5dc; --up: 41 98 196; --down: 214 108 20; --bad: #a4161a; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --paper: #17171a; --soft: #a9a9b4;
  --line: #3a3a42; --up: 96 152 255; --down: 255 150 66; --bad: #ff8a80; --good: #7fd69b; } }
body { color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 72rem;
  padding: 1.5rem; font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.soft, caption, dt { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
.text, .strip { white-space: pre-wrap; overflow-wrap: anywhere; }
.strip span { border-radius: .2em; } .up { background: rgb(var(--up) / var(--a)); }
.down { background: rgb(var(--down) / var(--a)); text-decoration: underline dotted; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; padding: .2rem 0; }
th, td { border: 1px solid var(--line); padding: .15rem .5rem; text-align: left;
  vertical-align: top; white-space: pre-wrap; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; } dd { margin: 0 0 .5rem 0; }
code { overflow-wrap: anywhere; }
"""


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{sections}
</main>
</body>
</html>
"""


def explanation_page(explanation: Explanation) -> str:
    """Return the page."""
    name = explanation.id if explanation.id is not None else f"row {explanation.row}"
    sections = [
        _head(explanation, name),
        _texts(explanation),
        _scores(explanation.instances),
        *(_family(family) for family in explanation.families),
        _origin(explanation),
    ]
    title = escaped(f"qaeval explain: {name}")
    return _PAGE.format(title=title, style=STYLE, sections="\n".join(sections))


def _head(explanation: Explanation, name: str) -> str:
    lines = [
        f"<h1>Row {escaped(name)}</h1>",
        f'<p class="soft">{escaped(explanation.file)}, row {explanation.row} (the first is 0)</p>',
    ]
    remarks = [Passage(note, tone="plain") for note in explanation.notes]
    if explanation.quarantine_reason is not None:
        message = explanation.quarantine_message
        why = explanation.quarantine_reason + (f": {message}" if message else "")
        remarks.insert(0, Passage(f"Quarantined, not scored: {why}", tone="bad"))
    elif explanation.is_equal:
        found = (
            f"Computed again with the same artifacts: {explanation.n_compared} values equal the "
            f"stored ones (largest difference {number(explanation.max_difference)}, tolerance "
            f"{number(explanation.tolerance)})."
        )
        remarks.insert(0, Passage(found, tone="good"))
    return "\n".join([*lines, *map(block_html, remarks)])


def _texts(explanation: Explanation) -> str:
    items = []
    for role, value in explanation.texts.items():
        items.append(f"<dt>{escaped(role)}</dt>")
        for text in value if isinstance(value, list) else [value]:
            shown = "null" if text is None else str(text)
            kind = "text" if text else "text soft"
            items.append(f'<dd class="{kind}" dir="auto">{escaped(shown) or "(empty)"}</dd>')
    return "<section>\n<h2>Texts</h2>\n<dl>\n" + "\n".join(items) + "\n</dl>\n</section>"


def _scores(instances: Sequence[InstanceExplanation]) -> str:
    scores = Table(
        "Scores of this row, as stored and as computed again",
        ("instance", "column", "stored", "again", "undefined because"),
        [
            (own.name, line.column, _value(line.stored), _again(line), own.reason or "")
            for own in instances
            for line in own.scores
        ],
        numbers=(2, 3),
    )
    signatures = Table(
        "How the scores were made",
        ("instance", "signature"),
        [(own.name, own.signature) for own in instances],
    )
    lines = ["<section>", "<h2>Scores</h2>", block_html(scores)]
    return "\n".join([*lines, _details("Signatures", block_html(signatures)), "</section>"])


def _value(value: float | int | str | None) -> str:
    return number(value) if isinstance(value, float) else "" if value is None else str(value)


def _again(line: ScoreLine) -> str:
    return _value(line.now) if line.is_compared else "not computed"


def _family(family: FamilyExplanation) -> str:
    where = f"artifact <code>{escaped(family.artifact or '')}</code>"
    if family.endpoint is not None:
        where = f"asked at <code>{escaped(family.endpoint)}</code>, and not again for this page"
    lines = [
        "<section>",
        f"<h2>{escaped(family.family)}: {escaped(', '.join(family.instances))}</h2>",
        f'<p class="soft">model {escaped(family.model)}; {where}</p>',
    ]
    for target in family.targets:
        if len(family.targets) > 1:
            lines.append(f"<h3>{escaped(family.target_role)} {target.target + 1}</h3>")
        if target.reason is not None:
            lines.append(block_html(Passage(f"Undefined: {target.reason}", tone="bad")))
        lines += [_part(part) for part in target.parts]
        if target.statistics:
            rows = [(name, _value(value)) for name, value in target.statistics.items()]
            head = ("statistic", "value")
            lines.append(block_html(Table("Of whole texts", head, rows, numbers=(1,))))
    signature = f"<code>{escaped(family.signature)}</code>"
    return "\n".join([*lines, _details("Signature", signature), "</section>"])


def _origin(explanation: Explanation) -> str:
    values = [(key, str(value)) for key, value in explanation.environment.items()]
    made = Fields("Where this page was made", [("run", explanation.out), *values])
    return _details("Environment", block_html(made))


def _part(part: Part) -> str:
    lines = [f"<h3>{escaped(part.title)}</h3>"] if part.title else []
    lines += [block_html(block) for block in part.blocks]
    if part.folded:
        lines.append(_details(part.folded_title, "\n".join(map(block_html, part.folded))))
    return "\n".join(lines)


def _details(title: str, shown: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>{shown}</details>"


def block_html(block: Block) -> str:
    """Return the HTML of one block."""
    match block:
        case Strip():
            return _strip(block)
        case Fields():
            return _table(Table(block.caption, ("what", "value"), block.values))
        case Table():
            return _table(block)
        case Passage():
            return _passage(block)


def _strip(strip: Strip) -> str:
    """Return a text whose tokens are coloured by a value: blue above 0, orange below."""
    largest = max((abs(value) for value in strip.values), default=0.0) or 1.0
    spans = []
    for piece, value in zip(strip.pieces, strip.values, strict=True):
        alpha = abs(value) / largest * _MAX_ALPHA
        title = escaped(f"{value:+.4g} {strip.unit}".strip())
        colour = f'class="{"up" if value > 0 else "down"}" style="--a:{alpha:.2f}" '
        is_plain = alpha < _MIN_ALPHA
        spans.append(f'<span {"" if is_plain else colour}title="{title}">')
        spans.append(f"{escaped(piece or NO_PIECE)}</span>")
    label = block_html(Passage(strip.label, tone="soft"))
    return f'{label}\n<p class="strip" dir="auto">{"".join(spans)}</p>'


def _table(table: Table) -> str:
    lines = ['<div class="wide">', "<table>", f"<caption>{escaped(table.caption)}</caption>"]
    names = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.head)
    lines.append(f"<thead><tr>{names}</tr></thead>")
    lines.append("<tbody>")
    for name, *values in table.rows:
        cells = [f'<th scope="row" dir="auto">{escaped(name)}</th>']
        for i, cell in enumerate(values, start=1):
            kind = ' class="number"' if i in table.numbers else ' dir="auto"'
            cells.append(f"<td{kind}>{escaped(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def _passage(passage: Passage) -> str:
    shown = escaped(passage.text)
    if passage.tone == "plain":
        return f"<p>{shown}</p>"
    if passage.tone != "text":
        return f'<p class="{passage.tone}">{shown}</p>'
    label = f'<p class="soft">{escaped(passage.label)}</p>\n' if passage.label else ""
    return f'{label}<p class="text" dir="auto">{shown or "(empty)"}</p>'


def escaped(text: str) -> str:
    """Return a text as HTML shows it, also inside of attributes; controls as their pictures.

    Examples
    --------
    >>> escaped('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text, keep="\n\t"), quote=True)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield what a person wants to see first: texts, scores, the tokens that decide."""
    name = "" if explanation.id is None else f" {explanation.id!r}"
    yield f"row{name}: {explanation.file}, row {explanation.row}"
    for role, value in explanation.texts.items():
        yield f"  {role}: {short(value)}"
    if explanation.quarantine_reason is not None:
        message = explanation.quarantine_message
        yield f"quarantined: {explanation.quarantine_reason}{f' ({message})' if message else ''}"
    for instance in explanation.instances:
        yield _score_lines(instance)
    for family in explanation.families:
        yield from _family_lines(family)
    yield from explanation.notes
    if explanation.is_equal:
        yield (
            f"computed again: {explanation.n_compared} values equal the stored ones (largest "
            f"difference {explanation.max_difference:.1e}, tolerance {explanation.tolerance:.0e})"
        )


def _score_lines(instance: InstanceExplanation) -> str:
    if instance.reason is not None:
        return f"{instance.name}: undefined, {instance.reason}"
    shown = [
        f"{line.column} {line.stored:.4f}"
        if isinstance(line.stored, float)
        else f"{line.column} {short(line.stored)}"
        for line in instance.scores
        if line.stored is not None
    ]
    return f"{instance.name}: {', '.join(shown) or 'no score'}"


def _family_lines(family: FamilyExplanation) -> Iterator[str]:
    of = f"{family.family} of {', '.join(family.instances)}"
    for target in family.targets:
        which = f", {family.target_role} {target.target + 1}" if len(family.targets) > 1 else ""
        if target.reason is not None:
            yield f"{of}{which}: undefined, {target.reason}"
            continue
        shown = [part.line for part in target.parts]
        if target.statistics:
            known = {name: value for name, value in target.statistics.items() if value is not None}
            shown.append(", ".join(f"{name} {number(value)}" for name, value in known.items()))
        yield from (f"{of}{which}: {line}" for line in shown)
